"""Marks where gradients stop (`detach`, `no_grad`), since torch's decomposition drops them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.interop.torch.aten.nodes import inner_programs


@torch.library.custom_op("wholestep::stop_gradient", mutates_args=())
def stop_gradient(x: torch.Tensor) -> torch.Tensor:
    """A placeholder for `detach`, and for values that enter a `no_grad` region."""
    return x.clone()


@stop_gradient.register_fake
def _(x: Any) -> Any:
    return torch.empty_like(x)


def mark_stopped(program: Any) -> None:
    """Insert marks, which decomposition keeps, where gradients stop."""
    marker = torch.ops.wholestep.stop_gradient.default
    nodes = list(program.graph_module.graph.nodes)
    through = _mutated_values(nodes, [n for n in nodes if n.target is torch.ops.aten.detach.default])
    for node in nodes:
        if node.op != "call_function":
            continue
        if node in through:
            _need_leaf(node.args[0])  # x.detach().mul_(2) writes to x; on a marked tensor it would write to a copy
        elif node.target in (torch.ops.aten.detach.default, torch.ops.aten.detach_.default):
            node.target = marker
        elif "set_grad_enabled" in str(node.target) and node.args and node.args[0] is False:
            _mark_region(program, node)
    for node in nodes:
        if "set_grad_enabled" not in str(node.target):
            _mark_held(node)
    program.graph_module.recompile()


def _mark_held(node: Any) -> None:
    """Mark `detach` in inner programs, such as branches and loop bodies, which write nothing."""
    for module in inner_programs(node):
        for inner in module.graph.nodes:
            if inner.target is torch.ops.aten.detach.default:
                inner.target = torch.ops.wholestep.stop_gradient.default
            _mark_held(inner)
        module.recompile()


def _mark_region(program: Any, region: Any) -> None:
    """Mark each tensor that enters a `no_grad` region, except tensors that the region writes to."""
    graph = program.graph_module.graph
    inner = list(getattr(program.graph_module, region.args[1].target).graph.nodes)
    placeholders = [n for n in inner if n.op == "placeholder"]
    written = _mutated_values(inner, placeholders)
    for place, operand in enumerate(region.args[2:]):
        meta = operand.meta.get("val") if isinstance(operand, torch.fx.Node) else None
        if not isinstance(meta, torch.Tensor) or not meta.is_floating_point():
            continue
        if placeholders[place] in written:
            _need_leaf(operand)
            continue
        with graph.inserting_before(region):
            mark = graph.call_function(torch.ops.wholestep.stop_gradient.default, (operand,))
            mark.meta = {k: v for k, v in operand.meta.items() if k in ("val", "stack_trace", "nn_module_stack")}
        region.update_arg(place + 2, mark)


def _need_leaf(operand: Any) -> None:
    """Refuse an in-place write to a value computed outside: its gradient would be lost.  Buffers and results of the
    region have none.

    In torch such a write keeps the gradient, which cannot be expressed here.
    """
    base = operand
    while base.op == "call_function" and (base.target is operator.getitem or _views(base)):
        base = base.args[0]
    if base.op != "placeholder" and "set_grad_enabled" not in str(base.target):
        frames = [line for line in (operand.meta.get("stack_trace") or "").splitlines() if line.strip()]
        origin = f", origin by {frames[-1].strip()!r}" if frames else ""
        fail(
            UsageError,
            f"a tensor{origin} is changed in place under no_grad, or behind detach(). Its gradient would go on as if "
            "it were not; write y = y + (change).detach() instead.",
        )


def _views(node: Any) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.arguments) and schema.arguments[0].alias_info is not None


def _mutated_values(nodes: Iterable[Any], bases: Iterable[Any]) -> set[Any]:
    """The values that are changed in place, directly or through views."""
    of: dict[Any, set[Any]] = {base: {base} for base in bases}
    mutated: set[Any] = set()
    for node in nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op != "call_function" or schema is None:
            continue
        for place, argument in enumerate(schema.arguments):
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            if argument.alias_info is not None and isinstance(value, torch.fx.Node):
                reached = of.get(value, set())
                of[node] = of.get(node, set()) | reached
                mutated |= reached if argument.alias_info.is_write else set()
    return mutated
