"""The notes of a report: what its numbers are, how they were made, and how far that is from the paper."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ...errors import SapcError
from ...evaluation.metrics import DISTRIBUTION
from ...methods import find_method, is_extension, paper
from ...methods.references import Reference
from ...tasks import get_task
from .. import results
from ..results import Collection, ScoresFile
from .data import ReportData, method_label, order_methods, order_tasks, short_label, task_label
from .format import Table, describe_versions

FORM = (
    "Each cell: mean m and standard error s over seeds x test sets, as 2.2(0.8)e-5 for (2.2 ± 0.8) "
    "10^-5; without s it is a single value. Lower is better; best in bold, second best underlined, "
    "within each line, alike what reads alike; constraint errors below 1e-12 are rounding and count as "
    "equal."
)
FLOOR = (
    "floor: the same metric between independent draws of the solutions, as many as there are samples "
    "and solutions; nothing better can be expected."
)
NO_FPD = (
    "no weights: FPD needs those of Poseidon-B, and these scores were made without; no other metric "
    "stands in its place."
)
CE = "CE: half the sum of CE_L and CE_G, each divided by its mean over all seeds and sets of FFM."
COST = (
    (
        "Medians over seeds x test sets. NFE: network evaluations per sample. FFM, which the others are "
        "measured by, is not ranked."
    ),
    (
        "s per test set: time per sample x the published number of samples (1225, Navier-Stokes 100), "
        "whatever number was sampled."
    ),
    (
        "peak memory: allocated on a GPU while sampling; on a CPU it cannot be told from what the "
        "process held before."
    ),
)
SKILL = (
    (
        "Truth beside samples of its own condition, at points that nothing pins. All scores are fair: their "
        "expectation does not depend on the number of samples. RMSE: of the mean of infinitely many samples."
    ),
    (
        "Skill by CRPS: 1 less the ratio to climatology, the training data as a forecast for every condition; "
        "spread / skill is 1, and the intervals hold their share, if truth and samples have one law."
    ),
    "The error is that over conditions, of several trainings that over trainings.",
)
MEANINGLESS = "the numbers mean nothing beside the paper's"
INCOMPARABLE = "the numbers are not to be compared with the paper's"


# -- of tables --


def notes_of_means(data: ReportData, name: str, methods: Sequence[str]) -> list[str]:
    """Return the notes of a table of means."""
    metrics = {"generation": paper.GENERATION, "supplement": paper.SUPPLEMENT}.get(name, paper.ABLATION)
    pairs = [(t, m) for t in data.tasks for m in methods if data.collection.of(t, m)]
    lacks_fpd = any((*pair, "fpd") not in data.means for pair in pairs)
    conditions = {
        FORM: True,
        _paper_note("means and standard errors over 3 seeds x 4 test sets"): True,
        FLOOR: bool(set(metrics) & set(DISTRIBUTION)),
        NO_FPD: "fpd" in metrics and lacks_fpd,
        CE: "ce" in metrics,
        "condFFM is conditioned, so not ranked.": name == "ablation",
    }
    notes = [note for note, is_true in conditions.items() if is_true] + _notes_on_extensions(methods)
    truth = _notes_on_truth(data.tasks or paper.TASKS) if "ce_global" in metrics else []
    return [*notes, *_notes_on_ranks(data, methods), *truth, *_notes_on_protocols(data, methods)]


def notes_of_cost(data: ReportData, methods: Sequence[str]) -> list[str]:
    """Return the notes of the table of cost."""
    device = paper.protocol().device
    source = _paper_note(f"medians over 3 seeds x 4 test sets on one {device}, training per seed")
    other = f"Times on another device than the paper's {device} compare within a line"
    source_notes = [source, *_notes_on_extensions(methods)]
    return [*COST, *source_notes, f"{other}, not with the line below.", *_notes_on_protocols(data, methods)]


def _notes_on_extensions(methods: Sequence[str]) -> list[str]:
    """Say which methods are this package's own."""
    labels = [method_label(m) for m in methods if is_extension(m)]
    return [f"{', '.join(labels)}: not of the paper, but beyond it, so not ranked."] if labels else []


def notes_of_skill(data: ReportData, methods: Sequence[str]) -> list[str]:
    """Return the notes of the table of skill per condition, with what samples are no better than."""
    texts = list(SKILL)
    for task in data.tasks:
        for method in methods:
            for skill in filter(None, (file.scores.skill for file in data.collection.of(task, method))):
                size = f"{skill.members} samples for each of {skill.conditions} held-out conditions"
                units = " in deviations of each channel" if skill.units == "deviations" else ""
                texts.append(f"{task_label(task)}, ours: {size}{units}.")
                texts += [f"{task_label(task)}, {method_label(method)}: {text}." for text in skill.verdicts]
    return list(dict.fromkeys(texts))


