"""The kernels on a GPU: values and gradients at the published sizes against full FFTs in float64, repeats, and a captured graph."""

import importlib.util

import pytest
import torch

from sapc.fno import FNO, matmul_precision

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton"),
]

PUBLISHED = {
    "flat": ((100, 100), (32, 64, 256, 32)),
    "wide": ((128, 100), (32, 64, 256, 32)),
    "solid": ((64, 64, 50), (16, 32, 128, 16)),
    "coarse": ((20, 30), (32, 64, 256, 32)),  # fewer modes than the network has
    "narrow": ((33, 47), (12, 16, 32, 8)),
}
# Relative errors: of a value, and of the gradient of a layer.
BOUNDS = {"float32": (3e-6, 1e-5), "tf32": (2e-3, 4e-3), "fp16": (2e-3, 4e-3), "bf16": (3e-2, 4e-2)}


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


@pytest.mark.parametrize("conditions", [0, 1])
@pytest.mark.parametrize("precision", BOUNDS)
@pytest.mark.parametrize("name", PUBLISHED)
def test_values_and_gradients_are_those_of_ffts_in_float64(name, precision, conditions):
    grid, sizes = PUBLISHED[name]
    if conditions and name not in ("flat", "narrow"):
        pytest.skip("one size of each kind is enough")
    net = network(len(grid), sizes, precision, conditions=conditions)
    g = torch.Generator("cuda").manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=g, device="cuda")
    u, t = draw(3, *grid), torch.rand(3, generator=g, device="cuda")
    weight = 1e-7 * (
        1 + 0.5 * draw(3, *grid)
    )  # not of mean zero: gradients of biases are sums, and would cancel
    shown = [draw(3, *grid)] * conditions
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
        f"{name} {precision}: value {apart(v, want):.1e}, u {apart(gu, want_gu):.1e}, worst {max(errors.values()):.1e}"
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
    assert FNO(2, 8, 12, 24, 8, precision="fp16").cuda().path(u) == "dft"  # a width that is no power of two
