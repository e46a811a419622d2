"""The backbone: a Fourier neural operator v(u, t) on fields of any resolution.

    x = lift(u, [condition], embedding(t), coordinates)    pointwise, in -> projection -> hidden, GELU between
    x = gelu(S(x) + W x + b)                               S acts on a few Fourier modes, W on channels;
                                                           four times, no GELU after the last
    v = project(x)                                         pointwise, hidden -> projection -> 1, GELU between

**Modes.** `modes = 32` keeps k = -16..15 on every axis but the last and k = 0..16 on the last, whose
transform is that of real data. A coarser grid has fewer modes; those it has keep their weights, so one set of
weights serves every resolution. On each mode, channels are mixed by a complex matrix, stored as a pair of
real ones.

**Channels.** Fields of several channels are `(batch, channel, *grid)`; lifting takes all of them, and
projecting gives as many.

**Four paths** with the same weights compute the same function. `transform="fused"`: Triton kernels in which
an activation is read and written once per block (`nn.kernels`). `"dft"`: products with thin DFT matrices
(`nn.dft`), on any device, compiled if asked for. `"fft"`: full FFTs, the oracle in the tests and the
yardstick in the benchmark. `"auto"` follows the environment variable SAPC_KERNELS (on, off); without it, it
takes the kernels where they can be used and pay: on a GPU with Triton, in every precision but float32. Where
they turn out not to work, as on a GPU too small for them, it goes back to the products, after one warning.
On a CPU, `"auto"` takes the products; where no gradient is wanted, a few lines of the grid at a time
(`nn.lines`). That is the fourth path, faster than the others at every size that was measured
(`benchmarks/backbone.py --device cpu --batch 8`). Training keeps to the products, and `"dft"` asks for them.

**Lifting.** Of its input channels only the state varies with both sample and point. The time embedding is a
vector per sample, the coordinates a map per point, so the first layer is a sum of three small products and
the wide input is never built.

**Precision** is that of the products; their sums, weights and the output are float32 in every case.

    float32   factors with 24 bits
    tf32      factors rounded to 11 bits (on CUDA; the caller wraps the run in `matmul_precision`)
    fp16      the same 11 bits, and with the kernels activations are kept that way too, at half the memory
              traffic; elsewhere it is tf32
    bf16      8 bits, activations too
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu, linear

from ..errors import SapcError, SapcWarning, check_choice, check_int, explain_misuse, has_type
from . import lines
from .dft import Block, Transforms, make_transforms
from .kernels import LARGEST_CONDITIONS, kernels_unavailable_reason

# Importing it needs Triton.
if TYPE_CHECKING:
    from .kernels.plan import Plan, Tuning

Precision = Literal["float32", "tf32", "fp16", "bf16"]
Value = TypeVar("Value")
Path = Literal["auto", "fused", "dft", "fft"]
# The choice of the environment: on, off, or unset.
KERNELS = "SAPC_KERNELS"
# CUDA does not recover from these errors.
FATAL = ("illegal memory access", "misaligned address", "unspecified launch failure")
LEAVE_OPEN = f"leave the choice open, with transform='auto' and without {KERNELS}"
# Numbers in an array: beyond it their bytes cannot be counted in 64 bits.
LARGEST = 2**58
MAX_BLOCKS = 1000
# Transforms and plans of a network, each of one grid.
MAX_CACHED = 32
# Flow time is stretched by it before the embedding, and it is the longest wave length.
LARGEST_TIME = 2000.0


class Lift(torch.autograd.Function):
    """`gelu(inputs @ maps)`, a map per sample, where the inputs are few and the outputs many.

    The wide pre-activation is made again for the backward pass instead of being kept, and the gradients of
    all maps are one product; differentiated automatically, each would be a sum over the wide tensor of its
    own.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, maps: Tensor, dtype: torch.dtype) -> Tensor:
        """Map `(batch, points, in)` by `(batch, in, out)` to `(batch, points, out)` in `dtype`."""
        ctx.save_for_backward(inputs, maps)
        x = gelu(_sum_of_products(inputs, maps))
        # Not `.to(dtype)` where that is nothing: torch 2.11, compiling, then takes the result for a view and
        # its gradient for zero.
        return x if x.dtype == dtype else x.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        """Compute the gradients of maps and, if needed, of inputs."""
        inputs, maps = ctx.saved_tensors
        x = _sum_of_products(inputs, maps)
        d = torch.ops.aten.gelu_backward(grad.to(x.dtype), x).to(grad.dtype)
        to_inputs = (d @ maps.mT.to(d.dtype)).to(inputs.dtype) if ctx.needs_input_grad[0] else None
        return to_inputs, (inputs.mT.to(d.dtype) @ d).to(maps.dtype), None


