"""Scores: what an evaluation measured, as one record, and where its file lies in a run folder.

    format          sapc-scores-1
    run             the training: task, options, grid, method, preset, seed, steps    -> `RunDescription`
    settings        how weights were evaluated: method, samples, reference, steps     -> `ScoreSettings`
    environment     versions and hardware
    sets            by test set: metrics, floor, worst residual, cost, trajectory     -> `SetScores`
    mean            the same, averaged over the sets                                  -> `MeanScores`
    skill           how well samples foretell held-out conditions, if that was asked  -> `Skill`
    weights         SHA-256 of the weights, where the scores lie beside them

A record holds the known entries as fields and whatever else a file has in `more`, so that nothing is lost
between reading and writing. A run folder has `scores.json`, and `scores-<method>.json` of every other method
that sampled with its weights; less complete scores lie in `-part.json` beside them, the moments of the
samples in `fields<...>.safetensors`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from .._files import first_line, parse_json, write_json
from ..errors import SapcError
from ..flow import EULER
from ..training.presets import current_preset
from .record import Record
from .skill import Skill

FORMAT = "sapc-scores-1"
REQUIRED_METRICS = ("mmse", "smse", "w2", "ce_local", "ce_global")
PART = "-part"
T = TypeVar("T")
M = TypeVar("M", "SetScores", "MeanScores")


class ForeignFormatError(SapcError):
    """A file holds something else than scores.

    Args:
        sentence: What is wrong.
        format: The format that the file names.
    """

    def __init__(self, sentence: str, format: Any = None) -> None:
        super().__init__(sentence)
        self.format = format


# -- names of files --


def scores_path(folder: Path, method: str, trained_method: str) -> Path:
    """Return the file in a run folder for the scores of `method`, where `trained_method` made the weights."""
    return folder / ("scores.json" if method == trained_method else f"scores-{method}.json")


def part_path(path: Path) -> Path:
    """Return the file for scores that are less complete than those in `path`."""
    return path.with_name(f"{path.stem}{PART}.json")


def whole_name(name: str) -> str | None:
    """Return the name of the complete scores that a part belongs to; None if `name` is not that of a part."""
    return name.replace(f"{PART}.json", ".json") if name.endswith(f"{PART}.json") else None


def method_of_path(path: Path, trained_method: str) -> str:
    """Return the method whose scores a file of this name holds."""
    name = path.stem.removesuffix(PART)
    return name.removeprefix("scores-") if name.startswith("scores-") else trained_method


def fields_path(scores: Path) -> Path:
    """Return the file for the moments of the samples that these scores are of."""
    return scores.with_name(f"fields{scores.stem.removeprefix('scores')}.safetensors")


# -- records --


@dataclass(frozen=True, kw_only=True)
class RunDescription(Record):
    """The training that the weights come from.

    `trained` is the number of steps done, of `steps`; files without symmetries are of runs that used none.
    """

    task: str
    options: dict[str, Any]
    grid: list[int]
    method: str
    preset: str
    seed: int
    steps: int
    trained: int
    parameters: int | None = None
    symmetries: list[str] | None = None

    def __post_init__(self) -> None:
        # A file that has the old name of a preset is written as it was read.
        object.__setattr__(self, "_written_preset", self.preset)
        object.__setattr__(self, "preset", current_preset(self.preset))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object."""
        return super().to_dict() | {"preset": vars(self)["_written_preset"]}


@dataclass(frozen=True, kw_only=True)
class ScoreSettings(Record):
    """How the weights were evaluated; `more` has the encoders of distances, as `fpd_weights`.

    Files without a sampler are older, and all of Euler's steps.
    """

    method: str
    samples: int
    reference: int
    steps: int
    sampler: str | None = None
    seed: int | None = None
    floor_repeats: int | None = None
    batch: int | None = None
    device: str | None = None

    def without_encoders(self) -> dict[str, Any]:
        """Return what decides on the samples."""
        content = {"sampler": self.sampler_name} | self.to_dict()
        return {name: value for name, value in content.items() if not name.endswith("_weights")}

    @property
    def sampler_name(self) -> str:
        """Name of the stepper."""
        return self.sampler or EULER.name


