"""What has to be known to read a report: what the numbers are, how they were made, and how far that is from the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ...errors import SapcError
from ...evaluation.metrics import DISTRIBUTION
from ...methods import find_method, paper
from ...methods.references import Reference
from ...tasks import get_task
from .. import results
from ..results import Collection, ScoresFile
from .data import ReportData, method_label, order_methods, order_tasks, short_label, task_label
from .format import Table

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
CE = "CE: half the sum of CE_L and CE_G, each divided by its mean over all seeds and sets of FFM."
COST = (
    "Medians over seeds x test sets. NFE: network evaluations per sample. FFM, which the others are measured by, is not ranked.",
    "s per test set: time per sample x the published number of samples (1225, Navier-Stokes 100), whatever number was sampled.",
    "peak memory: allocated on a GPU while sampling; on a CPU it cannot be told from what the process held before.",
)
MEANINGLESS = "the numbers mean nothing beside the paper's"
OTHER = "the numbers are not to be compared with the paper's"


# -- of tables --


def notes_of_means(data: ReportData, name: str, methods: Sequence[str]) -> list[str]:
    """Return the notes of a table of means."""
    metrics = {"generation": paper.GENERATION, "supplement": paper.SUPPLEMENT}.get(name, paper.ABLATION)
    scored = [(t, m) for t in data.tasks for m in methods if data.collection.of(t, m)]
    lacks_fpd = any((*pair, "fpd") not in data.means for pair in scored)
    notes = {
        FORM: True,
        _paper("means and standard errors over 3 seeds x 4 test sets"): True,
        FLOOR: bool(set(metrics) & set(DISTRIBUTION)),
        NO_FPD: "fpd" in metrics and lacks_fpd,
        CE: "ce" in metrics,
        "condFFM is conditioned, so not ranked.": name == "ablation",
    }
    truth = _ground_truth(data.tasks or paper.TASKS) if "ce_global" in metrics else []
    shown = [note for note, is_wanted in notes.items() if is_wanted]
    return [*shown, *_unranked(data, methods), *truth, *_protocols(data, methods)]


def notes_of_cost(data: ReportData, methods: Sequence[str]) -> list[str]:
    """Return the notes of the table of cost."""
    device = paper.protocol().device
    source = _paper(f"medians over 3 seeds x 4 test sets on one {device}, training per seed")
    other = f"Times on another device than the paper's {device} compare within a line"
    return [*COST, source, f"{other}, not with the line below.", *_protocols(data, methods)]


def _paper(how: str) -> str:
    return f"paper: {paper.SOURCE.text}; {how}. –: no number is printed, or there is none."


def _unranked(data: ReportData, methods: Sequence[str]) -> list[str]:
    """Say who is shown, but not ranked."""
    notes = []
    for task in data.tasks:
        numbers = {m: n for m in methods if (n := data.samples(task, m))}
        few = [f"{method_label(m)} {n}" for m, n in numbers.items() if n < max(numbers.values())]
        if few:
            why = f"fewer samples, so a higher floor and no rank, have {', '.join(few)} (n in the cells)."
            notes.append(f"{task_label(task)}: {why}")
        sets = {m: frozenset(x for s in data.collection.of(task, m) for x in s.sets) for m in numbers}
        if len(set(sets.values())) > 1:
            widest = max(sets.values(), key=len)
            part = [f"{method_label(m)} ({', '.join(sorted(s))})" for m, s in sets.items() if s != widest]
            notes.append(f"{task_label(task)}: not all test sets, so no rank, have {', '.join(part)}.")
    return notes


def _ground_truth(tasks: Iterable[str]) -> list[str]:
    known = {task_label(t): pair for t in tasks if (pair := paper.ground_truth(t))}
    listed = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in known.items())
    return [f"CE_G of the solutions themselves, as the paper tells it: {listed}."] if known else []


def _protocols(data: ReportData, methods: Sequence[str]) -> list[str]:
    """Say per task how its numbers were made, then what is missing."""
    notes = [] if data.collection.files else ["No scores were found: all numbers are the paper's."]
    for task in data.tasks:
        scored = [s for m in methods for s in data.collection.of(task, m)]
        if scored:
            notes += [_protocol(task, scored), _comparison(task, scored)]
    if data.collection.files:
        notes += results.notes(data.collection)
    problems = data.collection.problems
    if problems:
        counts = Counter(p.kind for p in problems)
        listed = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in counts.items())
        notes.append(f"Problems with files and runs, named on the page: {listed}.")
    return notes + [str(p) for p in problems if p.kind == "failed" and p.method in methods]


def _protocol(task: str, scored: Sequence[ScoresFile]) -> str:
    run, reference = scored[0].scores.run, scored[0].scores.settings.reference
    sets = sorted({name for s in scored for name in s.sets})
    unknown = {"sapc": "unknown", "torch": "unknown"}
    known = [(unknown | s.scores.environment, s.device) for s in scored]
    versions = dict.fromkeys(f"sapc {e['sapc']} and torch {e['torch']} on {device}" for e, device in known)
    return (
        f"{task_label(task)}, ours: seeds {_by_method(scored, lambda s: s.seed)}; {', '.join(sets)}; "
        f"{_by_method(scored, lambda s: s.samples)} samples beside {reference} solutions; "
        f"preset {run.preset}, {run.steps} training steps, "
        f"{' x '.join(map(str, run.grid))} points; {'; '.join(versions)}."
    )


def _by_method(scored: Sequence[ScoresFile], value: Callable[[ScoresFile], int]) -> str:
    """Return the values of all methods, if they are the same, else with the methods they belong to."""
    values: dict[str, set[int]] = {}
    for s in scored:
        values.setdefault(s.method, set()).add(value(s))
    texts: dict[str, list[str]] = {}
    for method, some in values.items():
        texts.setdefault(", ".join(map(str, sorted(some))), []).append(method_label(method))
    if len(texts) == 1:
        return next(iter(texts))
    return " and ".join(f"{text} ({', '.join(names)})" for text, names in texts.items())


def _comparison(task: str, scored: Sequence[ScoresFile]) -> str:
    """Say whether this is the paper's protocol, and if not, what is different and what that means."""
    large, small = _differences(task, scored)
    if not large and not small:
        return f"{task_label(task)}: our protocol is the paper's."
    is_tiny = scored[0].scores.run.preset == "tiny"
    meaning = f", so {MEANINGLESS if is_tiny else OTHER}" if large else ""
    return f"{task_label(task)}: not the paper's protocol ({'; '.join([*large, *small])}){meaning}."


