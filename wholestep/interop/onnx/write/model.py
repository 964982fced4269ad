"""Converts a graph with its arrays, or the training step of a session, to a ModelProto."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

import wholestep
from wholestep.compiler.frontend.graph import is_by_columns
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.types import Dim
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.lower.decompose import DECOMPOSITIONS, decompose
from wholestep.compiler.passes.lower.dynamic_update_slice import lower_dynamic_update_slices
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.compiler.passes.simplify.dead_code import drop_dead_code
from wholestep.compiler.passes.simplify.fold import fold
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.errors import UsageError
from wholestep.interop.onnx.read.module import BUFFERS, BY_COLUMNS, FROZEN
from wholestep.interop.onnx.write.emitter import OnnxEmitter
from wholestep.interop.onnx.write.functions import DOMAIN, function_protos
from wholestep.interop.onnx.write.graph import ALL_ROWS, OnnxWriter
from wholestep.interop.onnx.write.loops import tensor_info
from wholestep.interop.onnx.write.values import value
from wholestep.steps.definition import TRAIN

if TYPE_CHECKING:
    from wholestep.session.session import Session

Array = np.ndarray[Any, Any]
NEXT = "next."  # prefix of the output that is a state's next value
FORMAT = 10  # the version of the file format that runtimes with opset 20 support


@dataclass(frozen=True)
class Named:
    """The values of states by name, and how a step uses them."""

    numbers: Mapping[str, Array]
    updates: Mapping[str, ir.Node]
    buffers: Sequence[str] = ()  # names of states that are not trained
    frozen: Sequence[str] = ()  # parameters that are frozen


def make_model(
    graph: ir.IRGraph, named: Named, opset: int, title: str, *, states_are_inputs: bool = False
) -> ModelProto:
    """A graph as an ONNX model; its states are initializers, defaults of its inputs if they are inputs."""
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
    OnnxWriter(named.updates, states=named.numbers).write(e, ir.IRGraph(graph.outputs, (), graph.inputs))
    outputs = []
    for output in graph.outputs:
        e.nodes.append(helper.make_node("Identity", [value(e, output.node)], [output.name], output.name))
        outputs.append(tensor_info(output.name, output.node.type))
    read = {i for n in e.nodes for i in n.input} | {i for n in e.nodes for i in _outer_references(n)}
    graph_proto = helper.make_graph(
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
        graph_proto,
        opset_imports=versions,
        functions=function_protos(e.functions, opset),
        producer_name="wholestep",
        producer_version=wholestep.__version__,
        ir_version=FORMAT,
    )
    transposed = [name for name, node in graph.states().items() if is_by_columns(node)]
    notes = {BY_COLUMNS: "\n".join(transposed), BUFFERS: "\n".join(named.buffers), FROZEN: "\n".join(named.frozen)}
    helper.set_model_props(model, {name: text for name, text in notes.items() if text})
    return model


def _outer_references(node: Any) -> list[str]:
    """The outer values that the subgraphs of a node read."""
    return [i for a in node.attribute if a.HasField("g") for n in a.g.node for i in (*n.input, *_outer_references(n))]


# -- a training step: states and runtime scalars are inputs, what they become are outputs ------------------------------

# Each ONNX Dropout draws its own mask, but the gradient needs the same mask as the forward pass.
KEPT = frozenset(DECOMPOSITIONS.keys() & ALL_ROWS.keys()) - {"dropout"}


def step_model(session: Session, opset: int) -> ModelProto:
    """The training step of a session: its outputs, and `next.<name>` for each state that it changes."""
    definition = session._programs.need("the step for ONNX").definition
    if definition.has_micro_batches or (definition.optimizer is None and definition.main != TRAIN):
        raise UsageError(
            "export_onnx takes a session that trains on one batch a step; this one "
            f"{'accumulates over several' if definition.has_micro_batches else 'trains nothing'}. Export its model, or "
            "build it without accumulate=."
        )
    graph = lower_for_onnx(definition.trace(TRAIN))
    numbers: dict[str, Any] = {name: session.state.get(name) for name in graph.states()}
    scalars = graph.leaves("scalar")
    counted = {"step": float(session.state.step), "epoch": float(session.state.epoch)}
    counted |= session._programs.starts()
    for name, node in scalars.items():
        value = session.scalars[name] if name in session.scalars else attrs_of(node, at.ScalarAttrs).default
        numbers[name] = np.asarray(counted.get(name, value), np.float64)
    changed = [ir.Output(f"{NEXT}{u.name}", u.node) for u in graph.updates]
    if "step" in scalars:
        changed.append(ir.Output(f"{NEXT}step", b.shift(scalars["step"], 1)))
    whole = ir.IRGraph((*graph.outputs, *changed), (), graph.inputs)
    return make_model(whole, Named(numbers, {}), opset, "step", states_are_inputs=True)


def lower_for_onnx(graph: ir.IRGraph) -> ir.IRGraph:
    """A recorded graph without gradients, modes and ops that ONNX cannot express."""
    for one in (inline_calls, expand_gradients, strip_stop_gradients, lower_dynamic_update_slices):
        graph = one(graph)
    graph = decompose(graph, keep=KEPT)
    for one in (fold, share_common_nodes, drop_dead_code):
        graph = one(graph)
    return graph
