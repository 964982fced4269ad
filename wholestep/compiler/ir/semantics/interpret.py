"""Any graph, run in float64 NumPy: the oracle for everything below the IR.  What each op means is in values.py.

Float tensors are computed in float64 whatever their dtype, and half types rounded where they arise; integers, bools and
random bits are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import numpy as np

from wholestep.compiler.ir.graph import IRGraph, Node, body_of
from wholestep.compiler.ir.mesh import Grid
from wholestep.compiler.ir.semantics.values import (
    VALUES,
    Array,
    Ranks,
    StepValues,
    evaluate_graph,
    interpreter_dtype,
    round_to,
)
from wholestep.compiler.ir.type_rules.collectives import value_on
from wholestep.compiler.ir.types import Dim, Extent, evaluate, letter_of
from wholestep.errors import InputError, UnknownNameError

__all__ = ["VALUES", "Result", "infer_sizes", "interpret", "interpret_on_ranks"]


@dataclass(frozen=True)
class Result:
    """What a step returned, and every state at its end."""

    outputs: dict[str, Array]
    state: dict[str, Array]


def interpret(
    graph: IRGraph,
    *,
    inputs: Mapping[str, Array] | None = None,
    state: Mapping[str, Array] | None = None,
    scalars: Mapping[str, float] | None = None,
    sizes: Mapping[str, int] | None = None,
    seed: int = 0,
    step: int = 0,
    ranks: Ranks | None = None,
    observe: Callable[[Node, Array], Array] | None = None,
) -> Result:
    """Run one step of a graph whose gradients are expanded.

    `sizes` are the symbolic dimensions, inferred from the inputs' shapes unless given.  A runtime scalar that is not
    in `scalars` has its default; the one named "step" is `step`.  Every state in `state` comes back, updated or not.
    `observe` sees the value of every node, those of held graphs included, and may replace it.
    """
    given, held, chosen = dict(inputs or {}), dict(state or {}), dict(scalars or {})
    sizes = infer_sizes(graph, given) if sizes is None else dict(sizes)
    _check_names(graph, given, held, chosen)
    run = StepValues(
        {name: _accept(node, given[name], sizes) for name, node in graph.leaves("input").items()},
        {name: _accept(node, held[name], sizes) for name, node in graph.states().items()},
        {**chosen, "step": float(step)},
        sizes,
        seed,
        step,
        ranks,
        observe,
    )
    with np.errstate(all="ignore"):  # infinities and NaN are values like others
        values = evaluate_graph(graph, run)
    updated = {u.name: np.array(values[u.node]) for u in graph.updates}
    kept = {name: np.array(run.state.get(name, value)) for name, value in held.items()}
    return Result({o.name: np.array(values[o.node]) for o in graph.outputs}, {**kept, **updated})


class _InterpretedRank:
    """A rank among others that are interpreted beside it: each brings what it has, and all go on together."""

    def __init__(self, rank: int, grid: Grid, brought: list[Array], meeting: Barrier) -> None:
        self._rank, self._grid, self._brought, self._meeting = rank, grid, brought, meeting

    def exchange(self, kind: str, axis: str, given: Array) -> Array:
        """What this rank has after a collective along an axis."""
        self._brought[self._rank] = given
        self._meeting.wait()
        parts = [self._brought[rank] for rank in self._grid.beside(axis, self._rank)]
        found = np.array(value_on(self._grid.place(axis, self._rank), kind, parts))
        self._meeting.wait()
        return found


def interpret_on_ranks(
    graph: IRGraph, of_ranks: Sequence[Mapping[str, Any]], *, model: int = 1, **shared: Any
) -> list[Result]:
    """Run one step on several ranks, side by side: what `interpret` takes, of each of them and of all.

    `model` of them stand along the model axis of their grid.
    """
    grid, brought, meeting = Grid(len(of_ranks) // model, model), [np.zeros(0)] * len(of_ranks), Barrier(len(of_ranks))
    assert grid.size == len(of_ranks), f"{len(of_ranks)} ranks do not stand in rows of {model}"

    def run(rank: int) -> Result:
        try:
            return interpret(graph, **shared, **of_ranks[rank], ranks=_InterpretedRank(rank, grid, brought, meeting))
        except BaseException:
            meeting.abort()  # nobody waits for this one
            raise

    with ThreadPoolExecutor(len(of_ranks)) as threads:
        return list(threads.map(run, range(len(of_ranks))))


def infer_sizes(graph: IRGraph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The symbolic dimensions of a graph, read off the shapes of its inputs."""
    sizes: dict[str, int] = {}
    leaves = graph.leaves("input")
    pairs = [p for name, x in inputs.items() if name in leaves for p in _extents(leaves[name], np.shape(x))]
    for _ in range(len(graph.symbols)):
        for extent, length in pairs:
            sizes.update(_solve(extent, length, sizes))
    missing = [s for s in graph.symbols if s not in sizes]
    if missing:
        raise InputError(
            f"the inputs' shapes do not tell the size of {', '.join(missing)}; give it: sizes={{{missing[0]!r}: 8}}."
        )
    return sizes


