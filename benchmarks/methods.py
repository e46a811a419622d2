"""Every method: a training step, a sample, evaluations and memory, in our style and in the peers'.

    python benchmarks/methods.py [--task heat] [--preset small] [--method sapc --method eci] [--steps 10]
                                 [--no-peers] [--json FILE]

Where a training has stages (PBFM unrolls one step more in each quarter), a step is timed in each, and their
mean stands for the whole. Samples are timed in few steps, as many in both styles, and scaled by evaluations
of the network; what a sampler does once, at its end, is scaled with them. D-Flow has the batch of its
publication: 20 integrations forwards and back, and one more. A velocity stands in for a trained one
(`sapc.experiments.timing`). What the peers' style would need minutes or too much memory for is timed on fewer
fields, whose number stands in the row, or left out, with the reason in the row.
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
    make_timer,
    measure_bounded,
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

# Of the way to the solution, where the end has to depend on the source.
PULL = 0.9
# Parts of a training with a second objective; no published one has more.
STAGES = 4


def method_costs(
    size: str,
    task: str,
    names: list[str],
    data: Data,
    timer: Timer,
    steps: int,
    peers: bool = True,
) -> Iterator[Row]:
    """Yield a row per method: training step, sample, evaluations, memory, and times relative to FFM's."""
    first: Row = {}
    ours, theirs = (_Costs(data, timer, steps, style) for style in (OURS, PEERS))
    for method in map(get_method, dict.fromkeys(("ffm", *names))):
        run = training_config(task, method.weights, size)
        announce(f"{task}: {method.name}")
        row: Row = {
            "task": task, "method": method.name, "weights": method.weights, "precision": run.precision,
            "batch": run.batch, "steps": method.steps, "nfe": method.evaluations(), **ours.row(method, run),
        }  # fmt: skip
        first = first or row
        row |= {f"{kind}_of_ffm": _ratio(row, first, f"{kind}_ms") for kind in ("step", "sample")}
        if peers:
            announce(f"{task}: {method.name}, peers' style")
            row["peers"] = theirs.bounded_row(method, run)
            row["peers"] |= {
                f"{kind}_of_ours": _ratio(row["peers"], row, f"{kind}_ms") for kind in ("step", "sample")
            }
        yield row


def _ratio(row: Row, first: Row, key: str) -> float | None:
    return row[key] / first[key] if row[key] and first[key] else None


class _Costs:
    """Figures of one task in one style.

    A network is made, and compiled, once for all methods that can share it.
    """

    def __init__(self, data: Data, timer: Timer, steps: int, style: Style) -> None:
        self.data, self.timer, self.steps, self.style = data, timer, steps, style
        self.samplers: dict[tuple[object, bool], Sampler] = {}
        # Seconds of one field.
        self.evaluation: float | None = None
        self.projection: float | None = None

    def sampler(self, method: Method, run: TrainingConfig) -> Sampler:
        kind = (method.conditioning_input, method.couples_batch)
        if kind not in self.samplers:
            self.samplers[kind] = Sampler(run, self.data, self.timer, method.couples_batch, self.style)
        return self.samplers[kind]

    def row(self, method: Method, run: TrainingConfig) -> Row:
        """Return a row with whole batches."""
        with matmul_precision(self.style.of(run).precision):
            step: Row = {"step_ms": None, "stages_ms": [], "step_peak_bytes": None}
            if method.trains:
                step = step_cost(run, self.data, self.timer)
            return step | self.sampler(method, run).cost(method, self.steps)

    def bounded_row(self, method: Method, run: TrainingConfig) -> Row:
        """Return a row with as many fields as the limits allow; a step counts for the whole batch."""
        with matmul_precision(self.style.of(run).precision):
            sampler = self.sampler(method, run)
            # condFFM's network gets the condition, nothing is projected.
            is_unprojected = method.conditioning_input is not None and method.exact == "none"
            through = method.loss_uses_manifold and method.second_objective is None and not is_unprojected
            onto = method.sampler_uses_manifold and not method.couples_batch and not is_unprojected
            # Upper bounds: a pass back costs two forwards, and a training unrolls no more steps than PBFM has
            # stages.
            calls, there_and_back = method.evaluations(self.steps), 3 if method.couples_batch else 1
            step = self._find_obstacle(sampler, through, 3 * (1 + STAGES), 3) if method.trains else None
            sample = self._find_obstacle(sampler, onto, there_and_back * calls, calls)
            step_figure = Figure(left_out=step) if step else self._step(run) if method.trains else Figure()
            sample_figure = Figure(left_out=sample) if sample else self._sample(method, sampler)
        scale = method.evaluations() / method.evaluations(self.steps)
        return step_figure.as_row("step", run.batch) | sample_figure.as_row("sample", scale)

    def _find_obstacle(
        self, sampler: Sampler, projects: bool, evaluations: int, projections: int
    ) -> str | None:
        """Return why so many evaluations and projections are not tried, or None."""
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
        """Return the mean over the stages."""

        def make_call(n: int) -> Callable[[], object]:
            part = (self.data[0][:n], self.data[1][:n])
            at = stages(self.style.training(replace(run, batch=n), part, self.timer.device))
            return lambda: [call() for call in at]

        figure = measure_bounded(make_call, run.batch, self.timer)
        count = STAGES if run.make_method().second_objective is not None else 1
        return replace(figure, seconds=None if figure.seconds is None else figure.seconds / count)

    @torch.no_grad()
    def _sample(self, method: Method, sampler: Sampler) -> Figure:
        return measure_bounded(partial(sampler.call, method, self.steps), len(sampler.v1), self.timer)


