"""Whole sampling runs as one CUDA graph: the same bits, for other draws and other conditions."""

import warnings

import pytest
import torch

import sapc
from sapc.flow import EULER, STEPPERS, Sampler, Shift
from sapc.methods import METHODS
from sapc.training.config import training_config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Stop(Exception):
    """A caller has enough."""


METHOD_NAMES = [name for name, method in METHODS.items() if method.accepts_sampler and method.trains]


def models(task, method, **options):
    """A model that records its runs, and the same one without."""
    grid = (20, 18) if len(sapc.get_task(task).grid.shape) == 2 else (12, 12, 10)
    run = training_config(
        task, method, "tiny", grid=grid, hidden=32, projection=16, precision="fp16", **options
    )
    network = run.make_network()
    recorded, plain = (sapc.Model(run, network, torch.device("cuda")) for _ in range(2))
    plain.execution._recorded.has_run_failed = True
    for model in (recorded, plain):
        model.times = Shift(4.0)
    return recorded, plain


def graphs_of_runs(model):
    return [key for key in model.execution._recorded.graphs if key[0] is not None]


@pytest.mark.parametrize("method", METHOD_NAMES)
@pytest.mark.parametrize("task", sapc.task_names())
def test_a_recorded_run_gives_the_same_bits_for_other_draws_and_conditions(task, method):
    recorded, plain = models(task, method)
    conditions = recorded.task.dataset("test0", size=4, seed=0, cache=False).fields
    for i in (0, 1, 2, 3, 0):
        options = {"condition": conditions[i : i + 1], "steps": 5, "seed": i}
        assert torch.equal(recorded.sample(3, **options), plain.sample(3, **options))
    assert len(graphs_of_runs(recorded)) == 1
    assert not graphs_of_runs(plain)
    assert not recorded.execution._recorded.has_run_failed
    # A condition each, and another sampler: graphs of their own.
    for sampler in (EULER, Sampler(STEPPERS["heun"], Shift(2.0))):
        for shift in (0, 1, 2, 3):
            options = {"condition": conditions.roll(shift, 0), "steps": 3, "seed": shift, "sampler": sampler}
            assert torch.equal(recorded.sample(8, **options), plain.sample(8, **options))
    assert not recorded.execution._recorded.has_run_failed


