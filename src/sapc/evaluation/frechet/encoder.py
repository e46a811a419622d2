"""The encoder of Poseidon: embeddings and encoder of ScOT, a Swin-v2 whose norms are conditioned on a time.

An image of 4 channels on 128 x 128 points becomes 32 x 32 tokens, one per patch of 4 x 4 points, and passes
four stages on token grids of 32, 16, 8 and 4 points a side, of dimension C, 2C, 4C and 8C. What the last
stage gives, 16 tokens, is the bottleneck.

    norm       n(x) = gain * (x - mean x) / sqrt(var x + eps) + shift     over the channels
    block      x += n(attention(x)),  then  x += n(W2 gelu(W1 x))         norms after, not before
    merge      n(W [x_ee, x_oe, x_eo, x_oo])                              of the stage's output plus its input

Gain and shift are affine in the time; the indices are even or odd rows and columns.

Attention is within windows of 16 x 16 tokens, or the grid if that is smaller. Only the first grid is larger
than a window; there every second block has the windows moved by 8 in both directions, round the edges, and
tokens from opposite edges do not see each other. The weight of token j for token i is softmax_j of

    min(exp s, 100) cos(q_i, k_j)  +  16 sigmoid(b(o_ij)),
    o = sign(d) log2(1 + |d|) / 3,      d = 8 (i - j) / (w - 1)

with one learned scale s per head and b a small network of the offset o in both directions.

Parameters bear the names of Poseidon's own state dict, so that its weights load as they are. Written from
Herde et al. (2024) and Liu et al. (2022); the block and the merge are held to the Swin-v2 of `transformers`
in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from ..._old_names import old_attribute

IMAGE, PATCH, CHANNELS = 128, 4, 4
WINDOW = 16
HEADS = (3, 6, 12, 24)
EPS = 1e-5
OFFSET_WIDTH = 512
"""Width of the network that turns an offset into a bias."""

EDGE_MASK = -200.0
"""Added where tokens of opposite edges meet: the mask of Swin-v2, -100, which `transformers` adds twice."""

Tokens = Float[Tensor, "batch rows columns channels"]
OutputTokens = Float[Tensor, "batch new_rows new_columns new_channels"]
"""Tokens on a grid and of a dimension that may differ from those of the input."""

Time = Float[Tensor, " batch"] | None


class Size(NamedTuple):
    """Size of one of the published models.

    Attributes:
        embed: Dimension C of the first tokens.
        depths: Number of blocks of every stage.
    """

    embed: int
    depths: tuple[int, int, int, int]


SIZES = {"T": Size(48, (4, 4, 4, 4)), "B": Size(96, (8, 8, 8, 8)), "L": Size(192, (8, 8, 8, 8))}


class ConditionedNorm(nn.Module):
    """Layer norm whose gain and shift are affine functions of a time; None is time zero."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Linear(1, dim), nn.Linear(1, dim)

    def forward(self, x: Tokens, time: Time = None) -> Tokens:
        """Normalise the channels."""
        dim = x.shape[-1:]
        if time is None:
            return F.layer_norm(x, dim, self.weight.bias, self.bias.bias, EPS)
        gain: Tensor = self.weight(time[:, None])
        shift: Tensor = self.bias(time[:, None])
        return gain[:, None, None] * F.layer_norm(x, dim, eps=EPS) + shift[:, None, None]


