"""How a network runs on a device.

`Execution` is for any network: it runs as it is, compiled if asked for, in its own dtype or under bfloat16 autocast (precision bf16;
fp16 is tf32, as for the FNO without kernels). `FNOExecution` has what only the FNO has: kernels, CUDA graphs, and a compiled core where
those are missing. `execution_of` picks one of them, and no other room asks which.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import SapcError
from .cuda_graph import Replayed
from .fno import FNO

COMPILE_FROM = 1000  # network evaluations in sight from which compiling on a GPU is worth its time
Velocity = Callable[..., Tensor]


def execution_of(
    network: nn.Module, device: torch.device, precision: str = "float32", compiled: bool | None = None
) -> Execution:
    """Put a network on a device; `compiled` is whether it is compiled, None leaves that open."""
    kind = FNOExecution if isinstance(network, FNO) else Execution
    return kind(network, device, precision, compiled)


class Execution:
    """Any network, as it is."""

    advice = "freeze it by requires_grad_(False), or leave it out"

    def __init__(
        self, network: nn.Module, device: torch.device, precision: str, compiled: bool | None
    ) -> None:
        self.network, self.device = network.to(device), device
        self.precision, self.compiled = precision, compiled
        self.is_compiled = False

    def for_training(self, wrap: Callable[[nn.Module], nn.Module]) -> Velocity:
        """Return the velocity whose gradients are averaged over the processes that `wrap` knows."""
        if self.compiled:
            self.compile()
        return self._checked(wrap(self.network.train()))

    def for_sampling(self) -> Velocity:
        """Return the velocity of the trained network."""
        self.network.eval().requires_grad_(False)
        if self.compiled:
            self.compile()
        return self._checked(self.network)

    def expect(self, evaluations: int) -> None:
        """Compile the network if so many evaluations make that worth while and the caller left it open."""

    def compile(self) -> None:
        """Compile the network, once."""
        if not self.is_compiled:
            self.network.compile(dynamic=False)
            self.is_compiled = True

    def _checked(self, module: nn.Module) -> Velocity:
        """Call a module in its own dtype and hold the result to the shape of the fields."""
        dtype = next(p.dtype for p in self.network.parameters())
        name, halved = type(self.network).__name__, self.precision == "bf16"

        def velocity(fields: Tensor, times: Tensor, *condition: Tensor) -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=halved):
                out = module(fields.to(dtype), times.to(dtype), *(c.to(dtype) for c in condition))
            if not isinstance(out, Tensor) or out.shape != fields.shape:
                got = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
                raise SapcError(
                    f"{name} must return fields of the shape it gets, {tuple(fields.shape)}, but returned {got}"
                )
            return out.to(dtype)

        return velocity

    @contextmanager
    def seeded(self, seed: Callable[[], int]) -> Iterator[None]:
        """Let what the network draws itself, as dropout does, depend on a seed alone."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed())
            yield

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Evaluate without dropout inside the block."""
        self.network.eval()
        try:
            yield
        finally:
            self.network.train()

    def without_gradient(self, parameters: dict[str, nn.Parameter]) -> list[str]:
        """Return which parameters the last step gave no gradient."""
        return [name for name, p in parameters.items() if p.grad is None]


class FNOExecution(Execution):
    """The FNO: by kernels where they can be used and pay, else by products, which are compiled on a GPU."""

    network: FNO
    advice = "if the network is compiled, try without (--no-compile) or another version of torch"

    def __init__(
        self, network: nn.Module, device: torch.device, precision: str, compiled: bool | None
    ) -> None:
        super().__init__(network, device, precision, compiled)
        self.network.compile_instead = self._is_open

    @property
    def _is_open(self) -> bool:
        return self.device.type == "cuda" and self.compiled is None

    def for_training(self, wrap: Callable[[nn.Module], nn.Module]) -> Velocity:
        """Return the velocity; on a GPU it is compiled where there are no kernels."""
        if self.compiled or (self._is_open and not self.network.has_kernels(self.device)):
            self.compile()
        return wrap(self.network)

    def for_sampling(self) -> Velocity:
        """Return the velocity, replayed from a CUDA graph where its kernels are used."""
        super().for_sampling()
        return Replayed(self.network)

    def expect(self, evaluations: int) -> None:
        """Compile on a GPU without kernels, from many evaluations on."""
        if self._is_open and evaluations >= COMPILE_FROM and not self.network.has_kernels(self.device):
            self.compile()

    def compile(self) -> None:
        """Compile the part between transforms and fields."""
        if not self.is_compiled:
            self.network.compile_core()
            self.is_compiled = True

    @contextmanager
    def seeded(self, seed: Callable[[], int]) -> Iterator[None]:
        """Do nothing: it draws nothing."""
        yield

    @contextmanager
    def validating(self) -> Iterator[None]:
        """Do nothing: it has one mode."""
        yield

    def without_gradient(self, parameters: dict[str, nn.Parameter]) -> list[str]:
        """Return which layers the last step gave no gradient; there should be none, but a compiler can be wrong and say nothing.

        A single number may have none by right: a constant is taken out by a projection that a method trains through.
        """
        return [
            name
            for name, p in parameters.items()
            if p.grad is None or (p.numel() > 1 and not bool(p.grad.count_nonzero()))
        ]
