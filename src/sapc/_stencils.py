"""Shifts and finite differences along one dimension of a tensor, differentiable to any order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


def shift(u: Tensor, dim: int, k: int) -> Tensor:
    """Move `u` by `k` points along `dim`, zeros moving in: entry i is `u[i - k]`."""
    dim %= u.ndim
    part = u.narrow(dim, max(-k, 0), u.shape[dim] - abs(k))
    return torch.nn.functional.pad(part, (0, 0) * (u.ndim - 1 - dim) + (max(k, 0), max(-k, 0)))


# Seen by all threads: on a GPU, gradients are computed by another one.
_is_fusible = [False]


@contextmanager
def fusible_differences() -> Iterator[None]:
    """Make differences, in this context, of operations that a compiler can fuse.

    Elsewhere they are written piece by piece into memory.
    """
    outer_value, _is_fusible[0] = _is_fusible[0], True
    try:
        yield
    finally:
        _is_fusible[0] = outer_value


def _fusible_difference(u: Tensor, dim: int, scale: float, transposed: bool) -> Tensor:
    """Do what `difference_into` does without writing into memory.

    It is `k (S^T - S) u + v u`: S the shift by one, k doubled at the ends, v zero except there.

    Args:
        u: A tensor.
        dim: The dimension.
        scale: The factor.
        transposed: Whether the transpose is applied.

    Returns:
        The differences.
    """
    i = torch.arange(u.shape[dim], device=u.device).reshape(-1, *(1,) * (u.ndim - 1 - dim))
    first, last = (i == 0).to(u), (i == u.shape[dim] - 1).to(u)
    k, v = scale * (1 + first + last), 2 * scale * (last - first)
    if transposed:
        return shift(k * u, dim, 1) - shift(k * u, dim, -1) + v * u
    return k * (shift(u, dim, -1) - shift(u, dim, 1)) + v * u


def difference(u: Tensor, dim: int, scale: float, transposed: bool = False) -> Tensor:
    """Return `scale` times the difference of the neighbours along `dim`, or its transpose.

    At the ends it is twice the one-sided difference.

    Args:
        u: A tensor.
        dim: The dimension.
        scale: The factor.
        transposed: Whether the transpose is applied.

    Returns:
        The differences.
    """
    out: Tensor = _Difference.apply(u, dim, scale, transposed)  # type: ignore[no-untyped-call]
    return out


def difference_into(out: Tensor, u: Tensor, dim: int, scale: float, transposed: bool) -> Tensor:
    """Write `scale (u_{i+1} - u_{i-1})` into a tensor; at the ends, twice the one-sided difference.

    Args:
        out: Tensor to write into.
        u: A tensor.
        dim: The dimension.
        scale: The factor.
        transposed: Whether the transpose of that matrix is applied.

    Returns:
        `out`.
    """
    n = u.shape[dim]
    inner, left, right = out.narrow(dim, 1, n - 2), u.narrow(dim, 0, n - 2), u.narrow(dim, 2, n - 2)
    first, second, last_but_one, last = (u.select(dim, i) for i in (0, 1, n - 2, n - 1))
    if transposed:
        torch.sub(left, right, out=inner)
        out.select(dim, 1).add_(first)
        out.select(dim, n - 2).sub_(last)
        out.select(dim, 0).copy_(-2 * first - second)
        out.select(dim, n - 1).copy_(2 * last + last_but_one)
    else:
        torch.sub(right, left, out=inner)
        out.select(dim, 0).copy_(2 * (second - first))
        out.select(dim, n - 1).copy_(2 * (last - last_but_one))
    return out.mul_(scale)


class _Difference(torch.autograd.Function):
    """Central differences with one-sided ends, or their transpose.

    The derivative of a linear map is its transpose and that of the transpose the map again, so this
    differentiates to any order; written out because slicing would fill a whole field with zeros for every
    slice it differentiates.
    """

    @staticmethod
    def forward(u: Tensor, dim: int, scale: float, transposed: bool) -> Tensor:
        """Do what `difference_into` does."""
        if _is_fusible[0]:
            return _fusible_difference(u, dim, scale, transposed)
        return difference_into(torch.empty_like(u), u, dim, scale, transposed)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:  # type: ignore[no-untyped-def]
        """Keep nothing of the field: the map is linear."""
        _, ctx.dim, ctx.scale, ctx.transposed = inputs

    @staticmethod
    def backward(ctx, w: Tensor):  # type: ignore[no-untyped-def]
        """Apply the transpose."""
        return _Difference.apply(w, ctx.dim, ctx.scale, not ctx.transposed), None, None, None  # type: ignore[no-untyped-call]

    @staticmethod
    def vmap(info, in_dims, u: Tensor, dim: int, scale: float, transposed: bool):  # type: ignore[no-untyped-def]
        """Apply it with one more batch dimension in front."""
        return _Difference.apply(u.movedim(in_dims[0], 0), dim + 1, scale, transposed), 0  # type: ignore[no-untyped-call]
