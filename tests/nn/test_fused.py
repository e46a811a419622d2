"""The kernels of the backbone, interpreted: values and gradients against full FFTs in float64.

Who gets the kernels is tested too. The interpreter multiplies matrices of half precision in float32, after
rounding them, as the matrix units do.
"""

from dataclasses import replace

import pytest
import torch
from torch.autograd import forward_ad

from sapc._triton import is_interpreted, triton_unavailable_reason
from sapc.errors import SapcError
from sapc.nn.cuda_graph import CudaGraphModule
from sapc.nn.fno import FNO

pytestmark = [
    pytest.mark.skipif(bool(triton_unavailable_reason()), reason="needs Triton"),
    pytest.mark.skipif(
        not is_interpreted(), reason="kernels are compiled here; test_cuda_fused.py holds them to the same"
    ),
]

# Relative errors of the value and of gradients: those of float32; 2^-11 and 2^-8 through three products and
# a sum that partly cancels. The interpreter knows no TF32: what is left of it is the approximate GELU.
BOUNDS = {"float32": (1e-6, 3e-6), "tf32": (3e-4, 1e-3), "fp16": (2e-3, 4e-3), "bf16": (2e-2, 4e-2)}


def network(dims=2, precision="float32", **more):
    torch.manual_seed(0)
    sizes = {"modes": 4, "hidden": 16, "projection": 16, "time_channels": 4, "blocks": 2} | more
    return FNO(dims, **sizes, precision=precision, transform="fused")


def small_pieces(net):
    """Rows in pieces of 16 points, hidden layers in pieces of 16 channels, samples 16 at a time."""
    from sapc.nn.kernels.plan import FULL, Launch

    tiny = Launch(points=16, programs=3, hidden=16)
    net.tuning = replace(
        FULL, **{name: tiny for name, value in vars(FULL).items() if isinstance(value, Launch)}, batch=16
    )
    return net


def answers(net, u, t, weight, *shown):
    """Velocity, and the gradients of a weighted sum in the state and in all parameters."""
    net.zero_grad()
    u = u.clone().requires_grad_()
    v = net(u, t, *shown)
    (v * weight).sum().backward()
    return {"v": v.detach(), "u": u.grad} | {name: p.grad.clone() for name, p in net.named_parameters()}


def oracle(net, u, t, weight, *shown):
    exact = FNO(
        len(net.modes), (*net.modes[:-1], 2 * net.modes[-1] - 2),
        net.lift_out.out_features, net.lift_in.out_features, net.time_channels,
        blocks=len(net.blocks), conditions=net.conditions, transform="fft",
    ).double()  # fmt: skip
    exact.load_state_dict(net.state_dict())
    return answers(exact, *(x.double() for x in (u, t, weight, *shown)))


def apart(got, want):
    return {k: float((got[k].double() - want[k]).norm() / want[k].norm()) for k in want}


def case(batch, grid, conditions=0, size=1.0):
    g = torch.Generator().manual_seed(1)
    draw = lambda *shape: torch.randn(*shape, generator=g)
    u, t = draw(batch, *grid), torch.rand(batch, generator=g)
    # Not of mean zero: gradients of biases are sums, and would cancel.
    weight = size * (1 + 0.5 * draw(batch, *grid))
    several = (conditions,) if conditions > 1 else ()
    return u, t, weight, *[draw(batch, *several, *grid)] * bool(conditions)


def check(net, *about):
    value, slope = BOUNDS[net.precision]
    errors = apart(answers(net, *about), oracle(net, *about))
    assert errors.pop("v") < value
    assert max(errors.values()) < slope, errors


@pytest.mark.parametrize("precision", BOUNDS)
def test_values_and_gradients_are_those_of_ffts(precision):
    check(network(precision=precision), *case(2, (3, 12)))


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_three_dimensions(precision):
    check(network(3, precision), *case(1, (2, 3, 10)))


@pytest.mark.parametrize("conditions", [1, 2])
def test_condition_fields_and_rows_in_pieces(conditions):
    """Two or three fields enter; rows are longer than a piece.

    Hidden channels are in two parts, and programs have several rows.
    """
    net = small_pieces(network(conditions=conditions, projection=32))
    check(net, *case(2, (2, 21), conditions=conditions))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_two_condition_fields_in_half_precision(precision):
    check(network(3, precision, conditions=2), *case(1, (2, 3, 10), conditions=2))


def test_more_condition_fields_than_the_kernels_know():
    u, t, _, shown = case(1, (3, 12), conditions=3)
    with pytest.raises(SapcError, match="at most 2 condition fields, not 3"):
        network(conditions=3)(u, t, shown)
    left_open = network(conditions=3)
    left_open.transform = "auto"
    assert left_open.path(u, shown) == "dft"


def test_a_grid_that_has_not_all_modes():
    check(network(modes=(8, 12)), *case(1, (3, 7)))


def test_modes_that_fill_their_padding_and_an_even_number_of_points():
    """Eight modes beside the mean, the last of them n/2, which has no conjugate."""
    check(network(modes=(2, 16), blocks=1), *case(1, (2, 16)))


