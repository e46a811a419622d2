"""What only a GPU can show of features and Fréchet distances: the CPU's values.

There is no TF32, whatever the caller has chosen.
"""

import pytest
import torch

from sapc import fpd, metrics
from sapc.evaluation.frechet import features, load_encoder, random_encoder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def fields(n, *shape, seed=0):
    return torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed))


def apart(a, b):
    """Relative to how much the features of the ensemble differ, which is what a distance sees."""
    return float((a.cpu() - b.cpu()).abs().max() / b.std(0).max())


@pytest.mark.parametrize("size", ["T", "B"])
@pytest.mark.parametrize("shape", [(128, 128), (100, 100), (128, 100)])
def test_features_are_those_of_the_cpu(size, shape):
    u = fields(6, *shape)
    host, device = (features(random_encoder(0, place, size), u.to(place)) for place in ("cpu", "cuda"))
    assert device.device.type == "cuda"
    assert apart(device, host) < 1e-4


def test_features_do_not_take_over_tf32():
    encoder, u = random_encoder(0, "cuda"), fields(6, 100, 100)
    exact = features(encoder, u)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        assert torch.equal(features(encoder, u), exact)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)


def test_features_do_not_depend_on_the_batch():
    encoder, u = random_encoder(0, "cuda"), fields(9, 100, 100)
    assert apart(features(encoder, u, batch=4), features(encoder, u)) < 1e-4


def test_weights_are_loaded_onto_the_device(tmp_path):
    from safetensors.torch import save_file

    save_file(random_encoder(3).state_dict(), tmp_path / "model.safetensors")
    encoder = load_encoder(tmp_path, "cuda")
    assert encoder.device.type == "cuda"
    u = fields(4, 64, 64)
    assert torch.equal(features(encoder, u), features(random_encoder(3, "cuda"), u))


@pytest.mark.parametrize(("n", "m"), [(1225, 1225), (100, 1225), (10, 20)])
def test_the_distance_is_that_of_the_cpu(n, m):
    x, y = fields(n, 768), 1.1 * fields(m, 768, seed=1) + 0.1
    assert metrics.frechet(x.cuda(), y.cuda()) == pytest.approx(metrics.frechet(x, y), rel=1e-10)


@pytest.mark.parametrize("shape", [(100, 100), (32, 32, 3)])
def test_ensembles(shape, tmp_path, monkeypatch):
    monkeypatch.setenv("SAPC_CACHE", str(tmp_path))
    x, y = fields(20, *shape), 1.1 * fields(30, *shape, seed=1)
    host, device = fpd.random_distance(), fpd.random_distance("cuda")
    monkeypatch.setenv("SAPC_CACHE", "off")
    on_host = host.per_encoder(x, y)
    monkeypatch.setenv("SAPC_CACHE", str(tmp_path))
    assert device.per_encoder(x.cuda(), y.cuda()) == pytest.approx(on_host, rel=1e-4)
    # From the cache.
    assert device.per_encoder(x.cuda(), y.cuda()) == pytest.approx(on_host, rel=1e-4)