@dataclass(frozen=True, kw_only=True)
class MeanScores(Record):
    """Averages over test sets: the worst of residuals and memory, the mean of everything else."""

    metrics: dict[str, float]
    floor: dict[str, float]
    worst_residual: dict[str, float]
    evaluations: int
    seconds_per_sample: float
    peak_memory: float

    @classmethod
    def average(cls, sets: Iterable[SetScores]) -> MeanScores:
        """Average what all sets have."""
        records = list(sets)
        floors = [floor for s in records if (floor := {k: v for k, v in s.floor.items() if v})]
        return cls(
            metrics=_combine([s.metrics for s in records], _mean),
            floor=_combine(floors, lambda lists: _mean([value for values in lists for value in values])),
            worst_residual=_combine([s.worst_residual for s in records], max),
            evaluations=records[0].evaluations,
            seconds_per_sample=_mean([s.seconds_per_sample for s in records]),
            peak_memory=max(s.peak_memory for s in records),
        )


@dataclass(frozen=True, kw_only=True)
class SetScores(Record):
    """Scores on one test set.

    Attributes:
        metrics: Values by name.
        floor: Of every distribution metric one value per repeat; empty if there is none.
        floor_left_out: Why there is no floor.
        worst_residual: Largest deviation from a pinned value (`local`) and from the balance law (`balance`).
        evaluations: Network evaluations per sample.
        seconds_per_sample: Wall time of a sample.
        peak_memory: Bytes.
        trajectory: What happened along the sampling runs, as `Trajectory.to_dict` returns it.
        more: Has `frd_each`, the distance by every encoder.
    """

    metrics: dict[str, float]
    floor: dict[str, list[float]]
    floor_left_out: str | None = None
    worst_residual: dict[str, float] = field(default_factory=dict)
    evaluations: int
    seconds_per_sample: float
    peak_memory: float = 0
    trajectory: dict[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON object; the trajectory, which is long, comes last."""
        return super().to_dict() | ({} if self.trajectory is None else {"trajectory": self.trajectory})

    def per_encoder(self, metric: str) -> list[float] | None:
        """Return the values of a distance by every encoder, where it has several."""
        return self.more.get(f"{metric}_each")


@dataclass(frozen=True, eq=False)
class Scores(dict[str, Any]):
    """Scores of an evaluation, as `scores.mean.metrics["w2"]`.

    They are also the dictionary that their file holds, for `scores["mean"]["metrics"]["w2"]` and for
    `json.dumps`; the fields are what counts.

    Attributes:
        run: The training that the weights come from.
        settings: How the weights were evaluated.
        environment: Versions and hardware.
        sets: Scores by test set.
        mean: Their average.
        weights: SHA-256 of the weights, where the scores lie beside them.
        more: Entries of a file that are not known here.
        skill: Skill per condition, where it was measured.
    """

    run: RunDescription
    settings: ScoreSettings
    environment: dict[str, Any]
    sets: dict[str, SetScores]
    mean: MeanScores
    weights: str | None = None
    more: dict[str, Any] = field(default_factory=dict)
    skill: Skill | None = None

    def __post_init__(self) -> None:
        self.update(self.to_dict())

    @classmethod
    def from_sets(
        cls,
        run: RunDescription,
        settings: ScoreSettings,
        environment: dict[str, Any],
        sets: dict[str, SetScores],
        skill: Skill | None = None,
    ) -> Scores:
        """Return scores of test sets, with their average.

        Args:
            run: The training.
            settings: How the weights were evaluated.
            environment: Versions and hardware.
            sets: Scores by test set.
            skill: Skill per condition, if it was measured.

        Returns:
            The scores.
        """
        return cls(run, settings, environment, sets, MeanScores.average(sets.values()), skill=skill)

    # -- files --

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Scores:
        """Check and take over what a file holds.

        Args:
            content: The JSON object of the file.

        Returns:
            The scores.

        Raises:
            SapcError: Something is missing, or is not a finite number where there must be one.
        """
        run = RunDescription.from_dict(content.get("run"), "run")
        settings = ScoreSettings.from_dict(content.get("settings"), "settings")
        if not 0 <= run.seed < 2**63:
            raise SapcError(f"has the seed {run.seed!r:.40}, which is none")
        records = content.get("sets")
        if not isinstance(records, dict) or not records:
            raise SapcError("has no test sets")
        sets = {name: SetScores.from_dict(data, name) for name, data in records.items()}
        if not isinstance(stored_mean := content.get("mean", {}), dict):
            raise SapcError("has no mean")
        # What the mean of a file lacks is averaged now.
        mean = MeanScores.from_dict(MeanScores.average(sets.values()).to_dict() | stored_mean, "mean")
        metrics = {f"metrics of {name}": record.metrics for name, record in sets.items()}
        for label, values in (metrics | {"means": mean.metrics}).items():
            if absent := [name for name in REQUIRED_METRICS if name not in values]:
                raise SapcError(f"has no {absent[0]} in its {label}")
        environment, weights = content.get("environment", {}), content.get("weights")
        for name, value, kind in (("environment", environment, dict), ("weights", weights, str | None)):
            if not isinstance(value, kind):
                raise SapcError(f"has {value!r:.40} for {name}")
        names = (name for record in sets.values() for name in (*record.metrics, *record.floor))
        words = [run.task, settings.method, *sets, *names]
        if wrong := [word for word in words if not word or not word.isprintable()]:
            raise SapcError(f"has {wrong[0]!r:.40} for a name")
        field_names = {"format", *(entry.name for entry in fields(cls))}
        more = {name: value for name, value in content.items() if name not in field_names}
        skill = None if content.get("skill") is None else Skill.from_dict(content["skill"], "skill")
        return cls(run, settings, environment, sets, mean, weights, more, skill)

    @classmethod
    def read(cls, path: Path) -> Scores:
        """Read a file of scores.

        Args:
            path: The file.

        Returns:
            The scores.

        Raises:
            ForeignFormatError: The file holds something else. Messages of this and other errors begin after
                the name of the file.
        """
        content = read_content(path)
        kind = content.get("format") if isinstance(content, dict) else None
        if kind != FORMAT:
            words = f"of format {kind!r}" if kind is not None else "without a format"
            raise ForeignFormatError(f"is not a file of scores ({FORMAT}), but JSON {words[:60]}", kind)
        return cls.from_dict(content)

    def write(self, path: Path) -> None:
        """Write the file, atomically.

        Args:
            path: The file.
        """
        write_json(path, self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {
            "format": FORMAT,
            "run": self.run.to_dict(),
            "settings": self.settings.to_dict(),
            "environment": self.environment,
            "sets": {name: record.to_dict() for name, record in self.sets.items()},
            "mean": self.mean.to_dict(),
            **({} if self.skill is None else {"skill": self.skill.to_dict()}),
            **({} if self.weights is None else {"weights": self.weights}),
            **self.more,
        }

    # -- parts --

    @property
    def trajectories(self) -> dict[str, dict[str, Any]]:
        """What happened along the sampling runs, by test set."""
        return {name: record.trajectory for name, record in self.sets.items() if record.trajectory}

    @property
    def floor_left_out(self) -> list[str]:
        """Why there is no sampling floor, each reason once."""
        return list(dict.fromkeys(s.floor_left_out for s in self.sets.values() if s.floor_left_out))

    # -- together with others --

    def merge(self, existing: Scores) -> Scores | None:
        """Return what may replace `existing`: these scores, if they say all that those say, else None.

        Where only metrics are missing, and both are of the same samples, those of `existing` are taken over;
        so is skill of the same weights, if it is of more conditions and members.
        """
        # Scores of weights that are no longer there count nothing.
        if existing.weights not in (None, self.weights):
            return self
        old_size, new_size = ((s.samples, s.reference, s.steps) for s in (existing.settings, self.settings))
        is_smaller = new_size != tuple(map(max, old_size, new_size))
        # Scores by Euler's steps stand beside the paper's.
        is_smaller |= existing.settings.sampler_name == EULER.name != self.settings.sampler_name
        is_unwatched = bool(existing.trajectories) and not self.trajectories
        if is_smaller or is_unwatched or not existing.sets.keys() <= self.sets.keys():
            return None
        names = existing.mean.metrics.keys() - self.mean.metrics.keys()
        result = self._with_skill_of(existing)
        if not names:
            return result
        return result._with_metrics(existing, names) if self._has_same_samples(existing) else None

    def _with_skill_of(self, other: Scores) -> Scores:
        """Return these scores, with the skill of others of the same weights if that says more."""
        if other.skill is None or (self.run, self.weights) != (other.run, other.weights):
            return self
        is_larger = self.skill is None or other.skill.is_larger_than(self.skill)
        return replace(self, skill=other.skill) if is_larger else self

    def _has_same_samples(self, other: Scores) -> bool:
        has_settings = self.settings.without_encoders() == other.settings.without_encoders()
        return has_settings and (self.run, self.weights, set(self.sets)) == (
            other.run,
            other.weights,
            set(other.sets),
        )

    def _with_metrics(self, other: Scores, names: Iterable[str]) -> Scores:
        """Return these scores with some metrics of others."""
        names, sets = set(names), {}
        for key, record in self.sets.items():
            addition = select_metrics(other.sets[key], names)
            by_encoder = {k: v for k, v in addition.more.items() if k.endswith("_each")}
            sets[key] = replace(
                record,
                metrics=record.metrics | addition.metrics,
                floor=record.floor | addition.floor,
                more=record.more | by_encoder,
            )
        encoders = {k: v for k, v in other.settings.more.items() if k.removesuffix("_weights") in names}
        settings = replace(self.settings, more=self.settings.more | encoders)
        return replace(self, settings=settings, sets=sets, mean=MeanScores.average(sets.values()))

    def with_floor_of(self, other: Scores) -> Scores:
        """Return these scores with the sampling floor of others; it depends on solutions alone."""
        sets = {
            name: replace(
                record,
                floor=select_metrics(other.sets[name], record.metrics).floor,
                floor_left_out=other.sets[name].floor_left_out,
            )
            for name, record in self.sets.items()
        }
        mean = replace(self.mean, floor=select_metrics(other.mean, self.mean.metrics).floor)
        settings = replace(self.settings, floor_repeats=other.settings.floor_repeats)
        return replace(self, settings=settings, sets=sets, mean=mean)


# -- reading --


def read_content(path: Path) -> Any:
    """Return what a JSON file holds; whatever is wrong with it is said in one line."""
    if not path.is_file():
        raise SapcError("is not a file")
    try:
        return parse_json(path.read_bytes())
    except OSError as error:
        raise SapcError(f"cannot be read ({first_line(error)})") from error


# -- arithmetic --


def select_metrics(scores: M, names: Iterable[str]) -> M:
    """Return scores without the metrics that are not named, and without their values by every encoder."""
    selection = set(names)
    return replace(
        scores,
        metrics={name: value for name, value in scores.metrics.items() if name in selection},
        floor={name: value for name, value in scores.floor.items() if name in selection},
        more={
            name: value
            for name, value in scores.more.items()
            if not name.endswith("_each") or name.removesuffix("_each") in selection
        },
    )


def _combine(records: list[dict[str, T]], combine: Callable[[list[T]], float]) -> dict[str, float]:
    """Combine the values of every name that all records have."""
    names = [name for name in (records[0] if records else ()) if all(name in record for record in records)]
    return {name: combine([record[name] for record in records]) for name in names}


def _mean(values: list[float]) -> float:
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.inf
