"""Reverse-mode automatic differentiation: `gradient` nodes become ordinary nodes.

This file implements the chain rule, the accumulation over several uses of a value, and the type checks of rules; it is
independent of ops, whose gradients are in rules.py.

The gradient of a half value is float32, since it is a sum and flows on to the float32 value that was rounded.  Only
products read it in half, as they read their operands; the rules of all other ops see their node in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build
from wholestep.compiler.ir.graph import IRGraph, Node, body_of, toposort, with_body
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import TensorType, adjoint_type
from wholestep.compiler.passes.autodiff.rules import (
    GRADIENTS,
    Blocked,
    Refused,
    ThroughDecomposition,
    blocking_reason,
    operands,
    propagates_gradient,
    source,
)
from wholestep.compiler.passes.autodiff.scan import scan_gradients
from wholestep.compiler.passes.lower.decompose import decomposition_of
from wholestep.compiler.passes.simplify.inline import inline_graph
from wholestep.errors import GradientError

Seed = Callable[[Node], Node]


def unit_seed(loss: Node) -> Node:
    """The seed d loss / d loss = 1: a rank-0 constant."""
    return build.constant(1, loss.type.dtype.accumulate)


def expand_gradients(graph: IRGraph, seed: Seed = unit_seed) -> IRGraph:
    """Replace every `gradient` node by the nodes that compute it, innermost first.

    `seed` returns the gradient of a loss with respect to itself, a scalar node: with it a part of a batch is weighted
    without other changes.  Calls must have been inlined.  Graphs inside of nodes are expanded too.
    """
    if all(n.op != "gradient" and body_of(n) is None for n in graph.nodes):
        return graph
    new: dict[Node, Node] = {}
    expanded: dict[Node, tuple[Node, ...]] = {}
    for node in graph.nodes:
        # In topological order, so the inputs of a gradient no longer contain gradient nodes.
        rebuilt = node.with_inputs([new[i] for i in node.inputs])
        inner = body_of(node)
        if inner is not None:
            rebuilt = with_body(rebuilt, expand_gradients(inner))
        if node.op == "gradient":
            loss, *params = rebuilt.inputs
            with build.origin(node):
                expanded[node] = gradients(loss, params, seed(loss))
        elif node.op == "item" and node.inputs[0] in expanded:
            rebuilt = expanded[node.inputs[0]][build.attrs_of(node, at.ItemAttrs).index]
        new[node] = rebuilt
    return graph.with_nodes(new)


def gradients(loss: Node, params: Sequence[Node], seed: Node) -> tuple[Node, ...]:
    """One gradient per parameter; parameters may be any nodes the loss is computed from, the loss itself included."""
    if missing := find_unreached(loss, params):
        raise _unreachable_error(loss, missing[0])
    order = toposort([loss])
    totals = _pull_back({loss: [seed]}, order, _dependents_of(order, params), params)
    return tuple(build.cast(totals[p], p.type.dtype) for p in params)


def _pull_back(
    arrived: dict[Node, list[Node]], order: Sequence[Node], useful: set[Node], params: Sequence[Node]
) -> dict[Node, Node]:
    """The chain rule backwards through `order`, from the nodes with an upstream gradient in `arrived`.

    Returns the gradient of every node in `useful` that an upstream gradient reaches.
    """
    totals: dict[Node, Node] = {}
    multi_result: dict[
        Node, dict[int, list[Node]]
    ] = {}  # nodes whose gradient takes the gradients of all results at once
    for node in reversed(order):
        if node in multi_result:
            with build.origin(node, name=f"gradient of {node.name or node.op}"):
                for position, gradient in _through_multi_result(node, multi_result.pop(node), useful, params):
                    arrived.setdefault(node.inputs[position], []).append(gradient)
        if node not in useful or node not in arrived:
            continue
        with build.origin(node, name=f"gradient of {node.name or node.op}"):
            totals[node] = upstream = _total(arrived.pop(node))
            if node.op == "item" and node.inputs[0].op in _MULTI_RESULT_RULES:
                results = multi_result.setdefault(node.inputs[0], {})
                results.setdefault(build.attrs_of(node, at.ItemAttrs).index, []).append(upstream)
                continue
            wanted = [i for i, x in enumerate(operands(node)) if x in useful and propagates_gradient(node, i)]
            if wanted:
                for position, gradient in _apply_rule(node, upstream, wanted, params):
                    arrived.setdefault(operands(node)[position], []).append(gradient)
    return totals | {node: _total(parts) for node, parts in arrived.items()}


def _through_multi_result(
    node: Node, arrived: dict[int, list[Node]], useful: set[Node], params: Sequence[Node]
) -> list[tuple[int, Node]]:
    """The gradients of the inputs of a node, given the gradient of each of its results."""
    upstream = {index: _total(arrived_at) for index, arrived_at in arrived.items()}
    wanted = {i for i, x in enumerate(node.inputs) if x in useful and propagates_gradient(node, i)}
    gradients = _MULTI_RESULT_RULES[node.op](node, upstream, wanted, params)
    for i, gradient in gradients.items():
        expected = adjoint_type(node.inputs[i].type)
        assert gradient.type == expected, f"{node.op} gave {gradient.type} for {expected}"
    return sorted(gradients.items(), key=lambda pair: pair[0])


def _through_loop(node: Node, upstream: dict[int, Node], wanted: set[int], params: Sequence[Node]) -> dict[int, Node]:
    def inside(arrived: dict[Node, list[Node]], order: Sequence[Node], inputs: Sequence[Node]) -> dict[Node, Node]:
        return _pull_back(arrived, order, _dependents_of(order, inputs), params)

    return scan_gradients(node, upstream, wanted, inside)


def _through_custom_gradient(
    node: Node, upstream: dict[int, Node], wanted: set[int], params: Sequence[Node]
) -> dict[int, Node]:
    """Inline a custom gradient; the upstream gradient of an unused result is zero."""
    upstream_gradients = [
        build.cast(upstream[i], type.dtype) if i in upstream else build.full(0, type)
        for i, type in enumerate(node.results)
    ]
    attrs = build.attrs_of(node, at.CustomGradientAttrs)
    gradients = zip(
        attrs.arguments, inline_graph(attrs.graph, [*upstream_gradients, *node.inputs[attrs.results :]]), strict=True
    )
    return {i: build.cast(gradient, gradient.type.dtype.accumulate) for i, gradient in gradients if i in wanted}


_MULTI_RESULT_RULES = {"scan": _through_loop, "custom_gradient": _through_custom_gradient}


def find_unreached(loss: Node, params: Iterable[Node]) -> list[Node]:
    """The parameters that no gradient of the loss reaches."""
    reached, stack = {loss}, [loss]
    while stack:
        node = stack.pop()
        for i, x in enumerate(operands(node)):
            if x not in reached and propagates_gradient(node, i):
                reached.add(x)
                stack.append(x)
    return [p for p in params if p not in reached]


def _dependents_of(order: Sequence[Node], params: Sequence[Node]) -> set[Node]:
    """The nodes, given in order, whose gradient some parameter needs."""
    useful = set(params)
    for node in order:
        if any(x in useful and propagates_gradient(node, i) for i, x in enumerate(operands(node))):
            useful.add(node)
    return useful


def _total(arrived: Sequence[Node]) -> Node:
    total = arrived[0]
    for gradient in arrived[1:]:
        total = build.add(total, gradient)
    return total


def _apply_rule(node: Node, upstream: Node, wanted: Sequence[int], params: Sequence[Node]) -> list[tuple[int, Node]]:
    row = GRADIENTS[node.op]
    assert not isinstance(row, Blocked), f"a gradient was propagated to {node!r}, which has none"
    if isinstance(row, Refused):
        raise _no_gradient_error(node, row, params)
    if isinstance(row, ThroughDecomposition):
        gradients = _through_decomposition(_widen_for_rule(node), upstream, wanted, params)
    else:
        gradients = row(_widen_for_rule(node), upstream)
    assert len(gradients) == len(operands(node)), f"the gradient rule of {node.op} gave {len(gradients)} for {node!r}"
    out = []
    for i in wanted:
        gradient, expected = gradients[i], adjoint_type(operands(node)[i].type)
        assert gradient is not None, f"the gradient rule of {node.op} gave nothing for input {i} of {node!r}"
        assert gradient.type == expected, f"the gradient rule of {node.op} gave {gradient.type} for {expected}"
        out.append((i, gradient))
    return out


def _widen_for_rule(node: Node) -> Node:
    """The node as its rule sees it: with half inputs widened to float32, unless it is a product or a cast."""
    origin = source(node)
    if (
        origin.op == "cast"
        or origin.op in ops_with(Trait.PRODUCT)
        or not any(i.type.dtype.is_half for i in origin.inputs)
    ):
        return node
    wide = origin.with_inputs([build.cast(i, i.type.dtype.accumulate) for i in origin.inputs])
    return wide if node.op != "item" else node.with_inputs([wide])


def _through_decomposition(
    item: Node, upstream: Node, wanted: Sequence[int], params: Sequence[Node]
) -> tuple[Node | None, ...]:
    """The gradients of a composite's inputs, by differentiating the decomposition of one of its results."""
    result = decomposition_of(item.inputs[0])[build.attrs_of(item, at.ItemAttrs).index]
    inputs = operands(item)
    # Only nodes between the inputs and the result: one input may depend on another.
    below_inputs = set(toposort(inputs))
    between = [n for n in toposort([result]) if n not in below_inputs]
    totals = _pull_back({result: [upstream]}, between, _dependents_of(between, inputs), params)
    # An input at several positions gets its total gradient at the first wanted position.
    return tuple(
        totals.pop(x, None) or build.full(0, adjoint_type(x.type)) if i in wanted else None
        for i, x in enumerate(inputs)
    )


