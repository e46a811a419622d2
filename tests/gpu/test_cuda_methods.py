"""What only a GPU can show of the methods: the CPU's samples, losses and gradients, compiled or not.

D-Flow needs little memory.
"""

import pytest
import torch

import sapc
from sapc import flow
from sapc.evaluation.trajectory import TrajectoryRecorder
from sapc.methods import METHODS, dflow, get_method
from sapc.nn.fno import matmul_precision
from sapc.training.config import training_config
from sapc.training.distributed import ProcessGroup
from sapc.training.step import Training

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # A compiler warns about itself.
    pytest.mark.filterwarnings("ignore", "error::sapc.SapcWarning"),
]

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
STEPS = 4


# -- samples --


class Case:
    """A task at tiny size on a device: solutions of three conditions, their manifolds and noise.

    It also has a velocity without a network.
    """

    def __init__(self, name, device):
        # The grid of the trainings below, so that projections are compiled once.
        run = training_config(name, "ffm", "tiny")
        self.task = run.make_task()
        self.u = self.task.dataset("train", size=3).fields.double().to(device)
        self.H = self.task.manifold(self.u, solver=run.solver(self.task))
        self.v1 = self.noise(0)()

    def noise(self, seed):
        """Draws from the CPU's generator, as `Model` has them."""
        g = torch.Generator().manual_seed(seed)
        draw = lambda: sapc.source.sample(self.task.grid, 3, g, dtype=torch.float64)
        return lambda: draw().to(self.u.device)

    def sample(self, method, rows=slice(None), watch=None):
        u, draw = self.u[rows], self.noise(1)

        def v(vt, t):
            return 0.6 * (vt - u) / flow.expand_like(t, vt) + 0.3 * torch.tanh(3 * vt) + 0.1

        sample = method.bind_source(lambda: draw()[rows])
        v = v if watch is None else watch.wrap(v)
        with torch.no_grad():
            return sample(v, self.v1[rows], self.H[rows], STEPS)


@pytest.fixture(scope="module", params=sapc.task_names())
def cases(request):
    return Case(request.param, CPU), Case(request.param, GPU)


@pytest.fixture(scope="module", params=METHODS)
def sampled(request, cases):
    """A method's samples on the GPU."""
    method = get_method(request.param)
    return method, cases[1].sample(method)


def test_samples_agree_with_the_cpu(cases, sampled):
    method, fields = sampled
    assert (fields.dtype, fields.device.type) == (torch.float64, GPU.type)
    want = cases[0].sample(method)
    # An optimisation of twenty iterations amplifies rounding.
    assert (fields.cpu() - want).abs().max() < (1e-6 if method.couples_batch else 1e-8)


def test_samples_are_as_exact_as_declared(cases, sampled):
    method, fields = sampled
    H = cases[1].H
    worst = H.residual(fields).abs().max()
    if method.exact == "all" or (method.exact == "affine" and H.affine):
        assert worst < 1e-10
    elif method.exact == "none":
        assert worst > 1e-3
    assert worst.isfinite()


def test_the_same_draws_give_the_same_bits(cases, sampled):
    method, fields = sampled
    assert torch.equal(cases[1].sample(method), fields)


def test_a_sample_does_not_depend_on_its_batch(cases, sampled):
    method, fields = sampled
    if not method.couples_batch:
        assert (cases[1].sample(method, slice(1, 2)) - fields[1:2]).abs().max() < 1e-9


def test_a_watch_changes_no_bit(cases, sampled):
    method, fields = sampled
    watch = TrajectoryRecorder()
    seen = cases[1].sample(method, watch=watch)
    watch.finish(seen, cases[1].H)
    assert torch.equal(seen, fields)
    assert len(watch.result().energy) == STEPS


# -- training --

TRAINED = ("cafm", "sapc_s2", "pbfm", "cond_ffm")
TASKS = ("heat", "reaction_diffusion", "stokes_ic")


def training(task, method, device, compiled=False):
    """The same weights and data on every device."""
    run = training_config(task, method, "tiny", precision="float32")
    fields = run.make_task().dataset("train", size=run.batch).fields.to(device)
    return Training(run, ProcessGroup(device), compiled=compiled, data=(fields, fields))


