"""The modules of a graph that is being recorded: the tensor of each parameter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.graph import Graph, current_graph, record_into
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import bind_value, fail, record_for_layer
from wholestep.errors import ShapeError, UnknownNameError, UsageError
from wholestep.nn.module.parameter import Parameter

if TYPE_CHECKING:
    from wholestep.nn.module.module import Module


class Trace:
    """The modules of a graph, their paths, and the tensor of each parameter.  A parameter is one leaf of a graph.

    Those of `root` have their own names.  In a step the names are those under which its function holds the modules:
    paths inside a module that it holds alone, with the variable in front where there are several.  Elsewhere they begin
    at the module that was called.  A scope that the user opened stands before what is called in it, instead of any
    variable.
    """

    def __init__(self, graph: Graph, root: Module | None = None) -> None:
        self.graph = graph
        self.held = {} if root is None else {"": root}
        if graph.recorded_by is not None:
            # imported here because only several models of one step need it
            from wholestep.nn.module.find_modules import holders

            self.held |= holders(graph.recorded_by, besides=root)
        self.paths: dict[Module, str] = {}
        self.tensors: dict[Parameter, Tensor] = {}
        self._names: dict[Parameter, str] = {}
        self._opened: set[Module] = set()
        self.regularized: set[Module] = set()  # modules whose weight penalties were added
        self._called: dict[Module, str] = {}  # outermost modules -> the scope in which each was called
        self.caller: Module | None = None  # the module whose method (other than `forward`) is running
        self.scope: tuple[str, ...] = ()  # the scopes that the running module has opened
        self.outputs: dict[str, Tensor] = {}  # path -> the module's last output, if it is a single tensor
        for variable, module in self.held.items():
            self.know(module, variable if len(self.held) > 1 else "")

    def know(self, root: Module, prefix: str = "") -> None:
        """The names under which a module's parameters will be declared, unless they were declared before."""
        for path, part in root.named_modules():
            self.paths.setdefault(part, _join(prefix, path))
        for name, owned in root.named_arrays().items():
            self._names.setdefault(owned, _join(prefix, name))

    def open(self, module: Module) -> None:
        """Declare the parameters of a module that are not yet declared."""
        if module in self._opened:
            return
        if _CURRENT.get() is not self:
            self._called[module] = ".".join(self.graph.open_scope)
        by_user = self.graph.open_scope[len(self.scope) :]
        if module in self.paths and not by_user:
            for name, owned in module.named_arrays().items():
                self._names.setdefault(owned, _join(self.paths[module], name))
        for path, part in module.named_modules():
            self.paths.setdefault(part, path)
        inside = {} if self.caller is None else {owned: name for name, owned in self.caller.named_arrays().items()}
        for name, owned in module.named_arrays().items():
            if owned in self._names and not by_user:
                with self.graph.at_scope(()):
                    self._declare(self._names[owned], owned)
            else:
                self._declare(inside.get(owned, name), owned)
        self._opened.update(part for _, part in module.named_modules())

    def _declare(self, name: str, owned: Parameter) -> None:
        if owned in self.tensors:
            return
        declare = self.graph.parameter if owned.trained and not owned.frozen else self.graph.state
        tensor = declare(name, owned.type.shape, owned.init, owned.dtype, by_columns=owned.by_columns)
        self.tensors[owned] = tensor
        self.graph.owners[tensor.name] = owned

    def relative_path(self, module: Module) -> str:
        """The path of a module relative to the module that is running."""
        here, path = _INSIDE.get(), self.paths[module]
        prefix = f"{here}." if here else ""
        return path.removeprefix(prefix) if path.startswith(prefix) else path

    def roots(self) -> dict[str, Module]:
        """The outermost modules that the step refers to, or those called, under the names of the user's code."""
        outermost: dict[str, Module] = {}
        for module, scope in self._called.items():
            path, root = self._outermost(module) or (scope or type(module).__name__, module)
            while outermost.setdefault(path, root) is not root:
                path += "_"
        return outermost

    def _outermost(self, module: Module) -> tuple[str, Module] | None:
        for variable, held in self.held.items():
            for path, part in held.named_modules():
                if part is module:
                    return (variable, held) if has_forward(held) else (_join(variable, path), part)
        return None


def has_forward(module: Module) -> bool:
    """Can the module be called?  A module that only contains other modules cannot."""
    from wholestep.nn.module.module import Module

    return type(module).forward is not Module.forward


def _join(prefix: str, path: str) -> str:
    return f"{prefix}.{path}" if prefix and path else prefix or path


_CURRENT: ContextVar[Trace | None] = ContextVar("trace", default=None)
_INSIDE: ContextVar[str] = ContextVar("inside", default="")


def trace_of(graph: Graph, root: Module | None = None) -> Trace:
    """The trace of a graph, which is created once."""
    if graph.modules is None:
        graph.modules = Trace(graph, root)
    assert isinstance(graph.modules, Trace)
    return graph.modules


