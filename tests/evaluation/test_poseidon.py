"""Poseidon's encoder against the Swin-v2 of transformers, features against formulas, and random weights."""

import math

import jaxtyping
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sapc
from sapc.errors import SapcError
from sapc.evaluation.frechet import SEEDS, Encoder, features, images, random_encoder
from sapc.evaluation.frechet.encoder import HEADS, SIZES, Block, ConditionedNorm, Merge
from sapc.evaluation.metrics import frechet

pytest.importorskip("transformers")
from transformers.models.swinv2.configuration_swinv2 import Swinv2Config
from transformers.models.swinv2.modeling_swinv2 import Swinv2Layer, Swinv2PatchMerging

BIAS = "encoder.layers.0.blocks.0.attention.self.continuous_position_bias_mlp"
# Only 32 is larger than a window.
GRIDS = [(32, False), (32, True), (16, True), (8, True), (4, True)]
GOLDEN = {
    0: "8e286dfe7ca30ede3d24b8489e17b0fdf42f912508a4598785fec3f30b1dbe08",
    1: "b7ba567b010414559830d8b5e48a50d0cb0a8360c747128a47d697552f169ba6",
    2: "82385a54ab9dceb8a1df5cd0e765d9a0e859a6c98a3d058a0f5544548e2db36e",
}


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def distance(x, y):
    return float((x - y).abs().max())


@pytest.fixture(scope="module")
def encoder():
    return random_encoder(0)


@pytest.fixture
def unchecked():
    """Without the run-time type checks, as users run the package."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def empty(size):
    """An encoder without numbers."""
    with torch.device("meta"):
        return Encoder(size)


def randomised(module, scale=10.0, seed=0):
    """Every parameter random and none zero, in float64; the scale of the cosines about as given."""
    g = torch.Generator().manual_seed(seed)
    module = module.double().requires_grad_(False)
    for name, p in module.named_parameters():
        p.copy_(torch.randn(p.shape, generator=g, dtype=p.dtype) / math.sqrt(p[0].numel()))
        if name.endswith("weight.bias"):
            p.mul_(0.3).add_(1)
        if name.endswith("logit_scale"):
            p.mul_(0.3).add_(math.log(scale))
    return module


# transformers' Swin-v2


def unconditioned(module):
    """Its parameters by the names of transformers: at time zero the maps' constants are gain and shift."""
    return {
        name.removesuffix(".bias") if name.endswith(("weight.bias", "bias.bias")) else name: p
        for name, p in module.state_dict().items()
        if not name.endswith(("weight.weight", "bias.weight"))
    }


def layer_like(block, dim, heads, grid, shift):
    config = Swinv2Config(window_size=16, layer_norm_eps=1e-5)
    dtype = block.intermediate.dense.weight.dtype
    layer = Swinv2Layer(config, dim, (grid, grid), heads, shift_size=shift).eval().to(dtype)
    layer.load_state_dict(unconditioned(block))
    # Its table of offsets is made in float32.
    if dtype == torch.float64:
        table = layer.attention.self.relative_coords_table
        w = layer.window_size
        d = torch.arange(1 - w, w, dtype=torch.float64) * 8 / (w - 1)
        d = torch.where(d < 0, -1.0, 1.0) * torch.log2(1 + d.abs()) / 3
        exact = torch.stack([d[:, None].expand(-1, len(d)), d.expand(len(d), -1)], -1)[None]
        assert distance(exact, table) < 1e-6
        layer.attention.self.relative_coords_table = exact
    return layer.requires_grad_(False)