class Attention(nn.Module):
    """Cosine attention within windows."""

    def __init__(self, dim: int, heads: int, grid: int, is_shifted: bool) -> None:
        super().__init__()
        self.heads, self.window = heads, min(WINDOW, grid)
        self.shift = self.window // 2 if is_shifted and grid > self.window else 0
        self.logit_scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))
        self.continuous_position_bias_mlp = nn.Sequential(
            nn.Linear(2, OFFSET_WIDTH), nn.ReLU(), nn.Linear(OFFSET_WIDTH, heads, bias=False)
        )
        self.query, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tokens) -> Tokens:
        """Compute what each token takes from the others of its window."""
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        b, rows, columns, dim = x.shape
        w, heads, count = self.window, self.heads, rows * columns // self.window**2
        x = x.view(b, rows // w, w, columns // w, w, dim).transpose(2, 3).reshape(b, count, w * w, dim)
        # Windows count as heads: (batch, windows * heads, tokens, channels) is what the fused kernels take.
        layers: tuple[Tensor, ...] = (self.query(x), self.key(x), self.value(x))
        q, k, v = (y.view(b, count, w * w, heads, -1).transpose(2, 3).flatten(1, 2) for y in layers)
        scale = self.logit_scale.clamp(max=math.log(100.0)).exp().repeat(count, 1, 1)
        q, k = F.normalize(q, dim=-1) * scale, F.normalize(k, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self._bias(rows, columns), scale=1.0)
        y = y.view(b, count, heads, w * w, dim // heads).transpose(2, 3).flatten(3)
        y = y.view(b, rows // w, columns // w, w, w, dim).transpose(2, 3).reshape(b, rows, columns, dim)
        return y.roll((self.shift, self.shift), (1, 2)) if self.shift else y

    def _bias(self, rows: int, columns: int) -> Float[Tensor, "1 windows_heads tokens tokens"]:
        """Compute the bias of the logits of every window and head."""
        w, scale = self.window, self.logit_scale
        offset = torch.arange(1 - w, w, device=scale.device).to(scale.dtype) * (8 / (w - 1))
        offset = offset.sign() * offset.abs().add(1).log2() / 3
        pairs = torch.stack(torch.meshgrid(offset, offset, indexing="ij"), -1).flatten(0, 1)
        table: Tensor = self.continuous_position_bias_mlp(pairs)
        position = torch.arange(w, device=scale.device)
        delta = position[:, None] - position + w - 1
        index = delta[:, None, :, None] * (2 * w - 1) + delta[None, :, None, :]
        bias = 16 * table[index.reshape(w * w, w * w)].permute(2, 0, 1).sigmoid()
        return (bias + self._edge_mask(rows, columns)[:, None]).flatten(0, 1)[None]

    def _edge_mask(self, rows: int, columns: int) -> Float[Tensor, "windows tokens tokens"]:
        """Return EDGE_MASK for pairs of tokens from opposite edges in a window round an edge, else 0."""
        w, scale = self.window, self.logit_scale
        is_behind_edge = [torch.arange(n, device=scale.device) >= n - self.shift for n in (rows, columns)]
        side = 2 * is_behind_edge[0].long()[:, None] + is_behind_edge[1].long()
        side = side.view(rows // w, w, columns // w, w).transpose(1, 2).reshape(-1, w * w)
        return EDGE_MASK * (side[:, :, None] != side[:, None]).to(scale.dtype)


class Dense(nn.Module):
    """A linear layer, under the name that Poseidon gives it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.dense = nn.Linear(inputs, outputs)

    def forward(self, x: Tokens) -> OutputTokens:
        """Apply the layer."""
        y: Tensor = self.dense(x)
        return y


class AttentionLayer(nn.Module):
    """Attention and the layer that joins its heads."""

    def __init__(self, dim: int, heads: int, grid: int, is_shifted: bool) -> None:
        super().__init__()
        self.self, self.output = Attention(dim, heads, grid, is_shifted), Dense(dim, dim)

    def forward(self, x: Tokens) -> Tokens:
        """Apply the parts in their order."""
        y: Tensor = self.output(self.self(x))
        return y


class Block(nn.Module):
    """Attention and a network per token, each followed by its norm."""

    def __init__(self, dim: int, heads: int, grid: int, is_shifted: bool) -> None:
        super().__init__()
        self.attention = AttentionLayer(dim, heads, grid, is_shifted)
        self.layernorm_before, self.layernorm_after = ConditionedNorm(dim), ConditionedNorm(dim)
        self.intermediate, self.output = Dense(dim, 4 * dim), Dense(4 * dim, dim)

    def forward(self, x: Tokens, time: Time = None) -> Tokens:
        """Apply the block."""
        x = x + self.layernorm_before(self.attention(x), time)
        y: Tensor = self.layernorm_after(self.output(F.gelu(self.intermediate(x))), time)
        return x + y


class Merge(nn.Module):
    """Four neighbouring tokens become one of twice the dimension."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.reduction, self.norm = nn.Linear(4 * dim, 2 * dim, bias=False), ConditionedNorm(2 * dim)

    def forward(self, x: Tokens, time: Time = None) -> OutputTokens:
        """Merge to half as many tokens in both directions."""
        four = (x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2])
        y: Tensor = self.norm(self.reduction(torch.cat(four, -1)), time)
        return y


class Stage(nn.Module):
    """The blocks on one grid, and the merge that follows them except in the last stage."""

    def __init__(self, dim: int, depth: int, heads: int, grid: int, is_last: bool) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(dim, heads, grid, is_shifted=i % 2 == 1) for i in range(depth))
        self.downsample = None if is_last else Merge(dim)

    def forward(self, x: Tokens, time: Time = None) -> OutputTokens:
        """Apply the blocks, and merge to the next grid."""
        y: Tensor = x
        for block in self.blocks:
            y = block(y, time)
        if self.downsample is not None:
            y = self.downsample(y + x, time)
        return y


class Patches(nn.Module):
    """Turn each patch of an image into one token."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.projection = nn.Conv2d(CHANNELS, dim, PATCH, PATCH)

    def forward(self, images: Float[Tensor, "batch 4 height width"]) -> Tokens:
        """Apply the convolution as one product, so that no convolution library rounds it to TF32."""
        b, channels, height, width = images.shape
        patches = images.view(b, channels, height // PATCH, PATCH, width // PATCH, PATCH)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(3)
        return F.linear(patches, self.projection.weight.flatten(1), self.projection.bias)


class Embeddings(nn.Module):
    """The tokens of an image, normalised."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.patch_embeddings, self.norm = Patches(dim), ConditionedNorm(dim)

    def forward(self, images: Float[Tensor, "batch 4 height width"], time: Time = None) -> Tokens:
        """Apply the parts in their order."""
        x: Tensor = self.norm(self.patch_embeddings(images), time)
        return x


class Stages(nn.Module):
    """The four stages."""

    def __init__(self, embed: int, depths: Sequence[int]) -> None:
        super().__init__()
        grid, last = IMAGE // PATCH, len(depths) - 1
        self.layers = nn.ModuleList(
            Stage(embed * 2**i, depth, HEADS[i], grid // 2**i, is_last=i == last)
            for i, depth in enumerate(depths)
        )

    def forward(self, x: Tokens, time: Time = None) -> OutputTokens:
        """Apply the parts in their order."""
        for stage in self.layers:
            x = stage(x, time)
        return x


class Encoder(nn.Module):
    """Embeddings and encoder of one of the published sizes.

    Args:
        size: Size, one of `SIZES`.

    Attributes:
        size: The size.
        provenance: Where the weights come from: size, file or seed, and SHA-256.
    """

    def __init__(self, size: str) -> None:
        super().__init__()
        self.size, self.provenance = size, dict[str, str]()
        self.embeddings, self.encoder = Embeddings(SIZES[size].embed), Stages(*SIZES[size])

    about = old_attribute("Encoder.about", "Encoder.provenance")

    @property
    def dim(self) -> int:
        """Number of channels of the bottleneck."""
        return 8 * SIZES[self.size].embed

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.embeddings.norm.weight.bias.device

    def forward(
        self, images: Float[Tensor, "batch 4 128 128"], time: Time = None
    ) -> Float[Tensor, "batch 16 dim"]:
        """Compute the tokens of the bottleneck.

        Args:
            images: Images `(batch, 4, 128, 128)`.
            time: A time per image; None is time zero.

        Returns:
            Tokens `(batch, 16, dim)`.
        """
        x: Tensor = self.encoder(self.embeddings(images, time), time)
        return x.flatten(1, 2)
