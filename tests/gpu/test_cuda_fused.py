"""The kernels on a GPU: values and gradients at the published sizes against full FFTs in float64.

Repeats and a captured graph are tested too.
"""

import importlib.util
from contextlib import ExitStack
from dataclasses import replace

import pytest
import torch

import sapc
from sapc.nn.cuda_graph import CudaGraphModule
from sapc.nn.fno import FNO, matmul_precision
from sapc.training.config import training_config

if importlib.util.find_spec("triton") is not None:
    from sapc.nn.kernels.plan import HALF_NARROW, Launch

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
]

PUBLISHED = {
    "flat": ((100, 100), (32, 64, 256, 32)),
    "wide": ((128, 100), (32, 64, 256, 32)),
    "solid": ((64, 64, 50), (16, 32, 128, 16)),
    # Fewer modes than the network has.
    "coarse": ((20, 30), (32, 64, 256, 32)),
    "narrow": ((33, 47), (12, 32, 32, 8)),
    "slim": ((100, 100), (32, 16, 32, 32)),
    # A hidden layer in pieces longer than a row of channels.
    "tall": ((24, 100), (32, 32, 256, 32)),
    "broad": ((24, 100), (32, 128, 64, 32)),
}
# Relative errors: of a value, and of the gradient of a layer. TF32 cuts factors off where half precision
# rounds them.
BOUNDS = {"float32": (3e-6, 1e-5), "tf32": (4e-3, 2e-2), "fp16": (2e-3, 4e-3), "bf16": (3e-2, 4e-2)}


def network(dims, sizes, precision, **more):
    torch.manual_seed(0)
    return FNO(dims, *sizes, precision=precision, transform="fused", **more).cuda()


def gradients(net, u, t, weight, *shown):
    net.zero_grad()
    u = u.clone().requires_grad_()
    v = net(u, t, *shown)
    (v * weight).sum().backward()
    return v.detach(), u.grad, {name: p.grad.clone() for name, p in net.named_parameters()}


def apart(a, b):
    return float((a.double() - b.double()).norm() / b.double().norm())


@pytest.mark.parametrize(
    ("name", "precision", "conditions"),
    [
        *(
            (name, precision, 0)
            for name in PUBLISHED
            if name not in ("tall", "broad")
            for precision in BOUNDS
        ),
        *(("tall", precision, 0) for precision in ("fp16", "bf16")),
        ("broad", "fp16", 0),
        *((name, precision, 1) for name in ("flat", "narrow") for precision in BOUNDS),
        *((name, precision, 2) for name in ("flat", "narrow", "solid") for precision in BOUNDS),
    ],
)
def test_values_and_gradients_are_those_of_ffts_in_float64(name, precision, conditions):
    grid, sizes = PUBLISHED[name]
    net = network(len(grid), sizes, precision, conditions=conditions)
    g = torch.Generator("cuda").manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")
    u, t = draw(3, *grid), torch.rand(3, generator=g, device="cuda")
    # Not of mean zero: gradients of biases are sums, and would cancel.
    weight = 1e-7 * (1 + 0.5 * draw(3, *grid))
    several = (conditions,) if conditions > 1 else ()
    shown = [draw(3, *several, *grid)] * bool(conditions)
    with matmul_precision(precision):
        v, gu, found = gradients(net, u, t, weight, *shown)
        with torch.no_grad():
            alone = net(u, t, *shown)
    net.double()
    net.precision, net.transform = "float32", "fft"
    want, want_gu, wanted = gradients(
        net, u.double(), t.double(), weight.double(), *(x.double() for x in shown)
    )
    value, slope = BOUNDS[precision]
    errors = {k: apart(found[k], wanted[k]) for k in wanted}
    print(
        f"{name} {precision}: value {apart(v, want):.1e}, u {apart(gu, want_gu):.1e}, "
        f"worst {max(errors.values()):.1e}"
    )
    assert apart(v, want) < value
    assert apart(alone, want) < value
    assert apart(gu, want_gu) < slope
    assert max(errors.values()) < slope, errors


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
def test_the_same_call_gives_the_same_bits(precision):
    net = network(2, PUBLISHED["flat"][1], precision)
    u, t = torch.randn(8, 100, 100, device="cuda"), torch.rand(8, device="cuda")
    (v, gu, a), (w, gw, b) = (gradients(net, u, t, torch.ones_like(u)) for _ in range(2))
    assert torch.equal(v, w)
    assert torch.equal(gu, gw)
    assert all(torch.equal(a[k], b[k]) for k in a)


