"""Every method: a training step, a sample, network evaluations and memory, beside the same method in the peers' style (`_measure.py`).

    python benchmarks/methods.py [--task heat] [--preset small] [--method sapc --method eci] [--steps 10] [--no-peers] [--json FILE]

Where a training has stages (PBFM unrolls one step more in each quarter), a step is timed in each, and their mean stands for the whole.
Samples are timed in few steps, as many in both styles, and scaled by evaluations of the network; what a sampler does once, at its end, is
scaled with them. D-Flow has the batch of its publication: 20 integrations forwards and back, and one more. A velocity stands in for a
trained one (`sapc.experiments.timing`). What the peers' style would need minutes or too much memory for is timed on fewer fields, whose
number stands in the row, or left out, with the reason in the row.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from _measure import (
    OURS,
    PEERS,
    Figure,
    Results,
    Row,
    Style,
    announce,
    arguments,
    bounded,
    make_timer,
    show,
    too_long,
    unfit,
    unless_full,
    weigh,
)
from torch import Tensor

from sapc.experiments.timing import Data, Timer, make_velocity, solutions
from sapc.flow import source
from sapc.methods import Method, get_method, method_names
from sapc.models.model import COUPLED_BATCH
from sapc.nn.fno import matmul_precision
from sapc.tasks import task_names
from sapc.training.config import TrainingConfig, training_config
from sapc.training.step import Training

PULL = 0.9  # of the way to the solution, where the end has to depend on the source
STAGES = 4  # parts of a training with a second objective; no published one has more


def method_costs(
    size: str,
    task: str,
    names: list[str],
    data: Data,
    timer: Timer,
    steps: int,
    peers: bool = True,
) -> Iterator[Row]:
    """A row per method: a training step of those that train, a sample, evaluations, memory, and both times as multiples of FFM's."""
    first: Row = {}
    ours, theirs = (_Costs(data, timer, steps, style) for style in (OURS, PEERS))
    for method in map(get_method, dict.fromkeys(("ffm", *names))):
        run = training_config(task, method.weights, size)
        announce(f"{task}: {method.name}")
        row: Row = {
            "task": task, "method": method.name, "weights": method.weights, "precision": run.precision, "batch": run.batch,
            "steps": method.steps, "nfe": method.evaluations(), **ours.row(method, run),
        }  # fmt: skip
        first = first or row
        row |= {f"{what}_of_ffm": _ratio(row, first, f"{what}_ms") for what in ("step", "sample")}
        if peers:
            announce(f"{task}: {method.name}, peers' style")
            row["peers"] = theirs.bounded_row(method, run)
            row["peers"] |= {
                f"{what}_of_ours": _ratio(row["peers"], row, f"{what}_ms") for what in ("step", "sample")
            }
        yield row


def _ratio(row: Row, first: Row, key: str) -> float | None:
    return row[key] / first[key] if row[key] and first[key] else None


class _Costs:
    """Figures of one task in one style. A network is made, and compiled, once for all methods that can share it."""

    def __init__(self, data: Data, timer: Timer, steps: int, style: Style) -> None:
        self.data, self.timer, self.steps, self.style = data, timer, steps, style
        self.samplers: dict[tuple[bool, bool], Sampler] = {}
        self.evaluation: float | None = None  # seconds of one field
        self.projection: float | None = None

    def sampler(self, method: Method, run: TrainingConfig) -> Sampler:
        kind = (method.conditioning_input is not None, method.couples_batch)
        if kind not in self.samplers:
            self.samplers[kind] = Sampler(run, self.data, self.timer, method.couples_batch, self.style)
        return self.samplers[kind]

    def row(self, method: Method, run: TrainingConfig) -> Row:
        """With whole batches."""
        with matmul_precision(self.style.of(run).precision):
            step: Row = {"step_ms": None, "stages_ms": [], "step_peak_bytes": None}
            if method.trains:
                step = step_cost(run, self.data, self.timer)
            return step | self.sampler(method, run).cost(method, self.steps)

    def bounded_row(self, method: Method, run: TrainingConfig) -> Row:
        """With as many fields as a bound allows; a step is one of the whole batch all the same."""
        with matmul_precision(self.style.of(run).precision):
            sampler = self.sampler(method, run)
            blind = (
                method.conditioning_input is not None
            )  # its network is shown the condition, nothing is projected
            through = method.loss_uses_manifold and method.second_objective is None and not blind
            onto = method.sampler_uses_manifold and not method.couples_batch and not blind
            # Upper bounds: a pass back costs two forwards, and a training unrolls no more steps than PBFM has stages.
            calls, there_and_back = method.evaluations(self.steps), 3 if method.couples_batch else 1
            step = self._refused(sampler, through, 3 * (1 + STAGES), 3) if method.trains else None
            sample = self._refused(sampler, onto, there_and_back * calls, calls)
            learning = Figure(left_out=step) if step else self._step(run) if method.trains else Figure()
            sampling = Figure(left_out=sample) if sample else self._sample(method, sampler)
        scale = method.evaluations() / method.evaluations(self.steps)
        return learning.with_names_of("step", run.batch) | sampling.with_names_of("sample", scale)

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

    def _step(self, run: TrainingConfig) -> Figure:
        """Of the stages their mean."""

        def some(n: int) -> Callable[[], object]:
            few = (self.data[0][:n], self.data[1][:n])
            at = stages(self.style.training(replace(run, batch=n), few, self.timer.device))
            return lambda: [call() for call in at]

        figure = bounded(some, run.batch, self.timer)
        count = STAGES if run.make_method().second_objective is not None else 1
        return replace(figure, seconds=None if figure.seconds is None else figure.seconds / count)

    @torch.no_grad()
    def _sample(self, method: Method, sampler: Sampler) -> Figure:
        return bounded(partial(sampler.call, method, self.steps), len(sampler.v1), self.timer)


