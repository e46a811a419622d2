"""Evaluations of a network by CUDA graphs.

A network of a few dozen kernels costs the host about a millisecond to launch, which is more than a GPU needs
for a few fields. After some evaluations of the same shape the kernels are recorded as a CUDA graph, and from
then on launched by one call. The numbers are the same, to the bit. A graph belongs to the thread and the
stream it was recorded in, and to the memory of the weights. An evaluation that needs a gradient, is not on a
GPU or takes another path than the kernels of `nn.kernels` is not recorded.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from .._triton import is_capturing
from ..errors import SapcWarning
from .fno import FNO

# Evaluations of a shape before it is recorded; by then kernels are compiled and loaded.
CALLS_BEFORE_CAPTURE = 3
# Only the latest graphs stay: each holds the memory of an evaluation.
MAX_GRAPHS = 2

Network = Callable[..., Tensor]


class CudaGraphModule:
    """A network whose evaluations are recorded once there have been some of the same shape.

    Args:
        network: The FNO.
        warmup_calls: Evaluations of a shape before it is recorded.
    """

    def __init__(self, network: FNO, warmup_calls: int = CALLS_BEFORE_CAPTURE) -> None:
        self.network, self.warmup_calls = network, warmup_calls
        self.call_counts: dict[tuple[object, ...], int] = {}
        self.graphs: dict[tuple[object, ...], CapturedGraph] = {}
        self.has_failed = False

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Evaluate the velocity at states and flow times, with a condition if there is one."""
        if not self._can_record(inputs):
            out: Tensor = self.network(*inputs)
            return out
        key = self._key(inputs)
        if key in self.graphs:
            return self.graphs[key](*inputs)
        self.call_counts[key] = self.call_counts.get(key, 0) + 1
        if self.call_counts[key] > self.warmup_calls:
            # The next caller need not be in inference mode.
            with torch.inference_mode(False), torch.no_grad():
                self._record(key, inputs)
        evaluate: Network = self.graphs.get(key, self.network)
        return evaluate(*inputs)

    def _can_record(self, inputs: tuple[Tensor, ...]) -> bool:
        if self.has_failed or torch.is_grad_enabled() or not all(x.is_cuda for x in inputs):
            return False
        return not is_capturing(inputs[0]) and self.network.path(*inputs[::2]) == "fused"

    def _key(self, inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
        """Identify the graph that fits a call."""
        net = self.network
        stream = threading.get_ident(), torch.cuda.current_stream(inputs[0].device).cuda_stream
        weights = tuple(p.data_ptr() for p in net.parameters())
        shapes = tuple((tuple(x.shape), x.dtype, x.device) for x in inputs)
        return net.precision, net.tuning, stream, weights, shapes

    def _record(self, key: tuple[object, ...], inputs: tuple[Tensor, ...]) -> None:
        while len(self.graphs) >= MAX_GRAPHS:
            del self.graphs[next(iter(self.graphs))]
        try:
            self.graphs[key] = CapturedGraph(self.network, inputs)
        except torch.cuda.OutOfMemoryError:
            self.has_failed = True
            # They have memory of their own; without them there may be enough.
            self.graphs.clear()
        except RuntimeError as error:
            self.has_failed = True
            reason = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
            warnings.warn(
                f"the network could not be recorded and is launched kernel by kernel ({reason})",
                SapcWarning,
                stacklevel=4,
            )


class CapturedGraph:
    """The kernels of one evaluation, with the memory that they read and write.

    Args:
        network: The FNO.
        inputs: Tensors of the shapes that are recorded.
    """

    def __init__(self, network: FNO, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = [x.clone() for x in inputs]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device_of(inputs[0]):  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            # The stream that torch would take is on whatever device was first.
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            # Other threads may go on using the device.
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.output = network(*self.inputs)
        # The graph reads its matrices.
        self.plan = network.plan

    def __call__(self, *inputs: Tensor) -> Tensor:
        """Evaluate the graph at other numbers."""
        for buffer, x in zip(self.inputs, inputs, strict=True):
            buffer.copy_(x)
        with torch.cuda.device_of(self.output):  # type: ignore[no-untyped-call]
            self.graph.replay()
        out: Tensor = self.output.clone()
        return out
