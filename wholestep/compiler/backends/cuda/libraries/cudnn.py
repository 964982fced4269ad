"""cuDNN operation graphs, through the compiled module of NVIDIA's frontend: the package around it imports torch.

A `Description` is the computation as plain data; it needs no library, and it is the cache key of a built plan.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.machinery import PathFinder
from typing import Any

from wholestep.compiler.backends.cuda.driver.driver import HERE, INSTALL
from wholestep.compiler.ir.types import DType, bfloat16, float16, float32
from wholestep.errors import DeviceError, OptionError

PACKAGE, VERSION = "nvidia-cudnn-frontend", "1.18.0"  # pinned: we use private names of it
MODULE = "cudnn._compiled_module"
TYPES: Mapping[DType, str] = {float32: "FLOAT", float16: "HALF", bfloat16: "BFLOAT16"}
IN_ANY_ORDER = "NONDETERMINISTIC"  # a numerical note that excludes an algorithm
SCRATCH = -1  # buffer of a tensor in the kernel's scratch memory, which our epilogue kernel reads
Option = bool | int | float | tuple[int, ...]


@dataclass(frozen=True)
class CudnnTensor:
    """A tensor in memory, without its address.  Strides are in elements."""

    name: str
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True)
class CudnnOp:
    """A function of the library's graph API: input tensors by argument name, then its results."""

    function: str
    inputs: tuple[tuple[str, str], ...]  # (argument, tensor)
    outputs: tuple[str, ...]
    options: tuple[tuple[str, Option], ...] = ()


@dataclass(frozen=True)
class Description:
    """Operations in order.  Tensors that are not in `arrays` are virtual; accumulation is in float32."""

    ops: tuple[CudnnOp, ...]
    arrays: tuple[CudnnTensor, ...]
    workspace: int  # upper bound in bytes
    without: tuple[str, ...] = (IN_ANY_ORDER,)  # numerical notes that exclude an algorithm
    prefers: str = ""  # name of the algorithm to use if the library proposes it; "": the first one

    def __post_init__(self) -> None:
        computed = {name for op in self.ops for name in op.outputs}
        defined = computed | {a.name for a in self.arrays}
        assert all(name in defined for op in self.ops for _, name in op.inputs), f"{self} reads an undefined tensor"


@dataclass(frozen=True)
class TensorAddress:
    """Address of a described tensor: buffer and byte offset."""

    name: str
    buffer: int
    offset: int = 0


@dataclass(frozen=True)
class LibraryCall:
    """A description, bound to buffers of a plan."""

    description: Description
    places: tuple[TensorAddress, ...]

    @property
    def writes(self) -> set[int]:
        """Buffers that it writes."""
        computed = {name for op in self.description.ops for name in op.outputs}
        return {place.buffer for place in self.places if place.name in computed}

    @property
    def reads(self) -> set[int]:
        """Buffers that it reads."""
        computed = {name for op in self.description.ops for name in op.outputs}
        return {place.buffer for place in self.places if place.name not in computed}


@cache
def library() -> Any:
    """The compiled module with the loaded library; OptionError if either is missing."""
    try:
        version = metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:
        version = "none"
    if version != VERSION:
        raise OptionError(
            f"attention and convolutions in half types on a GPU are computed by cuDNN, through {PACKAGE} {VERSION}; "
            f"found {version}. Install it: {INSTALL}."
        )
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        module = _module()
        module._set_dlhandle_cudnn(ctypes.CDLL(load_nvidia_dynamic_lib("cudnn").abs_path)._handle)
    except Exception as error:  # the pathfinder raises its own error types
        raise OptionError(
            f"attention and convolutions in half types on a GPU are computed by cuDNN, which cannot be loaded "
            f"({type(error).__name__}: {error}). Install it: {INSTALL}."
        ) from None
    return module