def test_kernels_are_the_choice_on_a_gpu():
    u = torch.randn(2, 20, 20, device="cuda")
    for precision, path in (("float32", "dft"), ("tf32", "fused"), ("fp16", "fused"), ("bf16", "fused")):
        assert FNO(2, 8, 64, 256, 8, precision=precision).cuda().path(u) == path
    for width in (16, 32, 128):
        assert FNO(2, 8, width, 32, 8, precision="fp16").cuda().path(u) == "fused"
    # A width that is no power of two.
    assert FNO(2, 8, 12, 24, 8, precision="fp16").cuda().path(u) == "dft"


def test_kernels_that_fail_give_way_to_products_after_one_warning():
    net = FNO(2, 12, 32, 32, 8, precision="fp16").cuda()
    # Three is no power of two: only the way back fails.
    net.tuning = replace(HALF_NARROW, project_back=Launch(points=3))
    u, t = torch.randn(2, 33, 47, device="cuda"), torch.rand(2, device="cuda")
    with pytest.warns(sapc.SapcWarning, match="runs by products") as caught:
        v = net(u, t)
    v.square().sum().backward()
    assert len(caught) == 1
    assert net.path(u) == "dft"
    assert all(p.grad.isfinite().all() for p in net.parameters())


# -- recordings and sampling --


def test_a_recording_gives_the_same_bits_for_other_numbers():
    net = network(2, PUBLISHED["narrow"][1], "fp16").requires_grad_(False)
    replayed, grid = CudaGraphModule(net), PUBLISHED["narrow"][0]
    with torch.no_grad():
        for n in (2, 2, 2, 2, 2, 5, 5, 5, 5, 5, 2, 1, 1, 1, 1, 2):
            u, t = torch.randn(n, *grid, device="cuda"), torch.rand(n, device="cuda")
            assert torch.equal(replayed(u, t), net(u, t))
    assert len(replayed.graphs) == 2
    assert not replayed.has_failed
    # This is other memory: no recording knows it.
    net.lift_in.weight.data = net.lift_in.weight + 1
    with torch.no_grad():
        assert torch.equal(replayed(u, t), net(u, t))
    u = torch.randn(2, *grid, device="cuda", requires_grad=True)
    # Not by a recording.
    replayed(u, torch.rand(2, device="cuda")).sum().backward()
    assert u.grad.abs().sum() > 0


@pytest.mark.parametrize("method", ["sapc", "ffm", "cond_ffm", "cond_sapc"])
@pytest.mark.parametrize("task", sapc.task_names())
def test_between_two_evaluations_nothing_waits_for_the_device(task, method, forbid_waiting):
    """From the first evaluation to the last, projections included; recorded after a few."""
    grid = (20, 18) if len(sapc.get_task(task).grid.shape) == 2 else (12, 12, 10)
    run = training_config(task, method, "tiny", grid=grid, hidden=32, projection=16, precision="fp16")
    model = sapc.Model(run, run.make_network(), torch.device("cuda"))
    condition = run.make_task().dataset("test0", size=1).fields
    assert model.network.has_kernels(model.device)
    inner, calls, watching = model._evaluated, [], ExitStack()

    def watched(*inputs):
        calls.append(1)
        if len(calls) == 8:
            watching.enter_context(forbid_waiting())
        if len(calls) == 16:
            watching.close()
        return inner(*inputs)

    model._evaluated = watched
    with watching:
        fields = model.sample(3, condition, steps=16)
    assert len(calls) == 16
    assert len(inner.graphs) == 1
    assert fields.isfinite().all()
    plain = sapc.Model(run, model.network, torch.device("cuda"))
    plain._evaluated = model.network
    assert torch.equal(plain.sample(3, condition, steps=16), fields)
