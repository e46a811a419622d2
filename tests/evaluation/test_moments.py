"""Statistics of ensembles for pictures: against direct computation, through files, from damaged files."""

from __future__ import annotations

import pytest
import torch

from sapc import SapcError
from sapc.evaluation.moments import FRAMES, EnsembleStatistics
from sapc.models.scores import fields_path


def _statistics(shape: tuple[int, ...]) -> tuple[EnsembleStatistics, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    samples = torch.randn(5, *shape, generator=g, dtype=torch.float64)
    solutions = 3 + torch.randn(7, *shape, generator=g)
    statistics = EnsembleStatistics()
    statistics.add("test2", samples, solutions)
    return statistics, samples, solutions


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 25), (3, 4, 6)])
def test_moments_are_those_of_the_fields_and_survive_a_file(tmp_path, shape):
    statistics, samples, solutions = _statistics(shape)
    statistics.save(tmp_path / "fields.safetensors")
    back = EnsembleStatistics.load(tmp_path / "fields.safetensors")
    assert back.frames == statistics.frames
    for moments, fields in zip(back.sets["test2"], (samples, solutions), strict=True):
        frames = fields if back.frames is None else fields[..., list(back.frames)]
        torch.testing.assert_close(moments.mean, frames.double().mean(0).float(), rtol=0, atol=0)
        torch.testing.assert_close(moments.std, frames.double().std(0).float(), rtol=0, atol=0)
        torch.testing.assert_close(moments.example, frames[0].float(), rtol=0, atol=0)


def test_frames_reach_from_the_first_to_the_last():
    statistics, *_ = _statistics((2, 2, 50))
    assert len(statistics.frames) == FRAMES
    assert (statistics.frames[0], statistics.frames[-1]) == (0, 49)
    assert _statistics((2, 2, 4))[0].frames == (0, 1, 2, 3)
    assert _statistics((5, 50))[0].frames is None


def test_names_follow_the_scores(tmp_path):
    names = {"scores.json": "fields", "scores-eci.json": "fields-eci", "scores-part.json": "fields-part"}
    for scores, fields in names.items():
        assert fields_path(tmp_path / scores) == tmp_path / f"{fields}.safetensors"


def test_a_damaged_or_foreign_file_is_refused_by_name(tmp_path):
    path = tmp_path / "fields.safetensors"
    statistics, *_ = _statistics((3, 3))
    statistics.save(path)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(SapcError, match=r"fields\.safetensors is damaged"):
        EnsembleStatistics.load(path)
    from sapc.training.run_folder import save_tensors

    save_tensors(path, {}, {"format": "other"})
    with pytest.raises(SapcError, match="holds no fields"):
        EnsembleStatistics.load(path)
    save_tensors(path, {}, {"format": "sapc-fields-1", "sets": ["test0"], "frames": None})
    with pytest.raises(SapcError, match="lacks 'test0/samples/mean'"):
        EnsembleStatistics.load(path)


def test_old_names_still_work_and_name_the_new_ones(tmp_path):
    with pytest.warns(DeprecationWarning, match=r"Kept is now sapc\.evaluation\.moments\.EnsembleStatistics"):
        from sapc.evaluation.moments import Kept
    assert Kept is EnsembleStatistics
    statistics, *_ = _statistics((3, 3))
    statistics.save(tmp_path / "fields.safetensors")
    with pytest.warns(
        DeprecationWarning, match=r"is now sapc\.evaluation\.moments\.EnsembleStatistics\.load"
    ):
        from sapc.evaluation.moments import load_kept
    assert list(load_kept(tmp_path / "fields.safetensors").sets) == ["test2"]
