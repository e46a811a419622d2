"""Tools of the benchmarks: memory, work of bounded size, the peers' style, and tables of figures.

Two ways to write the same mathematics are compared:

    ours      in the run's precision, by kernels on a GPU, elsewhere by products with thin DFT matrices;
              projections by declared structure
    peers'    full FFTs in float32, operation by operation; projections by a dense Jacobian from automatic
              differentiation

Weights and results are the same up to rounding. The dense path is kinder than what it stands for: pins have
left its unknowns, where a stacked residual would have a row for each, and it takes a few fields at a time.

Memory is what a call held at most beyond what was there before it. On a GPU the allocator tells. On Linux the
kernel does: the highest resident size of the process, which can be reset (`clear_refs`). What the C library
has kept of memory freed earlier would be used again unseen, so it is given back first (`malloc_trim`). Where
the system does not tell, there is no figure.

What may be very slow or very large is timed on one field, then on a few, then on as many as should take
`SECONDS` by what the last ones took, or half the free memory. A figure says how many there were; times are
per field.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from sapc._files import write_json
from sapc.constraints import Manifold
from sapc.constraints.manifold import MAX_BYTES
from sapc.experiments.timing import Data, Timer, describe, make_network
from sapc.nn.fno import FNO
from sapc.training.config import TrainingConfig
from sapc.training.distributed import ProcessGroup, find_device
from sapc.training.step import Training

STATUS, RESET, SYSTEM = Path("/proc/self/status"), Path("/proc/self/clear_refs"), Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup/memory.max")
# That one call should take.
SECONDS = 0.5
# That a call on a single field may take.
LIMIT = 30.0
# Fields that are tried in any case: on a single one, the fixed cost of a call weighs too much.
MIN_FIELDS = 4
# So many times more fields than before.
GROWTH = 8
Row = dict[str, Any]
Result = TypeVar("Result")


# -- scripts --


def arguments(about: str | None, device: str = "auto") -> argparse.ArgumentParser:
    """Make a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default=device, help="cpu, cuda, or auto: the GPU where there is one")
    parser.add_argument("--json", help="write the figures here as well, after each of them")
    return parser


def make_timer(device: str) -> Timer:
    """Make a timer with as many repeats as the device has patience for."""
    place = find_device(device)
    return Timer(place, *((20, 5) if place.type == "cuda" else (3, 1)))


class Results:
    """Figures by name, written after each of them: an interrupted run loses none."""

    def __init__(self, timer: Timer, path: str | None = None, **about: Any) -> None:
        self.path, self.content = path, describe(timer) | about | {"complete": False}
        # Garbage is collected among what is made from here on, in a tenth of the time.
        gc.freeze()

    def add(self, name: str, rows: Iterator[Row] | Sequence[Row]) -> list[Row]:
        """Measure the rows one by one."""
        results: list[Row] = self.content.setdefault(name, [])
        for row in rows:
            results.append(row)
            self.write()
        return results

    def finish(self) -> None:
        """Mark the file as complete."""
        self.content["complete"] = True
        self.write()

    def write(self) -> None:
        """Write what there is."""
        if self.path:
            write_json(Path(self.path), self.content)


def show(title: str, rows: Sequence[Row], columns: Sequence[str] = ()) -> None:
    """Print rows as a table, of some of their columns if these are given."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    for column in names:
        table.add_column(column)
    for row in rows:
        table.add_row(*(_text(row.get(name)) for name in names))
    Console(width=max(150, Console().width)).print(table)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, tuple | list):
        return " ".join(map(_text, value))
    return "-" if value is None else str(value)


def announce(stage: str) -> None:
    """Say what is being measured."""
    print(stage, flush=True)


def milliseconds(
    call: Callable[[], object],
    device: torch.device | str,
    repeats: int = 20,
    before: int = 3,
    ahead: int = 200_000,
) -> float:
    """Return the median time of a call; on a GPU by its own clock, with the host `ahead` by idle cycles."""
    times = []
    for _ in range(before):
        call()
    for _ in range(repeats):
        if torch.device(device).type == "cuda":
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(ahead)
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        else:
            begin = time.perf_counter()
            call()
            times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times)


# -- memory --


class Peak:
    """The most bytes at one time beyond those at the start; None where the system does not tell."""

    bytes: int | None = None


@contextmanager
def peak(device: torch.device) -> Iterator[Peak]:
    """Measure the block; the result is complete after it."""
    results = Peak()
    # A network refers to itself, so earlier ones may still hold memory.
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield results
        results.bytes = torch.cuda.max_memory_allocated(device) - before
    else:
        start = _reset_peak() if device.type == "cpu" else None
        yield results
        highest = _entry(STATUS, "VmHWM") if start is not None else None
        results.bytes = None if start is None or highest is None else max(0, highest - start)


def weigh(timer: Timer, call: Callable[[], object]) -> tuple[float, int | None]:
    """Return median seconds and the peak of memory in the timed calls, without what compiling took."""
    for _ in range(timer.warm_up):
        call()
    with peak(timer.device) as memory:
        seconds = replace(timer, warm_up=0)(call)
    return seconds, memory.bytes


def free(device: torch.device) -> int | None:
    """Return the bytes that could be allocated; None where the system does not tell."""
    if device.type == "cuda":
        cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + cached
    available, resident = _entry(SYSTEM, "MemAvailable"), _entry(STATUS, "VmRSS") or 0
    try:
        limit = int(CONTAINER.read_text()) - resident
    except (OSError, ValueError):
        # No limit is set.
        return available
    return limit if available is None else min(available, limit)


def unless_full(call: Callable[[], Result]) -> Result | None:
    """Return what the call returns, or None if memory does not suffice; any other error goes on."""
    try:
        return call()
    except torch.OutOfMemoryError:
        return None
    except RuntimeError as error:
        # The CPU's allocator has no error of its own.
        if "DefaultCPUAllocator" not in str(error):
            raise
        return None


def _reset_peak() -> int | None:
    """Reset the highest resident size, and return the bytes resident now."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if STATUS.exists() else None
    # Of the C library; without it small figures come out smaller.
    if trim is not None:
        trim(0)
    try:
        RESET.write_text("5")
    except OSError:
        return None
    return _entry(STATUS, "VmRSS")