@pytest.mark.parametrize("size", [1e-12, 1e6])
def test_gradients_of_any_size_survive_half_precision(size):
    """Without their scale the small ones would be zero and the large ones infinite."""
    check(network(precision="fp16", blocks=1), *case(1, (2, 10), size=size))


def test_a_gradient_of_zero_is_zero():
    u, t, weight = case(1, (2, 10))
    found = answers(network(precision="fp16", blocks=1), u, t, 0 * weight)
    found.pop("v")
    assert not any(bool(g.any()) for g in found.values())


def test_nothing_is_kept_where_no_gradient_is_wanted():
    net, (u, t, weight) = network(), case(2, (3, 12))
    with torch.no_grad():
        v = net(u, t)
    assert v.grad_fn is None
    assert torch.allclose(v, answers(net, u, t, weight)["v"], rtol=0, atol=1e-6)


def test_samples_do_not_see_each_other():
    net, (u, t, _) = network(precision="fp16"), case(3, (3, 12))
    with torch.no_grad():
        assert torch.equal(net(u, t)[1:2], net(u[1:2], t[1:2]))


# -- who gets them --


def test_the_choice():
    u = torch.zeros(1, 3, 12)
    assert network().path(u) == "fused"
    # On a CPU the kernels are for those who ask for them.
    for transform in ("dft", "fft", "auto"):
        net = FNO(2, 4, 16, 16, 4, transform=transform)
        assert net.path(u) == ("dft" if transform == "auto" else transform)


@pytest.mark.parametrize(("said", "path"), [("on", "fused"), ("off", "dft"), ("auto", "dft"), ("", "dft")])
def test_the_environment_chooses(monkeypatch, said, path):
    monkeypatch.setenv("SAPC_KERNELS", said)
    u = torch.zeros(1, 3, 12)
    assert FNO(2, 4, 16, 16, 4).path(u) == path
    # Who names a path gets it.
    assert FNO(2, 4, 16, 16, 4, transform="fft").path(u) == "fft"
    assert network().path(u) == "fused"


def test_an_environment_that_says_something_else(monkeypatch):
    monkeypatch.setenv("SAPC_KERNELS", "maybe")
    with pytest.raises(SapcError, match="SAPC_KERNELS is 'maybe'; choose on, off or auto"):
        FNO(2, 4, 16, 16, 4)(torch.zeros(1, 3, 12), torch.zeros(1))


@pytest.mark.parametrize(
    ("sizes", "words"), [({"hidden": 12}, "hidden in .*not 12"), ({"projection": 24}, "power of two .*24")]
)
def test_what_does_not_fit_is_refused_with_the_reason(sizes, words):
    with pytest.raises(SapcError, match=words):
        network(**sizes)(torch.zeros(1, 3, 12), torch.zeros(1))


@pytest.mark.parametrize("precision", ["float32", "fp16"])
def test_float64_is_for_the_other_paths(precision):
    with pytest.raises(SapcError, match="float32, bfloat16, float16, not float64"):
        network(precision=precision).double()(torch.zeros(1, 3, 12), torch.zeros(1))


def test_an_empty_batch():
    assert network()(torch.zeros(0, 3, 12), torch.zeros(0)).shape == (0, 3, 12)


def test_kernels_that_fail_are_refused_in_a_sentence():
    from sapc.nn.kernels.plan import FULL, Launch

    net = network()
    # Three is no power of two.
    net.tuning = replace(FULL, lift=Launch(points=3))
    with pytest.raises(SapcError, match=r"the kernels cannot be used: .*without SAPC_KERNELS"):
        net(torch.zeros(1, 3, 12), torch.zeros(1))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_a_tangent_is_refused_instead_of_lost():
    u, t, _ = case(1, (2, 10))
    net = network(blocks=1).requires_grad_(False)
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="forward-mode"):
        net(forward_ad.make_dual(u, torch.ones_like(u)), t)


def test_a_rehearsal_goes_there_and_back():
    """What training on a GPU begins with; here it must not change what comes after."""
    from sapc.nn.kernels.network import check_backward

    net, (u, t, weight) = network(blocks=1), case(2, (2, 10))
    before = answers(net, u, t, weight)
    p, e = net.plan, [torch.randn(2, 16), *net.lift_out.parameters(), *net.project_in.parameters()]
    transforms = p.transforms
    inputs = u[..., None, :], torch.randn(2, 16), torch.randn(2, 16)
    check_backward(p, *inputs, *e, *net.project_out.parameters(), *net.blocks[0].parameters_for(transforms))
    assert p.checked_backward == {False}
    after = answers(net, u, t, weight)
    assert net.plan is p
    assert all(torch.equal(before[k], after[k]) for k in before)


def test_evaluations_on_a_cpu_are_not_recorded():
    net, (u, t, _) = network(blocks=1), case(1, (2, 10))
    replayed = CudaGraphModule(net, warmup_calls=0)
    with torch.no_grad():
        assert torch.equal(replayed(u, t), net(u, t))
    assert not replayed.graphs
    assert replayed(u.requires_grad_(), t).requires_grad


def test_a_condition_gets_no_gradient():
    net, (u, t, _, shown) = network(conditions=1), case(1, (3, 12), conditions=1)
    with pytest.raises(SapcError, match="no gradient"):
        net(u, t, shown.requires_grad_())
