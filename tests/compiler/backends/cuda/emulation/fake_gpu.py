"""A GPU that is none: the driver's functions over host memory, kernels through the emulation.

Nothing happens until somebody waits: copies, kernels and graphs stand in a queue, as on a GPU that is behind.  What is
read too early, or written over while it is still needed, therefore shows.
"""

from __future__ import annotations

import ctypes
import enum
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.compiler.backends.cuda.emulation.emulated import WRONG, compiled_text, header_text, host_graph, host_product
from wholestep.compiler.backends.cuda.driver import driver, nvrtc
from wholestep.compiler.backends.cuda.libraries import cublas, cudnn
from wholestep.compiler.backends.cuda.runtime import device
from wholestep.compiler.backends.gpu.grids.gemm_library import Product

PRIMITIVE = re.compile(r"^(?:template|struct|WS_\w+|static)\b", re.MULTILINE)  # where a definition of a header begins
WAITS = re.compile(r"__sync|__shfl|__ballot|ws_exchange|ws_arrive|ws_await")  # what threads of a block wait for
TOTAL = 1 << 30  # bytes of its memory
MOST_SHARED, ALLOWED = 227 << 10, 48 << 10  # bytes of shared memory of a block, and of one for which nobody asked
FENCE, UNTOUCHED = 256, 0xAB  # bytes after every allocation that nothing may write, and their value


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_LAUNCH_FAILED = 719


OK = CUresult.CUDA_SUCCESS
Op = Callable[[], None]
Node = tuple[Op, tuple[int, ...]]  # a kernel, and the nodes that it waits for


class Fill:
    """What a library has the driver fill with a byte."""

    def __init__(self, to: int, size: int, byte: int) -> None:
        self.params = SimpleNamespace(dst=to, width=size, height=1, elementSize=1, value=byte)

    def __call__(self) -> None:
        ctypes.memset(self.params.dst, self.params.value, self.params.width)


class Handle(int):
    """The number of a node of a graph that a library has put into a stream, which knows its graph."""

    graph: list[Node]


class NotYetError(Exception):
    """What stands first in a stream waits for another GPU: it is begun again later."""


class Launched:
    """A graph in a stream; where one of its nodes waits for another GPU, it goes on there."""

    def __init__(self, ops: list[Op]) -> None:
        self.left = list(ops)

    def __call__(self) -> None:
        while self.left:
            self.left[0]()
            self.left.pop(0)


def out_of_order(graph: list[Node]) -> list[Op]:
    """An order that the graph allows and that is as unlike the plan's as can be: the last one that may run, runs."""
    done: set[int] = set()
    ops: list[Op] = []
    while len(done) < len(graph):
        ready = (i for i in reversed(range(len(graph))) if i not in done and done.issuperset(graph[i][1]))
        chosen = next(ready)
        done.add(chosen)
        ops.append(graph[chosen][0])
    return ops


