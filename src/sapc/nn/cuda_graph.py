"""Evaluations of a network, and whole sampling runs, by CUDA graphs.

A network of a few dozen kernels costs the host about a millisecond to launch, which is more than a GPU needs
for a few fields. After some calls with tensors of the same shape the kernels are recorded as a CUDA graph, and
from then on launched by one call. The numbers are the same, to the bit. What is recorded is an evaluation, or
a run of many with all that lies between them. A graph belongs to the thread and the stream it was recorded in,
and to the memory of the weights. What needs a gradient, is not on a GPU or takes another path than the kernels
of `nn.kernels` is not recorded.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from .._triton import is_capturing
from ..errors import SapcWarning
from .fno import FNO

# Evaluations of a shape before it is recorded; by then kernels are compiled and loaded.
CALLS_BEFORE_CAPTURE = 3
# The same for runs, each of which has many evaluations; the second one shows that it is repeated.
RUNS_BEFORE_CAPTURE = 2
# Only the latest graphs stay: each holds the memory of an evaluation, or of a run.
MAX_GRAPHS = 2
# Calls are counted of so many latest kinds: a run that is not repeated is forgotten.
MAX_COUNTS = 16

TensorFunction = Callable[..., Tensor]


class CudaGraphModule:
    """A network whose evaluations and runs are recorded once there have been some of the same shape.

    Args:
        network: The FNO.
        warmup_calls: Evaluations of a shape before it is recorded.
    """

    def __init__(self, network: FNO, warmup_calls: int = CALLS_BEFORE_CAPTURE) -> None:
        self.network, self.warmup_calls = network, warmup_calls
        # Calls that were not recorded, and what the first of them called: its tables are in memory by now.
        self.calls: dict[Hashable, tuple[int, TensorFunction]] = {}
        self.graphs: dict[Hashable, CapturedGraph] = {}
        self.has_failed = self.has_run_failed = False

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Evaluate the velocity at states and flow times, with a condition if there is one."""
        if not self._can_record(inputs, *inputs[::2]):
            out: Tensor = self.network(*inputs)
            return out
        return self._call(None, self.network, inputs, self.warmup_calls)

    def run(self, key: Hashable, function: TensorFunction, *inputs: Tensor) -> Tensor:
        """Call a function of tensors that evaluates this network many times.

        Args:
            key: What else than its tensors the result depends on; functions of equal keys are the same.
            function: The function. It waits for nothing on the device.
            inputs: Its tensors; the first are states.

        Returns:
            Its result.
        """
        if self.has_run_failed or not self._can_record(inputs, inputs[0]):
            return function(*inputs)
        return self._call((key,), function, inputs, RUNS_BEFORE_CAPTURE)

    def _can_record(self, inputs: tuple[Tensor, ...], *fields: Tensor) -> bool:
        if self.has_failed or torch.is_grad_enabled() or not all(x.is_cuda for x in inputs):
            return False
        return not is_capturing(inputs[0]) and self.network.path(*fields) == "fused"

    def _call(
        self, name: Hashable, function: TensorFunction, inputs: tuple[Tensor, ...], warmup_calls: int
    ) -> Tensor:
        """Call a function, or launch its graph; `name` is None for the network itself."""
        key = (name, *self._key(inputs))
        graph = self.graphs.pop(key, None)
        if graph is None:
            count, first_function = self.calls.get(key, (0, function))
            if count < warmup_calls:
                out = function(*inputs)
                while len(self.calls) >= MAX_COUNTS:
                    self.calls.pop(next(iter(self.calls)), None)
                self.calls[key] = count + 1, first_function
                return out
            # The next caller need not be in inference mode.
            with torch.inference_mode(False), torch.no_grad():
                graph = self._record(first_function, inputs)
            self.calls.pop(key, None)
        if graph is None:
            return function(*inputs)
        # The last one stays longest.
        self.graphs[key] = graph
        return graph(*inputs)

    def _key(self, inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
        """Identify the graph that fits a call."""
        net = self.network
        stream = threading.get_ident(), torch.cuda.current_stream(inputs[0].device).cuda_stream
        weights = tuple(p.data_ptr() for p in net.parameters())
        shapes = tuple((tuple(x.shape), x.dtype, x.device) for x in inputs)
        return net.precision, net.tuning, stream, weights, shapes

    def _record(self, function: TensorFunction, inputs: tuple[Tensor, ...]) -> CapturedGraph | None:
        """Record a function; None if that fails, and then for good."""
        while len(self.graphs) >= MAX_GRAPHS:
            self.graphs.pop(next(iter(self.graphs)), None)
        try:
            graph = CapturedGraph(function, inputs)
            # The graph reads its matrices.
            graph.plan = self.network.plan
            return graph
        except RuntimeError as error:
            # Evaluations are then recorded one by one, which takes less memory.
            self.has_run_failed = True
            if function is not self.network:
                return None
            self.has_failed = True
            if isinstance(error, torch.cuda.OutOfMemoryError):
                # They have memory of their own; without them there may be enough.
                self.graphs.clear()
                return None
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
            warnings.warn(
                f"the network could not be recorded and is launched kernel by kernel ({reason})",
                SapcWarning,
                stacklevel=5,
            )
            return None


class CapturedGraph:
    """The kernels of a function of tensors, with the memory that they read and write.

    Args:
        function: The function. What it reads stays in memory as long as the graph.
        inputs: Tensors of the shapes that are recorded.
    """

    def __init__(self, function: TensorFunction, inputs: tuple[Tensor, ...]) -> None:
        self.function = function
        self.plan: object = None
        self.inputs = [x.clone() for x in inputs]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device_of(inputs[0]):  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            # The stream that torch would take is on whatever device was first.
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            with (
                # A recording that fails would leave this thread on the other stream.
                torch.cuda.stream(torch.cuda.current_stream()),
                # Other threads may go on using the device.
                torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"),
            ):
                self.output = function(*self.inputs)

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Evaluate the graph at other numbers."""
        for buffer, x in zip(self.inputs, inputs, strict=True):
            buffer.copy_(x)
        with torch.cuda.device_of(self.output):  # type: ignore[no-untyped-call]
            self.graph.replay()
        out: Tensor = self.output.clone()
        return out
