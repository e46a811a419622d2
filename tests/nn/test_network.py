"""Networks of one's own: trained, continued, loaded, sampled and passed on by the same calls as the FNO."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import sapc
from sapc.training.loop import train
from sapc.training.run_folder import RunFolder, load_tensors

TINY = {"preset": "tiny", "device": "cpu"}


class Net(nn.Module):
    """Convolutions over a field, its time and, if wanted, its condition.

    It has dropout, so that steps draw numbers of their own.
    """

    def __init__(self, channels=1, conditions=0, width=8, out=None):
        super().__init__()
        self.channels = channels
        self.first = nn.Conv2d(channels * (1 + conditions) + 1, width, 3, padding=1)
        self.norm, self.drop = nn.BatchNorm2d(width), nn.Dropout(0.1)
        self.last = nn.Conv2d(width, out or channels, 3, padding=1)

    def forward(self, fields, times, *condition):
        parts = [x[:, None] if self.channels == 1 else x for x in (fields, *condition)]
        time = times.reshape(-1, 1, 1, 1).expand(-1, 1, *fields.shape[-2:])
        x = self.drop(torch.relu(self.norm(self.first(torch.cat((*parts, time), 1)))))
        return self.last(x)[:, 0] if self.channels == 1 else self.last(x)


class Unconditional(Net):
    def forward(self, fields, times):
        return super().forward(fields, times)


class PerField(nn.Module):
    """A network whose samples do not depend on their batch."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Parameter(torch.tensor([0.3, -0.1, 0.2]))

    def forward(self, fields, times):
        a, b, c = self.mix
        return a * fields + b * fields.roll(1, -1) + c * times.reshape(-1, 1, 1)


def net(**sizes):
    torch.manual_seed(3)
    return Net(**sizes)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return sapc.train("heat", out=tmp_path_factory.mktemp("runs") / "own", network=net(), steps=6, **TINY)


def weights(folder):
    return load_tensors(RunFolder(folder).weights)[0]


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_trained_model_samples_on_the_manifold(model):
    condition = model.task.dataset("test0", size=1).fields
    fields = model.sample(n=5, condition=condition, steps=3)
    assert fields.shape == (5, *model.task.grid.shape)
    assert float(model.manifold(condition).residual(fields).abs().max()) < 1e-12
    assert model.parameters == sum(p.numel() for p in net().parameters())


def test_the_network_that_is_passed_stays_as_it_was(tmp_path):
    own = net()
    before = {name: value.clone() for name, value in own.state_dict().items()}
    trained = sapc.train("heat", out=tmp_path / "run", network=own, steps=2, **TINY)
    loaded = sapc.load(tmp_path / "run", "cpu", network=own)
    assert same(before, own.state_dict())
    assert all(p.requires_grad for p in own.parameters())
    assert same(dict(trained.network.named_parameters()), dict(loaded.network.named_parameters()))
    assert not torch.equal(trained.network.first.weight, own.first.weight)


def test_a_stopped_training_goes_on_to_the_same_bits(model, tmp_path):
    run = sapc.training_config("heat", "sapc", "tiny", network=net(), steps=6)

    def stop(step, steps, seen):
        if step == 3:
            raise RuntimeError("stopped")

    train(run, tmp_path / "whole", device="cpu", network=net())
    with pytest.raises(RuntimeError, match="stopped"):
        train(run, tmp_path / "parts", device="cpu", network=net(), save_seconds=0, progress=stop)
    train(run, tmp_path / "parts", device="cpu", network=net())
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    assert same(weights(tmp_path / "whole"), weights(model.folder.path))


def test_a_checkpoint_between_is_gone_on_from(tmp_path, monkeypatch):
    monkeypatch.setattr("sapc.training.loop.LOG_INTERVAL", 2)
    run = sapc.training_config("heat", "pbfm", "tiny", network=net(), steps=6)

    def stop(step, steps, seen):
        if step == 5:
            raise RuntimeError("stopped")

    train(run, tmp_path / "whole", device="cpu", network=net())
    with pytest.raises(RuntimeError, match="stopped"):
        train(run, tmp_path / "parts", device="cpu", network=net(), save_seconds=0, progress=stop)
    assert load_tensors(RunFolder(tmp_path / "parts").checkpoint)[1]["step"] == 4
    # Other weights at the start change nothing: they are those of the checkpoint.
    train(run, tmp_path / "parts", device="cpu", network=Net())
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_a_function_makes_the_network_with_the_seed_of_the_run(tmp_path):
    for name in ("one", "two"):
        torch.manual_seed(hash(name) % 1000)
        sapc.train("heat", out=tmp_path / name, network=Net, steps=2, **TINY)
    sapc.train("heat", out=tmp_path / "other", network=Net, steps=2, seed=1, **TINY)
    assert same(weights(tmp_path / "one"), weights(tmp_path / "two"))
    assert not same(weights(tmp_path / "one"), weights(tmp_path / "other"))