def _entry(path: Path, name: str) -> int | None:
    """Read a number of kB in a file of the kernel, in bytes."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:")), None)


# -- work of bounded size --


@dataclass(frozen=True)
class Figure:
    """Seconds and memory of a call on some fields, or why there are none."""

    fields: int = 0
    seconds: float | None = None
    peak_bytes: int | None = None
    left_out: str | None = None

    def as_row(self, kind: str, scale: float = 1.0) -> Row:
        """Return entries of a row, milliseconds per field times `scale`."""
        ms = None if self.seconds is None else 1e3 * self.seconds / self.fields * scale
        row = {f"{kind}_ms": ms, f"{kind}_fields": self.fields, f"{kind}_peak_bytes": self.peak_bytes}
        return row if self.left_out is None else {**row, f"{kind}_left_out": self.left_out}


def measure_bounded(make: Callable[[int], Callable[[], object]], limit: int, timer: Timer) -> Figure:
    """Measure the call that `make(n)` gives for n fields, n at most `most`."""

    def figure(n: int, repeats: int, warm_up: int) -> Figure:
        return Figure(n, *weigh(replace(timer, repeats=repeats, warm_up=warm_up), make(n)))

    best = unless_full(partial(figure, 1, 1, 1))
    if best is None:
        return Figure(left_out="memory: one field does not fit")
    while (n := _next_count(best, limit, timer.device)) > best.fields:
        larger = unless_full(partial(figure, n, 1, 0))
        if larger is None:
            break
        best = larger
    return figure(best.fields, 3, 0) if best.seconds is not None and best.seconds < SECONDS else best


def _next_count(last: Figure, limit: int, device: torch.device) -> int:
    """Return how many fields to try next."""
    assert last.seconds is not None
    seconds_per_field = max(last.seconds / last.fields, 1e-9)
    count = MIN_FIELDS if MIN_FIELDS * seconds_per_field < LIMIT else 1
    n = min(limit, GROWTH * last.fields, max(count, int(SECONDS / seconds_per_field)))
    if last.fields == 1:
        n = min(n, MIN_FIELDS)
    room = free(device)
    if room is not None and last.peak_bytes:
        n = min(n, int(last.fields * room / 2 / last.peak_bytes))
    return n


def jacobian_bytes(H: Manifold) -> int:
    """Return the size of one sample's Jacobian with its copies."""
    rows = H[:1].balance(H.fields[:1]).shape[1]
    return 3 * 8 * rows * H.fields[0].numel()


def unfit(H: Manifold, device: torch.device) -> str | None:
    """Return why a dense projection of one field is not tried, if so."""
    size, room = jacobian_bytes(H), free(device)
    if size > min(MAX_BYTES, MAX_BYTES if room is None else room // 2):
        return f"memory: a Jacobian takes {size / 2**30:.1f} GiB"
    return None


def too_long(seconds: float) -> str | None:
    """Return why a call that should take so long on one field is not tried, if so."""
    return f"time: one field takes about {seconds:.0f} s" if seconds > LIMIT else None


# -- styles --


@dataclass(frozen=True)
class Style:
    """Ours, or the peers'."""

    peers: bool = False

    def of(self, run: TrainingConfig) -> TrainingConfig:
        """Return the run in the precision of this style."""
        return replace(run, precision="float32") if self.peers else run

    def network(self, run: TrainingConfig, device: torch.device) -> FNO:
        """Make a fresh network."""
        if not self.peers:
            return make_network(run, device)
        network = self.of(run).make_network().to(device)
        network.transform = "fft"
        return network

    def manifold(self, H: Manifold) -> Manifold:
        """Return the same manifold, as this style projects onto it."""
        return H.dense() if self.peers else H

    def training(self, run: TrainingConfig, data: Data, device: torch.device) -> Training:
        """Make the state of a training."""
        state = Training(
            self.of(run), ProcessGroup(device), compiled=False if self.peers else None, data=data
        )
        if self.peers:
            state.network.transform, state.H = "fft", state.H.dense()
        return state


OURS, PEERS = Style(), Style(peers=True)
