"""Files of weights: what was written comes back, and anything else is refused, whoever knows its digest."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import save

import sapc
from sapc.errors import SapcError
from sapc.training import run_folder as pretrained
from sapc.training.run_folder import RunFolder, load_tensors, save_tensors


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights.safetensors"
    save_tensors(path, {"a": torch.randn(4, 5), "b": torch.randn(3).half(), "c": torch.ones(())}, {"step": 3})
    return path


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def refused(path, words):
    with pytest.raises(SapcError, match=words) as caught:
        load_tensors(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_there_and_back(file):
    tensors, about = load_tensors(file)
    assert about == {"step": 3}
    assert {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()} == {
        "a": (torch.float32, (4, 5)),
        "b": (torch.float16, (3,)),
        "c": (torch.float32, ()),
    }


def test_no_flipped_bit_is_loaded(file):
    """Of every seventh byte: in the numbers, in the description and in the list of tensors."""
    whole = file.read_bytes()
    for place in range(0, len(whole), 7):
        flip(file, place)
        refused(file, "damaged|do not match")
        file.write_bytes(whole)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool, torch.complex64])
def test_weights_are_floating_point(file, dtype):
    save_tensors(file, {"a": torch.ones(3), "b": torch.ones(3, dtype=dtype)}, {"step": 3})
    refused(file, f"'b' as {dtype}")


@pytest.mark.parametrize("about", ["5", "[]", "[" * 100_000, "{"])
def test_descriptions_of_another_kind(file, about):
    file.write_bytes(save({"a": torch.ones(3)}, {"about": about}))
    refused(file, "describes itself|damaged")


# -- of version 0.1.0, which kept the digest elsewhere --


@pytest.fixture
def copied(tmp_path):
    return shutil.copytree(pretrained.HOME / "heat-sapc", tmp_path / "heat-sapc")


def test_weights_of_version_0_1_0_load(copied):
    assert "sha256" not in (RunFolder(copied).weights.read_bytes()[:4096].decode(errors="replace"))
    assert sapc.load(copied, "cpu").step == 8000


def test_weights_are_those_of_their_scores(copied):
    folder = RunFolder(copied)
    flip(folder.weights, 1_000_000)
    with pytest.raises(SapcError, match="do not match their SHA-256"):
        sapc.load(copied, "cpu")
    # Without the scores nobody knows better.
    folder.scores.unlink()
    assert sapc.load(copied, "cpu").step == 8000


def test_no_training_begins_with_weights_that_are_not_those_of_their_scores(copied, tmp_path):
    flip(RunFolder(copied).weights, 1_000_000)
    run = sapc.training_config("heat", "sapc", "compact", backbone=RunFolder(copied).run().backbone, steps=1)
    with pytest.raises(SapcError, match=r"do not match their SHA-256.*remove those scores"):
        sapc.training.loop.train(run, tmp_path / "run", start=copied)


@pytest.mark.parametrize("scores", ["{", "5", '{"weights": 5}'])
def test_weights_do_without_scores(copied, scores):
    RunFolder(copied).scores.write_text(scores)
    assert sapc.load(copied, "cpu").step == 8000


def test_weights_that_were_written_again_need_not_be_those_of_the_scores(copied):
    """They hold their own digest; which scores are of them is for reports to tell."""
    folder = RunFolder(copied)
    tensors, about = load_tensors(folder.weights)
    save_tensors(folder.weights, {name: t + 1e-3 for name, t in tensors.items()}, about)
    assert json.loads(folder.scores.read_text())["weights"] != sapc._files.sha256(folder.weights)
    assert sapc.load(copied, "cpu").step == 8000


def test_the_list_of_shipped_weights_is_complete_and_right():
    for name in pretrained.model_names():
        folder = pretrained.HOME / name
        assert pretrained.shipped_digest(folder) == sapc._files.sha256(folder / "model.safetensors")


def test_shipped_weights_are_those_of_the_list(copied, monkeypatch):
    shutil.copy(pretrained.HOME / "SHA256SUMS", copied.parent)
    (copied / "scores.json").unlink()
    monkeypatch.setattr(pretrained, "HOME", copied.parent)
    assert sapc.load("heat-sapc", "cpu").step == 8000
    flip(copied / "model.safetensors", 1_000_000)
    with pytest.raises(SapcError, match="do not match their SHA-256"):
        sapc.load("heat-sapc", "cpu")
