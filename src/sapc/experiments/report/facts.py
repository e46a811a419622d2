"""What a report says about how its numbers were made: how many runs, of what, with what, on what."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...methods import find_method, paper
from ...methods.references import Reference
from ..results import Collected, Scored
from . import table_notes
from .drawing import in_order, label
from .tables import ReportTable


def facts(collected: Collected) -> list[tuple[str, str]]:
    """Terms and what there is to say about them."""
    scored = collected.scored
    methods = in_order(s.method for s in scored)
    known = {s.task for s in scored}
    tasks = [paper.TASK_LABELS[t] for t in paper.TASKS if t in known] + sorted(known - set(paper.TASKS))
    said = [
        ("Studies", ", ".join(collected.studies)),
        ("Evaluations", f"{len(scored)}: {_number(tasks, 'task')}, {_number(methods, 'method')}"),
        ("Tasks", ", ".join(tasks)),
        ("Methods", ", ".join(map(label, methods))),
        ("Seeds of training", _values(s.seed for s in scored)),
        ("Presets", presets(collected)),
        ("Training steps", _values(int(s.scores["run"]["steps"]) for s in scored)),
        ("Precision", _values(str(s.training["precision"]) for s in scored if s.training.get("precision"))),
        ("Test sets", _values(name for s in scored for name in s.sets)),
        ("Samples per set", _values(s.samples for s in scored)),
        ("Solutions per set", _values(int(s.scores["settings"]["reference"]) for s in scored)),
        ("Sampling steps", _values(int(s.scores["settings"]["steps"]) for s in scored)),
        ("Sampled on", _values(s.device for s in scored)),
        ("Versions", _values(_versions(s) for s in scored)),
        ("Evaluated", _days(scored)),
    ]
    return [(term, text) for term, text in said if text]


def presets(collected: Collected) -> str:
    """What the runs were preset to."""
    return _values(str(s.scores["run"]["preset"]) for s in collected.scored)


def warnings(tables: Sequence[ReportTable]) -> list[str]:
    """What keeps numbers from being compared with the paper's, from the notes of the tables."""
    strong = (table_notes.OTHER, table_notes.MEANINGLESS)
    notes = dict.fromkeys(note for table in tables for note in table.notes)
    return [note for note in notes if any(words in note for words in strong)]


def shared_notes(tables: Sequence[ReportTable]) -> list[str]:
    """Notes that all tables have: a page says them once."""
    first, *others = [table.notes for table in tables] or [()]
    return [note for note in first if all(note in notes for notes in others)]


def references(collected: Collected) -> list[Reference]:
    """What to cite for the methods that were evaluated."""
    methods = map(find_method, in_order(s.method for s in collected.scored))
    published = (method.reference for method in methods if method and method.reference)
    return list(dict.fromkeys([paper.SOURCE, *published]))


def _number(names: Sequence[str], what: str) -> str:
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'}"


def _values(values: Iterable[int | str]) -> str:
    """Numbers in their order, words in theirs."""
    return ", ".join(map(str, sorted(set(values), key=lambda v: (v if isinstance(v, int) else 0, str(v)))))


def _versions(scored: Scored) -> str:
    told = scored.environment
    return ", ".join(f"{name} {told[name]}" for name in ("sapc", "torch", "python") if told.get(name))


def _days(scored: Sequence[Scored]) -> str:
    """From the first to the last day of evaluation."""
    days = sorted({s.time[:10] for s in scored if s.time})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