# -- errors ------------------------------------------------------------------------------------------------------


def _no_gradient_error(node: Node, row: Refused, params: Sequence[Node]) -> GradientError:
    paths = [_path(p, node) for p in params]
    path = next(p for p in paths if p)
    return GradientError(
        f"a gradient arrived at `{node.op}`{_at(node)}, on the path {_path_text(path)}: {row.reason}. "
        "Put ws.stop_gradient(...) around its argument if that part is meant to be constant."
    )


def _unreachable_error(loss: Node, param: Node) -> GradientError:
    wall = _last_blocking_edge(loss, param)
    if wall is None:
        return GradientError(
            f"{_label(param)}{_at(param)} takes no part in the loss{_at(loss)}, so it has no gradient. "
            "Use it in the loss, or remove it from the parameters."
        )
    node, position = wall
    op, path = source(node).op, [*_path(param, operands(node)[position]), source(node)]
    return GradientError(
        f"no gradient reaches {_label(param)}{_at(param)}: `{op}`{_at(node)} is its only path to the loss, and it "
        f"{blocking_reason(node, position)}. The path is {_path_text(path)}. "
        "Give it a differentiable path to the loss, or remove it from the parameters."
    )


def _last_blocking_edge(loss: Node, param: Node) -> tuple[Node, int] | None:
    """The edge that blocks the gradient of the parameter; of several, the one nearest to the loss."""
    below, wall = {param}, None
    for node in toposort([loss]):
        if not isinstance(node.result, TensorType):
            continue  # its readers are its items
        edges = [i for i, x in enumerate(operands(node)) if x in below]
        if any(propagates_gradient(node, i) for i in edges):
            below.add(node)
        elif edges:
            wall = node, edges[0]
    return wall


def _path(start: Node, end: Node) -> list[Node]:
    """The nodes of a shortest path from start to end; empty if there is none."""
    came_from: dict[Node, Node | None] = {end: None}
    queue = [end]
    for node in queue:
        if node is start:
            break
        for x in node.inputs:
            if x not in came_from:
                came_from[x] = node
                queue.append(x)
    out: list[Node] = []
    step: Node | None = start if start in came_from else None
    while step is not None:
        out.append(step)
        step = came_from[step]
    return out


def _label(node: Node) -> str:
    name = getattr(node.attrs, "name", "") or node.name
    return f"`{name}`" if name else f"the `{node.op}` of {node.result}"


def _path_text(path: Sequence[Node]) -> str:
    return " -> ".join([_label(path[0]).strip("`"), *(n.op for n in path[1:])])


def _at(node: Node) -> str:
    return f" ({node.line})" if node.line else ""
