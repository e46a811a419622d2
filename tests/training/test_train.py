"""Training: the same bits after any interruption and the same result from several processes.

Nothing is lost, and errors are clear.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import sapc
from sapc._files import sha256, write_json
from sapc.errors import SapcError, SapcWarning
from sapc.training.config import FILE_KEYS, TrainingConfig, training_config
from sapc.training.distributed import ProcessGroup, spawn
from sapc.training.loop import Interrupts, Trainer, train
from sapc.training.run_folder import RunFolder, default_folder, load_tensors, save_tensors
from sapc.training.step import Training
from variants import variant


def tiny(task="heat", method="sapc", **changes):
    return training_config(task, method, "tiny", **changes)


def weights(folder):
    return load_tensors(RunFolder(folder).weights)[0]


def same_bits(a, b):
    a, b = weights(a), weights(b)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def lines(folder):
    """The log without its clock."""
    return [{k: v for k, v in entry.items() if k != "seconds"} for entry in RunFolder(folder).entries()]


# A training in a process of its own, so that it can be killed: steps are slowed down, and checkpoints are
# written at every chance.
SCRIPT = """
import sys, time
import sapc.training.loop as t
from sapc.training.config import training_config
t.LOG_INTERVAL = 5
def slow(step, steps, shown):
    print(step, flush=True)
    time.sleep(0.02)
run = training_config("heat", "sapc", "tiny", steps=60, validation_interval=20)
try:
    t.train(run, sys.argv[1], save_seconds=0, progress=slow)
except KeyboardInterrupt as stop:
    print(stop, file=sys.stderr)
    sys.exit(130)
