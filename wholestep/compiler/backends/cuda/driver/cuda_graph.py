"""Graphs of the driver: kernels, each behind those that it waits for, as one launch."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from wholestep.compiler.backends.cuda.driver import driver
from wholestep.compiler.backends.cuda.driver.driver import CudaEvent, Gpu, allow_shared, call
from wholestep.errors import DeviceError

FILL_BLOCKS, FILL_BYTES = 528, 16 * 256  # of a kernel that fills memory: the most, and what one fills at a time
MOST_FILLS = 4  # pieces of memory that one kernel fills
DEPENDENT = "cuGraphNodeGetDependentNodes"


class Nodes:
    """A graph while it is built: kernels, each behind those that it must wait for.

    Where kernels wait by themselves, their launches may begin `early`, while others end.  What a library fills with a
    byte is filled by the kernel that `fill` gives.
    """

    def __init__(self, owner: Gpu, early: bool = False, fill: Callable[[], Any] | None = None) -> None:
        self._gpu, self._driver, self._early, self._fill = owner, driver.bindings(), early, fill
        self.handle = call("cuGraphCreate", 0)
        self._nodes: list[Any] = []
        self._kernels: set[int] = set()  # of their numbers
        self._kept: list[Any] = []  # arguments, until the graph is whole

    def kernel(
        self,
        function: Any,
        grid: Sequence[int],
        threads: int,
        arguments: Sequence[Any],
        after: Sequence[int],
        shared: int = 0,
        together: bool = False,
    ) -> int:
        """Add a kernel, whose arguments are ctypes values; returns its number.

        Args:
            shared: bytes of shared memory that a block is given besides what its text says.
            together: are its blocks all there at once, so that they can wait for each other?
        """
        params, pointers = self._kernel_parameters(function, grid, threads, arguments, shared)
        ending = [i for i in after if i in self._kernels] if self._early and not together else []
        before = [self._nodes[i] for i in after if i not in ending]
        if shared:
            allow_shared(function, shared)
        node = call("cuGraphAddKernelNode", self.handle, before, len(before), params)
        if together:
            value = self._driver.CUkernelNodeAttrValue()
            value.cooperative = 1
            attribute = self._driver.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            call("cuGraphKernelNodeSetAttribute", node, attribute, value)
        if ending:
            edge = self._driver.CUgraphEdgeData()
            edge.from_port = int(self._driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
            edge.type = int(self._driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
            others, count = [self._nodes[i] for i in ending], len(ending)
            call("cuGraphAddDependencies", self.handle, others, [node] * count, [edge] * count, count)
        self._nodes.append(node)
        self._kept.append((arguments, pointers))
        self._kernels.add(len(self._nodes) - 1)
        return len(self._nodes) - 1

    def _kernel_parameters(
        self, function: Any, grid: Sequence[int], threads: int, arguments: Sequence[Any], shared: int = 0
    ) -> tuple[Any, Any]:
        """A kernel as the driver wants it, and the table of where its arguments are."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        params = self._driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = function
        params.gridDimX, params.gridDimY, params.gridDimZ = grid[0], grid[1], 1
        params.blockDimX, params.blockDimY, params.blockDimZ = threads, 1, 1
        params.sharedMemBytes, params.extra = shared, 0
        params.kernelParams = ctypes.addressof(pointers)
        return params, pointers

    def event(self, event: CudaEvent, after: Sequence[int]) -> int:
        """Add a moment that is noted."""
        before = [self._nodes[i] for i in after]
        self._nodes.append(call("cuGraphAddEventRecordNode", self.handle, before, len(before), event.handle))
        return len(self._nodes) - 1

    def captured(self, record: Callable[[int], None], after: Sequence[int]) -> int:
        """Add what a library puts into a stream."""
        stream = self._gpu.library_stream
        # The library may load a kernel meanwhile, and memory that nobody uses any more may be given back.
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        call("cuStreamBeginCapture", stream, mode)
        try:
            record(int(stream))
        except BaseException:  # a capture that is not ended poisons the stream
            with suppress(DeviceError):
                call("cuStreamEndCapture", stream)
            raise
        child = call("cuStreamEndCapture", stream)
        self._fill_by_kernels(child)
        before = [self._nodes[i] for i in after]
        self._nodes.append(call("cuGraphAddChildGraphNode", self.handle, before, len(before), child))
        call("cuGraphDestroy", child)
        return len(self._nodes) - 1

    def _fill_by_kernels(self, graph: Any) -> None:
        """Let kernels fill memory: a line of kernels takes the host 3 us, however long, and any other node one more."""
        if self._fill is None:
            return
        for fills in self._fills(graph):
            before, behind = (
                _list_from_driver("cuGraphNodeGetDependencies", fills[0]),
                _list_from_driver(DEPENDENT, fills[-1]),
            )
            asked = [call("cuGraphMemsetNodeGetParams", node) for node in fills]
            sizes = [int(of.width) * int(of.elementSize) for of in asked]
            words = [w for of, size in zip(asked, sizes, strict=True) for w in (int(of.dst), size, int(of.value))]
            given = ((ctypes.c_void_p * (3 * MOST_FILLS))(*words),)
            grid = min(FILL_BLOCKS, -(-max(sizes) // FILL_BYTES)), 1
            params, pointers = self._kernel_parameters(self._fill(), grid, 256, given)
            kernel = call("cuGraphAddKernelNode", graph, before, len(before), params)
            self._kept.append((given, pointers))
            for node in fills:
                call("cuGraphDestroyNode", node)
            call("cuGraphAddDependencies", graph, [kernel] * len(behind), behind, None, len(behind))

    def _fills(self, graph: Any) -> list[list[Any]]:
        """The nodes that fill memory with a byte; those that only follow each other stand together."""
        is_fill, found = self._driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET, list[list[Any]]()
        for node in _list_from_driver("cuGraphGetNodes", graph):
            if call("cuGraphNodeGetType", node) != is_fill:
                continue
            asked = call("cuGraphMemsetNodeGetParams", node)
            if asked.height != 1 or (asked.elementSize != 1 and asked.value):
                continue  # a rectangle, or words
            before = [int(n) for n in _list_from_driver("cuGraphNodeGetDependencies", node)]
            last = found[-1] if found else []
            follows = len(last) in range(1, MOST_FILLS) and before == [int(last[-1])]
            if follows and len(_list_from_driver(DEPENDENT, last[-1])) == 1:
                last.append(node)
            else:
                found.append([node])
        return found


def _list_from_driver(function: str, of: Any) -> list[Any]:
    """What the driver lists: it is asked how many there are first."""
    *_, count = call(function, of)
    found, *_ = call(function, of, count)
    return list(found)


class CudaGraph:
    """Kernels and what each waits for, as one launch."""

    def __init__(
        self,
        owner: Gpu,
        build: Callable[[Nodes], None],
        early: bool = False,
        fill: Callable[[], Any] | None = None,
    ) -> None:
        owner.enter()
        nodes = Nodes(owner, early, fill)
        build(nodes)
        self._handle = call("cuGraphInstantiate", nodes.handle, 0)
        call("cuGraphDestroy", nodes.handle)
        bindings = driver.bindings()
        self._launch, self._stream = bindings.cuGraphLaunch, owner.stream
        self._success = bindings.CUresult.CUDA_SUCCESS
        weakref.finalize(self, driver.release, "cuGraphExecDestroy", owner, self._handle)

    def launch(self) -> None:
        (error,) = self._launch(self._handle, self._stream)
        if error != self._success:
            raise DeviceError(f"the GPU's driver refused cuGraphLaunch: {error.name}.")