def _extents(node: Node, shape: tuple[int, ...]) -> list[tuple[Extent, int]]:
    return list(zip(node.type.shape, shape, strict=False))


def _solve(extent: Extent, length: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """The one unknown symbol of `extent == length`, where it occurs linearly; nothing otherwise."""
    unknown = extent.symbols - sizes.keys() if isinstance(extent, Dim) else frozenset()
    if len(unknown) != 1:
        return {}
    (symbol,) = unknown
    at_0, at_1, at_2 = (evaluate(extent, {**sizes, symbol: n}) for n in (0, 1, 2))
    slope = at_1 - at_0
    if slope == 0 or at_2 - at_1 != slope or (length - at_0) % slope:
        return {}
    return {symbol: (length - at_0) // slope}


def _check_names(
    graph: IRGraph, inputs: Mapping[str, Any], state: Mapping[str, Any], scalars: Mapping[str, Any]
) -> None:
    wanted, states, known = graph.leaves("input"), graph.states(), set(_scalar_names(graph))
    for name in sorted(wanted.keys() ^ inputs.keys()):
        what = "is missing" if name in wanted else "is no input of this graph"
        raise UnknownNameError(
            f"the input {name!r} {what}; its inputs are {sorted(wanted)}, given were {sorted(inputs)}."
        )
    for name in sorted(states.keys() - state.keys()):
        raise UnknownNameError(
            f"the state {name!r} is missing; the graph reads {sorted(states)}, given were {sorted(state)}."
        )
    for name in sorted(scalars.keys() - known):
        raise UnknownNameError(f"{name!r} is no runtime scalar of this graph; it has {sorted(known)}.")


def _scalar_names(graph: IRGraph) -> Iterator[str]:
    """Runtime scalars, those of held graphs included."""
    yield from graph.leaves("scalar")
    for node in graph.nodes:
        inner = body_of(node)
        if inner is not None:
            yield from _scalar_names(inner)


def _accept(node: Node, given: Array, sizes: Mapping[str, int]) -> Array:
    """An array for a leaf, in the dtype it is computed in."""
    array, dtype = np.asarray(given), node.type.dtype
    name = node.attrs.name  # type: ignore[attr-defined]
    expected = tuple(evaluate(e, sizes) for e in node.type.shape)
    if array.shape != expected:
        raise InputError(f"{node.op} {name!r} is {node.type}, here of shape {expected}; received {array.shape}.")
    value = round_to(array, dtype) if dtype.is_half else array.astype(interpreter_dtype(dtype))
    if not dtype.is_float and not (letter_of(array.dtype) in "iub" and np.array_equal(value, array)):
        raise InputError(f"{node.op} {name!r} is {node.type}; received values of {array.dtype} that it cannot hold.")
    return value
