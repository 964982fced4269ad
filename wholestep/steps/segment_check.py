"""Refuses models that mix the sequences of a packed row.

The placement analysis of data parallelism is applied to the time axis of a row: every tensor must be sharded along it,
that is, element i depends on element i of the inputs only.  Layers that respect the boundaries between sequences list
their results in `PackedSegments.respected`, and these are assumed to be sharded; any other operation along the axis
raises an error that names the operation and the fix.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from wholestep.compiler.frontend.graph import Graph, record_into
from wholestep.compiler.frontend.layers.segments import OFFSETS, PackedSegments
from wholestep.compiler.frontend.step import Spec
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.passes.distribute.placement.placements import (
    MeshAxis,
    Mixed,
    Placement,
    Replicated,
    Sharded,
)
from wholestep.compiler.passes.distribute.placement.rules import placements_of
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.errors import UsageError, WholestepError

TIME = "row_time"
POOL = 'Reduce each sequence by itself: ws.nn.SequencePool("mean"), "sum", "max", "first" or "last".'
PLACES = "Count from the first element of each sequence: ws.positions(x) in place of ws.arange(time)."
FIXES = {
    "sum": POOL,
    "max": POOL,
    "slice": POOL,
    "gather": POOL,
    "matmul": POOL,
    "expand": POOL,
    "scan": 'The state after a row is that of its last sequence: read outputs with ws.nn.SequencePool("last").',
    "conv2d": 'ws.nn.Conv1d with stride 1 and padding "causal" or "same" respects sequences.',
    "batch_norm": "Its statistics are over sequences and padding: take LayerNorm, RMSNorm.",
    "iota": PLACES,
    "add": PLACES,
}
ELSEWHERE = "Give rows of one sequence each, padded or cut to one length."


def check_segments(
    model: str,
    specs: Mapping[str, Spec],
    record: Callable[[Graph, Mapping[str, Spec]], tuple[PackedSegments, list[Tensor]]],
) -> None:
    """Raise UsageError if an output depends on several sequences of a row.

    The model is recorded again with a symbolic time axis, so that the analysis can tell it from other axes.
    """
    symbolic = {name: spec if name == OFFSETS else _with_time(spec) for name, spec in specs.items()}
    with record_into(Graph()) as graph:
        try:
            segments, outputs = record(graph, symbolic)
        except WholestepError as error:
            raise UsageError(
                f"sequences of different lengths are packed several to a row, and {model} cannot be proven to keep "
                f"them apart. {ELSEWHERE} Recorded for rows of any length, it raises: {error}"
            ) from None
        whole = ir.IRGraph(
            tuple(ir.Output(str(i), t.node) for i, t in enumerate([*outputs, *_results(graph, segments)])),
            (),
            tuple(t.node for t in graph.inputs.values()),
        )
    inlined = strip_stop_gradients(inline_calls(whole))
    nodes = [o.node for o in inlined.outputs]
    axes = list(segments.respected.values())
    respecting = {node: _placement(axis) for node, axis in zip(nodes[len(outputs) :], axes, strict=True)}
    placements = placements_of(nodes[: len(outputs)], MeshAxis.of_batch(TIME), respecting)
    for node in nodes[: len(outputs)]:
        if not isinstance(placements[node], Sharded | Replicated):
            _refuse(model, node, placements[node])


def _results(graph: Graph, segments: PackedSegments) -> list[Tensor]:
    return [Tensor(node, graph) for node in segments.respected]


def _placement(axis: int | None) -> Placement:
    return Replicated() if axis is None else Sharded(axis)


def _with_time(spec: Spec) -> Spec:
    """The spec of an input with its second axis made symbolic."""
    shape: Any = spec.shape
    return Spec((shape[0], TIME, *shape[2:]), spec.dtype)


def _refuse(model: str, output: Node, placement: Placement) -> NoReturn:
    blame = placement.blame if isinstance(placement, Mixed) else _sum_below(output)
    where = "" if blame.line is None else f" (made at {blame.line})"
    raise UsageError(
        f"{model} mixes the sequences of a packed row: `{blame.op}`{where} relates positions along the row, which "
        f"holds several sequences. {FIXES.get(blame.op, '')} {ELSEWHERE}".replace("  ", " ")
    )


def _sum_below(node: Node) -> Node:
    """The sum that a node is computed from, found by following first operands."""
    while node.op != "sum" and node.inputs:
        node = node.inputs[0]
    return node