def test_a_finished_run_is_extended_and_tuned(tmp_path):
    run = sapc.training_config("heat", "sapc", "tiny", network=Net, steps=2)
    train(run, tmp_path / "run", device="cpu", network=Net, keep_optimiser=True)
    longer = sapc.training_config("heat", "sapc", "tiny", network=Net, steps=4)
    train(longer, tmp_path / "run", device="cpu", network=Net, extend=True)
    assert sapc.load(tmp_path / "run", "cpu", network=Net).step == 4
    tuned = sapc.train("heat", out=tmp_path / "tuned", network=Net, start=tmp_path / "run", steps=2, **TINY)
    assert tuned.run.parent["name"] == "run"


def test_the_config_names_the_network_and_loading_does_not_import_it(model, tmp_path):
    home = model.folder.path
    settings = json.loads((home / "config.json").read_text())["backbone"]
    assert settings == {"network": f"{__name__}.Net", "parameters": model.parameters}
    (tmp_path / "run").mkdir()
    for file in ("config.json", "weights.safetensors"):
        (tmp_path / "run" / file).write_bytes((home / file).read_bytes())
    text = (home / "config.json").read_text().replace(f"{__name__}.Net", "antigravity.Surprise")
    (tmp_path / "run" / "config.json").write_text(text)
    with pytest.raises(sapc.SapcError, match=r"antigravity\.Surprise .* pass one like it as network="):
        sapc.load(tmp_path / "run")
    assert sapc.load(tmp_path / "run", "cpu", network=net()).step == 6


def test_a_mistake_inside_a_network_is_not_said_to_be_its_type(tmp_path):
    """A class is as good as a module: what its `forward` raises stays what it is."""

    class Mistaken(nn.Linear):
        def __init__(self):
            super().__init__(5, 5)

        def forward(self, fields, times):
            return super().forward(fields)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        sapc.train("heat", network=Mistaken, steps=1, out=tmp_path / "run", **TINY)


def test_a_network_that_does_not_fit_is_refused(model, tmp_path):
    home = model.folder.path
    with pytest.raises(sapc.SapcError, match="pass one of the same sizes"):
        sapc.load(home, network=net(width=4))

    class Renamed(Net):
        def __init__(self):
            super().__init__()
            self.middle = self.first
            del self.first

    with pytest.raises(sapc.SapcError, match="in the network that was passed"):
        sapc.load(home, network=Renamed())
    with pytest.raises(sapc.SapcError, match="leave out network="):
        sapc.load("heat-sapc", network=net())

    class Sized(Net):
        def __init__(self, width):
            super().__init__(width=width)

    for wrong, words in [
        (lambda: 3, "takes a torch.nn.Module"),
        (lambda u, t: u, r"without arguments .* takes \(u, t\): pass what it makes"),
        (Sized, r"Sized takes \(width\): pass what it makes, as Sized\(\.\.\.\)"),
        (nn.Sequential(), "no parameters"),
        (nn.LazyLinear(3), "without sizes"),
        (nn.Linear(2, 2, dtype=torch.complex64), "not real"),
    ]:
        with pytest.raises(sapc.SapcError, match=words):
            sapc.train("heat", out=tmp_path / "run", network=wrong, **TINY)
    with pytest.raises(sapc.SapcError, match="modes is a size of the FNO"):
        sapc.train("heat", out=tmp_path / "run", network=net(), modes=4, **TINY)
    assert not (tmp_path / "run").exists()


def test_a_wrong_result_is_one_sentence(tmp_path):
    class Wide(Net):
        def forward(self, fields, times):
            return super().forward(fields, times)[..., 1:]

    with pytest.raises(
        sapc.SapcError,
        match=r"Wide must return fields of the shape it gets, \(4, 16, 16\), but returned \(4, 16, 15\)",
    ):
        sapc.train("heat", out=tmp_path / "run", network=Wide(), **TINY)
    # The folder is free for the corrected one.
    assert sapc.train("heat", out=tmp_path / "run", network=net(), steps=1, **TINY).step == 1


