"""`ws.custom_gradient`: a function whose gradient its author writes."""

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
    """A function with a gradient of your own: it returns its value, and a function that gives the gradient.

    Args:
        function: takes tensors, anywhere among its arguments (in tuples, lists and dicts too), and plain values, and
            returns `(y, gradient)`.  y is a tensor, or a tuple or list of them.  `gradient` is called once, with the
            gradient that arrives at each output (None for one that is not float), and returns one tensor for each
            tensor among the arguments, in order, of its shape and dtype; None where no gradient goes on.  It may use
            everything that `function` has computed.

    Returns:
        A function of the same arguments that returns y alone.

    Tensors that come from elsewhere count as constants; a parameter among them is an error, since its gradient would be
    lost: pass it as an argument, or write `ws.stop_gradient(w)`.  The gradient of a gradient goes through what
    `gradient` computes and, where that uses values of `function`, through those as they were computed.  Nothing is left
    of it after the gradients were taken: the step is compiled as if it had been written out.

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
    def recorded(*args: P.args, **kwargs: P.kwargs) -> R:
        result, gradient = _pair(name, function(*args, **kwargs))
        outputs = _outputs(name, result)
        made = iter(_Recorder(name, _tensors((args, kwargs)), outputs).record(gradient))
        return _rebuild_outputs(result, [next(made) if t.dtype.is_float else t for t in outputs])  # type: ignore[no-any-return]

    return recorded


def _fail(kind: type[WholestepError], text: str) -> NoReturn:
    fail(kind, f"custom_gradient: {text}.")


class _Recorder:
    """One call: the function has run, its gradient and the node that holds it are to be recorded."""

    def __init__(self, name: str, arguments: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        self.name, self.arguments, self.outputs = name, arguments, outputs
        self.floats = [t for t in outputs if t.dtype.is_float]
        self.graph = common_graph(*arguments, *outputs)
        if not self.floats:
            _fail(UsageError, f"{name} gives no float tensor, so it has no gradient. Leave the decorator away")
        _refuse_lost(name, [t.node for t in self.floats], {t.node for t in arguments}, self.graph)

    def record(self, gradient: Callable[..., Any]) -> list[Tensor]:
        """The float outputs, as results of a node that knows their gradient."""
        if not self.arguments and all(t.node.host for t in self.floats):
            return self.floats  # numbers, which take the dtype of what they meet
        arriving = [Tensor(parameter("upstream", i, t.node.type), self.graph) for i, t in enumerate(self.floats)]
        pairs = self._arguments_with_gradient(gradient, arriving) if self.arguments else []
        return custom_gradient_outputs(self.name, self.floats, arriving, pairs)

    def _arguments_with_gradient(
        self, gradient: Callable[..., Any], arriving: Sequence[Tensor]
    ) -> list[tuple[Tensor, Tensor]]:
        """The arguments that get a gradient, each with its gradient."""
        leaves = iter(arriving)
        given = [next(leaves) if t.dtype.is_float else None for t in self.outputs]
        _need_arity(self.name, gradient, len(given))
        found = gradient(*given)
        slopes = list(found) if isinstance(found, tuple | list) else [found]
        if len(slopes) != len(self.arguments):
            _fail(
                UsageError,
                f"{self.name} takes {len(self.arguments)} tensors, and its gradient returned {len(slopes)} values. "
                "Return one tensor for each, in order; None where no gradient goes on",
            )
        checked = [
            self._check_gradient(i, x, slope) for i, (x, slope) in enumerate(zip(self.arguments, slopes, strict=True))
        ]
        return [(x, slope) for x, slope in zip(self.arguments, checked, strict=True) if slope is not None]

    def _check_gradient(self, number: int, x: Tensor, slope: Any) -> Tensor | None:
        """What the gradient returned for one of the tensors, if it can be its gradient."""
        if slope is None:
            return None
        which = f"number {number} of the tensors that {self.name} takes, which is {x.node.type}"
        if not x.dtype.is_float:
            _fail(UsageError, f"a gradient was returned for {which}: only floats have one. Return None for it")
        if not isinstance(slope, Tensor):
            _fail(UsageError, f"{slope!r} was returned for {which}. Return a tensor, or None for no gradient")
        if slope.node.type != x.node.type:
            _fail(
                ShapeError,
                f"a gradient of type {slope.node.type} was returned for {which}. Return one of its shape and dtype: "
                "sum over the axes along which it was repeated, upstream.sum(0), or cast, upstream.astype(x.dtype)",
            )
        return slope


def upstream_gradient(output: Tensor, number: int) -> Tensor:
    """Stands for the gradient that will arrive at an output of a function."""
    return Tensor(parameter("upstream", number, output.node.type), output.graph)


def custom_gradient_outputs(
    name: str, outputs: Sequence[Tensor], arriving: Sequence[Tensor], pairs: Sequence[tuple[Tensor, Tensor]]
) -> list[Tensor]:
    """Float outputs as results of a node that knows their gradient: arguments, each with its slope.

    The slopes are computed from what arrives at each output.
    """
    leaves = [parameter("argument", i, x.node.type) for i, (x, _) in enumerate(pairs)]
    known = {x.node: leaf for (x, _), leaf in zip(pairs, leaves, strict=True)}
    closed = close([slope.node for _, slope in pairs], [*(t.node for t in arriving), *leaves], known, "value")
    inputs = [*(t.node for t in outputs), *(x.node for x, _ in pairs), *closed.outside]
    node = record("custom_gradient", inputs, at.CustomGradientAttrs(closed.graph, len(outputs)), name)
    graph = common_graph(*outputs, *arriving, *(t for pair in pairs for t in pair))
    return [Tensor(record("item", [node], at.ItemAttrs(i)), graph) for i in range(len(outputs))]


# -- what goes in and comes out ----------------------------------------------------------------------------------


def _tensors(value: Any) -> list[Tensor]:
    """The tensors in a nested value, in order."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple | list):
        return [t for v in value for t in _tensors(v)]
    return [t for v in value.values() for t in _tensors(v)] if isinstance(value, dict) else []