"""


def start(folder):
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )


def until(process, step):
    for line in process.stdout:
        if int(line) >= step:
            return


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same training, never stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    process = start(folder)
    assert process.communicate()[1] == ""
    assert process.returncode == 0
    return folder


@pytest.mark.slow
def test_killed_twice_and_continued_gives_the_same_bits(tmp_path, whole):
    for step in (23, 41):
        process = start(tmp_path / "killed")
        until(process, step)
        process.kill()
        process.communicate()
        assert not (tmp_path / "killed" / "weights.safetensors").exists()
    last = start(tmp_path / "killed")
    out, errors = last.communicate()
    assert last.returncode == 0, errors
    # It did not begin again.
    assert int(out.split()[0]) > 20
    assert same_bits(whole, tmp_path / "killed")
    assert lines(whole) == lines(tmp_path / "killed")
    starts = json.loads((tmp_path / "killed" / "environment.json").read_text())["starts"]
    assert [s["step"] > 0 for s in starts] == [False, True, True]
    assert not (tmp_path / "killed" / "checkpoint.safetensors").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_to_stop_it_saves_the_very_step(tmp_path, number, whole):
    process = start(tmp_path / "run")
    until(process, 13)
    process.send_signal(number)
    out, errors = process.communicate()
    assert process.returncode == 130
    last = int(out.split()[-1]) if out.split() else 13
    assert f"stopped at step {last} of 60" in errors
    assert load_tensors(RunFolder(tmp_path / "run").checkpoint)[1]["step"] == last
    assert start(tmp_path / "run").communicate()[1] == ""
    assert same_bits(whole, tmp_path / "run")
    assert lines(whole) == lines(tmp_path / "run")


@pytest.mark.slow
def test_a_lost_checkpoint_only_costs_time(tmp_path, whole):
    process = start(tmp_path / "run")
    until(process, 20)
    process.kill()
    process.communicate()
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    assert start(tmp_path / "run").communicate()[1] == ""
    assert same_bits(whole, tmp_path / "run")
    assert lines(whole) == lines(tmp_path / "run")


def test_same_seed_same_bits_other_seed_other_bits(tmp_path):
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        train(tiny(seed=seed), tmp_path / folder)
    assert same_bits(tmp_path / "a", tmp_path / "b")
    assert not same_bits(tmp_path / "a", tmp_path / "c")


GOLDEN = {
    ("heat", "ffm"): [1.151755, 1.142916],
    ("heat", "sapc"): [0.992718, 0.998390],
    ("stokes_ic", "sapc"): [0.806446, 0.818237],
    ("heat", "cond_ffm"): [1.212526, 1.139957],
    ("heat", "cafm"): [0.948883, 0.987771],
    ("reaction_diffusion", "cafm"): [0.940576, 0.977546],
    ("stokes_bc", "cafm"): [1.011178, 1.496943],
    ("burgers", "pbfm"): [1.136057, 1.115013],
    ("stokes_ic", "pbfm"): [1.177876, 1.210967],
}


@pytest.mark.slow
@pytest.mark.parametrize(("task", "method"), list(GOLDEN))
def test_golden_losses(tmp_path, task, method):
    """A change of code that is not meant to change numbers keeps these."""
    folder = train(tiny(task, method), tmp_path / "run")
    found = [entry["validation"] for entry in folder.entries() if "validation" in entry]
    assert found == pytest.approx(GOLDEN[task, method], rel=2e-4)


@pytest.mark.slow
def test_training_learns(tmp_path):
    """Heat on a coarse grid: the validation loss falls well below 1.1.

    That is the loss of a network that says nothing.
    """
    run = tiny(
        steps=150, batch=16, train=64, validation=64, hidden=8, modes=(6, 6), lr=5e-3, validation_interval=50
    )
    found = [e["validation"] for e in train(run, tmp_path / "run").entries() if "validation" in e]
    assert found[-1] < 0.35


def test_the_rate_falls_on_a_plateau(tmp_path):
    run = tiny(steps=100, lr=1e-6, min_lr=2e-7, validation_interval=5, plateau_patience=0, validation=4)
    rates = {e["lr"] for e in train(run, tmp_path / "run").entries() if "lr" in e}
    assert min(rates) == pytest.approx(2e-7)


@pytest.mark.slow
def test_the_cosine_rises_and_falls_to_its_floor(tmp_path):
    run = tiny(
        steps=300,
        lr=2e-3,
        min_lr=1e-5,
        schedule="cosine",
        batch=1,
        train=4,
        validation=2,
        validation_interval=300,
    )
    rates = [run.rate(n) for n in range(300)]
    # The rise takes three steps.
    assert rates[0] == pytest.approx(2e-3 / 3, rel=1e-3)
    assert max(rates) == rates[2] == pytest.approx(2e-3, rel=1e-3)
    assert rates[150] == pytest.approx((2e-3 + 1e-5) / 2)
    assert rates[2:] == sorted(set(rates[2:]), reverse=True)
    assert rates[-1] == pytest.approx(1e-5, rel=0.02)
    seen = {e["step"]: e["lr"] for e in train(run, tmp_path / "run").entries() if "lr" in e}
    assert seen == pytest.approx({step: rates[step - 1] for step in (50, 100, 150, 200, 250, 300)})


@pytest.mark.slow
def test_the_cosine_goes_on_where_it_was_stopped(tmp_path):
    """The rate is one of the step.

    So a training stopped by a progress call takes the same steps to the same bits.
    """
    run = tiny(steps=60, schedule="cosine", validation_interval=20)
    train(run, tmp_path / "whole")

    def stop(step, steps, shown):
        if step == 50:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, tmp_path / "part", save_seconds=0, progress=stop)
    train(run, tmp_path / "part")
    assert same_bits(tmp_path / "whole", tmp_path / "part")


def in_team(folder, run):
    train(run, folder, device="cpu")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "method"),
    [
        ("heat", "sapc"),
        variant("stokes_bc", "sapc", long=True),
        variant("reaction_diffusion", "cafm", long=True),
    ],
)
def test_two_processes_equal_one_with_the_joint_batch(tmp_path, task, method):
    run = tiny(task, method, batch=6, validation=9, steps=12, validation_interval=4)
    train(run, tmp_path / "one")
    spawn(2, in_team, tmp_path / "two", run)
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    first = Training(run, ProcessGroup(torch.device("cpu"))).network.state_dict()
    for name in one:
        scale = (one[name] - first[name]).abs().max()
        assert (one[name] - two[name]).abs().max() <= 2e-3 * scale + 1e-7, name
    for a, b in zip(lines(tmp_path / "one"), lines(tmp_path / "two"), strict=True):
        assert a == pytest.approx(b, rel=1e-5)


def fail(folder, run):
    raise SapcError("no luck")


@pytest.mark.slow
def test_an_error_in_one_process_is_told_in_one_sentence(tmp_path):
    with pytest.raises(SapcError, match=r"^no luck$"):
        spawn(2, fail, tmp_path, tiny())


@pytest.mark.slow
def test_an_uneven_batch_is_refused(tmp_path):
    with pytest.raises(SapcError, match="batch of 5 cannot be shared evenly by 2"):
        spawn(2, in_team, tmp_path / "run", tiny(batch=5))
    assert not (tmp_path / "run").exists()


def test_every_step_takes_each_solution_once_an_epoch():
    training = Training(tiny(train=10, batch=4), ProcessGroup(torch.device("cpu")))
    seen = []
    for training.step in range(5):
        seen += training._rows().tolist()
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


def test_shares_make_up_the_batch():
    whole = Training(tiny(batch=6), ProcessGroup(torch.device("cpu")))
    v0 = whole.data[:6]
    want = whole._draw(v0, torch.Generator().manual_seed(3))
    parts = []
    for rank in range(3):
        whole.group = ProcessGroup(torch.device("cpu"), rank, 3)
        parts.append(whole._draw(v0, torch.Generator().manual_seed(3)))
    for i in range(3):
        assert torch.equal(torch.cat([p[i] for p in parts]), want[i])


def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(tmp_path):
    run, folder = tiny(steps=200, validation_interval=100), RunFolder(tmp_path / "run")
    training = Training(run, ProcessGroup(torch.device("cpu")))

    def poison(step, steps, shown):
        if step == 120:
            training.network.lift_in.weight.data.fill_(float("nan"))

    with folder.lock():
        folder.begin(run)
        loop = Trainer(training, folder, Interrupts(), poison, save_seconds=0.0, tensorboard=False)
        with pytest.raises(SapcError, match=r"step 121 has loss nan.*checkpoint, step 100, is in"):
            loop.run()
    tensors, about = load_tensors(folder.checkpoint)
    assert about["step"] == 100
    assert all(bool(value.isfinite().all()) for value in tensors.values())
    assert not folder.is_trained


def test_a_layer_without_gradient_is_named_before_time_is_spent_on_it(tmp_path):
    run, folder = tiny(steps=20), RunFolder(tmp_path / "run")
    training = Training(run, ProcessGroup(torch.device("cpu")))
    training.network.lift_in.weight.requires_grad_(False)
    with folder.lock():
        folder.begin(run)
        loop = Trainer(training, folder, Interrupts(), None, save_seconds=0.0, tensorboard=False)
        with pytest.raises(SapcError, match=r"step 1 gave no gradient to lift_in\.weight.*--no-compile"):
            loop.run()
    assert training.step == 1
    assert not folder.is_trained


def test_solutions_are_counted_while_they_are_computed(tmp_path):
    seen = []
    run = training_config("burgers", "ffm", "tiny", steps=2, train=5, validation=3)
    train(run, tmp_path / "run", data_progress=lambda *told: seen.append(told))
    assert ("train", 5, 5) in seen
    assert ("validation", 3, 3) in seen
    assert all(0 <= done <= total for _, done, total in seen)


def test_an_exploding_rate_ends_with_a_sentence(tmp_path):
    with pytest.raises(SapcError, match="training cannot go on"):
        train(tiny(lr=1e30, steps=60), tmp_path / "run")


# -- folders --


def test_a_finished_run_is_left_alone(tmp_path):
    folder = train(tiny(), tmp_path / "run")
    before = folder.weights.stat().st_mtime_ns
    train(tiny(), tmp_path / "run")
    assert folder.weights.stat().st_mtime_ns == before


def test_another_run_in_the_folder_is_refused(tmp_path):
    train(tiny(), tmp_path / "run")
    with pytest.raises(SapcError, match="its seed is 0, not 1"):
        train(tiny(seed=1), tmp_path / "run")


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(SapcError, match="not empty and is not a run folder"):
        train(tiny(), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_two_trainings_in_one_folder_are_refused(tmp_path):
    folder = train(tiny(), tmp_path / "run")
    folder.weights.unlink()
    with folder.lock(), pytest.raises(SapcError, match="another process is training"):
        train(tiny(), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "empty", "text", "renamed"])
def test_a_damaged_checkpoint_is_refused_by_name(tmp_path, damage):
    process = start(tmp_path / "run")
    until(process, 20)
    process.kill()
    process.communicate()
    path = tmp_path / "run" / "checkpoint.safetensors"
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[:-10],
            "empty": b"",
            "text": b"x" * 100,
            "renamed": content.replace(b"lift_in", b"lift_on"),
        }[damage]
    )
    run = training_config("heat", "sapc", "tiny", steps=60, validation_interval=20)
    with pytest.raises(SapcError, match=r"checkpoint\.safetensors"):
        train(run, tmp_path / "run")
    assert path.exists()


def test_a_damaged_config_is_refused_by_name(tmp_path):
    folder = train(tiny(), tmp_path / "run")
    folder.config.write_text(folder.config.read_text()[:40])
    with pytest.raises(SapcError, match=r"config\.json"):
        folder.run()
    folder.config.write_text('{"format": "other"}')
    with pytest.raises(SapcError, match="sapc-run-1"):
        folder.run()


def test_config_round_trip():
    for task in ("heat", "burgers", "navier_stokes"):
        for name in ("published", "full", "best", "compact", "small", "tiny"):
            run = training_config(task, "sapc", name)
            assert TrainingConfig.from_dict(json.loads(json.dumps(run.to_dict()))) == run


def test_published_settings():
    run = training_config("heat", "sapc", "published")
    assert (run.steps, run.batch, run.lr, run.max_grad_norm) == (20_000, 256, 3e-4, 100.0)
    assert (run.validation_interval, run.plateau_patience, run.plateau_factor, run.min_lr) == (
        200,
        10,
        0.5,
        1e-4,
    )
    assert (run.train, run.validation, run.grid) == (6400, 1225, (100, 100))
    assert run.make_network().parameter_count == 17_884_993
    assert (run.schedule, run.precision) == ("plateau", "fp16")
    flow_3d = training_config("navier_stokes", "sapc", "published")
    assert (flow_3d.batch, flow_3d.train) == (32, 10_000)
    assert flow_3d.make_network().parameter_count == 18_889_761


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1"),
        ({"lr": -1.0}, "lr must be a positive number"),
        ({"lr": float("nan")}, "lr must be a positive number"),
        ({"precision": "float16"}, "unknown precision"),
        ({"projector": "dense"}, "unknown projector"),
        ({"colour": 3}, "unknown setting 'colour' of a run; choose from batch, .* lr, .* steps"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_settings(changes, words):
    with pytest.raises(SapcError, match=words):
        tiny(**changes)


OLD_FIELDS = {"lr_floor": 1e-5, "factor": 0.25, "patience": 3, "clip": 2.0, "validate": 7, "length": 0.5}


@pytest.mark.parametrize(("old", "value"), OLD_FIELDS.items())
def test_settings_by_their_old_names(old, value):
    """Names work as in version 0.1.0.

    They are given to a preset, to a run and to `replace`, read from a run, and written to its file.
    """
    new, plain = FILE_KEYS[old], tiny()
    is_now = lambda: pytest.warns(DeprecationWarning, match=rf"\b{old}\b.* is now .*\b{new}\b")
    with is_now():
        run = tiny(**{old: value})
    with is_now():
        assert replace(plain, **{old: value}) == run
    with is_now():
        assert getattr(run, old) == getattr(run, new) == value
    with is_now():
        assert TrainingConfig(**{**vars(plain), old: value}) == run
    content = run.to_dict()
    assert content[old] == value
    assert new not in content
    assert TrainingConfig.from_dict(content) == run
    with pytest.raises(SapcError, match=f"unknown or missing entries: {new}"):
        TrainingConfig.from_dict({**content, new: value})


def test_runs_and_presets_by_their_old_names(tmp_path):
    with pytest.warns(
        DeprecationWarning, match=r"sapc\.preset is now sapc\.training_config\(task, method, preset"
    ):
        old = sapc.preset
    assert old("tiny", "heat", "sapc", lr=1e-3) == tiny(lr=1e-3)
    with pytest.warns(DeprecationWarning, match=r"sapc\.Run is now sapc\.TrainingConfig"):
        assert sapc.Run is TrainingConfig
    with pytest.warns(DeprecationWarning, match=r"\.Folder is now"):
        assert sapc.training.run_folder.Folder is RunFolder
    with pytest.warns(DeprecationWarning, match="the preset paper is now called published"):
        run = training_config("heat", "sapc", "paper")
    assert run == training_config("heat", "sapc", "published")
    with pytest.warns(DeprecationWarning, match="the preset paper is now called published"):
        assert replace(run, preset="paper") == run


def test_a_file_may_name_the_preset_paper(tmp_path):
    """It is the same run, by its new name, and no warning: nobody can mend the file."""
    run = training_config("heat", "sapc", "published")
    write_json(tmp_path / "config.json", {**run.to_dict(), "preset": "paper"})
    folder = RunFolder(tmp_path)
    assert folder.run() == run
    assert default_folder(run) == Path("runs/heat-sapc")
    folder.append(step=1)
    folder.check(run)


def test_unknown_names():
    with pytest.raises(SapcError, match="unknown preset"):
        training_config("heat", "sapc", "huge")
    with pytest.raises(SapcError, match="unknown method"):
        training_config("heat", "gan", "tiny")
    with pytest.raises(SapcError, match="unknown task"):
        training_config("heta", "sapc", "tiny")


def test_tensorboard_writes_events_or_says_what_is_missing(tmp_path):
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        with pytest.raises(SapcError, match="pip install"):
            train(tiny(), tmp_path / "run", tensorboard=True)
        assert not (tmp_path / "run").exists()
        return
    train(tiny(), tmp_path / "run", tensorboard=True)
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_precision_bf16_trains(tmp_path):
    a = train(tiny(precision="bf16"), tmp_path / "a").entries()[-1]["validation"]
    b = train(replace(tiny(), precision="float32"), tmp_path / "b").entries()[-1]["validation"]
    assert a == pytest.approx(b, rel=2e-2)
    assert a != b


# -- what may go wrong around a folder --


def test_a_folder_whose_training_never_began_takes_other_settings(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        folder.begin(tiny())
    train(tiny(seed=3), tmp_path / "run")
    assert folder.run().seed == 3


def test_what_a_killed_writer_left_is_taken_away(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.abc.partial").write_text("{")
    folder = train(tiny(), tmp_path / "run")
    folder.checkpoint.write_bytes(b"left between two writes")
    train(tiny(), tmp_path / "run")
    assert sorted(p.name for p in folder.path.iterdir()) == [
        ".lock", "config.json", "environment.json", "log.jsonl", "weights.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize("content", ["[]", "null", "3"])
def test_a_config_of_another_kind_is_refused(tmp_path, content):
    folder = train(tiny(), tmp_path / "run")
    folder.config.write_text(content)
    with pytest.raises(SapcError, match=r"config\.json: this is not the configuration"):
        folder.run()


@pytest.mark.slow
def test_damaged_side_files_do_not_stop_a_training(tmp_path, whole):
    process = start(tmp_path / "run")
    until(process, 30)
    process.kill()
    process.communicate()
    folder = RunFolder(tmp_path / "run")
    folder.environment.write_text("[1]")
    folder.log.write_bytes(folder.log.read_bytes() + b"5\n\xff\xfe")
    out = start(tmp_path / "run").communicate()
    assert "begins anew" in out[1]
    assert folder.is_trained
    assert same_bits(whole, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["adam.exp_avg.lift_in.weight", "rates"])
def test_a_checkpoint_that_lacks_something_is_refused(tmp_path, lost):
    process = start(tmp_path / "run")
    until(process, 30)
    process.kill()
    process.communicate()
    path = RunFolder(tmp_path / "run").checkpoint
    tensors, about = load_tensors(path)
    tensors.pop(lost, None)
    about.pop(lost, None)
    save_tensors(path, tensors, about)
    with pytest.raises(SapcError, match=r"checkpoint\.safetensors is not a"):
        train(training_config("heat", "sapc", "tiny", steps=60, validation_interval=20), tmp_path / "run")


def test_a_validation_that_is_not_finite_ends_the_training(tmp_path):
    with pytest.raises(SapcError, match="training cannot go on"):
        train(tiny(lr=1e30, steps=1), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").is_trained


def in_folders_of_their_own(folder, run):
    train(run, f"{folder}-{os.environ['RANK']}", device="cpu")


@pytest.mark.slow
def test_processes_that_do_not_share_the_folder_are_told(tmp_path):
    process = start(tmp_path / "run-0")
    until(process, 30)
    process.kill()
    process.communicate()
    run = training_config("heat", "sapc", "tiny", steps=60, validation_interval=20)
    with pytest.raises(SapcError, match="different states"):
        spawn(2, in_folders_of_their_own, tmp_path / "run", run)


def die(folder, run):
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_is_told_in_one_sentence(tmp_path):
    with pytest.raises(SapcError, match=r"process [01] of the training was killed \(SIGKILL"):
        spawn(2, die, tmp_path, tiny())


def test_sampling_in_inference_mode_first_does_not_spoil_training(tmp_path):
    run = tiny(grid=(13, 11))
    with torch.inference_mode():
        run.make_network()(torch.randn(1, 13, 11), torch.rand(1))
    assert train(run, tmp_path / "run").is_trained


@pytest.mark.parametrize("method", ["cafm", "sapc_s2"])
def test_a_constant_that_the_projection_takes_out_is_no_dead_layer(method):
    """On affine manifolds the last bias does not reach the loss.

    Its gradient is rounding, and now and then exactly zero.
    """
    training = Training(tiny("heat", method), ProcessGroup(torch.device("cpu")))
    training.advance()
    bias = training.network.project_out.bias
    others = max(float(p.grad.abs().max()) for p in training.network.parameters() if p is not bias)
    assert bias.grad.abs().max() < 1e-6 * others
    bias.grad.zero_()
    assert training.without_gradient() == []
    training.network.project_in.bias.grad.zero_()
    assert training.without_gradient() == ["project_in.bias"]


# -- going on from weights --


def test_a_run_that_goes_on_is_the_longer_run_to_the_same_bits(tmp_path):
    """With the schedule plateau the rate does not depend on the number of steps.

    So nothing shows where the first training ended.
    """
    train(tiny(steps=20), tmp_path / "run", keep_optimiser=True)
    folder = train(tiny(steps=40), tmp_path / "run", extend=True)
    train(tiny(steps=40), tmp_path / "whole")
    assert same_bits(tmp_path / "run", tmp_path / "whole")
    assert (folder.run().steps, folder.run().stages) == (40, (20,))
    assert [start["step"] for start in json.loads(folder.environment.read_text())["starts"]] == [0, 20]
    assert [entry["step"] for entry in folder.entries() if "validation" in entry] == [10, 20, 30, 40]
    assert load_tensors(folder.weights)[1]["step"] == 40


def test_an_interrupted_extension_goes_on_to_the_same_bits(tmp_path):
    """Also where the first one was stopped between any two of its writes; the cosine is that of all steps."""
    run = tiny(steps=10, schedule="cosine")
    train(run, tmp_path / "run", keep_optimiser=True)
    for name in ("whole", "stopped"):
        shutil.copytree(tmp_path / "run", tmp_path / name)
    longer = replace(run, steps=20)
    train(longer, tmp_path / "whole", extend=True)

    def stop(step, steps, shown):
        if step == 13:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="step 13 of 20"):
        train(longer, tmp_path / "stopped", extend=True, progress=stop)
    # As if the process had died before the old weights were taken away: all of it is done again.
    folder = RunFolder(tmp_path / "stopped")
    shutil.copy(tmp_path / "run" / "weights.safetensors", folder.weights)
    shutil.copy(tmp_path / "run" / "optimiser.safetensors", folder.optimiser)
    train(longer, folder.path, extend=True)
    assert same_bits(tmp_path / "whole", tmp_path / "stopped")
    rates = [entry["lr"] for entry in RunFolder(tmp_path / "whole").entries() if "lr" in entry]
    assert rates == [run.rate(9), longer.rate(19)]


def test_an_extension_that_dies_between_its_last_two_writes_keeps_the_optimiser(tmp_path, monkeypatch):
    run = tiny(steps=10)
    train(run, tmp_path / "run", keep_optimiser=True)
    shutil.copytree(tmp_path / "run", tmp_path / "whole")
    train(replace(run, steps=20), tmp_path / "whole", extend=True)
    unlink, removed = Path.unlink, []

    def dies(path, missing_ok=False):
        if path.name in ("weights.safetensors", "optimiser.safetensors"):
            removed.append(path.name)
            if len(removed) == 2:
                raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dies)
        with pytest.raises(KeyboardInterrupt):
            train(replace(run, steps=20), tmp_path / "run", extend=True)
    train(replace(run, steps=20), tmp_path / "run", extend=True)
    assert same_bits(tmp_path / "whole", tmp_path / "run")


def test_a_checkpoint_of_another_torch_goes_on(tmp_path):
    """Torch 2.6 keeps an entry of its schedule that 2.7 has no more."""

    def stop(step, steps, shown):
        if step == 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tiny(steps=10), tmp_path / "run", progress=stop)
    folder = RunFolder(tmp_path / "run")
    tensors, about = load_tensors(folder.checkpoint)
    save_tensors(folder.checkpoint, tensors, {**about, "schedule": {**about["schedule"], "verbose": False}})
    assert train(tiny(steps=10), tmp_path / "run").is_trained


def test_scores_of_the_weights_before_do_not_pass_for_those_after(tmp_path):
    folder = train(tiny(steps=5), tmp_path / "run", keep_optimiser=True)
    folder.scores.write_text("{}")
    (folder.path / "scores-eci.json").write_text("{}")
    train(tiny(steps=6), tmp_path / "run", extend=True)
    assert not list(folder.path.glob("scores*.json"))
    assert sorted(p.name for p in folder.path.glob("step5-*")) == [
        "step5-scores-eci.json",
        "step5-scores.json",
    ]


def test_without_its_optimiser_a_run_goes_on_with_a_new_one_and_says_so(tmp_path):
    """As runs of version 0.1.0 do."""
    folder = train(tiny(steps=5), tmp_path / "run")
    with pytest.warns(SapcWarning, match="keeps no state of its optimiser"):
        train(tiny(steps=7), tmp_path / "run", extend=True)
    assert load_tensors(folder.weights)[1]["step"] == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 3}, "is a run of 5 steps, so --steps cannot be given as 3"),
        ({"steps": 9, "lr": 0.1}, "its lr is 0.003, not 0.1"),
    ],
)
def test_what_cannot_go_on_is_refused_and_left_alone(tmp_path, changes, message):
    folder = train(tiny(steps=5), tmp_path / "run")
    before = {p.name: p.read_bytes() for p in folder.path.iterdir()}
    with pytest.raises(SapcError, match=message):
        train(tiny(**changes), tmp_path / "run", extend=True)
    assert {p.name: p.read_bytes() for p in folder.path.iterdir()} == before


def test_more_steps_alone_are_refused_with_the_command_that_goes_on(tmp_path):
    train(tiny(steps=5), tmp_path / "run")
    with pytest.raises(
        SapcError, match=r"its steps is 5, not 8; `sapc train --resume .*run --steps 8` goes on"
    ):
        train(tiny(steps=8), tmp_path / "run")


def test_a_run_begins_with_the_weights_of_another(tmp_path):
    """The first loss is that of those weights, and the run says whose they are."""
    parent = train(tiny(steps=5), tmp_path / "parent")
    child = train(tiny(steps=3, seed=1), tmp_path / "child", start=tmp_path / "parent")
    training = Training(tiny(steps=3, seed=1), ProcessGroup(torch.device("cpu")))
    training.network.load_state_dict(weights(tmp_path / "parent"))
    for _ in range(3):
        training.advance()
    by_hand = training.network.state_dict()
    assert all(torch.equal(value, by_hand[name]) for name, value in weights(tmp_path / "child").items())
    assert child.run().parent == {"name": "parent", "step": 5, "sha256": sha256(parent.weights)}
    assert train(tiny(steps=3, seed=1), tmp_path / "child", start=tmp_path / "parent").is_trained


def test_a_fine_tuning_needs_its_weights_once(tmp_path):
    """They are in its folder before the first step, so it goes on without the parent.

    Where they are lost, it does not begin without them.
    """
    train(tiny(steps=2), tmp_path / "parent")

    def stop(step, steps, shown):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train(tiny(steps=3), tmp_path / "child", start=tmp_path / "parent", progress=stop)
    shutil.copytree(tmp_path / "child", tmp_path / "lost")
    run = RunFolder(tmp_path / "child").run()
    (tmp_path / "parent" / "weights.safetensors").unlink()
    train(run, tmp_path / "child")
    (tmp_path / "lost" / "checkpoint.safetensors").unlink()
    with pytest.raises(SapcError, match="begins with the weights of parent, which are not there"):
        train(run, tmp_path / "lost")


def test_weights_of_another_network_are_refused(tmp_path):
    train(tiny(steps=1), tmp_path / "parent")
    with pytest.raises(
        SapcError, match=r"the network of .*parent does not fit: .* has shape \(.*\) there and \(.*\) here"
    ):
        train(tiny(hidden=6), tmp_path / "child", start=tmp_path / "parent")
    assert not (tmp_path / "child").exists()


def test_a_run_of_one_stage_is_written_as_before():
    assert not {"stages", "parent"} & set(tiny().to_dict())
    assert TrainingConfig.from_dict(tiny(steps=9, stages=(3, 5)).to_dict()).stages == (3, 5)
    for stages in ((5, 3), (9,), (0,)):
        with pytest.raises(SapcError, match="stages must be growing numbers below steps"):
            tiny(steps=9, stages=stages)
