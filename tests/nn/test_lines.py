"""The FNO a few lines at a time, on a CPU without a gradient: the same function as by full FFTs, at any size."""

import copy
import pickle

import pytest
import torch

import sapc
from sapc.nn import lines
from sapc.nn.fno import FNO

GRIDS = [(40,), (20, 18), (6, 6), (5, 4), (12, 10), (16, 16, 10), (5, 6, 4)]
SIZES = [2**18, 200, 1]


def make(dims=2, **more):
    torch.manual_seed(0)
    return FNO(dims, **{"modes": 6, "hidden": 8, "projection": 12, "time_channels": 8, **more})


def case(*shape):
    g = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=g, dtype=torch.float64), torch.rand(
        shape[0], generator=g, dtype=torch.float64
    )


def by_path(network, *arguments):
    """The velocity by each path: lines, products with all lines at once, full FFTs."""
    found = {}
    with torch.no_grad():
        for network.transform, path in (("auto", "lines"), ("dft", "dft"), ("fft", "fft")):
            assert network.path(arguments[0]) == path
            found[path] = network(*arguments)
    network.transform = "auto"
    return found


def distance(a, b):
    return float((a - b).abs().max() / b.abs().max())


@pytest.mark.parametrize("group", SIZES)
@pytest.mark.parametrize("grid", GRIDS)
def test_it_is_the_function_of_full_ffts(grid, group, monkeypatch):
    monkeypatch.setattr(lines, "GROUP", group)
    found = by_path(make(len(grid)).double(), *case(3, *grid))
    assert distance(found["lines"], found["fft"]) < 2e-14
    assert distance(found["dft"], found["fft"]) < 2e-14


@pytest.mark.parametrize(("more", "lead"), [({"channels": 2}, (2,)), ({"conditions": 1}, ())])
def test_channels_and_conditions(more, lead):
    network, (u, t) = make(**more).double(), case(3, *lead, 9, 7)
    found = by_path(network, u, t, *([u.flip(0)] if "conditions" in more else []))
    assert found["lines"].shape == u.shape
    assert distance(found["lines"], found["fft"]) < 1e-14


def test_many_fields_are_taken_a_few_at_a_time(monkeypatch):
    network, (u, t) = make().double(), case(7, 10, 9)
    with torch.no_grad():
        whole = network(u, t)
        monkeypatch.setattr(lines, "WHOLE", 3 * 10 * 9 * 8)
        assert distance(network(u, t), whole) < 1e-14


def test_float32_rounds_as_the_other_paths_do_at_the_size_of_the_shipped_models():
    torch.manual_seed(0)
    network, (u, t) = FNO(2, (16, 12), 32, 64, 16), case(2, 100, 100)
    found = by_path(network, u.float(), t.float())
    exact = by_path(network.double(), u.float().double(), t.float().double())["fft"]
    for velocity in found.values():
        assert velocity.dtype == torch.float32
        assert distance(velocity, exact) < 2e-6


def test_a_repeat_has_the_same_bits():
    network, (u, t) = make(), case(3, 20, 18)
    with torch.no_grad():
        assert torch.equal(network(u, t), network(u, t))


def test_its_input_is_left_as_it_was():
    network, (u, t) = make().double(), case(2, 12, 10)
    before = u.clone(), t.clone()
    with torch.no_grad():
        network(u, t)
    assert torch.equal(u, before[0])
    assert torch.equal(t, before[1])


def test_who_takes_another_path():
    network, (u, t) = make(), case(2, 12, 10)
    assert network.path(u) == "dft"
    network(u, t).sum().backward()
    assert all(p.grad is not None for p in network.parameters())
    with torch.inference_mode():
        assert network.path(u) == "lines"
        network.precision = "bf16"
        assert network.path(u) == "dft"
        network.precision = "fp16"
        assert network.path(u) == "lines"
        network.compile_core()
        assert network.path(u) == "dft"


# -- nothing is kept from call to call --


@torch.no_grad()
def change_in_place(network):
    for p in network.parameters():
        p.mul_(1.1)


def change_by_data(network):
    for p in network.parameters():
        p.data = p.data * 1.1


def change_by_loading(network):
    network.load_state_dict({name: 1.1 * value for name, value in network.state_dict().items()})


def change_by_training(network):
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    u, t = case(2, 12, 10)
    (network(u, t) - u).square().mean().backward()
    optimiser.step()


def change_dtype(network):
    network.bfloat16().double()


@pytest.mark.parametrize(
    "change", [change_in_place, change_by_data, change_by_loading, change_by_training, change_dtype]
)
def test_weights_that_change_are_seen(change):
    network, (u, t) = make().double(), case(2, 12, 10)
    before = by_path(network, u, t)["lines"]
    change(network)
    found = by_path(network, u, t)
    assert distance(found["lines"], found["fft"]) < 1e-14
    assert distance(found["lines"], before) > 1e-9


def test_copies_have_weights_of_their_own():
    network, (u, t) = make().double(), case(2, 12, 10)
    before = by_path(network, u, t)["lines"]
    others = copy.deepcopy(network), pickle.loads(pickle.dumps(network))
    names = list(network.state_dict())
    change_in_place(network)
    for other in others:
        assert torch.equal(by_path(other, u, t)["lines"], before)
        assert list(other.state_dict()) == names


# -- samples --


@pytest.fixture(scope="module")
def heat():
    model = sapc.load("heat-sapc", device="cpu")
    return model, model.task.dataset("test1", size=1, cache=False).fields


def test_samples_repeat_to_the_bit_and_are_those_of_the_products(heat):
    model, condition = heat
    first, again = (model.sample(3, condition, steps=2, seed=0) for _ in range(2))
    assert torch.equal(first, again)
    model.network.transform = "dft"
    whole = model.sample(3, condition, steps=2, seed=0)
    model.network.transform = "auto"
    assert 0 < distance(first, whole) < 5e-6
    assert float(model.manifold(condition).residual(first).abs().max()) < 1e-12


def test_a_sample_is_the_same_beside_others_but_for_rounding(heat):
    model, condition = heat
    alone, together = (model.sample(3, condition, steps=2, seed=0, batch=batch) for batch in (1, 3))
    assert distance(alone, together) < 5e-6