def _pair(name: str, found: Any) -> tuple[Any, Callable[..., Any]]:
    if not (isinstance(found, tuple) and len(found) == 2 and callable(found[1])):
        _fail(
            UsageError,
            f"{name} returns two things, its value and a function that gives the gradient; it returned {found!r}. "
            "Write: return y, gradient",
        )
    return found


def _outputs(name: str, result: Any) -> list[Tensor]:
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    for output in outputs:
        if not isinstance(output, Tensor):
            _fail(UsageError, f"the value of {name} is a tensor, or a tuple or list of tensors; it returned {output!r}")
    return outputs


def _rebuild_outputs(like: Any, tensors: Sequence[Tensor]) -> Any:
    """The outputs as the function returned them."""
    if isinstance(like, Tensor):
        return tensors[0]
    return type(like)(*tensors) if hasattr(like, "_fields") else type(like)(tensors)


def _need_arity(name: str, gradient: Callable[..., Any], outputs: int) -> None:
    try:
        inspect.signature(gradient).bind(*[None] * outputs)
    except TypeError as error:
        _fail(
            UsageError,
            f"the gradient of {name} is called with what arrives at each output, {outputs} values, but: {error}",
        )


# -- what it uses beside its arguments ---------------------------------------------------------------------------


def _refuse_lost(name: str, outputs: Sequence[Node], arguments: set[Node], graph: Graph | None) -> None:
    """An error where a gradient would be lost: something that is trained is used, and is not an argument."""
    declared = {t.node for t in graph.inputs.values()} if graph is not None else set()
    seen = set(arguments)
    stack = [n for n in outputs if n not in seen]
    while stack:
        node = stack.pop()
        if node.op == "parameter" or (node.op == "input" and node not in declared):
            what = f"the parameter {node.name!r}" if node.op == "parameter" else "what the function around it is given"
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
    """The inputs that a gradient may go on to."""
    if node.op == "stop_gradient":
        return []
    if node.op == "custom_gradient":
        return [node.inputs[i] for i in attrs_of(node, at.CustomGradientAttrs).arguments]
    return [i for i in node.inputs if not (isinstance(i.result, TensorType) and not i.result.dtype.is_float)]