class FakeDriver:
    CUresult = CUresult
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0, CU_EVENT_DISABLE_TIMING=2)
    CUdevice_attribute = SimpleNamespace(
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR="major",
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR="minor",
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT="multiprocessors",
    )
    CUgraphNodeType = SimpleNamespace(CU_GRAPH_NODE_TYPE_MEMSET="fill")
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1
    CUgraphEdgeData = SimpleNamespace
    CUkernelNodeAttrID = SimpleNamespace(CU_LAUNCH_ATTRIBUTE_COOPERATIVE="together")
    CUkernelNodeAttrValue = SimpleNamespace
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")

    def __init__(self, capability: tuple[int, int] = (9, 0), gpus: int = 1) -> None:
        self.capability, self.multiprocessors, self.gpus = capability, 132, gpus
        self.memory: dict[int, Any] = {}
        self.ends: dict[int, int] = {}  # of an allocation, in the array that holds it
        self.overrun: list[int] = []  # sizes of allocations that were written beyond their end
        self.queues: dict[int, list[Op]] = {}  # by stream
        self.inside, self.later = 0, list[int]()  # operations that run now, and allocations to free after them
        self.noted: dict[int, tuple[int, int]] = {}  # event -> the stream that it was put into last, and how often
        self.passed: dict[int, int] = {}  # event -> how often its stream has come there
        self.early = False  # do all streams except the first run immediately, unless they wait for an event?
        self.captured: list[Op] = []  # what a library puts into a stream
        self.asked, self.filling, self.filled = 0, 0, 0  # calls of cuDNN that fill; kernels that do; others that do
        self.waits: list[list[tuple[int, ...]]] = []  # of each graph: what its nodes wait for
        self.objects: list[Any] = []  # graphs, modules and functions by number
        self.launched, self.graphs, self.together = 0, 0, 0
        self.last: tuple[list[Node], Any] = [], None  # the graph that a kernel was added to last, and the kernel

    # -- memory ----------------------------------------------------------------------------------------------------
    def cuMemAlloc(self, size: int) -> tuple[CUresult, int]:
        if self.used + size > TOTAL:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, 0
        return self.cuMemHostAlloc(size, 0)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[CUresult, int]:
        held = np.full(size + 2 * FENCE, UNTOUCHED, np.uint8)
        at = -(-held.ctypes.data // 256) * 256
        self.memory[at] = held
        self.ends[at] = at - held.ctypes.data + size
        return OK, at

    def check_fences(self) -> None:
        """Nobody may have written behind the end of an allocation."""
        for at, held in self.memory.items():
            self.check_fence(at, held)
        assert not self.overrun, f"allocations of so many bytes were written over: {self.overrun}"

    def check_fence(self, at: int, held: Any) -> None:
        end = self.ends[at]
        if not (held[end:] == UNTOUCHED).all():
            self.overrun.append(end)

    @property
    def used(self) -> int:
        return sum(held.size for held in self.memory.values())

    def cuMemFree(self, address: int) -> tuple[CUresult]:
        if address not in self.memory:  # another driver's, whose objects are collected while this one is there
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        if self.inside:  # collected while an operation runs: later operations must not overtake it
            self.later.append(address)
            return (OK,)
        self.run()
        self.check_fence(address, self.memory.pop(address))
        return (OK,)

    def cuMemFreeHost(self, address: int) -> tuple[CUresult]:
        return self.cuMemFree(address)

    def cuMemGetInfo(self) -> tuple[CUresult, int, int]:
        return OK, TOTAL - self.used, TOTAL

    def cuMemsetD8Async(self, address: int, byte: int, size: int, stream: Any) -> tuple[CUresult]:
        return self.put(lambda: ctypes.memset(address, byte, size) and None, stream)

    def cuMemcpyHtoDAsync(self, to: int, of: int, size: int, stream: Any) -> tuple[CUresult]:
        return self.put(lambda: ctypes.memmove(to, of, size) and None, stream)

    def cuMemcpyDtoHAsync(self, to: int, of: int, size: int, stream: Any) -> tuple[CUresult]:
        return self.put(lambda: ctypes.memmove(to, of, size) and None, stream)

    # -- the stream ------------------------------------------------------------------------------------------------
    def put(self, op: Op, stream: int) -> tuple[CUresult]:
        self.queues[stream].append(op)
        if self.early and stream != min(self.queues):
            self.run(stream)
        return (OK,)

    def run(self, stream: int | None = None) -> None:
        """All that stands in a stream, or in every one."""
        for each in self.queues if stream is None else (stream,):
            while self.queues[each]:
                self.advance(each)

    def advance(self, stream: int, waits: bool = True) -> bool:
        """The next that stands in a stream; False where it waits for another GPU, and nobody waits for it."""
        op = self.queues[stream].pop(0)
        self.inside += 1
        try:
            op()
        except NotYetError:
            self.queues[stream].insert(0, op)
            if waits:
                time.sleep(1e-4)
            return False
        finally:
            self.inside -= 1
        while self.later and not self.inside:
            address = self.later.pop()
            self.check_fence(address, self.memory.pop(address))
        return True

    def cuStreamQuery(self, stream: int) -> tuple[CUresult]:
        while self.queues[stream]:
            if not self.advance(stream, waits=False):
                return (CUresult.CUDA_ERROR_NOT_READY,)
        return (OK,)

    def cuEventQuery(self, event: int) -> tuple[CUresult]:
        stream, times = self.noted.get(event, (0, 0))
        while self.passed.get(event, 0) < times:
            if not self.advance(stream, waits=False):
                return (CUresult.CUDA_ERROR_NOT_READY,)
        return (OK,)

    def reach(self, event: int, times: int) -> None:
        """Let a stream run until it has come to an event so many times."""
        stream, _ = self.noted[event]
        while self.passed.get(event, 0) < times:
            self.advance(stream)

    def cuStreamCreate(self, flags: int) -> tuple[CUresult, int]:
        stream = self.keep(None)
        self.queues[stream] = []
        return OK, stream

    def cuStreamDestroy(self, stream: int) -> tuple[CUresult]:
        return (OK,)

    def cuStreamWaitEvent(self, stream: int, event: int, flags: int) -> tuple[CUresult]:
        times = self.noted[event][1]
        return self.put(lambda: self.reach(event, times), stream)

    def cuStreamSynchronize(self, stream: int) -> tuple[CUresult]:
        self.run(stream)
        return (OK,)

    def cuGraphCreate(self, flags: int) -> tuple[CUresult, list[Node]]:
        return OK, []

    def cuGraphAddKernelNode(
        self, graph: list[Node], before: list[int], count: int, params: Any
    ) -> tuple[CUresult, int]:
        assert len(before) == count
        graph.append((self.kernel(params), tuple(before)))
        self.last = graph, params
        return OK, len(graph) - 1

    def cuGraphKernelNodeSetAttribute(self, node: int, attribute: str, value: Any) -> tuple[CUresult]:
        """Let the blocks of the kernel that was added last be there at once."""
        graph, params = self.last
        assert (node, attribute, value.cooperative) == (len(graph) - 1, "together", 1)
        assert params.gridDimX <= self.multiprocessors, "blocks of that size are not all there at once"
        graph[node] = self.kernel(params, together=True), graph[node][1]
        self.together += 1
        return (OK,)

    def cuGraphAddDependencies(
        self, graph: list[Node], before: list[int], to: list[int], edges: list[Any] | None, count: int
    ) -> tuple[CUresult]:
        assert len(before) == len(to) == count
        if edges is None:
            for first, then in zip(before, to, strict=True):
                graph[then] = graph[then][0], (*graph[then][1], first)
            return (OK,)
        assert len(edges) == count
        assert self.capability >= (9, 0), "kernels of older GPUs cannot wait by themselves"
        for first, then, edge in zip(before, to, edges, strict=True):
            assert (edge.from_port, edge.type) == (1, 1), "kernels wait for the end of those before"
            op, others = graph[then]
            assert op.waits, "a kernel that does not wait by itself would begin early"  # type: ignore[attr-defined]
            graph[then] = op, (*others, first)
        return (OK,)

    def cuStreamBeginCapture(self, stream: Any, mode: Any) -> tuple[CUresult]:
        self.captured = []
        return (OK,)

    def cuStreamEndCapture(self, stream: Any) -> tuple[CUresult, list[Node]]:
        return OK, [(op, (i - 1,) if i else ()) for i, op in enumerate(self.captured)]

    def cuGraphGetNodes(self, graph: list[Node], count: int = 0) -> tuple[CUresult, list[Handle], int]:
        found = [Handle(i) for i in range(len(graph))]
        for node in found:
            node.graph = graph
        return OK, found if count else [], len(graph)

    def cuGraphNodeGetType(self, node: Handle) -> tuple[CUresult, str]:
        return OK, "fill" if isinstance(node.graph[node][0], Fill) else "kernel"

    def cuGraphMemsetNodeGetParams(self, node: Handle) -> tuple[CUresult, Any]:
        return OK, node.graph[node][0].params  # type: ignore[attr-defined]

    def cuGraphNodeGetDependencies(self, node: Handle, count: int = 0) -> tuple[CUresult, list[int], list[Any], int]:
        found = list(node.graph[node][1])
        return OK, found if count else [], [], len(found)

    def cuGraphNodeGetDependentNodes(self, node: Handle, count: int = 0) -> tuple[CUresult, list[int], list[Any], int]:
        found = [i for i, (_, before) in enumerate(node.graph) if node in before]
        return OK, found if count else [], [], len(found)

    def cuGraphDestroyNode(self, node: Handle) -> tuple[CUresult]:
        """It does nothing, and nobody waits for it: those behind it must be told what to wait for instead."""
        graph = node.graph
        graph[:] = [(op, tuple(n for n in before if n != node)) for op, before in graph]
        graph[node] = lambda: None, ()
        return (OK,)

    def cuGraphAddChildGraphNode(
        self, graph: list[Node], before: list[int], count: int, child: list[Node]
    ) -> tuple[CUresult, int]:
        assert len(before) == count
        self.filled += sum(isinstance(op, Fill) for op, _ in child)
        self.filling += sum(hasattr(op, "waits") for op, _ in child)
        ops = out_of_order(child)
        graph.append((lambda: [op() for op in ops] and None, tuple(before)))
        return OK, len(graph) - 1

    def cuGraphAddEventRecordNode(
        self, graph: list[Node], before: list[int], count: int, event: int
    ) -> tuple[CUresult, int]:
        assert len(before) == count

        def note() -> None:
            self.objects[event] = time.perf_counter()

        graph.append((note, tuple(before)))
        return OK, len(graph) - 1

    def cuEventElapsedTime(self, earlier: int, later: int) -> tuple[CUresult, float]:
        return OK, 1e3 * (self.objects[later] - self.objects[earlier])

    def cuGraphInstantiate(self, graph: list[Node], flags: int) -> tuple[CUresult, int]:
        self.graphs += 1
        self.waits.append([before for _, before in graph])
        return OK, self.keep(out_of_order(graph))

    def cuGraphDestroy(self, graph: list[Node]) -> tuple[CUresult]:
        return (OK,)

    def cuGraphExecDestroy(self, graph: int) -> tuple[CUresult]:
        return (OK,)

    def cuGraphLaunch(self, graph: int, stream: Any) -> tuple[CUresult]:
        self.launched += 1
        return self.put(Launched(self.objects[graph]), stream)

    def cuEventCreate(self, flags: int) -> tuple[CUresult, int]:
        return OK, self.keep(None)

    def cuEventRecord(self, event: int, stream: int) -> tuple[CUresult]:
        times = self.noted.get(event, (0, 0))[1] + 1
        self.noted[event] = stream, times

        def come() -> None:
            self.passed[event] = times

        return self.put(come, stream)

    def cuEventSynchronize(self, event: int) -> tuple[CUresult]:
        if event in self.noted:
            self.reach(event, self.noted[event][1])
        return (OK,)

    # -- code ------------------------------------------------------------------------------------------------------
    def keep(self, found: Any) -> int:
        self.objects.append(found)
        return len(self.objects) - 1

    def cuModuleLoadData(self, address: int) -> tuple[CUresult, Any]:
        return OK, CODE[ctypes.string_at(address)]

    def cuModuleGetFunction(self, module: Any, name: bytes) -> tuple[CUresult, Any]:
        dll, meets, waiting, sizes = module
        known = name.decode()
        return OK, (dll[f"run_{known}"], meets[known], known in waiting, sizes[known], {})

    @staticmethod
    def CUDA_KERNEL_NODE_PARAMS() -> Any:
        return SimpleNamespace()

    def kernel(self, params: Any, together: bool = False) -> Op:
        geometry = params.gridDimX, params.gridDimY, params.blockDimX
        return self.call(params.func, geometry, params.kernelParams, params.sharedMemBytes, together)

    def call(
        self, function: Any, geometry: tuple[int, int, int], parameters: int, shared: int = 0, together: bool = False
    ) -> Op:
        """A kernel with its arguments as they are now; are all of its blocks there at once?"""
        run, meets, waits, sizes, attributes = function
        assert shared <= attributes.get("shared", ALLOWED), f"nobody has asked for {shared} bytes of shared memory"
        given = (ctypes.c_void_p * len(sizes)).from_address(parameters)
        values = [ctypes.create_string_buffer(ctypes.string_at(p, size)) for p, size in zip(given, sizes, strict=True)]
        pointers = (ctypes.c_void_p * len(sizes))(*map(ctypes.addressof, values))
        shape = (ctypes.c_int * 7)(*geometry, 2 if together else meets, 0, 0, shared)

        def launch() -> None:
            assert values is not None  # the pointers point into it
            wrong = run(shape, pointers)
            assert not wrong, WRONG[wrong]

        launch.waits = waits  # type: ignore[attr-defined]
        return launch

    def cuFuncSetAttribute(self, function: Any, attribute: str, value: int) -> tuple[CUresult]:
        assert value <= MOST_SHARED, f"a block has {value} bytes of shared memory"
        function[-1][attribute] = value
        return (OK,)

    def cuLaunchCooperativeKernel(
        self,
        function: Any,
        x: int,
        y: int,
        z: int,
        threads: int,
        ty: int,
        tz: int,
        shared: int,
        stream: Any,
        given: int,
    ) -> tuple[CUresult]:
        assert (y, z, ty, tz) == (1, 1, 1, 1)
        assert x <= self.multiprocessors, "blocks of that size are not all there at once"
        self.together += 1
        return self.put(self.call(function, (x, 1, threads), given, shared, together=True), stream)

    def multiply(self, product: Product, a: int, b: int, c: int, workspace: int, stream: int, bias: int = 0) -> None:
        """What cuBLASLt would put into a stream that is captured."""
        self.captured.append(lambda: host_product(product, a, b, c, bias))

    def graph(self, description: cudnn.Description, at: Mapping[str, int], workspace: int, stream: int) -> None:
        """What cuDNN would put into a stream that is captured: it has its workspace filled, and uses it."""
        size = description.workspace

        def run() -> None:
            assert ctypes.string_at(workspace, size).count(0) == size, "it is filled before"
            ctypes.memset(workspace, 255, size)
            host_graph(description, at)

        half = size // 2
        self.captured += [Fill(workspace, half, 0), Fill(workspace + half, size - half, 0), run] if size else [run]
        self.asked += bool(size)

    # -- devices ---------------------------------------------------------------------------------------------------
    def cuDriverGetVersion(self) -> tuple[CUresult, int]:
        return OK, 13010

    def cuDeviceGetCount(self) -> tuple[CUresult, int]:
        return OK, self.gpus

    def cuDeviceGetPCIBusId(self, size: int, device: int) -> tuple[CUresult, bytes]:
        return OK, f"0000:0{device}:00.0".encode().ljust(size, b"\0")

    def cuDeviceGet(self, number: int) -> tuple[CUresult, int]:
        return OK, number

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[CUresult, str]:
        return OK, "context"

    def cuCtxSetCurrent(self, context: str) -> tuple[CUresult]:
        return (OK,)

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> tuple[CUresult, int]:
        if attribute == "multiprocessors":
            return OK, self.multiprocessors
        return OK, self.capability[attribute == "minor"]

    def cuDeviceGetName(self, size: int, device: int) -> tuple[CUresult, bytes]:
        return OK, (b"no GPU at all\0".ljust(size, b" "))


CODE: dict[bytes, Any] = {}


def size_of(parameter: str) -> int:
    """Bytes of what a kernel is given: an address, a number, or a table of addresses."""
    table = re.search(r"ws_given<(\d+)>", parameter)
    return 8 * int(table[1]) if table else 4 if parameter.startswith("int ") and "*" not in parameter else 8


@cache
def meeting_point() -> re.Pattern[str]:
    """The names of the primitives in which threads meet, directly or in another primitive."""
    text = header_text()
    starts = [found.start() for found in PRIMITIVE.finditer(text)]
    parts = [text[start:end] for start, end in pairwise([*starts, len(text)])]
    named = [(found[0], part) for part in parts if (found := re.search(r"\bws_\w+(?=\(| \{)", part))]
    meeting = {name for name, part in named if WAITS.search(part)}
    while more := {n for n, part in named if meeting & set(re.findall(r"ws_\w+", part))} - meeting:
        meeting |= more
    return re.compile(rf"{WAITS.pattern}|\b(?:{'|'.join(sorted(meeting))})\b")


def fake_compile(text: str, architecture: str) -> bytes:
    """A C++ compiler in the place of NVRTC; what it gives is a name under which the code is found."""
    body = text[text.index("// ---- kernels") :]
    functions = re.findall(r'extern "C" __global__ void __launch_bounds__\([^)]*\) (\w+)\(([^)]*)\)', body)
    texts = {name: next(t for t in body.split("\n\n") if f" {name}(" in t) for name, _ in functions}
    dll, path = compiled_text(body, [name for name, _ in functions])
    code = path.encode()
    meets = {name: bool(meeting_point().search(found)) for name, found in texts.items()}
    waiting = {name for name, found in texts.items() if "ws_wait_for_others();" in found}
    CODE[code] = (
        dll,
        meets,
        waiting,
        {name: [size_of(p) for p in re.split(r",\s+", given)] for name, given in functions},
    )
    return code


@contextmanager
def fake_gpu(capability: tuple[int, int] = (9, 0), gpus: int = 1) -> Iterator[FakeDriver]:
    """A machine with one GPU, or more, which `device="cuda"` finds."""
    fake = FakeDriver(capability, gpus)
    for cached in (driver.gpu, device._device):
        cached.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "bindings", lambda: fake)
        patch.setattr(driver, "HERE", SimpleNamespace())
        patch.setattr(cublas, "run_product", fake.multiply)
        patch.setattr(cudnn, "run_graph", fake.graph)
        patch.setattr(nvrtc, "TOGETHER", 1 << 30)
        patch.setattr(nvrtc, "compile_text", fake_compile)
        patch.setattr(nvrtc, "nvrtc_version", lambda: f"none {os.getpid()}")
        patch.setattr(device, "nvrtc_version", lambda: f"none {os.getpid()}")
        yield fake
        fake.check_fences()
    for cached in (driver.gpu, device._device):
        cached.cache_clear()