def merge_like(merge, dim, grid):
    theirs = Swinv2PatchMerging((grid, grid), dim).to(next(merge.parameters()).dtype)
    theirs.load_state_dict(unconditioned(merge))
    return theirs.requires_grad_(False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "scale", "tolerance"),
    [
        (torch.float32, 10.0, 1e-6),
        (torch.float64, 10.0, 1e-13),
        (torch.float64, 100.0, 1e-13),
        # All heads clamped: a hundred times the cosine's rounding.
        (torch.float32, 1000.0, 5e-6),
        (torch.float64, 1000.0, 1e-13),
    ],
)
@pytest.mark.parametrize(("grid", "shifted"), GRIDS)
def test_block_is_the_layer_of_swin_v2(grid, shifted, dtype, scale, tolerance):
    stage = int(math.log2(32 // grid))
    dim, heads = 96 * 2**stage, HEADS[stage]
    block = randomised(Block(dim, heads, grid, shifted), scale, seed=grid).to(dtype)
    x = normal(2, grid, grid, dim, dtype=dtype)
    theirs = layer_like(block, dim, heads, grid, shift=8 if shifted else 0)
    (expected,) = theirs(x.flatten(1, 2), (grid, grid))
    assert theirs.shift_size == (8 if shifted and grid == 32 else 0)
    y = block(x).flatten(1, 2)
    assert y.std() > 1
    assert distance(y, expected) < tolerance * float(expected.abs().max())


def test_scales_above_a_hundred_are_clamped_and_those_below_are_not():
    block, x = randomised(Block(96, 3, 8, False)), normal(1, 8, 8, 96, dtype=torch.float64)
    scale, values = block.attention.self.logit_scale, {}
    for s in (90.0, 100.0, 150.0, 1e4):
        scale.fill_(math.log(s))
        values[s] = block(x)
    assert distance(values[150.0], values[100.0]) < 1e-13
    assert distance(values[1e4], values[100.0]) < 1e-13
    assert distance(values[90.0], values[100.0]) > 1e-3


def test_shifted_windows_part_the_opposite_edges():
    """A token sees its side of a moved window only: (0, 0) the first 8 x 8, (10, 10) rows, columns 8..23."""
    block = randomised(Block(96, 3, 32, True))
    for token, sees in ((0, range(8)), (10, range(8, 24)), (31, range(24, 32))):
        x = normal(1, 32, 32, 96, dtype=torch.float64).requires_grad_()
        (slope,) = torch.autograd.grad(block(x)[0, token, token].square().sum(), x)
        seen = torch.zeros(32, dtype=torch.bool).index_fill(0, torch.tensor(sees), True)
        reached = slope[0].abs().amax(-1)
        assert reached[seen[:, None] & seen].min() > 1e-12
        assert reached[~(seen[:, None] & seen)].max() < 1e-30


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("grid", [32, 16, 8])
def test_merge_is_that_of_swin_v2(grid, dtype, tolerance):
    dim = 96 * 32 // grid
    merge = randomised(Merge(dim)).to(dtype)
    x = normal(2, grid, grid, dim, dtype=dtype)
    expected = merge_like(merge, dim, grid)(x.flatten(1, 2), (grid, grid))
    y = merge(x)
    assert y.shape == (2, grid // 2, grid // 2, 2 * dim)
    assert distance(y.flatten(1, 2), expected) < tolerance


def reassembled(encoder, pictures):
    """The encoder once more, from a convolution and transformers' parts."""
    (dim, depths), dtype = SIZES[encoder.size], pictures.dtype
    patches = encoder.embeddings.patch_embeddings
    conv = nn.Conv2d(4, dim, kernel_size=4, stride=4).to(dtype).requires_grad_(False)
    conv.load_state_dict({"weight": patches.projection.weight, "bias": patches.projection.bias})
    norm = nn.LayerNorm(dim, eps=1e-5).to(dtype).requires_grad_(False)
    norm.load_state_dict(unconditioned(encoder.embeddings.norm))
    x = norm(conv(pictures).flatten(2).transpose(1, 2))
    for k, depth in enumerate(depths):
        grid, width, start = 32 // 2**k, dim * 2**k, x
        for i in range(depth):
            shift = 8 if k == 0 and i % 2 == 1 else 0
            layer = layer_like(encoder.encoder.layers[k].blocks[i], width, HEADS[k], grid, shift)
            (x,) = layer(x, (grid, grid))
        if k < 3:
            x = merge_like(encoder.encoder.layers[k].downsample, width, grid)(x + start, (grid, grid))
    return x


def test_encoder_is_swin_v2_with_a_residual_per_stage(encoder):
    """In float32 with the weights of a random encoder, in float64 with nothing zero."""
    fields = images(normal(2, 100, 100))
    tokens = encoder(fields)
    assert tokens.std() > 0.5
    assert distance(tokens, reassembled(encoder, fields)) < 1e-5
    full, pictures = randomised(Encoder("T")), normal(1, 4, 128, 128, dtype=torch.float64)
    assert distance(full(pictures), reassembled(full, pictures)) < 1e-11


# sizes and names


@pytest.mark.parametrize(
    ("size", "values", "tensors"), [("T", 9_956_388, 389), ("B", 77_181_000, 757), ("L", 307_629_864, 757)]
)
def test_counts_of_the_published_models(size, values, tensors):
    model = empty(size)
    assert sum(p.numel() for p in model.parameters()) == values
    assert len(model.state_dict()) == tensors


@pytest.mark.parametrize(("size", "c", "depth"), [("T", 48, 4), ("B", 96, 8)])
def test_names_and_shapes_of_the_published_models(size, c, depth):
    shapes = {name: tuple(p.shape) for name, p in empty(size).state_dict().items()}
    expected = {
        "embeddings.patch_embeddings.projection.weight": (c, 4, 4, 4),
        "embeddings.patch_embeddings.projection.bias": (c,),
        "embeddings.norm.weight.weight": (c, 1),
        "embeddings.norm.bias.bias": (c,),
        f"{BIAS}.0.weight": (512, 2),
        f"{BIAS}.0.bias": (512,),
        f"{BIAS}.2.weight": (3, 512),
        "encoder.layers.1.blocks.0.attention.self.logit_scale": (6, 1, 1),
        "encoder.layers.1.blocks.1.attention.self.query.bias": (2 * c,),
        "encoder.layers.2.blocks.0.attention.self.key.weight": (4 * c, 4 * c),
        f"encoder.layers.3.blocks.{depth - 1}.attention.output.dense.weight": (8 * c, 8 * c),
        f"encoder.layers.3.blocks.{depth - 1}.layernorm_before.weight.bias": (8 * c,),
        "encoder.layers.0.blocks.2.layernorm_after.bias.weight": (c, 1),
        "encoder.layers.2.blocks.0.intermediate.dense.weight": (16 * c, 4 * c),
        "encoder.layers.2.blocks.0.output.dense.weight": (4 * c, 16 * c),
        "encoder.layers.0.downsample.reduction.weight": (2 * c, 4 * c),
        "encoder.layers.2.downsample.norm.weight.weight": (8 * c, 1),
    }
    assert {name: shapes.get(name) for name in expected} == expected
    assert not any(name.endswith("key.bias") or name.startswith("encoder.layers.3.down") for name in shapes)
    assert f"encoder.layers.0.blocks.{depth}.layernorm_after.bias.bias" not in shapes


@pytest.mark.slow
def test_bottleneck_and_features_of_poseidon_b():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Encoder("B").requires_grad_(False)
    assert model.dim == 768
    for height, width in ((128, 128), (100, 100), (64, 64), (128, 100)):
        u = normal(1, height, width)
        tokens, found = model(images(u)), features(model, u)
        assert tokens.shape == (1, 16, 768)
        assert found.shape == (1, 768)
        assert found.isfinite().all()
        assert distance(found, tokens.mean(1)) < 1e-6


# norms


def test_conditioned_norm():
    norm = randomised(ConditionedNorm(6))
    x, time = 3 + 2 * normal(2, 3, 4, 6, dtype=torch.float64), torch.tensor([0.3, -2.0], dtype=torch.float64)
    assert distance(norm(x), norm(x, torch.zeros_like(time))) < 1e-14
    y = norm(x, time)
    for b in range(2):
        gain = norm.weight.weight[:, 0] * time[b] + norm.weight.bias
        shift = norm.bias.weight[:, 0] * time[b] + norm.bias.bias
        for i in range(3):
            for j in range(4):
                v = x[b, i, j]
                centred = v - v.sum() / 6
                whitened = centred / torch.sqrt(centred.square().sum() / 6 + 1e-5)
                assert distance(y[b, i, j], gain * whitened + shift) < 1e-14


def test_time_reaches_every_norm():
    """No time is time zero; another time is an encoder whose constants are the maps at that time."""
    model, fields = randomised(Encoder("T")), normal(1, 4, 128, 128, dtype=torch.float64)
    zero, half = torch.zeros(1, dtype=torch.float64), torch.full((1,), 0.5, dtype=torch.float64)
    assert distance(model(fields), model(fields, zero)) < 1e-11
    later = model(fields, half)
    norms = [m for m in model.modules() if isinstance(m, ConditionedNorm)]
    assert len(norms) == 1 + 2 * 16 + 3
    for norm in norms:
        for linear in (norm.weight, norm.bias):
            linear.bias += 0.5 * linear.weight[:, 0]
    assert distance(model(fields), later) < 1e-11


def test_without_gains_there_are_no_features(encoder):
    """As in a model that was never trained."""
    model = Encoder("T").requires_grad_(False)
    model.load_state_dict(encoder.state_dict())
    for norm in (m for m in model.modules() if isinstance(m, ConditionedNorm)):
        norm.weight.bias.zero_()
    assert not features(model, normal(2, 64, 64)).any()


# resampling

SHAPES = [
    (128, 128),
    (100, 100),
    (64, 64),
    (128, 100),
    (101, 101),
    (101, 64),
    (200, 160),
    (201, 128),
    (50, 300),
]


def period(n):
    return torch.arange(n, dtype=torch.float64) / n


def points(n):
    """Where the 128 points made from n come to lie, or the 127."""
    return period(127 if n < 128 and n % 2 else 128)


def trigonometric(x, y, highest):
    """A sum of waves of wave numbers up to the highest, on the points x times y of a period."""
    g = torch.Generator().manual_seed(1)
    u = torch.zeros(len(x), len(y), dtype=torch.float64)
    for _ in range(8):
        k, l = ((2 * torch.rand(2, generator=g) - 1) * (highest + 0.99)).long().tolist()
        phase, size = torch.rand(2, generator=g, dtype=torch.float64).tolist()
        u += size * torch.cos(2 * math.pi * (k * x[:, None] + l * y + phase))
    return u + torch.cos(2 * math.pi * highest * (x[:, None] - y))


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_waves_are_interpolated_exactly(height, width):
    highest = (min(height, width, 128) - 1) // 2
    u = trigonometric(period(height), period(width), highest)
    x, y = points(height), points(width)
    picture = images(u[None])[0]
    assert distance(picture[0, : len(x), : len(y)], trigonometric(x, y, highest)) < 1e-6
    assert not picture[0, len(x) :].any()
    assert not picture[0, :, len(y) :].any()
    assert not picture[1:].any()


@pytest.mark.parametrize("n", [2, 64, 100, 101, 126, 127, 128, 129, 160, 201, 256])
def test_noise_is_resampled_by_the_two_dimensional_transform(n):
    """White noise has all modes, that of the highest frequency on an even grid among them."""
    u = normal(2, n, n, seed=n, dtype=torch.float64)
    c = torch.fft.fftshift(torch.fft.fft2(u), dim=(1, 2))
    if n <= 128:
        c = F.pad(c, [(128 - n) // 2] * 4)
    else:
        start = n // 2 - 64
        c = c[:, start : start + 128, start : start + 128]
    size = c.shape[1]
    expected = torch.fft.ifft2(torch.fft.ifftshift(c, dim=(1, 2))).real * (size / n) ** 2
    assert size == (127 if n < 128 and n % 2 else 128)
    expected = F.pad(expected, (0, 128 - size, 0, 128 - size))
    assert distance(images(u)[:, 0], expected) < 2e-6


def test_images_of_128_points_are_unchanged():
    u = normal(2, 128, 128)
    assert torch.equal(images(u)[:, 0], u)
    assert torch.equal(images(u.double())[:, 0], u)


# features


def test_features_do_not_depend_on_the_batch(encoder):
    u = normal(5, 64, 64)
    whole = features(encoder, u)
    assert whole.shape == (5, 384)
    for batch in (1, 2, 5, 100):
        assert distance(features(encoder, u, batch=batch), whole) < 1e-5
    assert distance(encoder(images(u[3:4]))[0].mean(0), whole[3]) < 1e-5


@pytest.mark.parametrize(("batch", "expected"), [(2, [(2, 5), (4, 5), (5, 5)]), (None, [(5, 5)])])
def test_progress_counts_fields(encoder, batch, expected):
    calls = []
    features(
        encoder, normal(5, 64, 64), batch=batch, progress=lambda done, total: calls.append((done, total))
    )
    assert calls == expected


def test_features_of_a_field_in_float64_are_those_in_float32(encoder):
    u = normal(2, 128, 128)
    assert torch.equal(features(encoder, u.double()), features(encoder, u))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (normal(64, 64), r"images \(n, height, width\), got shape \(64, 64\)"),
        (normal(2, 64, 64, 5), r"got shape \(2, 64, 64, 5\); .* fields\[\.\.\., k\]"),
        (normal(0, 64, 64), r"got shape \(0, 64, 64\)"),
        (normal(2, 0, 64), r"got shape \(2, 0, 64\)"),
        (normal(9, 64, 64).index_fill(0, torch.tensor(8), math.nan), "NaN or infinity"),
        (normal(1, 64, 64) / 0, "NaN or infinity"),
    ],
)
def test_bad_fields_are_refused_in_one_sentence(encoder, unchecked, fields, message):
    with pytest.raises(SapcError, match=message) as error:
        features(encoder, fields)
    assert "\n" not in str(error.value)


def test_precision_of_products_is_put_back(encoder):
    before = torch.get_float32_matmul_precision()
    inside = []
    try:
        torch.set_float32_matmul_precision("high")
        features(
            encoder,
            normal(1, 64, 64),
            progress=lambda *_: inside.append(torch.get_float32_matmul_precision()),
        )
        assert torch.get_float32_matmul_precision() == "high"
        with pytest.raises(SapcError):
            features(encoder, normal(1, 64, 64) * math.nan)
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert inside == ["highest"]


# random weights


def test_seeds_have_their_weights(encoder):
    """The same on any processor and in any torch, so that distances can be compared between machines."""
    assert tuple(GOLDEN) == SEEDS
    again = {seed: random_encoder(seed) for seed in SEEDS}
    assert {seed: model.provenance["sha256"] for seed, model in again.items()} == GOLDEN
    assert again[1].provenance == {"size": "random T", "seed": "1", "sha256": GOLDEN[1]}
    u = normal(2, 64, 64)
    assert torch.equal(features(again[0], u), features(encoder, u))
    assert distance(features(again[1], u), features(encoder, u)) > 0.1


def test_random_weights_keep_the_size_of_what_passes(encoder):
    assert not any(p.requires_grad for p in encoder.parameters())
    assert not encoder.training
    for name, p in encoder.named_parameters():
        if name.endswith(".weight.bias"):
            assert abs(float(p.mean()) - 1) < 0.1
            assert 0.05 < float(p.std()) < 0.15
        elif p.ndim > 1 and p.numel() > 1000:
            assert float(p.std()) * math.sqrt(p[0].numel()) == pytest.approx(1, rel=0.1)


def test_random_features_tell_fields_apart(encoder):
    """Different fields, and the same field at another height."""
    u = normal(8, 16, 16)
    found = features(encoder, u)
    assert found.abs().mean() > 0.1
    assert found.std(0).min() > 1e-3
    assert found.std(0).mean() > 0.03
    assert distance(features(encoder, 2 * u), found) > 0.1


@pytest.mark.slow
def test_more_noise_is_farther_away(encoder):
    u = sapc.get_task("heat").dataset("test1", size=32).fields.float()
    clean, noise = features(encoder, u), normal(*u.shape)
    distances = [frechet(features(encoder, u + a * noise), clean) for a in (0.1, 0.3, 1.0)]
    assert 0 < distances[0] < distances[1] < distances[2]


def test_fields_too_large_for_float32_are_told(encoder):
    with pytest.raises(SapcError, match=r"values up to 1.0e\+30 is too large"):
        features(encoder, torch.full((2, 16, 16), 1e30))


def test_random_weights_do_not_depend_on_defaults():
    torch.set_default_dtype(torch.float64)
    try:
        encoder = random_encoder(0)
    finally:
        torch.set_default_dtype(torch.float32)
    assert encoder.provenance == random_encoder(0).provenance
    assert encoder.embeddings.norm.weight.bias.dtype == torch.float32