def _sum_of_products(inputs: Tensor, maps: Tensor) -> Tensor:
    """Multiply, on CUDA written out so that a compiler folds it into what follows."""
    if not inputs.is_cuda:
        return inputs @ maps
    return sum(
        (inputs[..., i, None] * maps[:, None, i] for i in range(1, inputs.shape[-1])),
        inputs[..., 0, None] * maps[:, None, 0],
    )


@explain_misuse
class FNO(nn.Module):
    """The velocity network `(fields, times[, condition]) -> fields`, a Fourier neural operator.

    It serves fields of any resolution.

    Args:
        grid_dims: Axes of the grid.
        modes: Fourier modes, one number for all axes or one per axis.
        hidden: Channels of the blocks.
        projection: Channels of the hidden layers of lifting and projection.
        time_channels: Channels of the time embedding, an even number.
        blocks: Number of blocks.
        channels: Channels of a field.
        conditions: Number of condition fields that it gets; see `forward`.
        precision: Precision of products: float32, tf32, fp16 or bf16.
        transform: How it is computed: auto, fused, dft or fft.
        compiled: Compile the products.
    """

    def __init__(
        self,
        grid_dims: int = 2,
        modes: int | tuple[int, ...] = 32,
        hidden: int = 64,
        projection: int = 256,
        time_channels: int = 32,
        *,
        blocks: int = 4,
        channels: int = 1,
        conditions: int = 0,
        precision: str = "float32",
        transform: str = "auto",
        compiled: bool = False,
    ) -> None:
        super().__init__()
        per_axis = (modes,) * check_int(grid_dims, "grid_dims", 1) if isinstance(modes, int) else tuple(modes)
        _check(grid_dims, per_axis, (hidden, projection, blocks, channels), time_channels, conditions)
        _check_path(precision, transform)
        self.modes = (*per_axis[:-1], per_axis[-1] // 2 + 1)
        self.time_channels, self.channels, self.conditions = time_channels, channels, conditions
        self.precision, self.transform = precision, transform
        # Launches of the kernels, if not the usual ones.
        self.tuning: Tuning | None = None
        # Plan of the last evaluation by kernels.
        self.plan: Plan | None = None
        # Whether products are compiled if kernels turn out not to work.
        self.compile_instead = False
        self._kernels_failed = False
        # See `_lookup`.
        self._cache: dict[tuple[object, ...], Any] = {}
        self.lift_in = nn.Linear(channels * (1 + conditions) + time_channels + grid_dims, projection)
        self.lift_out = nn.Linear(projection, hidden)
        self.blocks = nn.ModuleList(Block(hidden, self.modes) for _ in range(blocks))
        self.project_in = nn.Linear(hidden, projection)
        self.project_out = nn.Linear(projection, channels)
        self._core: Callable[[Tensor, Tensor, Transforms], Tensor] = self._velocity
        if compiled:
            self.compile_core()

    @staticmethod
    def shapes(
        grid_dims: int, modes: tuple[int, ...], hidden: int, projection: int, time_channels: int, *,
        blocks: int = 4,
        channels: int = 1, conditions: int = 0, precision: str = "float32",
    ) -> dict[str, tuple[int, ...]]:  # fmt: skip
        """Compute the shapes of the weights, without making the network.

        Args:
            grid_dims: As for the network; so are all others.
            modes: One number per axis.
            hidden: Channels of the blocks.
            projection: Channels of the hidden layers.
            time_channels: Channels of the time embedding.
            blocks: Number of blocks.
            channels: Channels of a field.
            conditions: Condition fields.
            precision: Precision of products.

        Returns:
            The shapes by name.
        """
        _check(grid_dims, modes, (hidden, projection, blocks, channels), time_channels, conditions)
        _check_path(precision, "auto")
        stored_modes = (*modes[:-1], modes[-1] // 2 + 1)
        wide = channels * (1 + conditions) + time_channels + grid_dims
        block: dict[str, tuple[int, ...]] = {"spectral.weight": (2, *stored_modes, hidden, hidden)}
        block |= {"spectral.bias": (hidden,), "pointwise.weight": (hidden, hidden)}
        shapes = {f"blocks.{i}.{name}": shape for i in range(blocks) for name, shape in block.items()}
        linears = {"lift_in": (projection, wide), "lift_out": (hidden, projection)}
        linears |= {"project_in": (projection, hidden), "project_out": (channels, projection)}
        for name, shape in linears.items():
            shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
        return shapes

    def compile_core(self) -> None:
        """Compile the network; the first call with a new shape then takes its time."""
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        self._core = torch.compile(self._velocity, dynamic=False)

    @property
    def parameter_count(self) -> int:
        """Number of real parameters."""
        return sum(p.numel() for p in self.parameters())

    def forward(
        self,
        u: Float[Tensor, "batch *grid"],
        t: Float[Tensor, " batch"],
        condition: Float[Tensor, "batch *fields"] | None = None,
    ) -> Float[Tensor, "batch *grid"]:
        """Evaluate the velocity.

        Args:
            u: States `(batch, *grid)`, with an axis for channels after the batch if there are several.
            t: Flow times, one per sample.
            condition: A field per sample, in the shape of `u`; of several condition fields `(batch,
                conditions, ...)`, each in the shape of a field of `u`.

        Returns:
            The velocity in the shape of `u`, in float32 (float64 for a network in float64).
        """
        self._check_input(u, t, condition)
        exact = self.lift_in.weight.dtype
        if len(u) == 0:
            return u.to(exact)
        path = self.path(u, condition)
        if path == "fused":
            v = self._try_kernels(u.to(exact), t.double(), None if condition is None else condition.to(exact))
            if v is not None:
                return v
        shape = tuple(u.shape[-len(self.modes) :])
        kind = torch.bfloat16 if self.precision == "bf16" else exact
        transforms = self._lookup(make_transforms, shape, self.modes, kind, u.device)
        fields = self._split_fields(u, condition)
        channels = torch.stack(fields, -1) if self.channels == 1 else torch.cat(fields, 1).movedim(1, -1)
        place = transforms.place.to(exact).expand(len(u), -1, -1)
        inputs = torch.cat((channels.to(exact).flatten(1, -2), place), -1)
        evaluate = partial(lines.velocity, self) if path == "lines" else self._core
        v = evaluate(inputs, t.double(), transforms)
        return v.reshape(u.shape) if self.channels == 1 else v.movedim(-1, 1).reshape(u.shape)

    def _split_fields(self, u: Tensor, condition: Tensor | None) -> tuple[Tensor, ...]:
        """List the fields that enter, the state first, each in the shape of `u`."""
        if condition is None:
            return (u,)
        return (u, condition) if self.conditions == 1 else (u, *condition.unbind(1))

    def _lookup(self, make: Callable[..., Value], *key: object) -> Value:
        """Keep what depends on a grid alone, for the latest grids."""
        value = self._cache.get((make, *key))
        if value is None:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            value = self._cache[make, *key] = make(*key)
        return cast(Value, value)

    def path(self, u: Tensor, condition: Tensor | None = None) -> str:
        """Choose the path for fields like these.

        Args:
            u: States.
            condition: Condition fields.

        Returns:
            fused, dft, fft, or lines: products a few lines at a time.

        Raises:
            SapcError: The kernels were asked for and cannot be used.
        """
        choice = self.transform if self.transform != "auto" else _default_path()
        if choice == "fft":
            return choice
        products = "lines" if self._goes_by_lines(u) else "dft"
        if choice == "dft" or (choice == "auto" and not self._pays(u)):
            return products
        reason = kernels_unavailable_reason(
            u.device, self._activation_dtype, self.lift_out.out_features, self.lift_in.out_features
        )
        if self.conditions > LARGEST_CONDITIONS:
            reason = f"the kernels know at most {LARGEST_CONDITIONS} condition fields, not {self.conditions}"
        if self.channels > 1 or len(self.modes) not in (2, 3):
            reason = "the kernels know fields of one channel on two or three axes"
        if not reason and condition is not None and condition.requires_grad:
            reason = "the kernels give the condition no gradient"
        if reason and choice == "fused":
            raise SapcError(f"the kernels cannot be used: {reason}; {LEAVE_OPEN}")
        return products if reason else "fused"

    def has_kernels(self, device: torch.device) -> bool:
        """Check whether fields on a device take the fused path.

        Args:
            device: The device.

        Returns:
            Whether the kernels are used.
        """
        if self.channels > 1:
            return False
        return self.path(torch.empty(1, *(1 for _ in self.modes), device=device)) == "fused"

    def _pays(self, u: Tensor) -> bool:
        """Check whether kernels pay: exact products of float32 are no work for the matrix units."""
        return u.is_cuda and self.precision != "float32" and not self._kernels_failed

    def _goes_by_lines(self, u: Tensor) -> bool:
        """Check whether products are taken a few lines at a time; no timing decides, so bits repeat."""
        if self.transform != "auto" or self.precision == "bf16" or u.device.type != "cpu":
            return False
        # A compiler would write out all groups of lines.
        is_compiled = torch.compiler.is_compiling() or self._core != self._velocity
        return not is_compiled and not torch.is_grad_enabled()

    @property
    def _activation_dtype(self) -> torch.dtype:
        """Choose the dtype of activations in the kernels; a network in float64 stays there."""
        exact = self.lift_in.weight.dtype
        halves = {"bf16": torch.bfloat16, "fp16": torch.float16}
        return halves.get(self.precision, exact) if exact == torch.float32 else exact

    def _try_kernels(self, u: Tensor, t: Tensor, condition: Tensor | None) -> Tensor | None:
        """Evaluate by the kernels; None if they turn out not to work here."""
        try:
            return self._by_kernels(u, t, condition)
        except (torch.cuda.OutOfMemoryError, NotImplementedError):
            raise
        # Of a compiler, for a GPU that nobody has tried.
        except Exception as error:
            reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0] or 'no message'}"
            if any(sign in str(error) for sign in FATAL):
                raise SapcError(
                    f"the kernels of this network fail on this GPU ({reason}), "
                    "after which nothing works in this process; "
                    f"start again with {KERNELS}=off"
                ) from error
            if "fused" in (self.transform, _default_path()):
                raise SapcError(f"the kernels cannot be used: {reason}; {LEAVE_OPEN}") from error
            warnings.warn(
                f"the kernels of this network cannot be used here ({reason}); "
                "it runs by products, more slowly; "
                f"{KERNELS}=off avoids the attempt",
                SapcWarning,
                stacklevel=3,
            )
            self._kernels_failed = True
            if self.compile_instead:
                self.compile_core()
            return None

    def _by_kernels(self, u: Tensor, t: Tensor, condition: Tensor | None) -> Tensor:
        """Add up what depends on the sample or the line alone, and run the kernels."""
        from .kernels.network import velocity
        from .kernels.plan import make_plan

        transforms = self._lookup(
            make_transforms, tuple(u.shape[1:]), self.modes, self._activation_dtype, u.device, True
        )
        sizes = self.lift_out.out_features, self.lift_in.out_features, 1 + self.conditions
        p = self.plan = self._lookup(make_plan, transforms, *sizes, self.precision != "float32", self.tuning)
        state, place, tau = self._lift_weights(t)
        scaled_inputs = torch.cat((state, place[:, -1:]), 1).T.contiguous()
        line = (p.lead[:, :, None] * place[:, :-1].T).sum(1)
        rows = torch.stack(self._split_fields(u, condition), -2)
        linears = (self.lift_out, self.project_in, self.project_out)
        ends = [scaled_inputs, *(x for layer in linears for x in layer.parameters())]
        layers = [x for block in self.blocks for x in cast(Block, block).parameters_for(transforms)]
        return velocity(p, rows.contiguous(), tau, line, *ends, *layers)

    def _velocity(self, inputs: Tensor, t: Tensor, transforms: Transforms) -> Tensor:
        x = self._lift(inputs, t, transforms.analyse[0].dtype).reshape(len(t), *transforms.grid, -1)
        for i, block in enumerate(self.blocks):
            x = block(x, transforms, self.transform == "fft")
            x = gelu(x) if i < len(self.blocks) - 1 else x
        x = gelu(linear(x, self.project_in.weight.to(x.dtype), self.project_in.bias.to(x.dtype)))
        weight, bias = self.project_out.weight, self.project_out.bias
        if self.channels > 1:
            return linear(x.to(weight.dtype), weight, bias)
        # A sum that a compiler folds into the line above, so that the wide tensor is read once.
        if x.is_cuda:
            return (x.to(weight.dtype) * weight[0]).sum(-1) + bias
        return linear(x.to(weight.dtype), weight, bias)[..., 0]

    def _lift(self, inputs: Tensor, t: Tensor, dtype: torch.dtype) -> Tensor:
        """Lift `inputs`, the state's channels, the coordinates and a one; see the module docstring."""
        x: Tensor = Lift.apply(inputs, self.lift_maps(t), dtype)  # type: ignore[no-untyped-call]
        return linear(x, self.lift_out.weight.to(dtype), self.lift_out.bias.to(dtype))

    def lift_maps(self, t: Tensor) -> Tensor:
        """Compute the first layer at given times, as a map of the inputs that vary with the point.

        Args:
            t: Flow times, one per sample.

        Returns:
            Matrices `(batch, in, projection)`.
        """
        state, place, tau = self._lift_weights(t)
        return torch.cat((torch.cat((state, place), 1).T.expand(len(t), -1, -1), tau[:, None]), 1)

    def _lift_weights(self, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split the first layer: weights of fields, of coordinates, and what time and bias add per sample."""
        axes = len(self.modes)
        fields = self.lift_in.in_features - self.time_channels - axes
        state, time, place = torch.split(self.lift_in.weight, [fields, self.time_channels, axes], dim=1)
        return state, place, linear(self._embedding(t).to(time.dtype), time, self.lift_in.bias)

    def _embedding(self, t: Tensor) -> Tensor:
        """Embed the stretched time: `[sin, cos]` at frequencies from 1 down to 1 / 2000."""
        # In float64: a float32 phase is off by 1e-4.
        half = self.time_channels // 2
        j = torch.arange(half, dtype=t.dtype, device=t.device)
        phase = (LARGEST_TIME * t)[:, None] * torch.exp(-j * (math.log(LARGEST_TIME) / (half - 1)))
        return torch.cat((phase.sin(), phase.cos()), 1)

    def _check_input(self, u: Tensor, t: Tensor, condition: Tensor | None) -> None:
        for x in (u, t) if condition is None else (u, t, condition):
            if not isinstance(x, Tensor) or not x.is_floating_point() or x.is_meta or x.is_sparse:
                raise SapcError(
                    "this FNO takes tensors of real numbers, "
                    f"got {type(x).__name__} {getattr(x, 'dtype', '')}"
                )
        lead = (self.channels,) if self.channels > 1 else ()
        if u.ndim != len(self.modes) + 1 + len(lead) or u.shape[1 : 1 + len(lead)] != lead:
            requirement = f"(batch, {self.channels} channels, *grid)" if lead else "(batch, *grid)"
            raise SapcError(
                f"this FNO takes fields {requirement} with {len(self.modes)} grid axes, "
                f"got shape {tuple(u.shape)}"
            )
        if t.shape != u.shape[:1]:
            raise SapcError(f"one flow time per field: expected shape ({len(u)},), got {tuple(t.shape)}")
        several = (self.conditions,) if self.conditions > 1 else ()
        if condition is not None and condition.shape != (shape := (len(u), *several, *u.shape[1:])):
            raise SapcError(
                f"the condition has shape {tuple(condition.shape)}, the fields {tuple(u.shape)}; they must agree"
                + f": {self.conditions} condition fields have shape {shape}" * len(several)
            )
        if (condition is not None) != bool(self.conditions):
            names = {0: "no condition", 1: "one condition field per sample"}
            requirement = names.get(self.conditions, f"{self.conditions} condition fields per sample")
            raise SapcError(f"this FNO takes {requirement}; use weights trained for this method")


def _check(
    dims: int, modes: tuple[int, ...], widths: tuple[int, int, int, int], time: int, conditions: int
) -> None:
    hidden, projection, blocks, channels = widths
    if not all(has_type(n, int) and n >= 1 for n in (dims, *modes, *widths)) or len(modes) != dims:
        raise SapcError(
            "an FNO needs grid_dims >= 1, one positive number of modes per axis and positive widths; "
            f"got grid_dims {dims}, modes {modes}, hidden {hidden}, projection {projection}, "
            f"blocks {blocks}, channels {channels}"
        )
    inputs = channels * (1 + check_int(conditions, "conditions", 0))
    widest = max(hidden, projection, check_int(time, "time_channels", 4), inputs)
    if blocks > MAX_BLOCKS or math.prod(modes) * widest**2 >= LARGEST:
        raise SapcError(
            f"an FNO of {blocks} blocks, {widest} channels and modes {modes} cannot be stored anywhere; "
            "choose smaller sizes"
        )
    if time % 2:
        raise SapcError(f"time_channels must be an even number of at least 4, got {time}")


def _check_path(precision: str, transform: str) -> None:
    check_choice(precision, "precision", get_args(Precision))
    if transform not in get_args(Path) or (transform == "fft" and precision in ("bf16", "fp16")):
        raise SapcError(
            f"transform {transform!r} with precision {precision}: "
            "choose 'auto', 'fused', 'dft', or 'fft' in float32 or tf32"
        )


def _default_path() -> str:
    """Read the path that the environment asks for."""
    value = os.environ.get(KERNELS, "").lower()
    paths = {"": "auto", "auto": "auto", "on": "fused", "off": "dft"}
    if value not in paths:
        raise SapcError(f"{KERNELS} is {value!r}; choose on, off or auto")
    return paths[value]


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Set the precision of products on CUDA inside the block; sums are always in float32.

    Args:
        precision: float32 (exact products), tf32, fp16 or bf16.
    """
    previous, cuda = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul
    halves = cuda.allow_fp16_reduced_precision_reduction, cuda.allow_bf16_reduced_precision_reduction
    torch.set_float32_matmul_precision("high" if precision in ("tf32", "fp16") else "highest")
    cuda.allow_fp16_reduced_precision_reduction = cuda.allow_bf16_reduced_precision_reduction = False
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)
        cuda.allow_fp16_reduced_precision_reduction, cuda.allow_bf16_reduced_precision_reduction = halves
