"""Models: what a run folder gives back, and fields drawn from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sapc
from sapc.errors import SapcError, SapcWarning
from sapc.training.distributed import ProcessGroup
from sapc.training.run_folder import RunFolder, load_tensors, save_tensors
from sapc.training.step import Training

AFFINE = ("heat", "burgers")
CURVED = ("reaction_diffusion", "stokes_ic", "stokes_bc")


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Run folders by task and method, trained when asked for."""
    root, done = tmp_path_factory.mktemp("runs"), {}

    def make(task: str, method: str = "sapc", **changes) -> Path:
        key = f"{task}-{method}-" + "-".join(map(str, changes.values()))
        if key not in done:
            run = sapc.training_config(task, method, "tiny", **changes)
            done[key] = sapc.training.loop.train(run, root / key, device="cpu").path
        return done[key]

    return make


@pytest.fixture(scope="session")
def models(folders):
    return lambda *what, **changes: sapc.load(folders(*what, **changes), device="cpu")


@pytest.fixture
def heat(models):
    return models("heat")


def condition(model: sapc.Model, n: int = 1, split: str = "test1") -> torch.Tensor:
    return model.task.dataset(split, size=n).fields


# -- loading --


def test_a_model_says_what_it_is(heat):
    assert repr(heat) == "Model(heat, sapc, 16 x 16, 957 parameters, step 20 of 20, cpu)"
    assert (heat.run.task, heat.method.name, heat.task.grid.shape) == ("heat", "sapc", (16, 16))
    assert heat.parameters == sum(p.numel() for p in heat.network.parameters())
    assert not heat.network.training
    assert not any(p.requires_grad for p in heat.network.parameters())


def test_the_weights_are_those_of_the_folder(folders, heat):
    tensors, _ = load_tensors(RunFolder(folders("heat")).weights)
    assert all(torch.equal(value, tensors[name]) for name, value in heat.network.state_dict().items())


def test_an_unfinished_training_gives_its_checkpoint_with_a_warning(tmp_path, folders):
    run = sapc.training_config("heat", "sapc", "tiny")
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        folder.begin(run)
    with pytest.raises(SapcError, match=r"no weights yet.*sapc train --resume"):
        sapc.load(folder.path, device="cpu")
    training = Training(run, ProcessGroup(torch.device("cpu")))
    for _ in range(7):
        training.advance()
    training.save(folder.checkpoint, seconds=0.0)
    with pytest.warns(SapcWarning, match="step 7 of 20"):
        model = sapc.load(folder.path, device="cpu")
    assert model.step == 7
    own = training.network.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in model.network.state_dict().items())


def test_folders_that_are_none(tmp_path, folders):
    with pytest.raises(SapcError, match="is not a run folder"):
        sapc.load(tmp_path / "nowhere")
    with pytest.raises(SapcError, match="device 'tpu' cannot be used"):
        sapc.load(folders("heat"), device="tpu")
    other = RunFolder(tmp_path / "other")
    with other.lock():
        other.begin(sapc.training_config("heat", "sapc", "tiny", hidden=6))
    tensors, about = load_tensors(RunFolder(folders("heat")).weights)
    save_tensors(other.weights, tensors, about)
    with pytest.raises(SapcError, match="of another network"):
        sapc.load(other.path)
    other.weights.write_bytes(b"damaged")
    with pytest.raises(SapcError, match="damaged"):
        sapc.load(other.path)


# -- samples --


@pytest.mark.slow
@pytest.mark.parametrize(("task", "bound"), [*((t, 1e-12) for t in AFFINE), *((t, 1e-10) for t in CURVED)])
def test_samples_lie_on_the_manifold_of_their_condition(models, task, bound):
    model = models(task)
    own = condition(model)
    fields = model.sample(3, own, steps=8)
    assert (fields.shape, fields.dtype) == ((3, *model.task.grid.shape), torch.float64)
    assert model.task.manifold(own).residual(fields).abs().max() < bound
    assert (fields[0] - fields[1]).abs().max() > 1e-2