def _module() -> Any:
    """The module, once per process: an import of the whole package, before or after, gets the same one."""
    if MODULE not in sys.modules:
        package = importlib.util.find_spec("cudnn")  # finds the package without importing it
        folders = None if package is None else package.submodule_search_locations
        spec = PathFinder.find_spec(MODULE, folders)
        if spec is None or spec.loader is None:
            raise ImportError(f"{PACKAGE} has no {MODULE}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        sys.modules[MODULE] = module
    return sys.modules[MODULE]


@contextmanager
def _under_package_name(module: Any) -> Iterator[None]:
    """Registers the module under the package's name, where some of its functions look for it."""
    before = sys.modules.get("cudnn")
    sys.modules.setdefault("cudnn", module)
    try:
        yield
    finally:
        if before is None:
            del sys.modules["cudnn"]


@cache
def _handle(number: int) -> int:
    """The library's handle on one GPU, whose context must be current."""
    handle: int = library().create_handle()
    return handle


class PreparedGraph:
    """A built graph with the first permitted algorithm that the library proposes."""

    def __init__(self, description: Description, number: int) -> None:
        self._handle, module = _handle(number), library()
        self._uids = {a.name: uid for uid, a in enumerate(description.arrays, 1)}
        try:
            with _under_package_name(module):
                self._graph = self._record(module, description)
                self._graph.validate()
                self._graph.build_operation_graph()
                modes = module.heur_mode
                heuristics = [modes.A, modes.B] if description.prefers else [modes.A, modes.FALLBACK]
                self._graph.create_execution_plans(heuristics)
                if description.without:
                    self._graph.deselect_numeric_notes([getattr(module.numerical_note, n) for n in description.without])
                self._graph.deselect_workspace_greater_than(description.workspace)
                self._graph.check_support()
                self._number = self._build_engine(description.prefers)
        except Exception as error:  # the module's own types, and pybind's translations
            functions = ", ".join(op.function for op in description.ops)
            raise DeviceError(
                f"cuDNN has no deterministic algorithm for {functions} with at most {description.workspace:,} bytes of "
                f"workspace: {error} ({description})."
            ) from None
        index, graph = self._number, self._graph
        self.workspace: int = (
            graph.get_workspace_size() if index is None else graph.get_workspace_size_plan_at_index(index)
        )
        assert self.workspace <= description.workspace, f"cuDNN takes {self.workspace:,} bytes for {description}"

    def _build_engine(self, preferred: str) -> int | None:
        """Builds the proposal of this name and returns its index; None if the first buildable one is used instead."""
        proposed = range(self._graph.get_execution_plan_count()) if preferred else ()
        for number in proposed:
            if self._graph.get_plan_name_at_index(number) == preferred:
                self._graph.build_plan_at_index(number)
                return number
        self._graph.build_plans()
        return None

    def _record(self, module: Any, description: Description) -> Any:
        wide = module.data_type.FLOAT
        graph = module.pygraph(intermediate_data_type=wide, compute_data_type=wide, handle=self._handle)
        computed = {name for op in description.ops for name in op.outputs}
        kinds = {a.name: getattr(module.data_type, TYPES[a.dtype]) for a in description.arrays}
        arrays = {a.name: a for a in description.arrays}
        tensors = {
            a.name: graph._make_tensor(
                dim=list(a.shape), stride=list(a.steps), data_type=kinds[a.name], name=a.name, uid=self._uids[a.name]
            )
            for a in description.arrays
            if a.name not in computed
        }
        for op in description.ops:
            arguments = {argument: tensors[name] for argument, name in op.inputs}
            options = {name: list(value) if isinstance(value, tuple) else value for name, value in op.options}
            returned = getattr(graph, op.function)(**arguments, **options)
            results = returned if isinstance(returned, list | tuple) else [returned]
            for name, tensor in zip(op.outputs, results, strict=False):
                tensors[name] = tensor
                if name in arrays:
                    tensor.set_uid(self._uids[name]).set_output(True)
                    tensor.set_dim(list(arrays[name].shape)).set_stride(list(arrays[name].steps))
                    tensor._set_data_type(kinds[name])
        return graph

    def run(self, addresses: Mapping[str, int], workspace: int, stream: int) -> None:
        """Enqueues the graph into a stream; `addresses` maps array names to device addresses."""
        library().set_stream(self._handle, stream)
        pointers = {uid: addresses[name] for name, uid in self._uids.items()}
        if self._number is None:
            self._graph._execute(pointers, workspace, self._handle)
        else:
            self._graph._execute_plan_at_index(pointers, workspace, self._number, self._handle)


@cache
def prepare_graph(description: Description, number: int) -> PreparedGraph:
    """Built once per process."""
    return PreparedGraph(description, number)


def run_graph(description: Description, addresses: Mapping[str, int], workspace: int, stream: int) -> None:
    """Enqueues a graph into a stream that is being captured."""
    prepare_graph(description, HERE.gpu.number).run(addresses, workspace, stream)