def _differences(task: str, scored: Sequence[ScoresFile]) -> tuple[list[str], list[str]]:
    """Return differences from the paper's protocol: those after which numbers are of something else, and those of size and arithmetic."""
    theirs, run = paper.protocol(), scored[0].scores.run
    if task not in theirs.samples:
        return ["a task that the paper does not have"], []
    grid = tuple(run.grid)
    large = [
        ("preset", run.preset, theirs.preset),
        ("training steps", run.steps, theirs.training_steps),
        ("points", grid, _published_grid(task) or grid),
    ]
    seeds = min(len({s.seed for s in scored if s.method == m}) for m in {s.method for s in scored})
    sets = min(len(s.sets) for s in scored)
    reference = scored[0].scores.settings.reference
    number = theirs.samples[task]
    small = [f"{n} samples instead of {number}" for n in sorted({s.samples for s in scored}) if n != number]
    small += [f"solutions {reference} instead of {theirs.reference}"] if reference != theirs.reference else []
    small += [f"{seeds} of {len(theirs.seeds)} seeds"] if seeds < len(theirs.seeds) else []
    small += [f"{sets} of {theirs.sets} test sets"] if sets < theirs.sets else []
    precision = {p for s in scored if (p := s.training.get("precision"))} - {theirs.precision}
    small += [f"trained in {p} instead of {theirs.precision}" for p in sorted(precision)]
    return [f"{what} {own} instead of {other}" for what, own, other in large if own != other], small


def _published_grid(task: str) -> tuple[int, ...] | None:
    try:
        return tuple(get_task(task).grid.shape)
    except SapcError:
        return None


# -- of the page --


def facts(collection: Collection) -> list[tuple[str, str]]:
    """Return terms and what there is to say about them: how many runs, of what, with what, on what."""
    scored = collection.files
    methods = order_methods(s.method for s in scored)
    tasks = order_tasks(sorted(s.task for s in scored))
    days = sorted({s.time[:10] for s in scored if s.time})
    terms = [
        ("Studies", ", ".join(collection.studies)),
        ("Evaluations", f"{len(scored)}: {_number(tasks, 'task')}, {_number(methods, 'method')}"),
        ("Tasks", ", ".join(map(task_label, tasks))),
        ("Methods", ", ".join(map(short_label, methods))),
        ("Seeds of training", _values(s.seed for s in scored)),
        ("Presets", _values(s.scores.run.preset for s in scored)),
        ("Training steps", _values(s.scores.run.steps for s in scored)),
        ("Precision", _values(str(s.training["precision"]) for s in scored if s.training.get("precision"))),
        ("Test sets", _values(name for s in scored for name in s.sets)),
        ("Samples per set", _values(s.samples for s in scored)),
        ("Solutions per set", _values(s.scores.settings.reference for s in scored)),
        ("Sampling steps", _values(s.scores.settings.steps for s in scored)),
        ("Sampled on", _values(s.device for s in scored)),
        ("Versions", _values(_versions(s) for s in scored)),
        ("Evaluated", " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""),
    ]
    return [(term, text) for term, text in terms if text]


def warnings(tables: Sequence[Table]) -> list[str]:
    """Select the notes of tables that say what keeps numbers from being compared with the paper's."""
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return [note for note in notes if OTHER in note or MEANINGLESS in note]


def shared_notes(tables: Sequence[Table]) -> list[str]:
    """Select the notes that all tables have: a page says them once."""
    first, *others = [table.notes for table in tables] or [()]
    return [note for note in first if all(note in notes for notes in others)]


def references(collection: Collection) -> list[Reference]:
    """Return what to cite for the methods that were evaluated."""
    methods = map(find_method, order_methods(s.method for s in collection.files))
    published = (method.reference for method in methods if method and method.reference)
    return list(dict.fromkeys([paper.SOURCE, *published]))


def _number(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}"


def _values(values: Iterable[int | str]) -> str:
    """List numbers in their order, words in theirs."""
    return ", ".join(map(str, sorted(set(values), key=lambda v: (v if isinstance(v, int) else 0, str(v)))))


def _versions(scored: ScoresFile) -> str:
    known = scored.scores.environment
    return ", ".join(f"{name} {known[name]}" for name in ("sapc", "torch", "python") if known.get(name))
