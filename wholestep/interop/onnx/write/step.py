"""A whole training step as an ONNX model: states and runtime scalars go in, what they become comes out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.lower.decompose import DECOMPOSITIONS, decompose
from wholestep.compiler.passes.lower.dynamic_update_slice import lower_dynamic_update_slices
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.compiler.passes.simplify.dead_code import drop_dead_code
from wholestep.compiler.passes.simplify.fold import fold
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.errors import UsageError
from wholestep.interop.onnx.write.graph import ALL_ROWS
from wholestep.interop.onnx.write.model import NEXT, Named, make_model
from wholestep.steps.definition import TRAIN

if TYPE_CHECKING:
    from wholestep.session.session import Session

# A dropout is drawn anew wherever it stands; its gradient needs the same numbers.
KEPT = frozenset(DECOMPOSITIONS.keys() & ALL_ROWS.keys()) - {"dropout"}


def step_model(session: Session, opset: int) -> ModelProto:
    """The step that a session runs: its outputs, and `next.<name>` of each state that it changes."""
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
    """A traced step without gradients, modes and what ONNX has no form for."""
    for one in (inline_calls, expand_gradients, strip_stop_gradients, lower_dynamic_update_slices):
        graph = one(graph)
    graph = decompose(graph, keep=KEPT)
    for one in (fold, share_common_nodes, drop_dead_code):
        graph = one(graph)
    return graph
