"""Is every row of the outputs made of the same row of the inputs?  Then many rows may be taken part by part."""

from __future__ import annotations

from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.distribute.batch_placement.placements import (
    BatchPlacement,
    BatchSharded,
    Mixed,
    Replicated,
)
from wholestep.compiler.passes.distribute.batch_placement.rules import placements_of
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients


def what_mixes_rows(graph: ir.IRGraph) -> str:
    """Why a graph without updates must see all rows at once; "" where it need not."""
    written_out = strip_stop_gradients(inline_calls(graph))
    leading = {t.type.shape[:1] for t in (*written_out.inputs, *(o.node for o in written_out.outputs))}
    batch = str(next(iter(leading))[0]) if len(leading) == 1 and () not in leading else ""
    if batch not in graph.symbols:
        return "not every input and output has one row for each example"
    kinds = placements_of([o.node for o in written_out.outputs], batch)
    for output in written_out.outputs:
        if reason := _reason(output.node, kinds[output.node]):
            return reason
    return ""


def _reason(output: Node, kind: BatchPlacement) -> str:
    if isinstance(kind, Replicated) or (isinstance(kind, BatchSharded) and kind.axis == 0 and kind.before in (1, None)):
        return ""
    blame, reason = (kind.blame, kind.reason) if isinstance(kind, Mixed) else (output, "is a sum over the batch")
    where = f" (made at {blame.line})" if blame.line is not None else ""
    return f"{blame.op}{where} {reason}"
