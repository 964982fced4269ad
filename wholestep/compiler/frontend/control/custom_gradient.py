"""`ws.custom_gradient`: a function with a user-defined gradient, recorded as a node with the gradient's graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from wholestep.compiler.frontend.control.closure import close, parameter
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import TensorType
from wholestep.errors import GradientError, ShapeError, UsageError, WholestepError

__all__ = ["custom_gradient"]

P = ParamSpec("P")
R = TypeVar("R")


def custom_gradient(function: Callable[P, tuple[R, Callable[..., Any]]]) -> Callable[P, R]:
    """A function with a gradient of your own: it returns its value, and a function that computes the gradient.

    Args:
        function: takes tensors, anywhere among its arguments (in tuples, lists and dicts too), and plain values, and
            returns `(y, gradient)`.  y is a tensor, or a tuple or list of them.  `gradient` is called once, with the
            upstream gradient of each output (None for an output that is not float), and returns one tensor for each
            tensor among the arguments, in order, of its shape and dtype; None stops the gradient.  It may use
            everything that `function` has computed.

    Returns:
        A function of the same arguments that returns y alone.

    Captured tensors count as constants; capturing a parameter is an error, since its gradient would be lost: pass it as
    an argument, or write `ws.stop_gradient(w)`.  Second derivatives differentiate what `gradient` computes and, if that
    uses values of `function`, these as well.  The node disappears with automatic differentiation: no cost at run time.

    Example::

        @ws.custom_gradient
        def rounded(x):
            def gradient(upstream):
                return upstream                # straight through
            return ws.floor(x + 0.5), gradient
    """
    if not callable(function):
        fail(UsageError, f"custom_gradient decorates a function; received {function!r}.")
    name = getattr(function, "__name__", type(function).__name__)

    @wraps(function)
    def record_call(*args: P.args, **kwargs: P.kwargs) -> R:
        result, gradient = _pair(name, function(*args, **kwargs))
        outputs = _outputs(name, result)
        results = iter(_Recorder(name, _tensors((args, kwargs)), outputs).record(gradient))
        return _rebuild_outputs(result, [next(results) if t.dtype.is_float else t for t in outputs])  # type: ignore[no-any-return]

    return record_call


def _fail(kind: type[WholestepError], text: str) -> NoReturn:
    fail(kind, f"custom_gradient: {text}.")


class _Recorder:
    """Records the custom_gradient node of one call, and its gradient, after the function itself was recorded."""

    def __init__(self, name: str, arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.name, self.arguments, self.outputs = name, arguments, outputs
        self.floats = [t for t in outputs if t.dtype.is_float]
        self.graph = common_graph(*arguments, *outputs)
        if not self.floats:
            _fail(UsageError, f"{name} returns no float tensor, so it has no gradient. Remove the decorator")
        _refuse_lost_gradients(name, [t.node for t in self.floats], {t.node for t in arguments}, self.graph)

    def record(self, gradient: Callable[..., Any]) -> list[Tensor]:
        """The float outputs, as results of a custom_gradient node."""
        if not self.arguments and all(t.node.host for t in self.floats):
            return self.floats  # host scalars stay unchanged: they adopt the dtype of the other operand
        upstream = [Tensor(parameter("upstream", i, t.node.type), self.graph) for i, t in enumerate(self.floats)]
        pairs = self._arguments_with_gradient(gradient, upstream) if self.arguments else []
        return custom_gradient_outputs(self.name, self.floats, upstream, pairs)

    def _arguments_with_gradient(
        self, gradient: Callable[..., Any], upstream: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """Calls the user's gradient function; returns (argument, gradient) for each argument that has one."""
        leaves = iter(upstream)
        upstream_arguments = [next(leaves) if t.dtype.is_float else None for t in self.outputs]
        _need_arity(self.name, gradient, len(upstream_arguments))
        result = gradient(*upstream_arguments)
        gradients = list(result) if isinstance(result, tuple | list) else [result]
        if len(gradients) != len(self.arguments):
            _fail(
                UsageError,
                f"{self.name} takes {len(self.arguments)} tensors, and its gradient returned {len(gradients)} values. "
                "Return one tensor for each, in order; None to stop the gradient",
            )
        checked = [
            self._check_gradient(i, x, slope)
            for i, (x, slope) in enumerate(zip(self.arguments, gradients, strict=True))
        ]
        return [(x, slope) for x, slope in zip(self.arguments, checked, strict=True) if slope is not None]

    def _check_gradient(self, number: int, x: Tensor, returned: Any) -> Tensor | None:
        """The gradient returned for one argument, after a check of its type."""
        if returned is None:
            return None
        which = f"number {number} of the tensors that {self.name} takes, which is {x.node.type}"
        if not x.dtype.is_float:
            _fail(UsageError, f"a gradient was returned for {which}: only floats have one. Return None for it")
        if not isinstance(returned, Tensor):
            _fail(UsageError, f"{returned!r} was returned for {which}. Return a tensor, or None for no gradient")
        if returned.node.type != x.node.type:
            _fail(
                ShapeError,
                f"a gradient of type {returned.node.type} was returned for {which}. Return one of its shape and dtype: "
                "sum over the axes along which it was repeated, upstream.sum(0), or cast, upstream.astype(x.dtype)",
            )
        return returned