def test_a_parameter_without_gradient_is_named(tmp_path):
    own = net()
    own.unused = nn.Linear(3, 3)
    with pytest.raises(sapc.SapcError, match=r"unused\.weight.*requires_grad_\(False\)"):
        sapc.train("heat", out=tmp_path / "run", network=own, **TINY)
    own.unused.requires_grad_(False)
    frozen = sapc.train("heat", out=tmp_path / "run", network=own, steps=2, **TINY)
    assert torch.equal(frozen.network.unused.weight, own.unused.weight)


def test_the_condition_is_shown_to_a_network_that_takes_it(tmp_path):
    with pytest.raises(
        sapc.SapcError, match=r"called with \(fields, times, condition\), and Unconditional takes"
    ):
        sapc.train("heat", "cond_ffm", out=tmp_path / "run", network=Unconditional(), **TINY)
    model = sapc.train("heat", "cond_ffm", out=tmp_path / "run", network=net(conditions=1), steps=2, **TINY)
    data = model.task.dataset("train", size=2).fields
    one, two = (model.sample(n=1, condition=data[i : i + 1], steps=2) for i in range(2))
    assert not torch.equal(one, two)


def test_a_sample_does_not_depend_on_its_batch(tmp_path):
    model = sapc.train("heat", out=tmp_path / "run", network=PerField(), steps=2, **TINY)
    condition = model.task.dataset("test0", size=1).fields
    many = model.sample(n=5, condition=condition, steps=3)
    few = model.sample(n=2, condition=condition, steps=3, batch=1)
    assert torch.allclose(many[:2], few, rtol=0, atol=1e-6)


def test_it_is_scored_and_passed_on(model, tmp_path):
    scores = sapc.evaluate(model, ["test0"], samples=2, reference=4, steps=2, floor_repeats=0)
    home = model.save_pretrained(tmp_path / "model", scores=scores, license="mit")
    card = (home / "README.md").read_text()
    assert f"`{__name__}.Net`, {model.parameters:,} parameters" in card
    assert "network=network)" in card
    assert "sapc train" not in card
    with pytest.raises(sapc.SapcError, match="pass one like it"):
        sapc.load(home)
    again = sapc.Model.from_pretrained(home, "cpu", network=net())
    condition = model.task.dataset("test0", size=1).fields
    assert torch.equal(again.sample(2, condition, 2), model.sample(2, condition, 2))


def test_a_model_is_made_of_any_module(tmp_path):
    run = sapc.training_config("heat", "sapc", "tiny")
    model = sapc.Model(run, net(), torch.device("cpu"))
    assert model.run.backbone.network == f"{__name__}.Net"
    model.save_pretrained(tmp_path / "model")
    assert same(
        weights(tmp_path / "model"), {n: v for n, v in net().state_dict().items() if v.is_floating_point()}
    )


def test_fields_of_a_file_with_channels(tmp_path):
    rng = np.random.default_rng(0)
    x = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    shift = rng.uniform(0, 6, (12, 1, 1))
    wave = np.sin(x[:, None] - np.linspace(0, 1, 8) + shift)
    np.savez(tmp_path / "waves.npz", h=wave, u=-wave, x=x, t=np.linspace(0, 1, 8))
    data = sapc.read_fields(tmp_path / "waves.npz", periodic=["x"])
    task = sapc.Task.from_data(data, sapc.Pin.frame(0), "waves")
    model = sapc.train(task, out=tmp_path / "run", network=net(channels=2), steps=2, **TINY)
    condition = task.dataset("validation").fields[:1]
    fields = model.sample(3, condition, 2)
    assert torch.equal(fields[..., 0], condition[..., 0].double().expand(3, -1, -1))


def test_bf16_is_autocast(tmp_path):
    seen = []

    class Looks(Net):
        def forward(self, fields, times):
            out = super().forward(fields, times)
            seen.append(out.dtype)
            return out

    model = sapc.train("heat", out=tmp_path / "run", network=Looks(), steps=1, precision="bf16", **TINY)
    assert set(seen) == {torch.bfloat16}
    assert model.sample(1, model.task.dataset("test0", size=1).fields, 1).dtype == torch.float64


def test_old_names_of_training_and_evaluation_still_work(tmp_path):
    run = sapc.training_config("heat", "sapc", "tiny", steps=1)
    with pytest.deprecated_call(match=r"is now sapc\.train$"):
        folder = sapc.train.train(run, tmp_path / "run", device="cpu")
    with pytest.deprecated_call(match=r"is now sapc\.evaluate$"):
        sapc.evaluate.evaluate(
            folder.path, ["test0"], samples=2, reference=2, steps=1, floor_repeats=0, device="cpu"
        )
    assert sapc.train.Trainer is sapc.training.loop.Trainer
