"""Writes `scan` as ONNX's Scan operator."""

from __future__ import annotations

from collections.abc import Callable

from onnx import ValueInfoProto, helper

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.types import Dim, TensorType
from wholestep.interop.onnx.write.emitter import OnnxEmitter, kind_of
from wholestep.interop.onnx.write.values import value

Write = Callable[[OnnxEmitter, ir.IRGraph], None]


def tensor_info(name: str, type: TensorType) -> ValueInfoProto:
    """A value's name, dtype and shape as a ValueInfoProto."""
    shape = [str(e) if isinstance(e, Dim) else int(e) for e in type.shape]
    return helper.make_tensor_value_info(name, kind_of(type.dtype), shape)


def scan(e: OnnxEmitter, node: ir.Node, trails: set[int], write: Write) -> None:
    """Write a loop: last carries, then stacked outputs; the body also outputs `trails`, carries read at every step."""
    a = attrs_of(node, at.ScanAttrs)
    operands = [value(e, i) for i in node.inputs]
    inner = OnnxEmitter(e.opset, e)
    parameters = a.graph.inputs
    moving = parameters[: a.carries + a.sequences]
    for i, p in enumerate(moving):
        inner.names[p] = e.fresh(f"{'carry' if i < a.carries else 'slice'}{i}")
    for p, outside in zip(parameters[len(moving) :], operands[len(moving) :]):
        inner.names[p] = outside
    write(inner, a.graph)
    results = [o.node for o in a.graph.outputs]
    chosen = [*range(len(results)), *sorted(trails)]
    # a result may be an input of the loop, or occur twice
    names = [inner.add("Identity", [value(inner, results[i])]) for i in chosen]
    body = helper.make_graph(
        inner.nodes,
        e.fresh("body"),
        [tensor_info(inner.names[p], p.type) for p in moving],
        [tensor_info(name, results[i].type) for name, i in zip(names, chosen)],
    )
    way = int(a.reverse)
    outputs = len(chosen) - a.carries
    results_of_scan = e.add_many(
        "Scan",
        operands[: len(moving)],
        {
            "body": body,
            "num_scan_inputs": a.sequences,
            "scan_input_directions": [way] * a.sequences,
            "scan_output_directions": [way] * outputs,
        },
        outputs=len(chosen),
    )
    e.results[node] = results_of_scan[: len(results)]
    for i, stacked in zip(sorted(trails), results_of_scan[len(results) :]):
        first = e.add("Unsqueeze", [operands[i], e.constant([0])])
        parts = [stacked, first] if a.reverse else [first, stacked]
        e.names[node.inputs[i]] = operands[i]
        e.results.setdefault(node, [])
        e.results[node][i] = e.add("Concat", parts, {"axis": 0})


def is_last(node: ir.Node, trail: ir.Node) -> bool:
    """Is a node the slice that reads the last value of a carry?"""
    scan_node = trail.inputs[0]
    a = attrs_of(scan_node, at.ScanAttrs)
    if node.op != "slice":
        return False
    cut, end = attrs_of(node, at.SliceAttrs), 0 if a.reverse else a.length
    whole = all(lo == 0 and hi == n for lo, hi, n in zip(cut.starts[1:], cut.stops[1:], trail.type.shape[1:]))
    return cut.starts[0] == end and cut.stops[0] == end + 1 and whole