def upstream_gradient(output: Tensor, number: int) -> Tensor:
    """A placeholder for the upstream gradient of a function's output."""
    return Tensor(parameter("upstream", number, output.node.type), output.graph)


def custom_gradient_outputs(
    name: str, outputs: Sequence[Tensor], upstream: Sequence[Tensor], pairs: Sequence[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    """Float outputs as results of a custom_gradient node; `pairs` are (argument, its gradient).

    The gradients are functions of the placeholders `arriving`, one per output.
    """
    leaves = [parameter("argument", i, x.node.type) for i, (x, _) in enumerate(pairs)]
    leaf_of = {x.node: leaf for (x, _), leaf in zip(pairs, leaves, strict=True)}
    closed = close([slope.node for _, slope in pairs], [*(t.node for t in upstream), *leaves], leaf_of, "value")
    inputs = [*(t.node for t in outputs), *(x.node for x, _ in pairs), *closed.outside]
    node = record("custom_gradient", inputs, at.CustomGradientAttrs(closed.graph, len(outputs)), name)
    graph = common_graph(*outputs, *upstream, *(t for pair in pairs for t in pair))
    return [Tensor(record("item", [node], at.ItemAttrs(i)), graph) for i in range(len(outputs))]


# -- arguments and results ---------------------------------------------------------------------------------------


def _tensors(value: Any) -> list[Tensor]:
    """The tensors of a nested value (a pytree), in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [t for v in value for t in _tensors(v)]
    return [t for v in value.values() for t in _tensors(v)] if isinstance(value, dict) else []


def _pair(name: str, result: Any) -> tuple[Any, Callable[..., Any]]:
    if not (isinstance(result, tuple) and len(result) == 2 and callable(result[1])):
        _fail(
            UsageError,
            f"{name} must return its value and a function that computes the gradient; it returned {result!r}. "
            "Write: return y, gradient",
        )
    return result


def _outputs(name: str, result: Any) -> list[Tensor]:
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    for output in outputs:
        if not isinstance(output, Tensor):
            _fail(UsageError, f"{name} must return a tensor, or a tuple or list of tensors; it returned {output!r}")
    return outputs


def _rebuild_outputs(like: Any, tensors: Sequence[Tensor]) -> Any:
    """The outputs, nested as the function returned them."""
    if isinstance(like, Tensor):
        return tensors[0]
    return type(like)(*tensors) if hasattr(like, "_fields") else type(like)(tensors)


def _need_arity(name: str, gradient: Callable[..., Any], outputs: int) -> None:
    try:
        inspect.signature(gradient).bind(*[None] * outputs)
    except TypeError as error:
        _fail(UsageError, f"the gradient of {name} gets one upstream gradient per output, {outputs} in all: {error}")


# -- captured values ---------------------------------------------------------------------------------------------


def _refuse_lost_gradients(name: str, outputs: Sequence[Node], arguments: set[Node], graph: Graph | None) -> None:
    """Raise an error if a gradient would be lost: if a captured value depends on a tensor that is differentiated."""
    declared = {t.node for t in graph.inputs.values()} if graph is not None else set()
    seen = set(arguments)
    stack = [n for n in outputs if n not in seen]
    while stack:
        node = stack.pop()
        if node.op == "parameter" or (node.op == "input" and node not in declared):
            what = f"the parameter {node.name!r}" if node.op == "parameter" else "a parameter of the enclosing function"
            _fail(
                GradientError,
                f"{name} uses {what}, or something computed from it, that is not among its arguments; its gradient "
                "would be lost. Pass it as an argument and return a gradient for it, or write ws.stop_gradient(...) "
                "around it to use it as a constant",
            )
        new = [n for n in _differentiable_inputs(node) if n not in seen]
        seen.update(new)
        stack += new


def _differentiable_inputs(node: Node) -> list[Node]:
    """The inputs that a gradient may propagate to."""
    if node.op == "stop_gradient":
        return []
    if node.op == "custom_gradient":
        return [node.inputs[i] for i in attrs_of(node, at.CustomGradientAttrs).arguments]
    return [i for i in node.inputs if not (isinstance(i.result, TensorType) and not i.result.dtype.is_float)]
