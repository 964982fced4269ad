"""Values of every row of a step: its loss, and the norm of its contribution to the gradients (`per_row=`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.type_rules.collectives import FIRST, ROWS
from wholestep.compiler.ir.types import Dim, float32, int64
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.per_row.contributions import Contributions, gradient_square_norms
from wholestep.compiler.passes.per_row.losses import row_losses
from wholestep.compiler.passes.simplify.inline import inline_calls
from wholestep.compiler.pipeline import BEFORE_GRADIENTS
from wholestep.errors import UsageError
from wholestep.steps.capacity import PREFIX, batch_symbol
from wholestep.steps.options import BUFFERS, ROW_LOSS, ROW_NORM, ROW_OUTPUTS, STORED, RowValues, StepOptions


def check_row_options(options: StepOptions, ranks: int) -> None:
    """Raise UsageError for micro-batches that are divided among ranks, of which none has the rows of a step."""
    if options.per_row.names and options.accumulate > 1 and ranks:
        raise UsageError(
            "per_row= with accumulate= needs all rows of a micro-batch in one process: leave out workers= and shards=, "
            "or accumulate=."
        )


def with_row_values(
    step: Graph, graph: ir.IRGraph, loss: Tensor, gradients: Mapping[str, Tensor], wanted: RowValues
) -> ir.IRGraph:
    """The step with an output of shape (batch,) for each wanted value, and buffers of an epoch's rows."""
    batch = batch_symbol(step, "per_row")
    own, values = _row_values(graph, loss, gradients, wanted.names, batch, Dim.symbol(batch))
    outputs = tuple(ir.Output(name, node) for name, node in values.items())
    updates = _stores(step, values, batch, wanted.capacity) if wanted.capacity else ()
    return ir.IRGraph((*own.outputs, *outputs), (*own.updates, *updates), own.inputs)


def with_row_values_of_part(
    step: Graph, part: ir.IRGraph, loss: Tensor, gradients: Mapping[str, Tensor], wanted: RowValues, rows: int
) -> ir.IRGraph:
    """A micro-batch that writes the values of its rows to the buffers of an epoch, or else of a step of `rows` rows."""
    batch = batch_symbol(step, "per_row")
    own, values = _row_values(part, loss, gradients, wanted.names, batch, Dim.symbol(ROWS))
    if wanted.capacity:
        return replace(own, updates=(*own.updates, *_stores(step, values, batch, wanted.capacity)))
    first = b.count(Dim.symbol(FIRST), int64)
    updates = []
    for name, node in values.items():
        buffer = step.state(PREFIX + name, (rows,), 0, node.type.dtype)
        updates.append(ir.Update(buffer.name, b.write_rows(buffer.node, node, first)))
    return replace(own, updates=(*own.updates, *updates))


def row_outputs(step: Graph, wanted: RowValues) -> list[ir.Output]:
    """The values of a step's rows as outputs of its update, from the buffers that its micro-batches have written."""
    states = {name: step.states.get(PREFIX + ROW_OUTPUTS[name]) for name in wanted.names}
    stored = {ROW_OUTPUTS[name]: state.node for name, state in states.items() if state is not None}
    return [ir.Output(name, b.slice_axes(node, (0,), (Dim.symbol(ROWS),))) for name, node in stored.items()]


def _row_values(
    graph: ir.IRGraph, loss: Tensor, gradients: Mapping[str, Tensor], names: Sequence[str], batch: str, rows: Dim
) -> tuple[ir.IRGraph, dict[str, ir.Node]]:
    """A graph without gradient nodes, and the values of its rows.

    The norm of a row is that of its contribution to the gradients times the number of rows of the step: for a mean over
    rows, the norm of the gradient of the row's own loss.
    """
    needs_gradients = "gradient_norm" in names
    extra = [ir.Output(f"gradient {name}", g.node) for name, g in gradients.items() if needs_gradients]
    whole = ir.IRGraph((*graph.outputs, ir.Output("loss", loss.node), *extra), graph.updates, graph.inputs)
    for forward_pass in BEFORE_GRADIENTS if needs_gradients else (inline_calls,):
        whole = forward_pass(whole)
    expanded = expand_gradients(whole) if needs_gradients else whole
    count = len(graph.outputs)
    expanded_loss, *expanded_gradients = (o.node for o in expanded.outputs[count:])
    values = {}
    if "loss" in names:
        values[ROW_LOSS] = row_losses(expanded_loss, Contributions(batch), batch)
    if needs_gradients:
        named = dict(zip(gradients, expanded_gradients, strict=True))
        contributions = Contributions(batch)
        squares = gradient_square_norms(named, contributions)
        expanded = contributions.share_sums(expanded)
        scale = b.expand_to(b.count(rows, squares.type.dtype), squares.type.shape, ())
        values[ROW_NORM] = b.mul(b.unary("sqrt", squares), scale)
    return ir.IRGraph(expanded.outputs[:count], expanded.updates, expanded.inputs), values


def _stores(step: Graph, values: Mapping[str, ir.Node], batch: str, capacity: int) -> list[ir.Update]:
    """Updates that append the rows of a step to the buffers of its epoch."""
    stored = step.state(STORED, (), 0, "int64")
    updates = [ir.Update(stored.name, b.add(stored.node, b.count(Dim.symbol(batch), stored.node.type.dtype)))]
    for name, node in values.items():
        buffer = step.state(BUFFERS + name, (capacity,), 0, "float32")
        updates.append(ir.Update(buffer.name, b.write_rows(buffer.node, b.cast(node, float32), stored.node)))
    return updates
