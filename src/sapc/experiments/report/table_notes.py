"""What has to be known to read a report's tables: what the numbers are, how they were made, and how far that is from the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ...errors import SapcError
from ...evaluation.metrics import DISTRIBUTION
from ...methods import paper
from ...tasks import get_task
from .. import results
from .table_parts import Ours, method_label, task_label

FORM = (
    "Each cell: mean m and standard error s over seeds x test sets, as 2.2(0.8)e-5 for (2.2 ± 0.8) 10^-5; "
    "without s it is a single value. "
    "Lower is better; best in bold, second best underlined, within each line, alike what reads alike; constraint errors "
    "below 1e-12 are rounding and count as equal."
)
FLOOR = (
    "floor: the same metric between independent draws of the solutions, as many as there are samples and solutions; "
    "nothing better can be expected."
)
NO_FPD = "no weights: FPD needs those of Poseidon-B, and these scores were made without; no other metric stands in its place."
MEANINGLESS = "the numbers mean nothing beside the paper's"
OTHER = "the numbers are not to be compared with the paper's"


def of_means(ours: Ours, name: str, methods: Sequence[str]) -> tuple[str, ...]:
    """Of a table of means."""
    metrics = {"generation": paper.GENERATION, "supplement": paper.SUPPLEMENT}.get(name, paper.ABLATION)
    said = [FORM, _paper("means and standard errors over 3 seeds x 4 test sets")]
    if set(metrics) & set(DISTRIBUTION):
        said.append(FLOOR)
    if "fpd" in metrics and not all((t, m, "fpd") in ours.summaries for t, m in _scored(ours, methods)):
        said.append(NO_FPD)
    if "ce" in metrics:
        said.append(
            "CE: half the sum of CE_L and CE_G, each divided by its mean over all seeds and sets of FFM."
        )
    if name == "ablation":
        said.append("condFFM is conditioned, so not ranked.")
    said += _fewer(ours, methods)
    if "ce_global" in metrics:
        said += _truth(ours.tasks)
    return (*said, *_common(ours, methods))


def of_cost(ours: Ours, methods: Sequence[str]) -> tuple[str, ...]:
    """Of the table of cost."""
    device = paper.protocol().device
    said = [
        "Medians over seeds x test sets. NFE: network evaluations per sample. FFM, which the others are measured by, is not ranked.",
        "s per test set: time per sample x the published number of samples (1225, Navier-Stokes 100), whatever number was sampled.",
        "peak memory: allocated on a GPU while sampling; on a CPU it cannot be told from what the process held before.",
        _paper(f"medians over 3 seeds x 4 test sets on one {device}, training per seed"),
        f"Times on another device than the paper's {device} compare within a line, not with the line below.",
    ]
    return (*said, *_common(ours, methods))


def _paper(how: str) -> str:
    return f"paper: {paper.SOURCE.text}; {how}. –: no number is printed, or there is none."


def _scored(ours: Ours, methods: Iterable[str]) -> list[tuple[str, str]]:
    return [(t, m) for t in ours.tasks for m in methods if ours.collected.of(t, m)]


def _fewer(ours: Ours, methods: Sequence[str]) -> list[str]:
    """Who is shown, but not ranked."""
    said = []
    for task in ours.tasks:
        numbers = {m: n for m in methods if (n := ours.samples(task, m))}
        few = [f"{method_label(m)} {n}" for m, n in numbers.items() if n < max(numbers.values())]
        if few:
            said.append(
                f"{task_label(task)}: fewer samples, so a higher floor and no rank, have {', '.join(few)} (n in the cells)."
            )
        sets = {m: frozenset(x for s in ours.collected.of(task, m) for x in s.sets) for m in numbers}
        if len(set(sets.values())) > 1:
            widest = max(sets.values(), key=len)
            part = [f"{method_label(m)} ({', '.join(sorted(s))})" for m, s in sets.items() if s != widest]
            said.append(f"{task_label(task)}: not all test sets, so no rank, have {', '.join(part)}.")
    return said


def _truth(tasks: Iterable[str]) -> list[str]:
    told = {task_label(t): pair for t in tasks if (pair := paper.ground_truth(t))}
    listed = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in told.items())
    return [f"CE_G of the solutions themselves, as the paper tells it: {listed}."] if told else []


# -- how they were made --


def _common(ours: Ours, methods: Sequence[str]) -> list[str]:
    """Of all tables: per task how it was made, then what is missing."""
    if not ours.collected.scored:
        return [
            "No scores were found: all numbers are the paper's.",
            *_problems(ours.collected.problems, methods),
        ]
    said = []
    for task in ours.tasks:
        scored = [s for m in methods for s in ours.collected.of(task, m)]
        if scored:
            said += [_made(task, scored), _against(task, scored)]
    return [*said, *results.notes(ours.collected), *_problems(ours.collected.problems, methods)]


def _made(task: str, scored: Sequence[results.Scored]) -> str:
    run, settings = scored[0].scores["run"], scored[0].scores["settings"]
    seeds = _by_method(scored, lambda s: s.seed)
    sets = sorted({name for s in scored for name in s.sets})
    versions = dict.fromkeys(
        f"sapc {s.environment.get('sapc', 'unknown')} and torch {s.environment.get('torch', 'unknown')} on {s.device}"
        for s in scored
    )
    return (
        f"{task_label(task)}, ours: seeds {seeds}; {', '.join(sets)}; {_by_method(scored, lambda s: s.samples)} samples "
        f"beside {settings['reference']} solutions; preset {run['preset']}, {run['steps']} training steps, "
        f"{' x '.join(map(str, run['grid']))} points; {'; '.join(versions)}."
    )


def _by_method(scored: Sequence[results.Scored], value: Callable[[results.Scored], int]) -> str:
    """The values of all methods, if they are the same, else with the methods they belong to."""
    of: dict[str, set[int]] = {}
    for s in scored:
        of.setdefault(s.method, set()).add(value(s))
    groups: dict[tuple[int, ...], list[str]] = {}
    for method, values in of.items():
        groups.setdefault(tuple(sorted(values)), []).append(method_label(method))
    texts = {", ".join(map(str, values)): names for values, names in groups.items()}
    if len(texts) == 1:
        return next(iter(texts))
    return " and ".join(f"{text} ({', '.join(names)})" for text, names in texts.items())


def _against(task: str, scored: Sequence[results.Scored]) -> str:
    """Whether this is the paper's protocol, and if not, what is different and what that means."""
    large, small = _differences(task, scored)
    if not large and not small:
        return f"{task_label(task)}: our protocol is the paper's."
    listed = "; ".join([*large, *small])
    tiny = scored[0].scores["run"]["preset"] == "tiny"
    means = f", so {MEANINGLESS if tiny else OTHER}" if large else ""
    return f"{task_label(task)}: not the paper's protocol ({listed}){means}."