def objectives(state):
    """The loss of a batch drawn on the CPU, and its gradient.

    Where there is a second objective, also that objective in its last stage, and its gradient.
    """
    v0, n = state.data, state.run.batch
    g = torch.Generator().manual_seed(3)
    v1 = sapc.source.sample(state.task.grid, n, g, length=state.run.source_length_scale).to(v0.device)
    t = torch.linspace(0.1, 0.95, n).to(v0.device)
    H = state.H.rebind(v0)
    v, penalty = state.method.velocity(state.network, H), state.method.second_objective
    values = [state.method.loss(v, v0, v1, t, H)]
    if penalty is not None:
        values.append(penalty.loss(v, v0, v1, t, H, 0.9))
    gradients = [torch.autograd.grad(x, list(state.network.parameters()), allow_unused=True) for x in values]
    flat = [torch.cat([part.flatten().cpu() for part in parts if part is not None]) for parts in gradients]
    return [float(x.detach()) for x in values], flat


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", TRAINED)
def test_losses_and_gradients_are_those_of_the_cpu(method, task, compiled):
    with matmul_precision("float32"):
        wanted, want = objectives(training(task, method, CPU))
        found, got = objectives(training(task, method, GPU, compiled))
    assert found == pytest.approx(wanted, rel=1e-3)
    for a, b in zip(got, want, strict=True):
        # Shapes are equal, so both leave out the same parameters.
        assert a.shape == b.shape
        assert (a - b).norm() < 1e-3 * b.norm()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("method", TRAINED)
def test_a_step_gives_every_layer_a_gradient(method, task, compiled):
    """Also in PBFM's last stage, where states that need a gradient are handed to the network."""
    state = training(task, method, GPU, compiled)
    # A constant velocity is one of the things that an affine projection of Heat takes away: its gradient is
    # rounding, or zero.
    unseen = {"project_out.bias"} if method in ("cafm", "sapc_s2") and state.H.affine else set()
    for step in (0, state.run.steps - 1):
        state.step = step
        stepped = state.advance()
        assert stepped.loss.isfinite()
        assert stepped.norm.isfinite()
        assert stepped.norm > 0
        assert set(state.without_gradient()) <= unseen
        assert (stepped.fallback is None) == (method != "pbfm")
        # None or zero: the second gradient was finite.
        assert not stepped.fallback
    assert all(bool(p.isfinite().all()) for p in state.network.parameters())


@pytest.mark.parametrize("task", sapc.task_names())
def test_a_step_with_two_objectives_never_waits_for_the_device(task, monkeypatch, forbid_waiting):
    """In its last stage, the longest."""

    def waits(event):
        # The debug mode below does not count this.
        raise AssertionError("waited for an event")

    state = training(task, "pbfm", GPU)
    state.step = state.run.steps - 3
    for _ in range(2):
        state.advance()
    torch.cuda.synchronize()
    monkeypatch.setattr(torch.cuda.Event, "synchronize", waits)
    with forbid_waiting():
        stepped = state.advance()
    assert stepped.loss.isfinite()
    assert stepped.residual.isfinite()
    assert not stepped.fallback


# -- D-Flow with a network --


def model(compiled, task="heat"):
    torch.manual_seed(0)
    run = training_config(task, "ffm", "tiny", precision="float32")
    return sapc.Model(run, run.make_network(), GPU, compiled=compiled)


@pytest.mark.parametrize("task", TASKS)
def test_the_gradient_through_a_compiled_network_is_that_of_a_plain_one(task):
    """In the state alone: the weights need none."""
    found = []
    for compiled in (False, True):
        own = model(compiled, task)
        H = own.manifold(own.task.dataset("test1", size=1).fields)
        g = torch.Generator().manual_seed(0)
        v1 = sapc.source.sample(own.task.grid, 3, g, dtype=torch.float64).to(GPU)
        with torch.no_grad():
            found.append(dflow.slope(lambda vt, t, own=own: own.network(vt.float(), t), v1, H, 5))
    (value, slope), (wanted, want) = found[1], found[0]
    assert float(value) == pytest.approx(float(wanted), rel=1e-4)
    assert (slope - want).norm() < 1e-3 * want.norm()


def test_dflow_samples_with_a_compiled_network():
    own = model(compiled=True)
    condition = own.task.dataset("test1", size=1).fields
    plain, fields = (
        own.sample(3, condition, 10, sampler="euler", method=name).to(GPU) for name in ("ffm", "dflow")
    )
    H = own.manifold(condition)
    assert H.residual(fields).norm() < 0.9 * H.residual(plain).norm()
    assert torch.equal(own.sample(3, condition, 10, method="dflow").to(GPU), fields)


def test_dflows_memory_does_not_grow_with_its_steps_but_for_their_states():
    own, n = model(compiled=True), 8
    condition = own.task.dataset("test1", size=1).fields
    peaks = []
    # The first time compiles.
    for steps in (4, 4, 40):
        torch.cuda.reset_peak_memory_stats()
        fields = own.sample(n, condition, steps, method="dflow", batch=n)
        peaks.append(torch.cuda.max_memory_allocated())
    state = fields.nbytes
    assert (fields.dtype, state) == (torch.float64, n * 16 * 16 * 8)
    assert peaks[2] - peaks[1] < 4 * 36 * state
