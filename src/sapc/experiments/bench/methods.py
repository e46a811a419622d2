"""A training step and a sample of every method, and of the same method in the peers' style (see `style`).

Where a training has stages (PBFM unrolls one step more in each quarter), a step is timed in each, and their mean stands for the whole.
Samples are timed in few steps, as many in both styles, and scaled by evaluations of the network; what a sampler does once, at its end, is
scaled with them. D-Flow has the batch of its publication: 20 integrations forwards and back, and one more.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...flow import source
from ...methods import Method, get_method
from ...models.model import JOINT
from ...nn.fno import matmul_precision
from ...training.config import Run, preset
from ...training.step import Training
from .memory import unless_full
from .peers import Figure, bounded, too_long, unfit
from .style import OURS, PEERS, Style
from .timer import Timer
from .trained import PULL, Counted, Data, like_trained

STAGES = 4  # parts of a training with a second objective; no published one has more


def method_costs(
    size: str,
    task: str,
    names: list[str],
    data: Data,
    timer: Timer,
    steps: int,
    progress: Callable[[str], None],
    peers: bool = True,
) -> Iterator[dict[str, Any]]:
    """A row per method: a training step of those that train, a sample, evaluations, memory, and both times as multiples of FFM's."""
    first: dict[str, Any] = {}
    ours, theirs = (_Costs(data, timer, steps, style) for style in (OURS, PEERS))
    for method in map(get_method, dict.fromkeys(("ffm", *names))):
        run = preset(size, task, method.weights)
        progress(f"{task}: {method.name}")
        row: dict[str, Any] = {
            "task": task, "method": method.name, "weights": method.weights, "precision": run.precision, "batch": run.batch,
            "steps": method.steps, "nfe": method.evaluations(), **ours.row(method, run),
        }  # fmt: skip
        first = first or row
        row |= {f"{what}_of_ffm": _ratio(row, first, f"{what}_ms") for what in ("step", "sample")}
        if peers:
            progress(f"{task}: {method.name}, peers' style")
            row["peers"] = theirs.bounded_row(method, run)
            row["peers"] |= {
                f"{what}_of_ours": _ratio(row["peers"], row, f"{what}_ms") for what in ("step", "sample")
            }
        yield row


def _ratio(row: dict[str, Any], first: dict[str, Any], key: str) -> float | None:
    return row[key] / first[key] if row[key] and first[key] else None


class _Costs:
    """Figures of one task in one style. A network is made, and compiled, once for all methods that can share it."""

    def __init__(self, data: Data, timer: Timer, steps: int, style: Style) -> None:
        self.data, self.timer, self.steps, self.style = data, timer, steps, style
        self.samplers: dict[tuple[bool, bool], Sampler] = {}
        self.evaluation: float | None = None  # seconds of one field
        self.projection: float | None = None

    def sampler(self, method: Method, run: Run) -> Sampler:
        kind = (method.shows is not None, method.joint)
        if kind not in self.samplers:
            self.samplers[kind] = Sampler(run, self.data, self.timer, method.joint, self.style)
        return self.samplers[kind]

    def row(self, method: Method, run: Run) -> dict[str, Any]:
        """With whole batches."""
        with matmul_precision(self.style.of(run).precision):
            step: dict[str, Any] = {"step_ms": None, "stages_ms": [], "step_peak_bytes": None}
            if method.trains:
                step = step_cost(run, self.data, self.timer)
            return step | self.sampler(method, run).cost(method, self.steps)

    def bounded_row(self, method: Method, run: Run) -> dict[str, Any]:
        """With as many fields as a bound allows; a step is one of the whole batch all the same."""
        with matmul_precision(self.style.of(run).precision):
            sampler = self.sampler(method, run)
            blind = method.shows is not None  # its network is shown the condition, nothing is projected
            through = method.constrained and method.penalty is None and not blind
            onto = method.conditioned and not method.joint and not blind
            # Upper bounds: a pass back costs two forwards, and a training unrolls no more steps than PBFM has stages.
            calls, there_and_back = method.evaluations(self.steps), 3 if method.joint else 1
            step = self._refused(sampler, through, 3 * (1 + STAGES), 3) if method.trains else None
            sample = self._refused(sampler, onto, there_and_back * calls, calls)
            learning = Figure(left_out=step) if step else self._step(run) if method.trains else Figure()
            sampling = Figure(left_out=sample) if sample else self._sample(method, sampler)
        scale = method.evaluations() / method.evaluations(self.steps)
        return learning.named("step", run.batch) | sampling.named("sample", scale)

    def _refused(self, sampler: Sampler, projects: bool, evaluations: int, projections: int) -> str | None:
        """Why something with so many evaluations and projections is not tried, if so."""
        if projects and (reason := unfit(sampler.H, self.timer.device)) is not None:
            return reason
        once = replace(self.timer, repeats=1, warm_up=1)
        if self.evaluation is None:
            self.evaluation = once(sampler.evaluation)
        if projects and self.projection is None:
            self.projection = once(sampler.projection)
        passes = evaluations * self.evaluation
        return too_long(passes + projections * (self.projection or 0) if projects else passes)

    def _step(self, run: Run) -> Figure:
        """Of the stages their mean."""

        def some(n: int) -> Callable[[], object]:
            few = (self.data[0][:n], self.data[1][:n])
            at = stages(self.style.training(replace(run, batch=n), few, self.timer.device))
            return lambda: [call() for call in at]

        figure = bounded(some, run.batch, self.timer)
        count = STAGES if run.make_method().penalty is not None else 1
        return replace(figure, seconds=None if figure.seconds is None else figure.seconds / count)

    @torch.no_grad()
    def _sample(self, method: Method, sampler: Sampler) -> Figure:
        return bounded(partial(sampler.call, method, self.steps), len(sampler.v1), self.timer)


