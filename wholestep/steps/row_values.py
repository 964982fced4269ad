"""Values of every row of a step: its loss, and the norm of its contribution to the gradients (`per_row=`)."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.types import Dim
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.per_row.contributions import gradient_square_norms
from wholestep.compiler.passes.per_row.losses import row_losses
from wholestep.compiler.passes.simplify.inline import inline_calls
from wholestep.steps.capacity import batch_symbol
from wholestep.steps.options import ROW_LOSS, ROW_NORM


def with_row_values(
    step: Graph, graph: ir.IRGraph, loss: Tensor, gradients: Sequence[Tensor], wanted: Sequence[str]
) -> ir.IRGraph:
    """The step with an output of shape (batch,) for each wanted value.

    The norm of a row is that of its contribution to the gradients times the number of rows: for a mean over rows, the
    norm of the gradient of the row's own loss.
    """
    batch = batch_symbol(step, "per_row")
    extra = tuple(ir.Output(f"gradient {i}", g.node) for i, g in enumerate(gradients))
    whole = ir.IRGraph((*graph.outputs, ir.Output("loss", loss.node), *extra), graph.updates, graph.inputs)
    expanded = expand_gradients(inline_calls(whole))
    own, (expanded_loss, *expanded_gradients) = _split(expanded, len(graph.outputs))
    values = {}
    if "loss" in wanted:
        values[ROW_LOSS] = row_losses(expanded_loss, batch)
    if "gradient_norm" in wanted:
        squares = gradient_square_norms(expanded_gradients, batch)
        count = b.count(Dim.symbol(batch), squares.type.dtype)
        values[ROW_NORM] = b.mul(b.unary("sqrt", squares), b.expand_to(count, squares.type.shape, ()))
    outputs = tuple(ir.Output(name, node) for name, node in values.items())
    return ir.IRGraph((*own, *outputs), expanded.updates, expanded.inputs)


def _split(graph: ir.IRGraph, count: int) -> tuple[tuple[ir.Output, ...], list[ir.Node]]:
    return graph.outputs[:count], [output.node for output in graph.outputs[count:]]
