"""Interpreter: runs any graph in float64 NumPy, as the oracle for everything below the IR.  Ops are in values.py.

Float tensors are computed in float64 whatever their dtype; results of half-precision types are rounded after each op.
Integers, bools and random bits are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import numpy as np

from wholestep.compiler.ir.graph import IRGraph, Node, body_of, leaf_name
from wholestep.compiler.ir.mesh import Mesh
from wholestep.compiler.ir.semantics.values import (
    VALUES,
    Array,
    Ranks,
    StepValues,
    evaluate_graph,
    interpreter_dtype,
    round_to,
)
from wholestep.compiler.ir.type_rules.collectives import collective_result
from wholestep.compiler.ir.types import Dim, Extent, evaluate, letter_of
from wholestep.errors import InputError, UnknownNameError

__all__ = ["VALUES", "Result", "infer_sizes", "interpret", "interpret_on_ranks"]


@dataclass(frozen=True)
class Result:
    """The outputs of a step, and every state after it."""

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
    """Run one step of a graph whose gradient nodes have been expanded (passes/autodiff).

    `sizes` maps symbolic dimensions to integers and is inferred from the inputs' shapes by default.  A runtime scalar
    that is not in `scalars` has its default; the runtime scalar named "step" has the value `step`.  The result contains
    every state in `state`, updated or not.  `observe` is called with the value of every node, including nodes of nested
    graphs, and returns the value to use.
    """
    input_arrays, states, scalar_values = dict(inputs or {}), dict(state or {}), dict(scalars or {})
    sizes = infer_sizes(graph, input_arrays) if sizes is None else dict(sizes)
    _check_names(graph, input_arrays, states, scalar_values)
    run = StepValues(
        {name: _convert_leaf(node, input_arrays[name], sizes) for name, node in graph.leaves("input").items()},
        {name: _convert_leaf(node, states[name], sizes) for name, node in graph.states().items()},
        {**scalar_values, "step": float(step)},
        sizes,
        seed,
        step,
        ranks,
        observe,
    )
    with np.errstate(all="ignore"):  # infinities and NaN are ordinary values here
        values = evaluate_graph(graph, run)
    updated = {u.name: np.array(values[u.node]) for u in graph.updates}
    initial = {name: np.array(run.state.get(name, value)) for name, value in states.items()}
    return Result({o.name: np.array(values[o.node]) for o in graph.outputs}, {**initial, **updated})


class _InterpretedRank:
    """One of several ranks, each interpreted by its own thread.

    A collective has two barriers: all ranks have written their operands, and all ranks have read each other's operands.
    """

    def __init__(self, rank: int, mesh: Mesh, operands: list[Array], barrier: Barrier) -> None:
        self._rank, self._mesh, self._operands, self._barrier = rank, mesh, operands, barrier

    def exchange(self, kind: str, axis: str, operand: Array) -> Array:
        """The result of a collective along an axis on this rank."""
        self._operands[self._rank] = operand
        self._barrier.wait()
        parts = [self._operands[rank] for rank in self._mesh.group(axis, self._rank)]
        result = np.array(collective_result(self._mesh.coordinate(axis, self._rank), kind, parts))
        self._barrier.wait()
        return result


def interpret_on_ranks(
    graph: IRGraph, of_ranks: Sequence[Mapping[str, Any]], *, model: int = 1, **shared: Any
) -> list[Result]:
    """Run one step on several ranks, one thread each.

    `of_ranks` holds the arguments of `interpret` per rank, `shared` those that are equal for all; `model` is the length
    of the mesh's model axis.
    """
    mesh, operands, barrier = Mesh(len(of_ranks) // model, model), [np.zeros(0)] * len(of_ranks), Barrier(len(of_ranks))
    assert mesh.size == len(of_ranks), f"{len(of_ranks)} ranks are not divisible by a model axis of {model}"

    def run(rank: int) -> Result:
        try:
            return interpret(graph, **shared, **of_ranks[rank], ranks=_InterpretedRank(rank, mesh, operands, barrier))
        except BaseException:
            barrier.abort()  # the other ranks must not wait for a failed one
            raise

    with ThreadPoolExecutor(len(of_ranks)) as threads:
        return list(threads.map(run, range(len(of_ranks))))


def infer_sizes(graph: IRGraph, inputs: Mapping[str, Array]) -> dict[str, int]:
    """The sizes of a graph's symbolic dimensions, solved from the shapes of its inputs."""
    sizes: dict[str, int] = {}
    leaves = graph.leaves("input")
    pairs = [p for name, x in inputs.items() if name in leaves for p in _extents(leaves[name], np.shape(x))]
    for _ in range(len(graph.symbols)):
        for extent, length in pairs:
            sizes.update(_solve(extent, length, sizes))
    missing = [s for s in graph.symbols if s not in sizes]
    if missing:
        raise InputError(
            f"the inputs' shapes do not determine the size of {', '.join(missing)}; pass it: "
            f"sizes={{{missing[0]!r}: 8}}."
        )
    return sizes


def _extents(node: Node, shape: tuple[int, ...]) -> list[tuple[Extent, int]]:
    return list(zip(node.type.shape, shape, strict=False))


def _solve(extent: Extent, length: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Solve `extent == length` for its only unknown symbol if that occurs linearly; otherwise {}."""
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
    expected, states, scalar_names = graph.leaves("input"), graph.states(), set(_scalar_names(graph))
    for name in sorted(expected.keys() ^ inputs.keys()):
        what = "is missing" if name in expected else "is not an input of this graph"
        raise UnknownNameError(f"the input {name!r} {what}; expected {sorted(expected)}, received {sorted(inputs)}.")
    for name in sorted(states.keys() - state.keys()):
        raise UnknownNameError(
            f"the state {name!r} is missing; the graph reads {sorted(states)}, received {sorted(state)}."
        )
    for name in sorted(scalars.keys() - scalar_names):
        raise UnknownNameError(f"{name!r} is not a runtime scalar of this graph; it has {sorted(scalar_names)}.")


def _scalar_names(graph: IRGraph) -> Iterator[str]:
    """The names of all runtime scalars, including the scalars of nested graphs."""
    yield from graph.leaves("scalar")
    for node in graph.nodes:
        inner = body_of(node)
        if inner is not None:
            yield from _scalar_names(inner)


def _convert_leaf(node: Node, leaf_value: Array, sizes: Mapping[str, int]) -> Array:
    """Check an array that is passed for a leaf, and convert it to the interpreter's dtype."""
    array, dtype = np.asarray(leaf_value), node.type.dtype
    name = leaf_name(node)
    expected = tuple(evaluate(e, sizes) for e in node.type.shape)
    if array.shape != expected:
        raise InputError(
            f"{node.op} {name!r} is {node.type}, of shape {expected} at these sizes; received {array.shape}."
        )
    value = round_to(array, dtype) if dtype.is_half else array.astype(interpreter_dtype(dtype))
    if not dtype.is_float and not (letter_of(array.dtype) in "iub" and np.array_equal(value, array)):
        raise InputError(
            f"{node.op} {name!r} is {node.type}; received values of {array.dtype} that it cannot represent."
        )
    return value