def test_the_same_seed_gives_the_same_bits(heat):
    own = condition(heat)
    first = heat.sample(4, own, steps=5, seed=3)
    assert torch.equal(first, heat.sample(4, own, steps=5, seed=3))
    assert not torch.equal(first, heat.sample(4, own, steps=5, seed=4))


@pytest.mark.parametrize("task", ["heat", "stokes_ic"])
def test_a_field_depends_neither_on_the_number_nor_on_the_batch(models, task):
    model = models(task)
    own = condition(model)
    fields = model.sample(7, own, steps=3, batch=7)
    assert torch.allclose(fields[:3], model.sample(3, own, steps=3, batch=7), atol=1e-5, rtol=0)
    for batch in (1, 3):
        assert torch.allclose(fields, model.sample(7, own, steps=3, batch=batch), atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("n", "batch", "sizes"), [(7, 3, [3, 3, 3]), (5, 4, [3, 3]), (4, 9, [4]), (1, 1, [1])]
)
def test_batches_are_equally_large(heat, n, batch, sizes):
    seen: list[int] = []
    handle = heat.network.register_forward_hook(lambda module, given, out: seen.append(len(given[0])))
    heat.sample(n, condition(heat), steps=1, batch=batch)
    handle.remove()
    assert seen == sizes


def test_every_sample_its_own_condition(models):
    model = models("stokes_ic")
    own = condition(model, 5, "train")
    fields = model.sample(5, own, steps=5, batch=2)
    assert model.task.manifold(own).residual(fields).abs().max() < 1e-10
    alone = model.sample(5, own[4:], steps=5)
    assert torch.allclose(fields[4], alone[4], atol=1e-5)
    assert (fields[:, :, 0] - own[:, :, 0]).abs().max() == 0


def test_another_resolution(heat):
    task = heat.run.make_task((24, 20))
    own = task.dataset("test0", size=1)
    fields = heat.sample(2, own, steps=4, grid=(24, 20))
    assert fields.shape == (2, 24, 20)
    assert task.manifold(own.fields).residual(fields).abs().max() < 1e-12
    assert heat.manifold(own, grid=(24, 20)).residual(fields).abs().max() < 1e-12


@pytest.mark.parametrize("task", ["heat", "stokes_bc"])
def test_only_pinned_values_count(models, task):
    model = models(task)
    own = condition(model)
    pinned = sapc.models.sampling.pinned_mask(model.task)
    bare = torch.where(pinned, own, torch.nan)
    assert torch.equal(model.sample(2, bare, steps=3), model.sample(2, own, steps=3))


def test_a_dataset_is_a_condition(heat):
    data = heat.task.dataset("test2", size=1)
    assert torch.equal(heat.sample(2, data, steps=3), heat.sample(2, data.fields, steps=3))


def test_a_condition_is_bound_once_and_serves_its_own_model_alone(heat, folders):
    bound = heat.bind(condition(heat))
    assert torch.equal(heat.sample(n=2, condition=bound), heat.sample(n=2, condition=condition(heat)))
    other = sapc.load(folders("heat"), device="cpu")
    pin = sapc.Pin.at(x=0)
    for model, more in ((other, {}), (heat, {"grid": (8, 8)}), (heat, {"extra_constraints": pin})):
        with pytest.raises(SapcError, match="serves the model that bound it"):
            model.sample(n=2, condition=bound, **more)


def test_an_unconstrained_method_needs_no_condition(models):
    model = models("heat", "ffm")
    fields = model.sample(3, steps=5)
    assert torch.equal(fields, model.sample(3, condition(model), steps=5))
    assert model.manifold(condition(model)).local(fields).abs().max() > 1e-3


def test_progress_ends_at_the_end(heat):
    seen: list[tuple[int, int]] = []
    heat.sample(5, condition(heat), steps=4, batch=2, progress=lambda *both: seen.append(both))
    assert seen[-1] == (5, 5)
    assert seen == sorted(seen)


def test_a_broken_network_is_no_silent_nan(heat):
    model = sapc.Model(heat.run, heat.run.make_network(), torch.device("cpu"))
    model.network.project_out.bias.fill_(torch.nan)
    with pytest.raises(SapcError, match="2 of 2 samples contain NaN"):
        model.sample(2, condition(heat), steps=1)