def stages(state: Training) -> list[Callable[[], object]]:
    """A step in each stage of a training."""
    count = STAGES if state.method.penalty is not None else 1

    def at(step: int) -> None:
        state.step = step  # the stage follows from it, and must not end while it is timed
        state.advance()

    return [partial(at, k * state.run.steps // count) for k in range(count)]


def step_cost(run: Run, data: Data, timer: Timer) -> dict[str, Any]:
    """Milliseconds of a step; with a second objective those of each stage, and their mean. None where memory does not suffice."""

    def each() -> list[tuple[float, int | None]]:
        return [timer.weighed(step) for step in stages(OURS.training(run, data, timer.device))]

    if (found := unless_full(each)) is None:  # the figures of the other methods are still wanted
        return {"step_ms": None, "stages_ms": [], "step_peak_bytes": None, "step_full": True}
    times, peaks = [1e3 * seconds for seconds, _ in found], [peak for _, peak in found if peak is not None]
    return {
        "step_ms": statistics.mean(times),
        "stages_ms": times,
        "step_peak_bytes": max(peaks, default=None),
    }


class Sampler:
    """What methods with one kind of network sample with: conditions, noise and a velocity that counts its calls."""

    def __init__(self, run: Run, data: Data, timer: Timer, joint: bool, style: Style = OURS) -> None:
        self.task, self.timer = run.make_task(), timer
        n = min(run.batch, JOINT[len(run.grid)]) if joint else run.batch
        truth = data[0][:n].to(timer.device, torch.float64)
        self.H = style.manifold(self.task.manifold(truth, solver=run.solver(self.task)))
        # L-BFGS stops at once if the end does not depend on the source.
        network = style.network(run, timer.device)
        self.v = Counted(like_trained(network, self.task, truth, pull=PULL if joint else 1.0))
        self.shown = run.make_method().shows
        self.v1 = self.draw(n)

    def draw(self, n: int) -> Tensor:
        """From the source."""
        return source.sample(self.task.grid, n, dtype=torch.float64).to(self.timer.device)

    def call(self, method: Method, steps: int, n: int | None = None) -> Callable[[], Tensor]:
        """A run of the sampler, of all fields or the first n."""
        v1, H = self.v1[:n], self.H if n is None else self.H[:n]
        more = (partial(self.draw, len(v1)),) if method.redraws else ()
        return partial(method.sample, method.velocity(self.v, H), v1, H, steps, *more)

    def cost(self, method: Method, steps: int) -> dict[str, Any]:
        """Milliseconds per sample at the method's own number of steps, and the most memory it took."""
        n = len(self.v1)
        if (found := unless_full(partial(self.timed, method, steps))) is None:
            return {"sampled": n, "sample_ms": None, "peak_bytes": None, "sample_full": True}
        seconds, evaluations, peak = found
        scale = method.evaluations() / evaluations
        return {"sampled": n, "sample_ms": 1e3 * seconds / n * scale, "peak_bytes": peak}

    @torch.no_grad()
    def timed(self, method: Method, steps: int) -> tuple[float, int, int | None]:
        """Seconds of a batch in few steps, evaluations it took, bytes at the peak."""
        call = self.call(method, steps)
        self.v.calls = 0
        call()  # compiles, which takes memory of its own
        evaluations = self.v.calls
        # An optimisation of the source is a thousand evaluations, an average in itself.
        timer = replace(self.timer, repeats=1 if method.joint else 3, warm_up=0)
        seconds, peak = timer.weighed(call)
        return seconds, evaluations, peak

    @torch.no_grad()
    def evaluation(self) -> Tensor:
        """Of one field."""
        shown = () if self.shown is None else (self.shown(self.H[:1]).expand_as(self.v1[:1]),)
        return self.v(self.v1[:1], self.v1.new_ones(1), *shown)

    @torch.no_grad()
    def projection(self) -> Tensor:
        """Of one field, from the source."""
        return self.H[:1].project(self.v1[:1], check=False)
