"""Settings of a run's network, and the network that is made from them.

A network is any `torch.nn.Module` `(fields, times[, condition]) -> fields`:

    fields      (batch, *grid), or (batch, channel, *grid) if there are several channels
    times       flow times in [0, 1], one per field
    condition   a field of the same shape, only for methods that show one to the network; of a method that
                shows k > 1 of them `(batch, k, ...)`, each `condition[:, i]` in the shape of the fields
    result      the velocity, in the shape of the fields

`Backbone` holds the sizes of the FNO, from which it is made. `OwnNetwork` describes a network that the user
passes: a folder never names code that is run, so whoever loads such a run gives the network again, as a
module, which is copied, or as a function that makes one.

`make_execution` decides how a network runs on a device. `Execution` is for any network: it runs as it is,
compiled if asked for, in its own dtype or under bfloat16 autocast (precision bf16; fp16 is tf32, as for the
FNO without kernels). `FNOExecution` has what only the FNO has: kernels, CUDA graphs, and a compiled core
where those are missing. No other room asks which it is.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import SapcError, check_record, check_type
from .cuda_graph import CudaGraphModule
from .fno import FNO

NetworkSource = nn.Module | Callable[[], nn.Module]
"""A network, or a class or function without arguments that makes one, called with the seed of the run."""

Velocity = Callable[..., Tensor]
# Compiling on a GPU is worth its time from so many network evaluations on.
COMPILE_FROM = 1000


class Inputs(NamedTuple):
    """Inputs of the network of a run.

    Attributes:
        grid_dims: Axes of the grid.
        channels: Channels of a field.
        conditions: Number of condition fields.
        precision: Precision of products.
    """

    grid_dims: int
    channels: int
    conditions: int
    precision: str


@dataclass(frozen=True)
class Backbone:
    """Sizes of the FNO.

    Attributes:
        modes: Fourier modes per axis.
        hidden: Channels of the blocks.
        projection: Channels of the hidden layers of lifting and projection.
        time_channels: Channels of the time embedding.
        blocks: Number of blocks.
    """

    # Where the shapes of the weights come from, and the argument that a call needs to make the network.
    origin: ClassVar[str] = "by config.json; restore the one or the other"
    argument: ClassVar[str] = ""

    modes: tuple[int, ...]
    hidden: int
    projection: int
    time_channels: int
    blocks: int = 4

    def __post_init__(self) -> None:
        make_plain(self, "modes", "hidden", "projection", "time_channels", "blocks")
        check_type(self.modes, tuple, "modes", "a list of whole numbers, one per axis")
        FNO.shapes(len(self.modes), **vars(self))

    def check_grid(self, shape: tuple[int, ...]) -> None:
        """Refuse a grid with another number of axes.

        Args:
            shape: Points per axis.

        Raises:
            SapcError: The numbers of axes differ.
        """
        if len(self.modes) != len(shape):
            raise SapcError(
                f"the network has modes on {len(self.modes)} axes, {self.modes}, "
                f"and the grid has {len(shape)}, {shape}; give one number of modes per axis"
            )

    def make(self, inputs: Inputs, network: NetworkSource | None = None) -> nn.Module:
        """Make an FNO with fresh weights.

        Args:
            inputs: What the network gets.
            network: Must be None.

        Returns:
            The FNO.
        """
        return FNO(**self._arguments(inputs, network))

    def shapes(self, inputs: Inputs, network: NetworkSource | None = None) -> dict[str, tuple[int, ...]]:
        """Compute the shapes of the weights, without making them; sizes that no FNO can have are refused.

        Args:
            inputs: What the network gets.
            network: Must be None.

        Returns:
            The shapes by name.
        """
        return FNO.shapes(**self._arguments(inputs, network))

    def _arguments(self, inputs: Inputs, network: NetworkSource | None) -> dict[str, Any]:
        if network is not None:
            raise SapcError(
                "the network of this run is an FNO of the sizes in its settings; leave out network="
            )
        return {**inputs._asdict(), **asdict(self)}

    def identity(self) -> dict[str, Any]:
        """Describe what must agree for a training to be continued.

        Returns:
            All sizes.
        """
        return asdict(self)

    def describe(self, parameters: int) -> str:
        """Describe the network in words.

        Args:
            parameters: Its number of parameters.

        Returns:
            One line.
        """
        modes = " x ".join(map(str, self.modes))
        return (
            f"FNO, {parameters:,} parameters: {self.blocks} blocks, {self.hidden} channels, modes {modes}, "
            f"projection {self.projection}"
        )


@dataclass(frozen=True)
class OwnNetwork:
    """A network that the user passes, described for information.

    Attributes:
        network: Qualified name of its class, which is never imported.
        parameters: Its number of parameters.
    """

    origin: ClassVar[str] = "in the network that was passed; pass one like that of the training"
    argument: ClassVar[str] = "network=network"
    network: str
    parameters: int

    def __post_init__(self) -> None:
        make_plain(self, "network", "parameters")
        check_record(self)

    @classmethod
    def of(cls, network: NetworkSource) -> OwnNetwork:
        """Describe a network.

        Args:
            network: The network, or a function that makes one.

        Returns:
            Its description.
        """
        example = _example(network)
        return cls(f"{type(example).__module__}.{type(example).__qualname__}", parameter_count(example))

    def check_grid(self, shape: tuple[int, ...]) -> None:
        """Accept any grid: the network itself will refuse what it does not take.

        Args:
            shape: Points per axis.
        """

    def make(self, inputs: Inputs, network: NetworkSource | None = None) -> nn.Module:
        """Copy the given network, or call the given function.

        Args:
            inputs: What the network gets.
            network: The network, or a function that makes one.

        Returns:
            The network to be trained.
        """
        self.shapes(inputs, network)
        assert network is not None
        return copy.deepcopy(network) if isinstance(network, nn.Module) else network()

    def shapes(self, inputs: Inputs, network: NetworkSource | None = None) -> dict[str, tuple[int, ...]]:
        """Compute the shapes of the weights of the given network.

        Args:
            inputs: What the network gets.
            network: The network, or a function that makes one.

        Returns:
            The shapes by name.

        Raises:
            SapcError: No network is given, or it is not like the one described.
        """
        if network is None:
            raise SapcError(
                f"this run has a network of your own, {self.network} with {self.parameters:,} parameters, "
                "which its folder does not hold; pass one like it as network=, to sapc.load, "
                "or to sapc.train to continue"
            )
        example = _example(network)
        if (count := parameter_count(example)) != self.parameters:
            raise SapcError(
                f"the network of this run, {self.network}, has {self.parameters:,} parameters, and the "
                f"{type(example).__name__} that was passed has {count:,}; pass one of the same sizes"
            )
        _check_arguments(example, inputs.conditions)
        return {name: tuple(value.shape) for name, value in weights_of(example).items()}

    def identity(self) -> dict[str, Any]:
        """Describe what must agree for a training to be continued; a class may be moved.

        Returns:
            The number of parameters.
        """
        return {"parameters": self.parameters}

    def describe(self, parameters: int) -> str:
        """Describe the network in words.

        Args:
            parameters: Ignored: the description has its own number.

        Returns:
            One line.
        """
        return f"`{self.network}`, {self.parameters:,} parameters"


def read_settings(values: Any) -> Backbone | OwnNetwork:
    """Read the network from the content of a config.json."""
    kind = OwnNetwork if isinstance(values, Mapping) and "network" in values else Backbone
    try:
        return kind(**values)
    except TypeError as error:
        raise SapcError(f"the backbone of a run's configuration cannot be read: {values!r:.200}") from error


def describe(network: nn.Module, settings: Backbone | OwnNetwork) -> Backbone | OwnNetwork:
    """Choose the settings of a network: the given ones for an FNO, else a description."""
    return settings if isinstance(network, FNO) else OwnNetwork.of(network)


def _example(network: NetworkSource) -> nn.Module:
    """Return a network, or one that a function makes, to be looked at only; refuse what cannot be trained."""
    if isinstance(network, nn.Module) or not callable(network):
        example = network
    else:
        _check_no_arguments(network)
        with torch.random.fork_rng(devices=[]):
            example = network()
    name = type(example).__name__
    if not isinstance(example, nn.Module):
        raise SapcError(
            "network= takes a torch.nn.Module (fields, times) -> fields, or a function that makes one, "
            f"got {name}"
        )
    if any(nn.parameter.is_lazy(p) for p in example.parameters()):
        raise SapcError(f"{name} has layers without sizes yet; evaluate it once before you pass it")
    if parameters := [key for key, p in example.named_parameters() if not p.is_floating_point()]:
        raise SapcError(
            f"{parameters[0]} of {name} is not real; store it as real pairs, and use torch.view_as_complex"
        )
    if not any(True for _ in example.parameters()):
        raise SapcError(f"{name} has no parameters to train")
    return example


def _check_no_arguments(make: Callable[[], nn.Module]) -> None:
    """Refuse a class or function that cannot be called without arguments."""
    try:
        signature = inspect.signature(make)
    # Some callables, as those of C, have no signature.
    except ValueError:
        return
    try:
        signature.bind()
    except TypeError as error:
        name = getattr(make, "__name__", type(make).__name__)
        raise SapcError(
            "network= takes a torch.nn.Module, or a class or function without arguments that makes one; "
            f"{name} takes {signature}: pass what it makes, as {name}(...)"
        ) from error


def _check_arguments(network: nn.Module, conditions: int) -> None:
    """Refuse a network that does not take as many arguments as it will be called with."""
    names = ("fields", "times", "condition")[: 2 + bool(conditions)]
    try:
        signature = inspect.signature(network.forward)
    # A compiled function has no signature.
    except ValueError:
        return
    try:
        signature.bind(*names)
    except TypeError as error:
        raise SapcError(
            f"with this method the network is called with ({', '.join(names)}), "
            f"and {type(network).__name__} takes {signature}"
        ) from error


def parameter_count(network: nn.Module) -> int:
    """Count the real parameters."""
    return sum(p.numel() for p in network.parameters())


def weights_of(network: nn.Module) -> dict[str, Tensor]:
    """Select what a file of weights holds: parameters and buffers, without counters and tables."""
    return {name: value for name, value in network.state_dict().items() if value.is_floating_point()}


# -- how a network runs on a device --


def kind_of(name: str) -> str:
    """Return the kind of a device, without touching it; `auto` is the GPU where there is one."""
    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name.split(":")[0]


def find_device(name: str, local_rank: int = 0) -> torch.device:
    """Find the device of this process.

    Args:
        name: auto, cpu, cuda or one GPU.
        local_rank: Number of this process on this machine; several processes take one GPU each.

    Returns:
        The device.

    Raises:
        SapcError: The device cannot be used.
    """
    try:
        return _open_device(kind_of(name) if name == "auto" else name, local_rank)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise SapcError(
            f"the device {name!r} cannot be used ({str(error).splitlines()[0]}); "
            "use 'auto', 'cpu', or 'cuda' where there is one"
        ) from error


def _open_device(name: str, local_rank: int) -> torch.device:
    device = torch.device(name)
    if device.type not in ("cpu", "cuda"):
        raise RuntimeError("the package knows cpu and cuda only")
    if device.type == "cuda":
        # A scheduler may show each process its own GPU only.
        index = 0 if torch.cuda.device_count() == 1 else local_rank
        device = torch.device("cuda", index if ":" not in name else device.index)
    torch.empty(0, device=device)
    return device


def make_execution(
    network: nn.Module, device: torch.device, precision: str = "float32", compiled: bool | None = None
) -> Execution:
    """Put a network on a device.

    Args:
        network: The network.
        device: The device.
        precision: Precision of products.
        compiled: Whether it is compiled; None leaves that open.

    Returns:
        What runs it there.
    """
    kind = FNOExecution if isinstance(network, FNO) else Execution
    return kind(network, device, precision, compiled)


class Execution:
    """Runs any network, as it is.

    Args:
        network: The network.
        device: The device it is put on.
        precision: Precision of products.
        compiled: Whether it is compiled; None leaves that open.
    """

    advice = "freeze it by requires_grad_(False), or leave it out"

    def __init__(
        self, network: nn.Module, device: torch.device, precision: str, compiled: bool | None
    ) -> None:
        self.network, self.device = network.to(device), device
        self.precision, self.compiled = precision, compiled
        self.is_compiled = False

    def for_training(self, wrap: Callable[[nn.Module], nn.Module]) -> Velocity:
        """Return the velocity for training; `wrap` averages its gradients over the processes."""
        if self.compiled:
            self.compile()
        return self._with_checks(wrap(self.network.train()))

    def for_sampling(self) -> Velocity:
        """Return the velocity of the trained network."""
        self.network.eval().requires_grad_(False)
        if self.compiled:
            self.compile()
        return self._with_checks(self.network)

    def run(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Call a function of tensors that evaluates the network many times.

        Args:
            key: What else than its tensors the result depends on; functions of equal keys are the same.
            function: The function. It waits for nothing on the device.
            inputs: Its tensors; the first are states.

        Returns:
            Its result.
        """
        return function(*inputs)

    def expect(self, evaluations: int) -> None:
        """Compile the network if so many evaluations make that worth while and the caller left it open."""

    def compile(self) -> None:
        """Compile the network, once."""
        if not self.is_compiled:
            self.network.compile(dynamic=False)
            self.is_compiled = True

    def _with_checks(self, module: nn.Module) -> Velocity:
        """Call a module in its own dtype and hold the result to the shape of the fields."""
        dtype = next(p.dtype for p in self.network.parameters())
        name, is_bf16 = type(self.network).__name__, self.precision == "bf16"

        def velocity(fields: Tensor, times: Tensor, *condition: Tensor) -> Tensor:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=is_bf16):
                out = module(fields.to(dtype), times.to(dtype), *(c.to(dtype) for c in condition))
            if not isinstance(out, Tensor) or out.shape != fields.shape:
                result = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
                raise SapcError(
                    f"{name} must return fields of the shape it gets, {tuple(fields.shape)}, "
                    f"but returned {result}"
                )
            return out.to(dtype)

        return velocity

    @contextmanager
    def fixed_seed(self, seed: Callable[[], int]) -> Iterator[None]:
        """Let what the network draws itself, as dropout does, depend on a seed alone."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(seed())
            yield

    @contextmanager
    def evaluation_mode(self) -> Iterator[None]:
        """Evaluate without dropout inside the block."""
        self.network.eval()
        try:
            yield
        finally:
            self.network.train()

    def without_gradient(self, parameters: dict[str, nn.Parameter]) -> list[str]:
        """Name the parameters that the last step gave no gradient."""
        return [name for name, p in parameters.items() if p.grad is None]


class FNOExecution(Execution):
    """Runs the FNO: by kernels where they can be used and pay, else by products, compiled on a GPU."""

    network: FNO
    advice = "if the network is compiled, try without (--no-compile) or another version of torch"

    def __init__(
        self, network: nn.Module, device: torch.device, precision: str, compiled: bool | None
    ) -> None:
        super().__init__(network, device, precision, compiled)
        self.network.compile_instead = self._is_open
        self._recorded = CudaGraphModule(self.network) if device.type == "cuda" else None

    @property
    def _is_open(self) -> bool:
        return self.device.type == "cuda" and self.compiled is None

    def for_training(self, wrap: Callable[[nn.Module], nn.Module]) -> Velocity:
        """Return the velocity for training; on a GPU it is compiled where there are no kernels."""
        if self.compiled or (self._is_open and not self.network.has_kernels(self.device)):
            self.compile()
        return wrap(self.network)

    def for_sampling(self) -> Velocity:
        """Return the velocity for sampling, on a GPU by a CUDA graph where its kernels are used."""
        super().for_sampling()
        return self._recorded or self.network

    def run(self, key: Hashable, function: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Call a function that evaluates the network many times; on a GPU by one CUDA graph, once repeated."""
        return function(*inputs) if self._recorded is None else self._recorded.run(key, function, *inputs)

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
    def fixed_seed(self, seed: Callable[[], int]) -> Iterator[None]:
        """Do nothing: it draws nothing."""
        yield

    def without_gradient(self, parameters: dict[str, nn.Parameter]) -> list[str]:
        """Name the layers that the last step gave no gradient.

        There should be none, but a compiler can be wrong and say nothing. A single number may have none by
        right: a constant is taken out by a projection that a method trains through.

        Args:
            parameters: Parameters by name.

        Returns:
            The names.
        """
        return [
            name
            for name, p in parameters.items()
            if p.grad is None or (p.numel() > 1 and not bool(p.grad.count_nonzero()))
        ]


# -- settings as files have them --


def make_plain(record: Any, *names: str) -> None:
    """Turn settings into what a file gives back: tuples for lists, plain numbers for those of numpy."""
    for name in names:
        value = to_tuples(getattr(record, name))
        plain = tuple(map(_number, value)) if isinstance(value, tuple) else _number(value)
        object.__setattr__(record, name, plain)


def _number(value: Any) -> Any:
    """Unwrap a number of numpy or torch; anything else stays as it is."""
    is_scalar = getattr(value, "shape", None) == () and not getattr(value, "is_meta", False)
    return value.item() if is_scalar and hasattr(value, "item") else value


def to_tuples(value: Any) -> Any:
    """Turn lists into tuples, at any depth: JSON knows lists only, and settings are immutable."""
    if isinstance(value, list):
        return tuple(to_tuples(v) for v in value)
    return {k: to_tuples(v) for k, v in value.items()} if isinstance(value, dict) else value