def _nan_pin(model):
    own = condition(model).clone()
    own[0, :3, 0] = torch.nan
    return own


BAD = {
    "no condition": (lambda m: m.sample(2), "give one, as condition=data.fields"),
    "shape": (lambda m: m.sample(2, torch.zeros(1, 16, 15)), r"shape \(1, 16, 15\); expected \(1, 16, 16\)"),
    "no batch": (lambda m: m.sample(2, torch.zeros(16, 16)), r"expected \(1, 16, 16\)"),
    "empty": (lambda m: m.sample(2, torch.zeros(0, 16, 16)), r"expected \(1, 16, 16\)"),
    "complex": (lambda m: m.sample(2, torch.zeros(1, 16, 16, dtype=torch.complex64)), "complex64"),
    "number": (lambda m: m.sample(3, condition(m, 2)), "2 conditions for 3 samples"),
    "nan": (lambda m: m.sample(2, _nan_pin(m)), "3 of the condition's 16 pinned values are NaN"),
    "none": (lambda m: m.sample(0, condition(m)), "at least 1, got 0"),
    "truth": (lambda m: m.sample(True, condition(m)), "at least 1, got True"),
    "steps": (lambda m: m.sample(2, condition(m), steps=0), "sampling steps must be"),
    "seed": (lambda m: m.sample(2, condition(m), seed=-1), "seed must be"),
    "batch": (lambda m: m.sample(2, condition(m), batch=0), "batch must be"),
    "method": (lambda m: m.sample(2, condition(m), method="spac"), "unknown method 'spac'"),
    "weights": (lambda m: m.sample(2, condition(m), method="ffm"), "ffm samples with the weights of ffm"),
    "dimension": (lambda m: m.sample(2, condition(m), grid=(8, 8, 8)), "2 axes"),
    "other grid": (lambda m: m.sample(2, condition(m), grid=(8, 8)), r"expected \(1, 8, 8\)"),
    "memory": (lambda m: m.sample(10**12, condition(m)), "not enough memory"),
    "other task": (
        lambda m: m.sample(2, sapc.get_task("stokes_ic", grid=(16, 16)).dataset("test0", size=1)),
        "a dataset of stokes_ic",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_calls_are_one_sentence(heat, name):
    call, message = BAD[name]
    with pytest.raises(SapcError, match=message) as error:
        call(heat)
    assert "\n" not in str(error.value)


def test_samples_keep_float64_constraints_in_every_precision(heat):
    for precision in ("tf32", "bf16"):
        run = replace(heat.run, precision=precision)
        network = run.make_network()
        network.load_state_dict(heat.network.state_dict())
        model = sapc.Model(run, network, torch.device("cpu"))
        fields = model.sample(2, condition(heat), steps=3)
        assert model.manifold(condition(heat)).residual(fields).abs().max() < 1e-12


# -- several conditions --


@pytest.mark.parametrize("method", ["sapc", "dflow"])
def test_k_conditions_serve_k_m_samples_each_m_times_in_a_row(models, method):
    """To the bits of the same conditions written out, whatever the batches."""
    model = models("heat", "ffm" if method == "dflow" else "sapc")
    two = condition(model, 2, "train")
    steps = {"steps": 1} if method == "dflow" else {"steps": 2, "batch": 4}
    one_by_one = model.sample(6, two.repeat_interleave(3, 0), method=method, **steps)
    assert torch.equal(model.sample(6, two, method=method, **steps), one_by_one)
    if method == "sapc":
        assert torch.equal(one_by_one[:, :, 0], two[[0, 0, 0, 1, 1, 1], :, 0].double())


def test_conditions_that_do_not_divide_the_samples_are_refused(heat):
    with pytest.raises(SapcError, match=r"2 conditions for 5 samples; give as many samples of each, n=6"):
        heat.sample(5, condition(heat, 2, "train"))


# -- what a call did, and its randomness --


def test_info_says_what_a_call_did(models):
    """On a curved manifold in units of its own, where a wrong unit of the residuals would show."""
    model = models("stokes_ic")
    conditions = condition(model, 2, "train")
    fields, info = model.sample(4, conditions, steps=3, seed=5, return_info=True)
    assert torch.equal(fields, model.sample(4, conditions, steps=3, seed=5))
    assert (info.method, info.steps, info.seed) == ("sapc", 3, 5)
    assert info.evaluations == model.method.evaluations(3)
    assert info.seconds > 0
    H = model.manifold(conditions)[torch.tensor([0, 0, 1, 1])]
    assert info.residuals.local == float(H.local(fields).abs().max())
    assert info.residuals.balance == float(H.balance(fields).abs().max())
    assert torch.equal(info.condition.values[:, :, 0], conditions[:, :, 0].double())
    assert torch.equal(info.condition.manifold.pinned, model.manifold(conditions).pinned)
    assert torch.equal(model.sample(4, info.condition, steps=3, seed=info.seed), fields)
    with pytest.raises(AttributeError):
        info.steps = 4


def test_info_of_a_method_without_conditions(models):
    model = models("heat", "ffm")
    _, info = model.sample(2, steps=1, return_info=True)
    assert (info.residuals, info.condition) == (None, None)
    _, info = model.sample(2, condition(model), steps=1, return_info=True)
    assert info.residuals.local > 1e-3


def test_a_generator_in_place_of_a_seed(heat):
    """The same state gives the same samples, the next call others; what is drawn does not depend on the batch."""

    def draw(generator, **options):
        return heat.sample(3, condition(heat), steps=2, generator=generator, **options)

    g = torch.Generator().manual_seed(1)
    first, second = draw(g), draw(g)
    assert not torch.equal(first, second)
    assert torch.equal(draw(torch.Generator().manual_seed(1)), first)
    torch.testing.assert_close(draw(torch.Generator().manual_seed(1), batch=1), first, atol=1e-5, rtol=0)
    again, info = draw(torch.Generator().manual_seed(1), return_info=True)
    assert torch.equal(heat.sample(3, condition(heat), steps=2, seed=info.seed), again)
    for seed in (0, 1):
        with pytest.raises(SapcError, match="either seed= or generator=, not both"):
            draw(g, seed=seed)
    with pytest.raises(SapcError, match=r"generator of Model\.sample must be"):
        draw(5)


def test_the_seed_is_0_unless_given(heat):
    assert torch.equal(heat.sample(2, condition(heat), 1), heat.sample(2, condition(heat), 1, 0))


def test_names_of_version_0_1_0_still_work(heat):
    condition = sapc.get_task("heat", grid=heat.run.grid).dataset("test0", 1).fields
    pin = sapc.Pin.frame(-1)
    new = heat.sample(2, condition, steps=1, extra_constraints=pin)
    with pytest.warns(DeprecationWarning, match=r"also= of Model\.sample is now extra_constraints="):
        assert torch.equal(heat.sample(2, condition, steps=1, also=pin), new)
    with pytest.warns(DeprecationWarning, match=r"watch= of Model\.sample is now callback="):
        heat.sample(2, condition, steps=1, watch=None)
    with pytest.warns(DeprecationWarning, match=r"also= of Model\.manifold is now extra_constraints="):
        assert torch.equal(
            heat.manifold(condition, also=pin).pinned, heat.bind(condition, None, pin).manifold.pinned
        )
    with pytest.warns(DeprecationWarning, match=r"also= of Task\.manifold is now extra_constraints="):
        heat.task.manifold(condition, also=pin)
    with pytest.warns(DeprecationWarning, match=r"Model\.on is now Model\.task_at"):
        assert heat.on((8, 8)).grid.shape == (8, 8)
    with pytest.warns(DeprecationWarning, match=r"Model\.bounds is now Model\.clip_range"):
        assert heat.bounds(heat.method) == heat.clip_range(heat.method)
    with pytest.warns(DeprecationWarning, match=r"Model\.(span|about) is now Model\.(data_range|metadata)"):
        assert (heat.span, heat.about) == (heat.data_range, heat.metadata)
    with pytest.warns(DeprecationWarning, match=r"span= of Model is now data_range="):
        own = sapc.Model(heat.run, heat.network, torch.device("cpu"), span=(-3.0, 3.0))
    assert own.data_range == (-3.0, 3.0)
