"""SAPC that is shown its condition: what its network gets, in which units and shape, and where it is the default."""

import math

import pytest
import torch
from torch import nn

import sapc
from sapc import Axis, Balance, Fields, Grid, Pin, SapcError
from sapc.data import Sensors
from sapc.methods import Method, get_method
from sapc.training.distributed import ProcessGroup
from sapc.training.run_folder import RunFolder
from sapc.training.step import Training

CPU = torch.device("cpu")
TINY = {"preset": "tiny", "device": "cpu", "steps": 2}
CHANNELS = Grid((Axis("x", 12, kind="periodic"), Axis("t", 6)), ("h", "u"))
PLAIN = Grid((Axis("x", 12, kind="periodic"), Axis("t", 6)), ("u",))


def waves(grid=CHANNELS, n=16):
    """Waves on a ring whose mean does not change; a second channel has other units."""
    x, t = grid.mesh()
    phase = torch.rand(n, 1, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    h = 5 + torch.sin(2 * math.pi * (x - 0.3 * t) + 6 * phase)
    values = torch.stack((h, 1e3 * (2 * h - 9)), 1) if grid.n_channels == 2 else h
    return Fields(values.float(), grid, origin={"path": "waves.nc", "sha256": "waves"})


def initial_height(grid):
    return Pin.frame(0, grid=grid, channel="h") & Balance(grid.integral("h"), grid=grid)


def initial(grid):
    return Pin.frame(0) & Balance(grid.integral(), grid=grid)


class Recorder(nn.Module):
    """A network that keeps the conditions it is shown."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.1))
        self.shown = []

    def forward(self, fields, times, condition):
        self.shown.append(condition)
        return self.gain * fields * times.reshape(-1, *(1,) * (fields.ndim - 1))


def recording_model(task):
    run = sapc.training_config(task, "cond_sapc", "tiny", network=Recorder)
    return sapc.Model(run, Recorder(), CPU)


# -- what is shown --


def test_values_are_in_the_units_of_the_network_and_the_mask_is_of_each_channel():
    task = sapc.Task.from_data(waves(), initial_height, "waves")
    model, condition = recording_model(task), task.dataset("validation").fields[:1]
    model.sample(3, condition, 2)
    shown = model.network.shown[0]
    assert shown.shape == (3, 2, *task.grid.shape)
    want = torch.zeros(2, *task.grid.shape)
    want[1, 0, :, 0] = 1
    want[0, 0, :, 0] = task.normalize(condition.double())[0, 0, :, 0].float()
    assert torch.equal(shown, want.expand_as(shown))


def test_a_pinned_zero_is_not_nothing_pinned():
    zeros, method = torch.zeros(1, *PLAIN.shape), get_method("cond_sapc")
    masks = [
        method.conditioning_input(constraint.on(zeros))
        for constraint in (initial(PLAIN), initial(PLAIN).members[1])
    ]
    assert not masks[0][:, 0].any()
    assert masks[0][0, 1].sum() == 12
    assert not masks[1].any()
    network = sapc.FNO(2, 4, 8, 8, 4, conditions=2)
    u, t = torch.randn(1, *PLAIN.shape), torch.ones(1)
    with torch.no_grad():
        assert not torch.allclose(network(u, t, masks[0].float()), network(u, t, masks[1].float()), atol=1e-5)


def test_where_nothing_is_pinned_it_is_shown_zeros(tmp_path):
    mass = lambda grid: Balance(grid.integral(), grid=grid)
    model = sapc.train(sapc.Task.from_data(waves(PLAIN), mass, "mass"), out=tmp_path / "run", **TINY)
    assert model.method.name == "cond_sapc"
    fields = model.sample(2, torch.full((1, *PLAIN.shape), math.nan), 2)
    assert model.manifold(torch.full((1, *PLAIN.shape), math.nan)).residual(fields).abs().max() < 1e-13
    H = model.bind(torch.full((1, *PLAIN.shape), math.nan)).normalized_manifold
    assert not model.method.conditioning_input(H).any()


def test_points_that_are_added_when_sampling_are_shown_and_kept():
    task = sapc.Task.from_data(waves(PLAIN), initial, "waves")
    condition = task.dataset("validation").fields[:2]
    mask = torch.zeros(PLAIN.shape, dtype=torch.bool)
    mask[3, 2] = mask[7, 5] = True
    sensors = Sensors(mask, condition.double().where(mask, torch.nan)[:1], 0.0)
    for extra, values in ((Pin(mask), condition), (sensors, condition[:1].expand(2, -1, -1))):
        model = recording_model(task)
        fields = model.sample(4, condition, 2, extra_constraints=extra)
        shown = model.network.shown[0]
        assert shown[:, 1].sum() == 4 * (12 + 2)
        want = task.normalize(values.double())[:, mask].repeat_interleave(2, 0)
        assert torch.allclose(shown[:, 0][:, mask].double(), want, atol=1e-6)
        assert torch.equal(fields[:, mask], values[:, mask].repeat_interleave(2, 0).double())


# -- its shape --


@pytest.mark.parametrize("grid", [PLAIN, CHANNELS])
def test_a_network_of_ones_own_gets_the_shape_of_the_docs(tmp_path, grid):
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.Conv2d(3 * grid.n_channels, grid.n_channels, 1)

        def forward(self, fields, times, condition):
            values, mask = condition[:, 0], condition[:, 1]
            assert values.shape == mask.shape == fields.shape
            assert set(mask.unique().tolist()) == {0.0, 1.0}
            parts = [x if grid.n_channels > 1 else x[:, None] for x in (fields, values, mask)]
            return self.mix(torch.cat(parts, 1)).reshape(fields.shape)

    task = sapc.Task.from_data(waves(grid), initial if grid is PLAIN else initial_height, "waves")
    model = sapc.train(task, "cond_sapc", out=tmp_path / "run", network=Own(), **TINY)
    condition = task.dataset("validation").fields[:1]
    fields = model.sample(2, condition, 2)
    assert model.manifold(condition).residual(fields).abs().max() < 1e-11


def test_an_fno_of_channels_reads_values_and_mask_of_each():
    network = sapc.FNO(2, 4, 8, 8, 4, channels=2, conditions=2)
    assert network.lift_in.in_features == 2 * 3 + 4 + 2
    u, t, shown = torch.randn(1, *CHANNELS.shape), torch.ones(1), torch.randn(1, 2, *CHANNELS.shape)
    with torch.no_grad():
        v = network(u, t, shown)
        network.lift_in.weight[:, 2:6] = network.lift_in.weight[:, [4, 5, 2, 3]]
        assert torch.allclose(network(u, t, shown.flip(1)), v, atol=1e-6)
        assert not torch.allclose(network(u, t, shown), v, atol=1e-4)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (torch.zeros(1, 12, 6), r"2 condition fields have shape \(1, 2, 12, 6\)"),
        (torch.zeros(1, 3, 12, 6), r"2 condition fields have shape \(1, 2, 12, 6\)"),
        (None, "takes 2 condition fields per sample"),
    ],
)
def test_another_shape_is_refused(condition, words):
    with pytest.raises(SapcError, match=words):
        sapc.FNO(2, 4, 8, 8, 4, conditions=2)(torch.zeros(1, 12, 6), torch.zeros(1), condition)


def test_a_method_that_shows_less_than_it_says_is_refused():
    sapc_method = get_method("sapc")
    own = Method(
        "own", "Own", sapc_method.loss, sapc_method.sample, "own", "all",
        conditioning_input=lambda H: H.fields, condition_fields=2,
    )  # fmt: skip
    with pytest.raises(SapcError, match=r"has shape \(1, 12, 6\); expected \(conditions, 2, 12, 6\)"):
        own.velocity(Recorder(), initial(PLAIN).on(torch.zeros(1, *PLAIN.shape)))


# -- sapc stays what it is --


def test_it_differs_from_sapc_in_the_network_alone():
    """With weights of zero for the condition, loss and samples are those of SAPC."""
    fields = sapc.get_task("heat", grid=(16, 16)).dataset("train", size=4).fields
    losses, samples = {}, {}
    state = None
    for name in ("sapc", "cond_sapc"):
        training = Training(
            sapc.training_config("heat", name, "tiny"), ProcessGroup(CPU), data=(fields, fields)
        )
        network = training.network
        if state is None:
            state = {key: value.clone() for key, value in network.state_dict().items()}
        else:
            weight = network.lift_in.weight.detach().zero_()
            network.load_state_dict({k: v for k, v in state.items() if k != "lift_in.weight"}, strict=False)
            first = state["lift_in.weight"]
            weight[:, :1], weight[:, 3:] = first[:, :1], first[:, 1:]
        losses[name] = training.validate()
        samples[name] = sapc.Model(training.run, network, CPU).sample(2, fields[:1], 3)
    assert losses["cond_sapc"] == pytest.approx(losses["sapc"], rel=1e-6)
    assert torch.allclose(samples["cond_sapc"], samples["sapc"], atol=1e-6)


# -- the default of given fields --


def test_given_fields_are_learned_by_it_unless_told_otherwise(tmp_path):
    task = sapc.Task.from_data(waves(PLAIN), initial, "waves")
    assert sapc.training_config(task, preset="tiny").method == "cond_sapc"
    assert sapc.training_config(task, "sapc", "tiny").method == "sapc"
    assert {sapc.training_config(name, preset="tiny").method for name in sapc.task_names()} == {"sapc"}

    class Plain(nn.Linear):
        def forward(self, fields, times):
            return super().forward(fields)

    assert sapc.training_config(task, preset="tiny", network=Plain(6, 6)).method == "sapc"
    assert sapc.train(task, out=tmp_path / "own", network=Plain(6, 6), **TINY).method.name == "sapc"


def test_a_run_that_is_there_keeps_its_method(tmp_path):
    task = sapc.Task.from_data(waves(PLAIN), initial, "waves")
    sapc.train(task, "sapc", out=tmp_path / "old", **TINY)
    weights = (tmp_path / "old" / "weights.safetensors").read_bytes()
    assert sapc.train(task, out=tmp_path / "old", **TINY).method.name == "sapc"
    assert (tmp_path / "old" / "weights.safetensors").read_bytes() == weights
    assert sapc.train(task, out=tmp_path / "more", start=tmp_path / "old", **TINY).method.name == "sapc"
    assert sapc.train(task, out=tmp_path / "new", **TINY).method.name == "cond_sapc"
    with pytest.raises(SapcError, match="method is 'sapc', not 'cond_sapc'"):
        sapc.train(task, "cond_sapc", out=tmp_path / "old", **TINY)
    assert RunFolder(tmp_path / "old").run().method == "sapc"
