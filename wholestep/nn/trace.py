"""A model inside a graph that is being recorded: which tensor each of its parameters is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.nn.parameter import Parameter

if TYPE_CHECKING:
    from wholestep.nn.module import Module


class Trace:
    """The parameters of a root module, declared in a graph under their names, and the paths of its submodules."""

    def __init__(self, graph: Graph, root: Module) -> None:
        self.graph = graph
        self.paths: dict[Module, str] = {}
        for path, module in root.named_modules():
            self.paths.setdefault(module, path)
        self.tensors: dict[Parameter, Tensor] = {}
        self.outputs: dict[str, Tensor] = {}  # path -> what the module gave last, where it is one tensor
        for name, owned in root.named_arrays().items():
            declare = graph.parameter if owned.trained and not owned.frozen else graph.state
            self.tensors[owned] = declare(name, owned.type.shape, owned.init, owned.dtype)

    def covers(self, module: Module) -> bool:
        return module in self.paths

    def relative_path(self, module: Module) -> str:
        """The path of a module below the module that is running now."""
        here, path = _INSIDE.get(), self.paths[module]
        prefix = f"{here}." if here else ""
        return path.removeprefix(prefix) if path.startswith(prefix) else path


_CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)
_INSIDE: ContextVar[str] = ContextVar("inside", default="")


def current() -> Trace | None:
    """The trace that is running, or None outside of any `forward`."""
    return _CURRENT.get()


def trace_of(graph: Graph, root: Module) -> Trace:
    """The trace of a root module in a graph: its parameters are declared the first time."""
    if root not in graph.models:
        graph.models[root] = Trace(graph, root)
    known = graph.models[root]
    assert isinstance(known, Trace)
    return known


_WATCHER: ContextVar[Callable[[str, Module, object, object], None] | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Callable[[str, Module, object, object], None]) -> Iterator[None]:
    """Call `watcher(path, module, inputs, output)` after every module that runs inside."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)


def seen(trace: Trace, module: Module, inputs: object, output: object) -> None:
    """Tell whoever watches that a module ran."""
    if isinstance(output, Tensor):
        trace.outputs[trace.paths[module]] = output
    watcher = _WATCHER.get()
    if watcher is not None:
        watcher(trace.paths[module], module, inputs, output)


@contextmanager
def running(trace: Trace, module: Module) -> Iterator[None]:
    """`module.forward` runs: random numbers drawn inside are keyed by its path."""
    relative = trace.relative_path(module)
    tokens = _CURRENT.set(trace), _INSIDE.set(trace.paths[module])
    try:
        if relative:
            with trace.graph.scope(relative):
                yield
        else:
            yield
    finally:
        _CURRENT.reset(tokens[0])
        _INSIDE.reset(tokens[1])
