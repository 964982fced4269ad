"""`model.activations`: what each layer gives for some arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from wholestep.compiler.frontend.graph import record_into
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.nn.module.module import Module
from wholestep.nn.module.trace import trace_of
from wholestep.session.running.prediction import as_one, read_inputs, room, sizes_of
from wholestep.steps.module import forward_graph
from wholestep.steps.states import state_with_numbers, structure

if TYPE_CHECKING:
    from wholestep.session.session import Session


def activations(model: Module, inputs: Sequence[object], named: Mapping[str, object]) -> dict[str, AnyArray]:
    """The output of every module that gives one tensor, by its path, in the order in which they run."""
    arrays, symbols, specs = read_inputs(model, inputs, named)
    capacity = {symbol: room(count) for count, symbol in symbols.items()}
    key = tuple(specs.items()), tuple(capacity.items()), structure(model)
    kept: dict[object, tuple[Session, dict[str, str]]] = model.__dict__.setdefault("_activations", {})
    if key not in kept:
        from wholestep.session.building.build import build_inference_session

        state_with_numbers(model)
        graph, _ = forward_graph(model, as_one(specs))
        seen = trace_of(graph).outputs
        with record_into(graph):
            graph.set_outputs({f"layer{i}": tensor for i, tensor in enumerate(seen.values())})
        made = build_inference_session(graph, capacity=sizes_of(graph, capacity))
        kept[key] = made, {path: f"layer{i}" for i, path in enumerate(seen)}
    session, names = kept[key]
    outputs = session.step(arrays).outputs
    return {path: outputs[name] for path, name in names.items() if path}