def _paper_note(origin: str) -> str:
    return f"paper: {paper.SOURCE.text}; {origin}. –: no number is printed, or there is none."


def _notes_on_ranks(data: ReportData, methods: Sequence[str]) -> list[str]:
    """Say which methods are shown, but not ranked."""
    notes = []
    for task in data.tasks:
        numbers = {m: n for m in methods if (n := data.sample_count(task, m))}
        small = [f"{method_label(m)} {n}" for m, n in numbers.items() if n < max(numbers.values())]
        if small:
            reason = (
                f"fewer samples, so a higher floor and no rank, have {', '.join(small)} (n in the cells)."
            )
            notes.append(f"{task_label(task)}: {reason}")
        sets = {m: frozenset(x for s in data.collection.of(task, m) for x in s.sets) for m in numbers}
        if len(set(sets.values())) > 1:
            widest = max(sets.values(), key=len)
            parts = [f"{method_label(m)} ({', '.join(sorted(s))})" for m, s in sets.items() if s != widest]
            notes.append(f"{task_label(task)}: not all test sets, so no rank, have {', '.join(parts)}.")
    return notes


def _notes_on_truth(tasks: Iterable[str]) -> list[str]:
    ranges = {task_label(t): pair for t in tasks if (pair := paper.ground_truth(t))}
    texts = ", ".join(f"{name} {low:g} to {high:g}" for name, (low, high) in ranges.items())
    return [f"CE_G of the solutions themselves, as the paper tells it: {texts}."] if ranges else []


def _notes_on_protocols(data: ReportData, methods: Sequence[str]) -> list[str]:
    """Say per task how its numbers were made, then what is missing."""
    collection = data.collection
    notes = [] if collection.files else ["No scores were found: all numbers are the paper's."]
    for task in data.tasks:
        files = [s for m in methods for s in collection.of(task, m)]
        if files:
            notes += [_describe_protocol(task, files), _compare_protocol(task, files)]
    if collection.files:
        notes += results.notes(collection)
    if collection.problems:
        counts = Counter(p.kind for p in collection.problems)
        texts = ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in counts.items())
        notes.append(f"Problems with files and runs, named on the page: {texts}.")
    return notes + [str(p) for p in collection.problems if p.kind == "failed" and p.method in methods]


def _describe_protocol(task: str, files: Sequence[ScoresFile]) -> str:
    run, reference = files[0].scores.run, files[0].scores.settings.reference
    sets = sorted({name for s in files for name in s.sets})
    unknown = {"sapc": "unknown", "torch": "unknown"}
    versions = dict.fromkeys(describe_versions(unknown | s.scores.environment, s.device) for s in files)
    return (
        f"{task_label(task)}, ours: seeds {_by_method(files, lambda s: s.seed)}; {', '.join(sets)}; "
        f"{_by_method(files, lambda s: s.samples)} samples beside {reference} solutions; "
        f"preset {run.preset}, {run.steps} training steps, "
        f"{' x '.join(map(str, run.grid))} points; {'; '.join(versions)}."
    )


def _by_method(files: Sequence[ScoresFile], value: Callable[[ScoresFile], int]) -> str:
    """Return the values of all methods, if they are the same, else with the methods they belong to."""
    values: dict[str, set[int]] = {}
    for s in files:
        values.setdefault(s.method, set()).add(value(s))
    texts: dict[str, list[str]] = {}
    for method, numbers in values.items():
        texts.setdefault(", ".join(map(str, sorted(numbers))), []).append(method_label(method))
    if len(texts) == 1:
        return next(iter(texts))
    return " and ".join(f"{text} ({', '.join(names)})" for text, names in texts.items())


def _compare_protocol(task: str, files: Sequence[ScoresFile]) -> str:
    """Say whether this is the paper's protocol, and if not, what is different and what that means."""
    large, small = _differences(task, files)
    if not large and not small:
        return f"{task_label(task)}: our protocol is the paper's."
    is_tiny = files[0].scores.run.preset == "tiny"
    meaning = f", so {MEANINGLESS if is_tiny else INCOMPARABLE}" if large else ""
    return f"{task_label(task)}: not the paper's protocol ({'; '.join([*large, *small])}){meaning}."


