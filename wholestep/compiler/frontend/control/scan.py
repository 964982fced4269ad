"""`ws.scan`: a loop over a sequence whose body is recorded once (see ir/type_rules/scan.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wholestep.compiler.frontend.control.closure import close, parameter
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, common_graph
from wholestep.compiler.frontend.trace import fail, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node, body_of
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import Extent, TensorType, as_shape
from wholestep.errors import GraphError, ShapeError, UsageError

__all__ = ["scan"]

Body = Callable[[Any, Any], tuple[Any, Any]]


def scan(
    body: Body, init: Any, xs: Any = None, *, length: Extent | str | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Run `carry, y = body(carry, x)` for each slice x along the first axis of xs; one loop in the compiled step.

    Args:
        body: is called once, to be recorded.  It may capture any tensor from outside, which is loop-invariant.
        init: the first carry: a tensor, or tuples, lists and dicts of tensors.  Its shapes and dtypes must not change.
        xs: the sequences: nested in the same ways, each with the steps as its first axis; None for none.
        length: the number of steps; needed if xs is None.
        reverse: run from the last slice to the first; ys keep the order of xs.

    Returns:
        The last carry, and all ys stacked along a new first axis, nested as the body returned them.

    Example::

        def cell(h, x):
            h = ws.tanh(x @ w + h @ u)
            return h, h

        last, all = ws.scan(cell, h0, xs)      # xs (time, batch, features), all (time, batch, units)
    """
    first, sequences = _flat(init, "init"), _flat(xs, "xs")
    steps = _length(sequences, length)
    graph = common_graph(*first, *sequences)
    parameters = [
        *(parameter("carry", i, t.node.type) for i, t in enumerate(first)),
        *(parameter("slice", i, TensorType(t.shape[1:], t.dtype)) for i, t in enumerate(sequences)),
    ]
    arguments = [Tensor(p, graph) for p in parameters]
    carry, y = _call(body, _rebuild_nested(init, arguments[: len(first)]), _rebuild_nested(xs, arguments[len(first) :]))
    carried, outputs = _check_carry(init, carry, first), _flat(y, "the body's second result")
    results = [*carried, *outputs]
    closed = close([r.node for r in results], parameters)
    for inner in closed.varying:
        _check(inner)
    attrs = at.ScanAttrs(closed.graph, len(first), len(sequences), steps, bool(reverse))
    node = record("scan", [*(t.node for t in (*first, *sequences)), *closed.outside], attrs)
    graph = common_graph(*first, *sequences, *results)
    items = [Tensor(record("item", [node], at.ItemAttrs(i)), graph) for i in range(len(results))]
    last = [_last(trail, steps, reverse) for trail in items[: len(first)]]
    return _rebuild_nested(carry, last), _rebuild_nested(y, items[len(first) :])


def _last(trail: Tensor, steps: Extent, reverse: bool) -> Tensor:
    """The value after the last step: the last element of the trail, or the first one of a reverse scan."""
    starts, stops = [0] * trail.ndim, list(trail.shape)
    position: Extent = 0 if reverse else steps
    slice_attrs = at.SliceAttrs((position, *starts[1:]), (position + 1, *stops[1:]), (1,) * trail.ndim)
    return Tensor(record("slice", [trail.node], slice_attrs), trail.graph).reshape(trail.shape[1:])


# -- nested values -----------------------------------------------------------------------------------------------


def _flat(value: Any, what: str) -> list[Tensor]:
    """The tensors of a nested value (a pytree), in order."""
    if value is None:
        return []
    if isinstance(value, tuple | list):
        return [t for v in value for t in _flat(v, what)]
    if isinstance(value, dict):
        return [t for v in value.values() for t in _flat(v, what)]
    if isinstance(value, str | bool):
        fail(UsageError, f"scan: {what} must consist of tensors in tuples, lists and dicts; received {value!r}.")
    return [as_tensor(value)]


def _rebuild_nested(like: Any, tensors: Sequence[Tensor]) -> Any:
    """These tensors, nested like another value."""
    remaining = iter(tensors)

    def build(v: Any) -> Any:
        if v is None:
            return None
        if isinstance(v, tuple) and hasattr(v, "_fields"):
            return type(v)(*map(build, v))
        if isinstance(v, tuple | list):
            return type(v)(map(build, v))
        return {k: build(x) for k, x in v.items()} if isinstance(v, dict) else next(remaining)

    return build(like)


def _form(value: Any) -> Any:
    """The nesting of a value, for comparison."""
    if isinstance(value, tuple | list):
        return [_form(v) for v in value]
    return {k: _form(v) for k, v in value.items()} if isinstance(value, dict) else value is None


# -- checks ------------------------------------------------------------------------------------------------------


def _length(sequences: Sequence[Tensor], length: Extent | str | None) -> Extent:
    if length is None and not sequences:
        fail(UsageError, "scan: without xs the number of steps is unknown; pass it: length=10.")
    steps: Extent | None = None if length is None else as_shape(length)[0]
    for x in sequences:
        if x.ndim == 0:
            fail(ShapeError, f"scan: the first axis of xs must be the steps; received the scalar {x!r}.")
        steps = x.shape[0] if steps is None else steps
        if x.shape[0] != steps:
            fail(ShapeError, f"scan: all sequences need equal numbers of steps; received {x.shape[0]} and {steps}.")
    assert steps is not None
    return steps


def _call(body: Body, carry: Any, x: Any) -> tuple[Any, Any]:
    result = body(carry, x)
    if not isinstance(result, tuple) or len(result) != 2:
        fail(UsageError, f"scan: the body must return (carry, y), or (carry, None); it returned {result!r}.")
    return result


def _check_carry(init: Any, carry: Any, first: Sequence[Tensor]) -> list[Tensor]:
    """The carries after a step, after a check that they have init's nesting, shapes and dtypes."""
    if _form(init) != _form(carry):
        fail(UsageError, f"scan: the carry must be nested like init; init is {init!r}, the body returned {carry!r}.")
    after = _flat(carry, "the carry")
    for i, (a, b) in enumerate(zip(first, after, strict=True)):
        if a.node.type != b.node.type:
            fail(
                ShapeError,
                f"scan: carry {i} begins as {a.node.type} and is {b.node.type} after a step; it must keep its shape "
                "and dtype. Give an init of the right shape, or cast: h.astype(...).",
            )
    return after


def _check(node: Node) -> None:
    _check_draw(node)
    inner = body_of(node) if node.op == "custom_gradient" else None
    for n in inner.nodes if inner is not None else ():
        _check_draw(n)
    if node.op == "gradient":
        fail(GraphError, "scan: a gradient inside the body is not supported; take gradients of the loop's results.")


def _check_draw(node: Node) -> None:
    if node.op in ops_with(Trait.DRAWS):
        fail(
            GraphError,
            "scan: random numbers inside the body would be the same in every step. Draw them outside with the steps as "
            "first axis and pass them in xs, or apply dropout to the loop's inputs and results.",
        )
