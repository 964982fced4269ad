"""Steps whose layers ranks divide, interpreted on ranks side by side in float64 against the step of one process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import Result, interpret, interpret_on_ranks
from wholestep.compiler.ir.state_partition import StatePartition
from wholestep.compiler.ir.type_rules.collectives import MODEL_RANK, OWN, RANK, ROWS, RULES
from wholestep.compiler.ir.verify import verify
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.distribute.data_parallel import partition_batch
from wholestep.compiler.passes.distribute.shard_optimizer import shard_optimizer_states
from wholestep.compiler.passes.distribute.tensor_parallel import split
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.compiler.passes.simplify.dead_code import drop_dead_code
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.runtime.process_group import rows_of_rank
from wholestep.steps.definition import as_graph, define_step
from wholestep.steps.distributed import with_divided_states, with_split_states
from wholestep.steps.options import StepOptions

Array = np.ndarray[Any, Any]
BATCH = 6
Exchanged = Counter[tuple[str, str, tuple[object, ...]]]  # (collective, axis of the grid, shape) -> how many


@dataclass
class Steps:
    """A training step as it is, and that of each rank: entry point by entry point, which run one after the other."""

    whole: dict[str, IRGraph]
    part: dict[str, IRGraph]
    data: int
    model: int

    @property
    def exchanged(self) -> Exchanged:
        """What one rank exchanges with others in a step."""
        found: Exchanged = Counter()
        for graph in self.part.values():
            for node in (n for n in graph.nodes if n.op in RULES):
                found[node.op, attrs_of(node, at.GroupAttrs).axis, node.inputs[0].type.shape] += 1
        return found

    @property
    def divisions(self) -> dict[str, StatePartition]:
        """Of the states of which ranks have parts."""
        found = {}
        for graph in self.part.values():
            for name, node in graph.states().items():
                a = attrs_of(node, at.StateAttrs)
                if a.whole:
                    whole = tuple(int(e) for e in a.whole)
                    found[name] = StatePartition(whole, a.by_columns, a.parts, a.split)
        return found


def traced(
    make: Callable[[], ws.nn.Module],
    given: tuple[Array, Array],
    *,
    data: int = 1,
    model: int = 2,
    zero: bool = False,
    optimizer: Any = None,
    loss: Any = "cross_entropy",
    **options: Any,
) -> Steps:
    """The programs of a step, their gradients expanded."""
    specs = [ws.Spec(("batch", *a.shape[1:]), str(a.dtype)) for a in given]
    graph = as_graph(make(), specs[0], specs[1], loss)
    chosen = optimizer or ws.AdamW(lr=1e-2)
    made: list[dict[str, IRGraph]] = []
    for ranks in (0, data if data > 1 else 0):
        definition = define_step(graph, chosen, BATCH, None, StepOptions(**options), ranks)
        phases = definition.micro_batches("train").phases if definition.has_micro_batches else {}
        names = [f"train.{phase}" for phase in phases] or ["train"]
        made.append({name: definition.trace(name) for name in names})
    whole = {name: _expanded(g) for name, g in made[0].items()}
    part = {}
    for name, one in made[1].items():
        marked = with_split_states(one, graph.owners, model)
        marked = with_divided_states(marked, data) if zero else marked
        part[name] = drop_dead_code(
            share_common_nodes(shard_optimizer_states(split(partition_batch(_expanded(marked)))))
        )
        verify(part[name], set())
    return Steps(whole, part, data, model)


def _expanded(graph: IRGraph) -> IRGraph:
    return strip_stop_gradients(expand_gradients(inline_calls(graph)))


def check(steps: Steps, given: tuple[Array, Array], rtol: float = 1e-9) -> None:
    """Every output and every state, on every rank."""
    state = _states(steps.whole, np.random.default_rng(5))
    expected, state_of = dict(state), _parts(steps, state)
    for name, graph in steps.whole.items():
        own = steps.part[name]
        inputs = {n.attrs.name: a for n, a in zip(graph.inputs, given, strict=False)}  # type: ignore[attr-defined]
        sizes = {"batch": BATCH, "micro_batch.first": 0, ROWS: BATCH, "micro_batch.count": 1}
        known = {s: sizes[s] for s in graph.symbols}
        before = {n: expected[n] for n in graph.states()}
        result = interpret(graph, inputs=inputs, state=before, sizes=known, seed=4, step=6)
        found = _on_ranks(steps, own, inputs, sizes, state_of)
        for each in found:
            for output, value in each.outputs.items():
                np.testing.assert_allclose(value, result.outputs[output], rtol=rtol, atol=1e-12, err_msg=output)
        expected |= result.state
        for rank, each in enumerate(found):
            state_of[rank] |= each.state
    _compare(steps, expected, state_of, rtol)


def _states(graphs: Mapping[str, IRGraph], rng: np.random.Generator) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for graph in graphs.values():
        for name, node in graph.states().items():
            shape = tuple(int(e) for e in node.type.shape)
            kind = node.type.dtype
            found.setdefault(name, rng.uniform(0.2, 0.9, shape) if kind.is_float else np.zeros(shape, kind.numpy))
    return found


def _parts(steps: Steps, state: Mapping[str, Array]) -> list[dict[str, Array]]:
    """What each rank begins with."""
    divisions, shared = steps.divisions, _states(steps.part, np.random.default_rng(1))  # what ranks have shares of
    places = [divmod(rank, steps.model) for rank in range(steps.data * steps.model)]
    whole = {**{name: a for name, a in shared.items() if name not in divisions}, **state}
    zeros = {name: np.zeros(d.whole) for name, d in divisions.items() if name not in state}
    return [
        {n: divisions[n].part(a, d, m) if n in divisions else a for n, a in {**whole, **zeros}.items()}
        for d, m in places
    ]


def _on_ranks(
    steps: Steps, graph: IRGraph, inputs: Mapping[str, Array], sizes: Mapping[str, int], state: list[dict[str, Array]]
) -> list[Result]:
    ranks = []
    for rank, held in enumerate(state):
        d, m = divmod(rank, steps.model)
        first, count = rows_of_rank(BATCH, d, steps.data)
        known = {**sizes, "batch": count, OWN: first, MODEL_RANK: m, RANK: d}
        own = {name: a[first : first + count] for name, a in inputs.items()}
        mine = {name: held[name] for name in graph.states()}
        ranks.append({"inputs": own, "sizes": {s: known[s] for s in graph.symbols}, "state": mine})
    return interpret_on_ranks(graph, ranks, model=steps.model, seed=4, step=6)


def _compare(steps: Steps, expected: Mapping[str, Array], state: list[dict[str, Array]], rtol: float) -> None:
    divisions = steps.divisions
    for name, value in expected.items():
        if name.startswith("accumulate/"):
            continue  # means nothing between steps
        if name in divisions:
            held = {divmod(rank, steps.model): own[name] for rank, own in enumerate(state)}
            every = [divisions[name].join({(d, m): held[d, m] for d, m in held})]
        else:
            every = [own[name] for own in state]
        for found in every:
            np.testing.assert_allclose(found, value, rtol=rtol, atol=1e-12, err_msg=name)