def _differences(task: str, files: Sequence[ScoresFile]) -> tuple[list[str], list[str]]:
    """Return differences from the paper's protocol: those that make numbers incomparable, and small ones."""
    theirs, run = paper.protocol(), files[0].scores.run
    if task not in theirs.samples:
        return ["a task that the paper does not have"], []
    grid = tuple(run.grid)
    large = [
        ("preset", run.preset, theirs.preset),
        ("training steps", run.steps, theirs.training_steps),
        ("points", grid, _published_grid(task) or grid),
    ]
    seeds = min(len({s.seed for s in files if s.method == m}) for m in {s.method for s in files})
    sets = min(len(s.sets) for s in files)
    reference = files[0].scores.settings.reference
    number = theirs.samples[task]
    symmetries = " and ".join(run.symmetries or ("none",))
    large.append(("symmetries", symmetries, "none"))
    small = [f"{n} samples instead of {number}" for n in sorted({s.samples for s in files}) if n != number]
    small += [f"solutions {reference} instead of {theirs.reference}"] if reference != theirs.reference else []
    small += [f"{seeds} of {len(theirs.seeds)} seeds"] if seeds < len(theirs.seeds) else []
    small += [f"{sets} of {theirs.sets} test sets"] if sets < theirs.sets else []
    precisions = {p for s in files if (p := s.training.get("precision"))} - {theirs.precision}
    small += [f"trained in {p} instead of {theirs.precision}" for p in sorted(precisions)]
    return [f"{name} {value} instead of {usual}" for name, value, usual in large if value != usual], small


def _published_grid(task: str) -> tuple[int, ...] | None:
    try:
        return tuple(get_task(task).grid.shape)
    except SapcError:
        return None


# -- of the page --


def facts(collection: Collection) -> list[tuple[str, str]]:
    """Return terms and their explanations: how many runs, of what, with what, on what."""
    files = collection.files
    methods = order_methods(s.method for s in files)
    tasks = order_tasks(sorted(s.task for s in files))
    days = sorted({s.time[:10] for s in files if s.time})
    terms = [
        ("Studies", ", ".join(collection.studies)),
        ("Evaluations", f"{len(files)}: {_count(tasks, 'task')}, {_count(methods, 'method')}"),
        ("Tasks", ", ".join(map(task_label, tasks))),
        ("Methods", ", ".join(map(short_label, methods))),
        ("Seeds of training", _values(s.seed for s in files)),
        ("Presets", _values(s.scores.run.preset for s in files)),
        ("Training steps", _values(s.scores.run.steps for s in files)),
        ("Symmetries", _values(text for s in files for text in s.scores.run.symmetries or ())),
        ("Precision", _values(str(s.training["precision"]) for s in files if s.training.get("precision"))),
        ("Test sets", _values(name for s in files for name in s.sets)),
        ("Samples per set", _values(s.samples for s in files)),
        ("Solutions per set", _values(s.scores.settings.reference for s in files)),
        ("Sampling steps", _values(s.scores.settings.steps for s in files)),
        ("Sampler", _values(s.scores.settings.sampler_name for s in files)),
        ("Sampled on", _values(s.device for s in files)),
        ("Versions", _values(_versions(s) for s in files)),
        ("Evaluated", " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""),
    ]
    return [(term, text) for term, text in terms if text]


def warnings(tables: Sequence[Table]) -> list[str]:
    """Select the notes of tables that say why numbers do not compare with the paper's."""
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return [note for note in notes if INCOMPARABLE in note or MEANINGLESS in note]


def shared_notes(tables: Sequence[Table]) -> list[str]:
    """Select the notes that all tables have: a page says them once."""
    notes, *others = [table.notes for table in tables] or [()]
    return [note for note in notes if all(note in other for other in others)]


def references(collection: Collection) -> list[Reference]:
    """Return what to cite for the methods that were evaluated."""
    methods = map(find_method, order_methods(s.method for s in collection.files))
    published = (method.reference for method in methods if method and method.reference)
    return list(dict.fromkeys([paper.SOURCE, *published]))


def _count(names: Sequence[str], noun: str) -> str:
    return f"{len(names)} {noun}{'' if len(names) == 1 else 's'}"


def _values(values: Iterable[int | str]) -> str:
    """List numbers in their order, words in theirs."""
    return ", ".join(map(str, sorted(set(values), key=lambda v: (v if isinstance(v, int) else 0, str(v)))))


def _versions(file: ScoresFile) -> str:
    environment = file.scores.environment
    names = (name for name in ("sapc", "torch", "python") if environment.get(name))
    return ", ".join(f"{name} {environment[name]}" for name in names)
