"""Averaged weights: a program that averages stores the averages under the weights' names and trains `<name>.raw`.

Evaluation, predictions, files and all other readers of the model's parameters get the averages without special cases;
the weights that are being trained are states of the optimizer, as its moments are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from typing import Any

from wholestep.compiler.frontend.update_counters import AVERAGE, RAW
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node, rewrite
from wholestep.errors import UnknownNameError, UsageError

State = Any  # a session's weights and optimizer states by name


def with_averages_as_weights(graph: ir.IRGraph, weights: Collection[str]) -> ir.IRGraph:
    """The program with renamed states: a weight `w` becomes `w.raw`, and its average `w.ema` becomes `w`."""
    starts = {name: node.attrs.init for name, node in graph.states().items() if name in weights}  # type: ignore[attr-defined]
    names = {**{w: w + RAW for w in weights}, **{w + AVERAGE: w for w in weights}}

    def renamed(node: Node) -> Node:
        if not isinstance(node.attrs, at.StateAttrs) or node.attrs.name not in names:
            return node
        name = names[node.attrs.name]
        init = starts.get(name, node.attrs.init)  # the average starts as the initial weight
        return Node(node.op, (), replace(node.attrs, name=name, init=init), node.name, node.line)

    moved = rewrite(graph, renamed)
    updates = tuple(ir.Update(names.get(u.name, u.name), u.node) for u in moved.updates)
    return ir.IRGraph(moved.outputs, updates, moved.inputs)


def averaged(source: Any) -> dict[str, Any]:
    """The averaged weights by parameter name, of a model or session, or of a session's `state_dict()`.

    Example::

        for name, value in ws.optim.averaged(session).items():
            other.set(name, value)
    """
    if isinstance(source, Mapping):
        averages = {n: source[n] for n in source if n + RAW in source}
        averages |= {n.removesuffix(AVERAGE): source[n] for n in source if n.endswith(AVERAGE) and "/" not in n}
    else:
        averages = {name: state.get(state_name) for name, (state, state_name) in _averaged_states(source).items()}
    if not averages:
        raise _none()
    return averages


@contextmanager
def raw_weights(source: Any) -> Iterator[None]:
    """A context in which a model or session has the weights being trained instead of their averages.

    `evaluate`, `predict` and `save` then use these weights; steps, and a session's `state_dict`, are errors inside it.

    Example::

        with ws.optim.raw_weights(model):
            model.save("raw.safetensors")
    """
    shown = list(_averaged_states(source).values())
    if not shown:
        raise _none()
    if any(state.shows_raw for state, _ in shown):
        raise UsageError("the raw weights are shown already; leave the first `with ws.optim.raw_weights(...)`.")
    _swap(shown, raw=True)
    try:
        yield
    finally:
        _swap(shown, raw=False)


def _swap(shown: Sequence[tuple[State, str]], *, raw: bool) -> None:
    for state, name in shown:
        state.take_turn(None)
        state.shows_raw = raw
        average, trained = state.get(name), state.get(name + RAW)
        state.set(name, trained)
        state.set(name + RAW, average)


def _averaged_states(source: Any) -> dict[str, tuple[State, str]]:
    """The averaged weights of a model, graph or session: the state that contains each, and its name there."""
    state: State = source.state if hasattr(source, "state") else _state_of(source)
    states = {name: place for name in state.names for place in state.averages_of(name)}
    return {
        name: (other, state_name)
        for name, (other, state_name) in states.items()
        if other.updates_of(state_name + AVERAGE)
    }


def _state_of(model: Any) -> State:
    steps = import_module("wholestep.steps.states")  # imported here because it imports optimizers
    return steps.state_with_numbers(model) if hasattr(model, "named_arrays") else steps.state_of(model)


def _none() -> UnknownNameError:
    return UnknownNameError("there are no averaged weights; train with optimizer=ws.optim.EMA(ws.AdamW()).")