def _differences(task: str, scored: Sequence[results.Scored]) -> tuple[list[str], list[str]]:
    """From the paper's protocol: those after which numbers are of something else, and those of size and arithmetic."""
    theirs, run = paper.protocol(), scored[0].scores["run"]
    if task not in theirs.samples:
        return ["a task that the paper does not have"], []
    grid = _published_grid(task)
    large = _unlike("preset", run["preset"], theirs.preset) + _unlike(
        "training steps", run["steps"], theirs.training_steps
    )
    large += _unlike("points", tuple(run["grid"]), grid) if grid else []
    seeds = min(len({s.seed for s in scored if s.method == m}) for m in {s.method for s in scored})
    sets = min(len(s.sets) for s in scored)
    reference = scored[0].scores["settings"]["reference"]
    samples = sorted({s.samples for s in scored})
    small = [f"{n} samples instead of {theirs.samples[task]}" for n in samples if n != theirs.samples[task]]
    small += _unlike("solutions", reference, theirs.reference)
    small += [f"{seeds} of {len(theirs.seeds)} seeds"] if seeds < len(theirs.seeds) else []
    small += [f"{sets} of {theirs.sets} test sets"] if sets < theirs.sets else []
    precision = {p for s in scored if (p := s.training.get("precision"))} - {theirs.precision}
    small += [f"trained in {p} instead of {theirs.precision}" for p in sorted(precision)]
    return large, small


def _unlike(what: str, own: object, theirs: object) -> list[str]:
    return [f"{what} {own} instead of {theirs}"] if own != theirs else []


def _published_grid(task: str) -> tuple[int, ...] | None:
    try:
        return tuple(get_task(task).grid.shape)
    except SapcError:
        return None


def _problems(problems: Sequence[results.Problem], methods: Sequence[str]) -> list[str]:
    """How many there are, and of failures in this table why."""
    if not problems:
        return []
    counts = Counter(p.kind for p in problems)
    listed = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in counts.items())
    failed = [p for p in problems if p.kind == "failed" and p.method in methods]
    return [f"Problems with files and runs, named on the page: {listed}.", *(str(p) for p in failed)]
