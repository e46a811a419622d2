"""Evaluations of a network replayed from a recording.

A network of a few dozen kernels costs the host about a millisecond to launch, which is more than a GPU needs for a few fields. After some
evaluations of the same shape the kernels are recorded as a CUDA graph, and from then on launched by one call. The numbers are the same, to
the bit. A recording belongs to the thread and the stream it was made in, and to the memory of the weights. What wants a gradient, is not
on a GPU or takes another path than that of `sapc.fused` is evaluated as ever.
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

AFTER = 3  # evaluations of a shape; by then kernels are compiled and loaded
MOST = 2  # recordings kept, the latest ones: each holds the memory of an evaluation

Network = Callable[..., Tensor]


class CudaGraphModule:
    """A network whose evaluations are recorded once there have been some of the same shape."""

    def __init__(self, network: FNO, after: int = AFTER) -> None:
        self.network, self.after = network, after
        self.seen: dict[tuple[object, ...], int] = {}
        self.graphs: dict[tuple[object, ...], CapturedGraph] = {}
        self.failed = False

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The velocity at states and flow times, and what else the network is shown."""
        if not self._wanted(inputs):
            out: Tensor = self.network(*inputs)
            return out
        key = self._key(inputs)
        if key in self.graphs:
            return self.graphs[key](*inputs)
        self.seen[key] = self.seen.get(key, 0) + 1
        if self.seen[key] > self.after:
            with torch.inference_mode(False), torch.no_grad():  # whoever calls next need not be in that mode
                self._record(key, inputs)
        found: Network = self.graphs.get(key, self.network)
        return found(*inputs)

    def _wanted(self, inputs: tuple[Tensor, ...]) -> bool:
        if self.failed or torch.is_grad_enabled() or not all(x.is_cuda for x in inputs):
            return False
        return not is_capturing(inputs[0]) and self.network.path(*inputs[::2]) == "fused"

    def _key(self, inputs: tuple[Tensor, ...]) -> tuple[object, ...]:
        """What a recording belongs to."""
        net = self.network
        where = threading.get_ident(), torch.cuda.current_stream(inputs[0].device).cuda_stream
        weights = tuple(p.data_ptr() for p in net.parameters())
        shapes = tuple((tuple(x.shape), x.dtype, x.device) for x in inputs)
        return net.precision, net.tuning, where, weights, shapes

    def _record(self, key: tuple[object, ...], inputs: tuple[Tensor, ...]) -> None:
        while len(self.graphs) >= MOST:
            del self.graphs[next(iter(self.graphs))]
        try:
            self.graphs[key] = CapturedGraph(self.network, inputs)
        except torch.cuda.OutOfMemoryError:
            self.failed = True
            self.graphs.clear()  # they have memory of their own; without them there may be enough
        except RuntimeError as error:
            self.failed = True
            first = str(error).strip().splitlines()[0] if str(error).strip() else "no message"
            warnings.warn(
                f"the network could not be recorded and is launched kernel by kernel ({first})",
                SapcWarning,
                stacklevel=4,
            )


class CapturedGraph:
    """The kernels of one evaluation, with the memory that they read and write."""

    def __init__(self, network: FNO, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = [x.clone() for x in inputs]
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.device_of(inputs[0]):  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own would be on whatever device was first
            # Other threads may go on using the device.
            with torch.cuda.graph(self.graph, stream=stream, capture_error_mode="thread_local"):
                self.output = network(*self.inputs)
        self.plan = network.plan  # whose matrices it reads

    def __call__(self, *inputs: Tensor) -> Tensor:
        """The same for other numbers."""
        for own, x in zip(self.inputs, inputs, strict=True):
            own.copy_(x)
        with torch.cuda.device_of(self.output):  # type: ignore[no-untyped-call]
            self.graph.replay()
        out: Tensor = self.output.clone()
        return out