def stages(state: Training) -> list[Callable[[], object]]:
    """A step in each stage of a training."""
    count = STAGES if state.method.second_objective is not None else 1

    def at(step: int) -> None:
        state.step = step  # the stage follows from it, and must not end while it is timed
        state.advance()

    return [partial(at, k * state.run.steps // count) for k in range(count)]


def step_cost(run: TrainingConfig, data: Data, timer: Timer) -> Row:
    """Milliseconds of a step; with a second objective those of each stage, and their mean. None where memory does not suffice."""

    def each() -> list[tuple[float, int | None]]:
        return [weigh(timer, step) for step in stages(OURS.training(run, data, timer.device))]

    if (found := unless_full(each)) is None:  # the figures of the other methods are still wanted
        return {"step_ms": None, "stages_ms": [], "step_peak_bytes": None, "step_full": True}
    times, peaks = [1e3 * seconds for seconds, _ in found], [peak for _, peak in found if peak is not None]
    return {
        "step_ms": statistics.mean(times),
        "stages_ms": times,
        "step_peak_bytes": max(peaks, default=None),
    }


class Counted:
    """A velocity that counts its evaluations; those repeated for a gradient do not count, as in `Method.nfe`."""

    def __init__(self, v: Callable[..., Tensor]) -> None:
        self.v, self.calls = v, 0

    def __call__(self, vt: Tensor, t: Tensor, *shown: Tensor) -> Tensor:
        """Evaluate the velocity."""
        self.calls += not torch.is_grad_enabled()
        return self.v(vt, t, *shown)


class Sampler:
    """What methods with one kind of network sample with: conditions, noise and a velocity that counts its calls."""

    def __init__(
        self, run: TrainingConfig, data: Data, timer: Timer, joint: bool, style: Style = OURS
    ) -> None:
        self.task, self.timer = run.make_task(), timer
        n = min(run.batch, COUPLED_BATCH[len(run.grid)]) if joint else run.batch
        truth = data[0][:n].to(timer.device, torch.float64)
        self.H = style.manifold(self.task.manifold(truth, solver=run.solver(self.task)))
        # L-BFGS stops at once if the end does not depend on the source.
        network = style.network(run, timer.device)
        self.v = Counted(make_velocity(network, self.task, truth, pull=PULL if joint else 1.0))
        self.shown = run.make_method().conditioning_input
        self.v1 = self.draw(n)

    def draw(self, n: int) -> Tensor:
        """From the source."""
        return source.sample(self.task.grid, n, dtype=torch.float64).to(self.timer.device)

    def call(self, method: Method, steps: int, n: int | None = None) -> Callable[[], Tensor]:
        """A run of the sampler, of all fields or the first n."""
        v1, H = self.v1[:n], self.H if n is None else self.H[:n]
        sample = method.bind_source(partial(self.draw, len(v1)))
        return partial(sample, method.velocity(self.v, H), v1, H, steps)

    def cost(self, method: Method, steps: int) -> Row:
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
        timer = replace(self.timer, repeats=1 if method.couples_batch else 3, warm_up=0)
        seconds, peak = weigh(timer, call)
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


def print_rows(task: str, rows: list[Row]) -> None:
    """Print our figures, and those of the peers' style."""
    ours = (
        "method",
        "step_ms",
        "step_of_ffm",
        "step_peak_bytes",
        "nfe",
        "sampled",
        "sample_ms",
        "sample_of_ffm",
        "peak_bytes",
    )
    show(f"{task}: every method", rows, ours)
    peers = [{"method": row["method"]} | row["peers"] for row in rows if "peers" in row]
    if peers:
        show(f"{task}: the peers' way, eager FFTs in float32 and dense Jacobians", peers)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--task", action="append", help="may be repeated; all unless given")
    parser.add_argument(
        "--method", action="append", help="may be repeated; all unless given, and FFM in any case"
    )
    parser.add_argument("--preset", help="published on a GPU, small without, unless given")
    parser.add_argument("--steps", type=int, default=10, help="sampling steps that are timed")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    options = parser.parse_args()
    timer = make_timer(options.device)
    size = options.preset or ("published" if timer.device.type == "cuda" else "small")
    results = Results(timer, options.json, preset=size)
    for task in options.task or task_names():
        data = solutions(training_config(task, "sapc", size), timer.device)
        names = options.method or method_names()
        rows = results.add(
            "methods", method_costs(size, task, names, data, timer, options.steps, not options.no_peers)
        )
        print_rows(task, [row for row in rows if row["task"] == task])
        torch.compiler.reset()
    results.finish()


if __name__ == "__main__":
    main()
