"""CUDA graphs: kernels with their dependencies, submitted as one launch."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from wholestep.compiler.backends.cuda.driver import driver
from wholestep.compiler.backends.cuda.driver.driver import CudaEvent, Gpu, allow_shared, call
from wholestep.errors import DeviceError

# Memory fill kernel: the largest grid (four blocks per multiprocessor), and the bytes that a block fills at a time.
FILL_BLOCKS, FILL_BYTES = 528, 16 * 256
MOST_FILLS = 4  # memory ranges that one kernel fills
DEPENDENT = "cuGraphNodeGetDependentNodes"


class Nodes:
    """A graph under construction.

    With `early`, kernels that contain a wait for their predecessors get programmatic dependencies: they may start
    while others finish.
    Memset nodes of libraries are replaced by the kernel that `fill` returns.
    """

    def __init__(self, owner: Gpu, early: bool = False, fill: Callable[[], Any] | None = None) -> None:
        self._gpu, self._driver, self._early, self._fill = owner, driver.bindings(), early, fill
        self.handle = call("cuGraphCreate", 0)
        self._nodes: list[Any] = []
        self._kernels: set[int] = set()  # node numbers of kernels
        self._arguments: list[Any] = []  # keeps the kernels' arguments alive until the graph is instantiated

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
        """Adds a kernel, whose arguments are ctypes values; returns its node number.

        Args:
            shared: bytes of dynamic shared memory per block.
            together: is it a cooperative launch, whose blocks can wait for each other?
        """
        params, pointers = self._kernel_parameters(function, grid, threads, arguments, shared)
        programmatic = [i for i in after if i in self._kernels] if self._early and not together else []
        before = [self._nodes[i] for i in after if i not in programmatic]
        if shared:
            allow_shared(function, shared)
        node = call("cuGraphAddKernelNode", self.handle, before, len(before), params)
        if together:
            value = self._driver.CUkernelNodeAttrValue()
            value.cooperative = 1
            attribute = self._driver.CUkernelNodeAttrID.CU_LAUNCH_ATTRIBUTE_COOPERATIVE
            call("cuGraphKernelNodeSetAttribute", node, attribute, value)
        if programmatic:
            edge = self._driver.CUgraphEdgeData()
            edge.from_port = int(self._driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC)
            edge.type = int(self._driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
            others, count = [self._nodes[i] for i in programmatic], len(programmatic)
            call("cuGraphAddDependencies", self.handle, others, [node] * count, [edge] * count, count)
        self._nodes.append(node)
        self._arguments.append((arguments, pointers))
        self._kernels.add(len(self._nodes) - 1)
        return len(self._nodes) - 1

    def _kernel_parameters(
        self, function: Any, grid: Sequence[int], threads: int, arguments: Sequence[Any], shared: int = 0
    ) -> tuple[Any, Any]:
        """The driver's record of a kernel, and the pointer table of its arguments."""
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(a) for a in arguments))
        params = self._driver.CUDA_KERNEL_NODE_PARAMS()
        params.func = function
        params.gridDimX, params.gridDimY, params.gridDimZ = grid[0], grid[1], 1
        params.blockDimX, params.blockDimY, params.blockDimZ = threads, 1, 1
        params.sharedMemBytes, params.extra = shared, 0
        params.kernelParams = ctypes.addressof(pointers)
        return params, pointers

    def event(self, event: CudaEvent, after: Sequence[int]) -> int:
        """Adds an event record."""
        before = [self._nodes[i] for i in after]
        self._nodes.append(call("cuGraphAddEventRecordNode", self.handle, before, len(before), event.handle))
        return len(self._nodes) - 1

    def capture(self, record: Callable[[int], None], after: Sequence[int]) -> int:
        """Captures the work that a library enqueues into a stream, and adds it as a child graph."""
        stream = self._gpu.library_stream
        # Relaxed: during the capture the library may load a kernel, and unused memory may be freed.
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        call("cuStreamBeginCapture", stream, mode)
        try:
            record(int(stream))
        except BaseException:  # a capture that is not ended invalidates the stream
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
        """Replaces memset nodes by kernels: a chain of any length launches in 3 us, other nodes add 1 us each."""
        if self._fill is None:
            return
        for fills in self._fills(graph):
            before, after = (
                _list_from_driver("cuGraphNodeGetDependencies", fills[0]),
                _list_from_driver(DEPENDENT, fills[-1]),
            )
            memsets = [call("cuGraphMemsetNodeGetParams", node) for node in fills]
            sizes = [int(of.width) * int(of.elementSize) for of in memsets]
            words = [w for of, size in zip(memsets, sizes, strict=True) for w in (int(of.dst), size, int(of.value))]
            arguments = ((ctypes.c_void_p * (3 * MOST_FILLS))(*words),)
            grid = min(FILL_BLOCKS, -(-max(sizes) // FILL_BYTES)), 1
            params, pointers = self._kernel_parameters(self._fill(), grid, 256, arguments)
            kernel = call("cuGraphAddKernelNode", graph, before, len(before), params)
            self._arguments.append((arguments, pointers))
            for node in fills:
                call("cuGraphDestroyNode", node)
            call("cuGraphAddDependencies", graph, [kernel] * len(after), after, None, len(after))

    def _fills(self, graph: Any) -> list[list[Any]]:
        """Memset nodes of a byte value, grouped into linear chains."""
        is_fill, chains = self._driver.CUgraphNodeType.CU_GRAPH_NODE_TYPE_MEMSET, list[list[Any]]()
        for node in _list_from_driver("cuGraphGetNodes", graph):
            if call("cuGraphNodeGetType", node) != is_fill:
                continue
            memset = call("cuGraphMemsetNodeGetParams", node)
            if memset.height != 1 or (memset.elementSize != 1 and memset.value):
                continue  # two-dimensional, or of wider values
            before = [int(n) for n in _list_from_driver("cuGraphNodeGetDependencies", node)]
            last = chains[-1] if chains else []
            follows = len(last) in range(1, MOST_FILLS) and before == [int(last[-1])]
            if follows and len(_list_from_driver(DEPENDENT, last[-1])) == 1:
                last.append(node)
            else:
                chains.append([node])
        return chains


def _list_from_driver(function: str, of: Any) -> list[Any]:
    """Reads a list from the driver: a first call returns its length, a second its items."""
    *_, count = call(function, of)
    items, *_ = call(function, of, count)
    return list(items)


class CudaGraph:
    """An instantiated graph."""

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