def test_batches_of_one_call_are_recorded_and_progress_goes_on():
    recorded, plain = models("heat", "sapc")
    condition = recorded.task.dataset("test0", size=1, cache=False).fields
    seen = []
    options = {"condition": condition, "steps": 4, "batch": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = recorded.sample(10, **options, progress=lambda done, total: seen.append((done, total)))
    assert torch.equal(got, plain.sample(10, **options))
    assert len(graphs_of_runs(recorded)) == 1
    assert seen == sorted(seen)
    assert seen[-1] == (10, 10)


def test_nobody_reports_to_a_call_that_is_over():
    """Even where a later one records what an interrupted one has begun."""
    recorded, plain = models("heat", "sapc")
    options = {"condition": recorded.task.dataset("test0", size=1, cache=False).fields, "steps": 4}
    seen = []

    def stop_late(done, total):
        seen.append(done)
        if len(seen) == 6:
            raise Stop

    recorded.sample(2, **options, progress=stop_late)
    with pytest.raises(Stop):
        recorded.sample(2, **options, progress=stop_late)
    count = len(seen)
    for _ in range(4):
        got = recorded.sample(2, **options)
    assert len(seen) == count
    assert len(graphs_of_runs(recorded)) == 1
    assert torch.equal(got, plain.sample(2, **options))


def test_sensors_and_laws_with_values_of_the_condition_are_kept():
    fields = models("heat", "sapc")[0].task.dataset("test0", size=3, cache=False).fields.double()
    shape = tuple(fields.shape[1:])
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[::5, ::3] = True
    matrix = torch.ones(1, fields[0].numel(), dtype=torch.float64)
    laws = {
        "sensors": sapc.Pin(mask),
        "function": sapc.Affine(lambda u: u.flatten(1).mean(1, keepdim=True), value="field"),
        # It stays on the CPU.
        "matrix": sapc.Affine(matrix, value="field"),
    }
    for name, extra in laws.items():
        recorded, plain = models("heat", "sapc")
        for i in (0, 1, 2, 0, 1):
            options = {"condition": fields[i : i + 1], "steps": 4, "extra_constraints": extra, "seed": i}
            got = recorded.sample(2, **options)
            assert torch.equal(got, plain.sample(2, **options)), name
        assert len(graphs_of_runs(recorded)) == 1, name
        assert not recorded.execution._recorded.has_run_failed, name
        if name == "sensors":
            assert torch.equal(got[:, mask], fields[1:2, mask].expand(2, -1))


def test_what_a_graph_reads_is_kept_when_the_law_forgets_it():
    """A law keeps the factors of sixteen sets of pinned points."""
    recorded, plain = models("heat", "sapc")
    fields = recorded.task.dataset("test0", size=1, cache=False).fields.double()
    mean = sapc.Affine(lambda u: u.flatten(1).mean(1, keepdim=True), value="field")
    options = {"condition": fields, "steps": 3, "extra_constraints": mean}
    want = plain.sample(2, **options)
    for _ in range(4):
        recorded.sample(2, **options)
    for i in range(20):
        mask = torch.zeros(tuple(fields.shape[1:]), dtype=torch.bool)
        mask[3:, i % 16] = mask[i % 7 + 1] = True
        recorded.sample(2, fields, steps=2, extra_constraints=mean & sapc.Pin(mask))
    rubbish = [torch.full((2**16,), torch.nan, device="cuda", dtype=torch.float64) for _ in range(64)]
    assert torch.equal(recorded.sample(2, **options), want)
    assert len(rubbish) == 64


def test_data_of_ones_own_in_their_own_units_are_recorded():
    g = torch.Generator().manual_seed(0)
    grid = sapc.Grid((sapc.Axis("x", 20, 0.0, 1.0), sapc.Axis("t", 18, 0.0, 1.0)))
    values = 300 + 20 * torch.randn(30, *grid.shape, generator=g, dtype=torch.float64).cumsum(2)
    data = sapc.Fields(values, grid, {}, {}, {"path": "fields.nc", "sha256": "none"})
    law = sapc.Affine(lambda u: u.flatten(1).mean(1, keepdim=True), value="field")
    task = sapc.Task.from_data(data, sapc.Pin.frame(0) & law, "own")
    run = training_config(task, "cond_sapc", "tiny", hidden=32, projection=16, precision="fp16")
    network = run.make_network()
    recorded, plain = (sapc.Model(run, network, torch.device("cuda")) for _ in range(2))
    plain.execution._recorded.has_run_failed = True
    recorded.times = plain.times = Shift(4.0)
    for i in range(4):
        options = {"condition": values[i : i + 1], "steps": 4, "seed": i}
        got, info = recorded.sample(3, **options, return_info=True)
        assert torch.equal(got, plain.sample(3, **options))
        assert info.residuals.local == 0
        assert info.residuals.balance < 1e-9
    assert len(graphs_of_runs(recorded)) == 1
    assert not recorded.execution._recorded.has_run_failed


def test_a_recording_that_fails_leaves_all_as_it_was():
    """Reading a number back cannot be recorded. Evaluations still are, on the stream of before."""
    recorded, plain = models("heat", "sapc")
    graphs, condition = (
        recorded.execution._recorded,
        recorded.task.dataset("test0", size=1, cache=False).fields,
    )
    stream = torch.cuda.current_stream()

    def read_back(u):
        return u * float(u.sum() * 0 + 1)

    u = torch.randn(2, 20, 18, device="cuda")
    with torch.no_grad():
        for _ in range(4):
            assert torch.equal(graphs.run("one", read_back, u), u)
    assert graphs.has_run_failed
    assert not graphs.has_failed
    assert torch.cuda.current_stream() == stream
    assert torch.randn(3, device="cuda").isfinite().all()
    options = {"condition": condition, "steps": 5}
    for _ in range(3):
        got = recorded.sample(2, **options)
    assert torch.equal(got, plain.sample(2, **options))
    assert not graphs_of_runs(recorded)


def test_a_law_that_waits_is_not_recorded():
    recorded, plain = models("heat", "sapc")
    fields = recorded.task.dataset("test0", size=1, cache=False).fields.double()
    energy = sapc.Constraint(lambda u: u.square().flatten(1).mean(1, keepdim=True), value="field")
    for _ in range(4):
        got = recorded.sample(2, fields, steps=3, extra_constraints=energy)
    assert torch.equal(got, plain.sample(2, fields, steps=3, extra_constraints=energy))
    assert not graphs_of_runs(recorded)


def test_other_weights_are_other_runs():
    recorded, plain = models("heat", "sapc")
    condition = recorded.task.dataset("test0", size=1, cache=False).fields
    for _ in range(4):
        recorded.sample(2, condition, steps=3)
    weight = recorded.network.lift_in.weight
    weight.data = weight + 1
    assert torch.equal(recorded.sample(2, condition, steps=3), plain.sample(2, condition, steps=3))


@pytest.mark.parametrize("length", [1e-4, 1e-3, 0.3])
def test_the_source_is_that_of_the_cpu(length):
    for shape in ((20, 18), (101, 99), (3, 4), (12, 10, 9)):
        axes = [sapc.Axis(name, n, 0.0, 1.0) for name, n in zip("txyz", reversed(shape), strict=False)]
        grid = sapc.Grid(tuple(reversed(axes)))
        one, other = (torch.Generator().manual_seed(7) for _ in range(2))
        options = {"length": length, "dtype": torch.float64}
        want = sapc.source.sample(grid, 5, one, **options)
        got = sapc.source.sample(grid, 5, other, device="cuda", **options)
        assert got.is_cuda
        assert (got.cpu() - want).abs().max() < 1e-12
        assert torch.equal(one.get_state(), other.get_state())


def test_samples_are_those_of_the_cpu_but_for_the_network():
    """With copies that fill up the last batch, and a condition each."""
    recorded, _ = models("heat", "sapc")
    condition = recorded.task.dataset("test0", size=5, cache=False).fields
    on_cpu = sapc.Model(recorded.run, recorded.run.make_network(), torch.device("cpu"))
    on_cpu.times = recorded.times
    options = {"n": 5, "condition": condition, "steps": 3, "batch": 2}
    assert (recorded.sample(**options) - on_cpu.sample(**options)).abs().max() < 0.02