def stages(state: Training) -> list[Callable[[], object]]:
    """Return a step in each stage of a training."""
    count = STAGES if state.method.second_objective is not None else 1

    def at(step: int) -> None:
        # The stage follows from it, and must not end while it is timed.
        state.step = step
        state.advance()

    return [partial(at, k * state.run.steps // count) for k in range(count)]


def step_cost(run: TrainingConfig, data: Data, timer: Timer) -> Row:
    """Return milliseconds of a step, of each stage and their mean; None where memory does not suffice."""

    def measure_stages() -> list[tuple[float, int | None]]:
        return [weigh(timer, step) for step in stages(OURS.training(run, data, timer.device))]

    # The figures of the other methods are still wanted.
    if (figures := unless_full(measure_stages)) is None:
        return {"step_ms": None, "stages_ms": [], "step_peak_bytes": None, "step_full": True}
    times, peaks = (
        [1e3 * seconds for seconds, _ in figures],
        [peak for _, peak in figures if peak is not None],
    )
    return {
        "step_ms": statistics.mean(times),
        "stages_ms": times,
        "step_peak_bytes": max(peaks, default=None),
    }


class CountingVelocity:
    """A velocity that counts its evaluations, without those for a gradient, as `Method.nfe` does."""

    def __init__(self, v: Callable[..., Tensor]) -> None:
        self.v, self.calls = v, 0

    def __call__(self, vt: Tensor, t: Tensor, *condition: Tensor) -> Tensor:
        """Evaluate the velocity."""
        self.calls += not torch.is_grad_enabled()
        return self.v(vt, t, *condition)


class Sampler:
    """Conditions, noise and a counting velocity for methods with one kind of network."""

    def __init__(
        self, run: TrainingConfig, data: Data, timer: Timer, joint: bool, style: Style = OURS
    ) -> None:
        self.task, self.timer = run.make_task(), timer
        n = min(run.batch, COUPLED_BATCH[len(run.grid)]) if joint else run.batch
        truth = data[0][:n].to(timer.device, torch.float64)
        self.H = style.manifold(self.task.manifold(truth, solver=run.solver(self.task)))
        # L-BFGS stops at once if the end does not depend on the source.
        network = style.network(run, timer.device)
        self.v = CountingVelocity(make_velocity(network, self.task, truth, pull=PULL if joint else 1.0))
        self.method = run.make_method()
        self.v1 = self.draw(n)

    def draw(self, n: int) -> Tensor:
        """Return draws of the source."""
        return source.sample(self.task.grid, n, dtype=torch.float64).to(self.timer.device)

    def call(self, method: Method, steps: int, n: int | None = None) -> Callable[[], Tensor]:
        """Return a run of the sampler, of all fields or the first n."""
        v1, H = self.v1[:n], self.H if n is None else self.H[:n]
        sample = method.bind_source(partial(self.draw, len(v1)))
        return partial(sample, method.velocity(self.v, H), v1, H, steps)

    def cost(self, method: Method, steps: int) -> Row:
        """Return milliseconds per sample at the method's own number of steps, and the peak of memory."""
        n = len(self.v1)
        if (figures := unless_full(partial(self.time_batch, method, steps))) is None:
            return {"sampled": n, "sample_ms": None, "peak_bytes": None, "sample_full": True}
        seconds, evaluations, peak = figures
        scale = method.evaluations() / evaluations
        return {"sampled": n, "sample_ms": 1e3 * seconds / n * scale, "peak_bytes": peak}

    @torch.no_grad()
    def time_batch(self, method: Method, steps: int) -> tuple[float, int, int | None]:
        """Return seconds of a batch in few steps, its evaluations, and bytes at the peak."""
        call = self.call(method, steps)
        self.v.calls = 0
        # Compiling takes memory of its own.
        call()
        evaluations = self.v.calls
        # An optimisation of the source is a thousand evaluations, an average in itself.
        timer = replace(self.timer, repeats=1 if method.couples_batch else 3, warm_up=0)
        seconds, peak = weigh(timer, call)
        return seconds, evaluations, peak

    @torch.no_grad()
    def evaluation(self) -> Tensor:
        """Evaluate the velocity of one field."""
        return self.method.velocity(self.v, self.H[:1])(self.v1[:1], self.v1.new_ones(1))

    @torch.no_grad()
    def projection(self) -> Tensor:
        """Project one field of the source."""
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
        names = options.method or method_names(extensions=False)
        rows = results.add(
            "methods", method_costs(size, task, names, data, timer, options.steps, not options.no_peers)
        )
        print_rows(task, [row for row in rows if row["task"] == task])
        torch.compiler.reset()
    results.finish()


if __name__ == "__main__":
    main()
