"""`ws.compute_gradients`: the gradients of a loss of arrays, for manual training loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import record_into
from wholestep.compiler.frontend.step import Spec
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import UsageError
from wholestep.losses.arrays import LossProgram, LossValue
from wholestep.nn.module.module import Module
from wholestep.nn.module.predictions import Outputs
from wholestep.nn.module.trace import trace_of
from wholestep.session.running.prediction import as_one, read_inputs, room, sizes_of
from wholestep.steps.module import forward_graph
from wholestep.steps.states import state_with_numbers, structure

if TYPE_CHECKING:
    from wholestep.session.session import Session


Array = np.ndarray[Any, Any]
OF_THE_LOSS, GRADIENT = "loss.", "gradient."  # prefixes of the names of inputs and outputs


def compute_gradients(loss: LossValue, model: Module) -> dict[str, Array]:
    """The gradients of a loss of arrays for the parameters of a model, by name: what `optimizer.step` takes.

    For manual training loops.  The forward pass is computed again; a step function (`@ws.step`) computes it once, and
    everything in one call.

    Args:
        loss: a loss of `ws.losses`, of what `model(arrays)` gave.
        model: that model.

    Example::

        outputs = model(inputs)
        loss = ws.losses.cross_entropy(outputs, targets)
        optimizer.step(model.parameters(), ws.compute_gradients(loss, model))
    """
    if not isinstance(loss, LossValue) or not isinstance(loss.prediction, Outputs):
        fail(
            UsageError,
            "compute_gradients takes a loss of ws.losses of a model's outputs: loss = ws.losses.mse_loss(model(x), y); "
            f"received {loss!r}. Inside a step of your own: ws.gradients(loss, params).",
        )
    if loss.prediction.model is not model:
        fail(UsageError, "the loss is of another model's outputs: give compute_gradients the model that was called.")
    arrays, symbols, specs = read_inputs(model, loss.prediction.inputs, loss.prediction.named)
    others = {f"{OF_THE_LOSS}{name}": a for name, a in loss.arrays.items() if name != "prediction"}
    capacity = {symbol: room(count) for count, symbol in symbols.items()}
    key = loss.program, tuple(specs.items()), tuple(capacity.items()), structure(model)
    sessions: dict[object, Any] = model.__dict__.setdefault("_gradients", {})
    if key not in sessions:
        sessions[key] = _session(model, specs, loss.program, capacity)
    outputs = sessions[key].step({**arrays, **others}).outputs
    return {name.removeprefix(GRADIENT): a for name, a in outputs.items() if name.startswith(GRADIENT)}


def _session(model: Module, specs: dict[str, Spec], loss: LossProgram, capacity: dict[str, int]) -> Any:
    from wholestep.session.building.build import build_inference_session

    state_with_numbers(model)
    graph, prediction = forward_graph(model, as_one(specs))
    if any(node.op in ("dropout", "by_mode") for node in graph.to_ir().nodes):
        fail(
            UsageError,
            f"this {type(model).__name__} uses dropout or batch statistics in training, and on arrays it "
            "computes what it computes in evaluation. Train it with ws.fit, session.step or a step of your own "
            "(@ws.step): they distinguish both.",
        )
    with record_into(graph):
        value = loss.record(prediction, graph, OF_THE_LOSS)
        slopes = gradients(value, model.traced(graph))
        graph.set_outputs({"loss": value, **{f"{GRADIENT}{name}": g for name, g in slopes.items()}})
    return build_inference_session(graph, capacity=sizes_of(graph, capacity))


def activations(model: Module, inputs: Sequence[object], named: Mapping[str, object]) -> dict[str, AnyArray]:
    """The output of every module that returns one tensor, by its path, in order of execution."""
    arrays, symbols, specs = read_inputs(model, inputs, named)
    capacity = {symbol: room(count) for count, symbol in symbols.items()}
    key = tuple(specs.items()), tuple(capacity.items()), structure(model)
    sessions: dict[object, tuple[Session, dict[str, str]]] = model.__dict__.setdefault("_activations", {})
    if key not in sessions:
        from wholestep.session.building.build import build_inference_session

        state_with_numbers(model)
        graph, _ = forward_graph(model, as_one(specs))
        seen = trace_of(graph).outputs
        with record_into(graph):
            graph.set_outputs({f"layer{i}": tensor for i, tensor in enumerate(seen.values())})
        session = build_inference_session(graph, capacity=sizes_of(graph, capacity))
        sessions[key] = session, {path: f"layer{i}" for i, path in enumerate(seen)}
    session, names = sessions[key]
    outputs = session.step(arrays).outputs
    return {path: outputs[name] for path, name in names.items() if path}