def tensor_now(module: Module, owned: Parameter) -> Tensor | None:
    """The tensor of a module's parameter in the graph that is being recorded; None outside of a recording."""
    here = _CURRENT.get()
    if here is None:
        graph = current_graph()
        here = None if graph is None else trace_of(graph)
    if here is None:
        return None
    if owned not in here.tensors and not (owned.adopts and owned.slot is None):  # it may be under construction
        here.open(module)
    return here.tensors.get(owned)


def graph_now() -> Graph | None:
    """The graph in which a module is running, or which is being recorded."""
    here = _CURRENT.get()
    return current_graph() if here is None else here.graph


def recorded_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates a method other than `forward`: modules that it calls are named as parts of its module."""

    @wraps(function)
    def method(module: Module, *inputs: Any, **named: Any) -> Any:
        graph = None if _CURRENT.get() is not None else common_graph(*inputs, *named.values()) or current_graph()
        if graph is None:
            return function(module, *inputs, **named)
        here = trace_of(graph)
        here.know(module)
        outer, here.caller = here.caller, here.caller or module
        try:
            with record_into(graph):
                return function(module, *inputs, **named)
        finally:
            here.caller = outer

    return method


def forward_of_arrays_too(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The user's `forward`; called on arrays outside of a recording, it runs `predict`."""

    @wraps(forward)
    def method(module: Module, *inputs: Any, **named: Any) -> Any:
        arguments = (*inputs, *named.values())
        if _CURRENT.get() is None and arguments and common_graph(*arguments) is None and current_graph() is None:
            return module(*inputs, **named)
        return forward(module, *inputs, **named)

    return method


_WATCHER: ContextVar[Callable[[str, Module, object, object], None] | None] = ContextVar("watcher", default=None)


def watch_modules(watcher: Callable[[str, Module, object, object], None]) -> AbstractContextManager[None]:
    """Inside the context, call `watcher(path, module, inputs, output)` after every module that runs."""
    return bind_value(_WATCHER, watcher)


def notify_watcher(trace: Trace, module: Module, inputs: object, output: object) -> None:
    """Call the watcher after a module has run."""
    if isinstance(output, Tensor):
        trace.outputs[trace.paths[module]] = output
    watcher = _WATCHER.get()
    if watcher is not None:
        watcher(trace.paths[module], module, inputs, output)


@contextmanager
def run_module(trace: Trace, module: Module) -> Iterator[None]:
    """Run `module.forward`; random numbers drawn inside are keyed by its path."""
    relative, outer = trace.relative_path(module), trace.scope
    try:
        with (
            bind_value(_CURRENT, trace),
            bind_value(_INSIDE, trace.paths[module]),
            trace.graph.scope(relative) if relative else nullcontext(),
            pin_float32() if module.products_in_float32 else nullcontext(),
            record_for_layer(trace.paths[module] or f"({type(module).__name__})"),
        ):
            trace.scope = trace.graph.open_scope
            yield
    finally:
        trace.scope = outer


def functional_call(module: Module, parameters: Mapping[str, Tensor], /, *inputs: Any, **named: Any) -> Any:
    """The output of a module with some of its parameters replaced by given tensors; the module itself is unchanged.

    Gradients reach the tensors: a step that looks ahead, an inner loop of MAML, a network whose weights another one
    computes.

    Args:
        module: is recorded as by a call of it.
        parameters: tensors by the names of `module.parameters()`; what is not named is the module's own.

    Example::

        fast = {name: w - 0.1 * g for (name, w), g in zip(net.traced(g).items(), grads.values())}
        scores = ws.nn.functional_call(net, fast, x)
    """
    for name, value in parameters.items():
        if not isinstance(value, Tensor):
            fail(UsageError, f"functional_call: {name!r} is a tensor of the graph; received {type(value).__name__}.")
    graph = common_graph(*inputs, *named.values(), *parameters.values())
    if graph is None:
        fail(UsageError, "functional_call records a module on tensors, in a @ws.step or a graph; received none.")
    here, owned = trace_of(graph), module.parameters()
    here.open(module)
    before = {owned[_check_name(module, name, value)]: here.tensors[owned[name]] for name, value in parameters.items()}
    here.tensors.update({owned[name]: value for name, value in parameters.items()})
    try:
        return module(*inputs, **named)
    finally:
        here.tensors.update(before)


def _check_name(module: Module, name: str, value: Tensor) -> str:
    owned = module.parameters().get(name)
    if owned is None:
        names = ", ".join(module.parameters()) or "none"
        fail(UnknownNameError, f"functional_call: the module has no parameter {name!r}; it has: {names}.")
    if value.shape != owned.type.shape or value.dtype != owned.dtype:
        fail(ShapeError, f"functional_call: {name!r} is {owned.type}; received {value.dtype}{list(value.shape)}.")
    return name
