"""Values of every row of a step: its loss, and the norm of its contribution to the gradients (`per_row=`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.types import Dim, float32
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.per_row.contributions import Contributions, gradient_square_norms
from wholestep.compiler.passes.per_row.losses import row_losses
from wholestep.compiler.passes.simplify.inline import inline_calls
from wholestep.compiler.pipeline import BEFORE_GRADIENTS
from wholestep.errors import UsageError
from wholestep.steps.capacity import batch_symbol
from wholestep.steps.options import BUFFERS, ROW_LOSS, ROW_NORM, STORED, RowValues, StepOptions


def check_row_options(options: StepOptions) -> None:
    """Raise UsageError for options that divide a batch, whose parts have no outputs of rows."""
    if options.per_row.names and (options.accumulate > 1 or options.memory is not None):
        raise UsageError(
            "per_row= needs every batch in one step: leave out accumulate= and memory=, or lower batch_size instead."
        )


def with_row_values(
    step: Graph, graph: ir.IRGraph, loss: Tensor, gradients: Sequence[Tensor], wanted: RowValues
) -> ir.IRGraph:
    """The step with an output of shape (batch,) for each wanted value, and buffers of an epoch's rows.

    The norm of a row is that of its contribution to the gradients times the number of rows: for a mean over rows, the
    norm of the gradient of the row's own loss.
    """
    batch = batch_symbol(step, "per_row")
    needs_gradients = "gradient_norm" in wanted.names
    extra = [ir.Output(f"gradient {i}", g.node) for i, g in enumerate(gradients) if needs_gradients]
    whole = ir.IRGraph((*graph.outputs, ir.Output("loss", loss.node), *extra), graph.updates, graph.inputs)
    for forward_pass in BEFORE_GRADIENTS if needs_gradients else (inline_calls,):
        whole = forward_pass(whole)
    expanded = expand_gradients(whole) if needs_gradients else whole
    own = expanded.outputs[: len(graph.outputs)]
    expanded_loss, *expanded_gradients = (o.node for o in expanded.outputs[len(graph.outputs) :])
    values = {}
    if "loss" in wanted.names:
        values[ROW_LOSS] = row_losses(expanded_loss, Contributions(batch), batch)
    if needs_gradients:
        squares = gradient_square_norms(expanded_gradients, Contributions(batch))
        count = b.count(Dim.symbol(batch), squares.type.dtype)
        values[ROW_NORM] = b.mul(b.unary("sqrt", squares), b.expand_to(count, squares.type.shape, ()))
    outputs = tuple(ir.Output(name, node) for name, node in values.items())
    updates = _stores(step, values, batch, wanted.capacity) if wanted.capacity else ()
    return ir.IRGraph((*own, *outputs), (*expanded.updates, *updates), expanded.inputs)


def _stores(step: Graph, values: Mapping[str, ir.Node], batch: str, capacity: int) -> list[ir.Update]:
    """Updates that append the rows of a step to the buffers of its epoch."""
    stored = step.state(STORED, (), 0, "int64")
    updates = [ir.Update(stored.name, b.add(stored.node, b.count(Dim.symbol(batch), stored.node.type.dtype)))]
    for name, node in values.items():
        buffer = step.state(BUFFERS + name, (capacity,), 0, "float32")
        updates.append(ir.Update(buffer.name, b.write_rows(buffer.node, b.cast(node, float32), stored.node)))
    return updates
