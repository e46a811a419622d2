"""What only a GPU can show of backbone, training and sampling."""

import os
import signal

import pytest
import torch

import sapc
from sapc.nn.fno import FNO, matmul_precision
from sapc.training.config import training_config
from sapc.training.distributed import ProcessGroup
from sapc.training.loop import train
from sapc.training.run_folder import RunFolder, load_tensors
from sapc.training.step import Training

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize(("precision", "bound"), [("float32", 1e-5), ("tf32", 3e-3), ("bf16", 3e-2)])
def test_compiled_products_equal_ffts_in_float64(precision, bound):
    torch.manual_seed(0)
    network = FNO(2, 12, 16, 32, 16, precision=precision, transform="dft").cuda()
    u, t = torch.randn(8, 40, 36, device="cuda"), torch.rand(8, device="cuda")
    oracle = FNO(2, 12, 16, 32, 16, transform="fft").cuda().double()
    oracle.load_state_dict(network.state_dict())
    network.compile_core()
    with matmul_precision(precision):
        for net, x, at in ((network, u, t), (oracle, u.double(), t.double())):
            net(x, at).square().mean().backward()
        got, want = network(u, t).detach(), oracle(u.double(), t.double()).detach()
    assert (got - want).norm() < bound * want.norm()
    for (name, p), q in zip(network.named_parameters(), oracle.parameters(), strict=True):
        assert (p.grad - q.grad).norm() < 10 * bound * q.grad.norm() + 1e-12, name


@pytest.mark.parametrize("task", ["burgers", "navier_stokes", "reaction_diffusion"])
def test_images_under_symmetries_are_those_of_the_cpu_and_never_wait(task, forbid_waiting):
    grid = (16, 16, 5) if task == "navier_stokes" else (16, 12)
    for symmetry in sapc.get_task(task, grid=grid).find_symmetries():
        u = torch.randn(8, *grid, generator=torch.Generator().manual_seed(0))
        k = torch.arange(8) % symmetry.order
        parameters = {symmetry.parameter: torch.rand(8, device="cuda", dtype=torch.float64)}
        g = torch.Generator("cuda").manual_seed(0)
        on_device, k_on_device = u.cuda(), k.cuda()
        with forbid_waiting():
            image = symmetry.apply(on_device, k_on_device)
            drawn = symmetry.draw(8, g, parameters)
        assert torch.equal(image.cpu(), symmetry.apply(u, k))
        assert 0 <= int(drawn.min()) <= int(drawn.max()) < symmetry.order


@pytest.mark.parametrize("task", sapc.task_names())
def test_a_step_never_waits_for_the_device(task, monkeypatch, forbid_waiting):
    """A new epoch in every step, and a projection in each.

    The host is free to run ahead, so its own work costs nothing.
    """

    def waits(event):
        # The debug mode below does not count this.
        raise AssertionError("waited for an event")

    run = training_config(task, "sapc", "tiny", precision="bf16")
    fields = run.make_task().dataset("train", size=run.batch).fields.cuda()
    state = Training(run, ProcessGroup(fields.device), compiled=False, data=(fields, fields))
    for _ in range(2):
        state.advance()
    torch.cuda.synchronize()
    monkeypatch.setattr(torch.cuda.Event, "synchronize", waits)
    with forbid_waiting():
        stepped = state.advance()
    assert stepped.loss.isfinite()
    assert stepped.norm > 0


@pytest.mark.parametrize("compiled", [False, True])
def test_continued_training_gives_the_same_bits(tmp_path, compiled):
    run = training_config("heat", "sapc", "tiny", steps=60, validation_interval=20, precision="bf16")

    def stop(step, steps, shown):
        if step == 50:
            os.kill(os.getpid(), signal.SIGINT)

    train(run, tmp_path / "whole", compiled=compiled)
    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "stopped", compiled=compiled, progress=stop)
    torch.compiler.reset()
    train(run, tmp_path / "stopped", compiled=compiled)
    a, b = (load_tensors(RunFolder(tmp_path / name).weights)[0] for name in ("whole", "stopped"))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("task", ["heat", "reaction_diffusion", "stokes_ic", "stokes_bc", "burgers"])
def test_training_and_sampling_end_on_the_manifold(tmp_path, task):
    folder = train(training_config(task, "sapc", "tiny", precision="bf16"), tmp_path / "run", compiled=False)
    model = sapc.load(folder.path, compiled=False)
    truth = model.task.dataset("test0", size=1).fields
    fields = model.sample(8, condition=truth, steps=10)
    H = model.task.manifold(truth.double())
    assert H.residual(fields.cpu()).abs().max() < 1e-10


def test_a_seed_means_the_same_noise_on_both_devices(tmp_path):
    folder = train(
        training_config("heat", "sapc", "tiny", precision="float32"), tmp_path / "run", compiled=False
    )
    truth = sapc.load(folder.path, device="cpu").task.dataset("test0", size=1).fields
    fields = [
        sapc.load(folder.path, device=d, compiled=False).sample(4, condition=truth, steps=5).cpu()
        for d in ("cpu", "cuda")
    ]
    assert (fields[0] - fields[1]).abs().max() < 1e-4
