"""Decomposes a loss into terms that micro-batches add up; the error if it is not separable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NoReturn

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node, toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import Dim, shape_text, symbols_of
from wholestep.compiler.passes.distribute.placement.placements import MeshAxis, Mixed, Placement, Replicated, Sharded
from wholestep.compiler.passes.distribute.placement.rules import placements_of
from wholestep.compiler.passes.distribute.separability import LossTerm, Separation, separate_loss
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.errors import GraphError, UsageError
from wholestep.optim import Optimizer
from wholestep.steps.capacity import PARTS
from wholestep.steps.evaluate import loss_of
from wholestep.steps.options import StepOptions
from wholestep.steps.train import reachable_parameters, select_parameters


def read_loss(graph: ir.IRGraph, batch: str, options: StepOptions, what: str, *, trains: bool) -> Separation:
    """The loss as terms; if it is not separable, the mean of the micro-batches' losses, if the user accepts that."""
    loss = graph.outputs[0].node
    separation = separate_loss(graph, loss, batch)
    if separation.separable:
        separation = _refuse_unnumbered_draws(graph, batch, separation)
    if not separation.separable and not options.per_micro_batch:
        _refuse(separation, what, trains)
    mean_of_parts = LossTerm(None, loss, b.count(Dim.symbol(PARTS), loss.type.dtype))
    return separation if separation.separable else Separation(True, (mean_of_parts,))


def _refuse(separation: Separation, what: str, trains: bool) -> NoReturn:
    node = separation.blame
    assert node is not None, "a loss that is not separable has a node to blame"
    name, line = f" {node.name!r}" if node.name else "", f" (made at {node.line})" if node.line else ""
    advice = "Build with a batch_size that holds all rows."
    if trains:
        advice = "Train with accumulate=1, or accept the mean of the batches' losses: per_micro_batch=True."
    fail(
        GraphError,
        f"{what}: the loss cannot be split into batches, since `{node.op}`{name}{line} {separation.reason}. {advice}",
    )


def _refuse_unnumbered_draws(graph: ir.IRGraph, batch: str, separation: Separation) -> Separation:
    """Not separable if the elements of a random tensor cannot be numbered over all micro-batches."""
    for node in graph.nodes:
        if node.op in ops_with(Trait.DRAWS) and batch in symbols_of(node.type.shape[1:]):
            shape = shape_text(node.type.shape)
            why = f"draws random numbers of shape {shape}, whose first axis is not the batch"
            return Separation(False, blame=node, reason=why)
    return separation


def need_plain_gradients(
    graph: Graph,
    optimizer: Optimizer,
    options: StepOptions,
    what: str = "accumulate",
    remedy: str = "Use accumulate=1.",
) -> None:
    """Refuse an optimizer that needs gradients at other points (SAM), for which it needs the whole batch."""
    scratch = graph.copy()
    loss = loss_of(scratch)
    params = reachable_parameters(loss, optimizer.trainable(select_parameters(scratch)), options.unused)
    for g in optimizer.gradients(loss, params[:1]):
        source = g.node.inputs[0] if g.node.op == "item" else g.node
        if source.op != "gradient" or source.inputs[0] is not loss.node:
            fail(
                UsageError,
                f"{what} needs an optimizer that follows the gradient of the loss; {type(optimizer).__name__} "
                f"takes one elsewhere, on the whole batch. {remedy}",
            )


def depends_on(node: Node, batch: str) -> bool:
    """Does a value depend on the batch: on its data, its size, or random numbers drawn for it?"""
    leaves = ("input", "size", *ops_with(Trait.DRAWS))
    return any(n.op in leaves and batch in symbols_in(n) for n in toposort([node]))


def symbols_in(node: Node) -> frozenset[str]:
    """The symbolic dimensions of a node's shape, or of the extent that a `size` node returns."""
    return symbols_of([b.attrs_of(node, at.SizeAttrs).extent] if node.op == "size" else node.type.shape)


def rewritten(root: Node, rule: Callable[[Node], Node], replacements: Mapping[Node, Node] | None = None) -> Node:
    """The expression of a node with a rule applied to each of its nodes; some nodes have `replacements`."""
    new: dict[Node, Node] = dict(replacements or {})
    for node in toposort([root]):
        if node not in new:
            new[node] = rule(node.with_inputs([new[i] for i in node.inputs]))
    return new[root]


def what_mixes_rows(graph: ir.IRGraph) -> str:
    """The reason why a graph without updates needs all rows at once; "" if it can be computed row by row."""
    inlined = strip_stop_gradients(inline_calls(graph))
    leading = {t.type.shape[:1] for t in (*inlined.inputs, *(o.node for o in inlined.outputs))}
    batch = str(next(iter(leading))[0]) if len(leading) == 1 and () not in leading else ""
    if batch not in graph.symbols:
        return "not every input and output has one row for each example"
    placements = placements_of([o.node for o in inlined.outputs], MeshAxis.of_batch(batch))
    for output in inlined.outputs:
        if reason := _reason(output.node, placements[output.node]):
            return reason
    return ""


def _reason(output: Node, placement: Placement) -> str:
    row_wise = isinstance(placement, Sharded) and placement.axis == 0 and placement.outer == 1
    if row_wise or isinstance(placement, Replicated):
        return ""
    blame, reason = output, "is a sum over the batch"
    if isinstance(placement, Mixed):
        blame, reason = placement.blame, placement.reason
    where = f" (made at {blame.line})" if blame.line is not None else ""
    return f"{blame.op}{where} {reason}"
