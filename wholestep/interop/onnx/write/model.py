"""A graph with its numbers as a ModelProto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

import wholestep
from wholestep.compiler.frontend.graph import is_by_columns
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.types import Dim
from wholestep.interop.onnx.read.module import BUFFERS, BY_COLUMNS, FROZEN
from wholestep.interop.onnx.write.emitter import OnnxEmitter
from wholestep.interop.onnx.write.functions import DOMAIN, function_protos
from wholestep.interop.onnx.write.graph import OnnxWriter
from wholestep.interop.onnx.write.loops import tensor_info
from wholestep.interop.onnx.write.values import value

Array = np.ndarray[Any, Any]
NEXT = "next."  # before the name of a state: what a step makes of it
FORMAT = 10  # of files; what runtimes that know opset 20 read


@dataclass(frozen=True)
class Named:
    """The numbers of states by name, and what becomes of states that a step changes."""

    numbers: Mapping[str, Array]
    updates: Mapping[str, ir.Node]
    buffers: Sequence[str] = ()  # states that are not trained
    frozen: Sequence[str] = ()  # parameters that are not, at present


def make_model(
    graph: ir.IRGraph, named: Named, opset: int, title: str, *, states_are_inputs: bool = False
) -> ModelProto:
    """What a graph gives, as an ONNX model; its states are initialisers, which may be inputs as well: a runtime takes
    the initialiser of what it is not given."""
    e = OnnxEmitter(opset)
    for node in graph.inputs:
        name = node.attrs.name  # type: ignore[attr-defined]
        e.reserve(name)
        e.names[node] = name
        for axis, extent in enumerate(node.type.shape):
            if isinstance(extent, Dim) and extent.terms == (((str(extent),), 1),):
                e.sources.setdefault(str(extent), (name, axis))
    held = {**graph.states(), **(graph.leaves("scalar") if states_are_inputs else {})}
    for name, node in held.items():
        e.reserve(name)
        e.names[node] = name
    for output in graph.outputs:
        e.reserve(output.name)
    OnnxWriter(named.updates).write(e, ir.IRGraph(graph.outputs, (), graph.inputs))
    outputs = []
    for output in graph.outputs:
        e.nodes.append(helper.make_node("Identity", [value(e, output.node)], [output.name], output.name))
        outputs.append(tensor_info(output.name, output.node.type))
    read = {i for n in e.nodes for i in n.input} | {i for n in e.nodes for i in _outer_references(n)}
    made = helper.make_graph(
        e.nodes,
        title,
        [
            tensor_info(e.names[node], node.type)
            for node in (*graph.inputs, *(held.values() if states_are_inputs else ()))
        ],
        outputs,
        [
            numpy_helper.from_array(np.array(a, order="C"), name)
            for name, a in named.numbers.items()
            if name in read or states_are_inputs
        ],
    )
    versions = [helper.make_opsetid("", opset)]
    if e.functions:
        versions.append(helper.make_opsetid(DOMAIN, 1))
    model = helper.make_model(
        made,
        opset_imports=versions,
        functions=function_protos(e.functions, opset),
        producer_name="wholestep",
        producer_version=wholestep.__version__,
        ir_version=FORMAT,
    )
    turned = [name for name, node in graph.states().items() if is_by_columns(node)]
    notes = {BY_COLUMNS: "\n".join(turned), BUFFERS: "\n".join(named.buffers), FROZEN: "\n".join(named.frozen)}
    helper.set_model_props(model, {name: text for name, text in notes.items() if text})
    return model


def _outer_references(node: Any) -> list[str]:
    """What the graphs inside a node read."""
    return [i for a in node.attribute if a.HasField("g") for n in a.g.node for i in (*n.input, *_outer_references(n))]
