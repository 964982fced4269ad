"""Expected values of a step, in float64 NumPy: every output in full, and large states on a grid of positions.

An update of a large state is a chain of pointwise ops after a product, and a few thousand of its elements suffice.  So
a check costs about as much as the forward and backward pass of a few rows, for any optimizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wholestep.compiler.ir.graph import IRGraph, Node, body_of
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.ir.semantics.interpret import Result
from wholestep.compiler.ir.semantics.values import StepValues, round_to, value_of
from wholestep.compiler.ir.types import TupleType, evaluate
from wholestep.compiler.runtime.threads import default_threads
from wholestep.session.verify.pieces import Pieces
from wholestep.session.verify.state_samples import InterpretedStates, Large, grid, is_large, positions

Array = np.ndarray[Any, Any]
Settle = Callable[[Node, Any], Any]

STATES = ops_with(Trait.STATE)
# ops whose large states stay in float32, since converting them costs more than a product
VIEWS = STATES | {"permute", "reshape"}


@dataclass(frozen=True)
class Demand:
    """The nodes that are computed in full, and the nodes that are computed on a grid."""

    whole: frozenset[Node]
    picked: frozenset[Node]


def demand_of(graph: IRGraph, sizes: Mapping[str, int]) -> Demand:
    """The demand of a graph: grids of large updates, and of their operands as far as positions can be followed."""
    whole, picked = {o.node for o in graph.outputs}, set[Node]()
    for update in graph.updates:
        large = is_large(tuple(evaluate(e, sizes) for e in update.node.type.shape))
        (picked if large else whole).add(update.node)
    for node in reversed(graph.nodes):
        if node in whole:
            whole.update(node.inputs)
        elif node in picked and (_is_pointwise(node) or node.op == "permute"):
            picked.update(node.inputs)
        elif node in picked and node.op not in STATES:
            whole.update(node.inputs)
            if not (_is_product(node) or _adds_rows(node)):
                whole.add(node)
    return Demand(frozenset(whole), frozenset(picked))


def _is_pointwise(node: Node) -> bool:
    return OPS[node.op].family is Family.POINTWISE and all(i.type.shape == node.type.shape for i in node.inputs)


def _is_product(node: Node) -> bool:
    return node.op == "matmul" and node.type.rank == 2 and all(i.type.rank == 2 for i in node.inputs)


def _adds_rows(node: Node) -> bool:
    """Is the node the gradient of an embedding table?"""
    return node.op == "scatter_add" and node.attrs.axis == 0  # type: ignore[attr-defined]


def _read(value: Any) -> Any:
    return value.read() if isinstance(value, Large) else value


@dataclass(frozen=True)
class ExpectedValues:
    """The values of a graph's nodes in one step."""

    values: Mapping[Node, Any]
    picks: Mapping[Node, Array]

    def result(self, graph: IRGraph, before: Mapping[str, Array]) -> Result:
        """Outputs and states; large states on their grids.  A state without an update keeps its value."""
        after = {u.name: self.picks[u.node] if u.node in self.picks else self.values[u.node] for u in graph.updates}
        return Result({o.name: _read(self.values[o.node]) for o in graph.outputs}, {**before, **after})


def evaluation(
    graph: IRGraph,
    demand: Demand,
    run: StepValues,
    before: Mapping[str, Array],
    settle: Settle | None = None,
    later: frozenset[Node] = frozenset(),
    earlier: ExpectedValues | None = None,
) -> ExpectedValues:
    """Evaluate one step: `run.state` has whole arrays, `before` the compared parts.

    `settle` changes the value of a node.  `known` is an earlier evaluation that differs in the nodes of `later` alone;
    the first evaluation gets them too, and keeps what they read.  All other values are freed after their last use.
    """
    values: dict[Node, Any] = {}
    picks: dict[Node, Array] = {}
    ends = set(graph.roots) | {i for n in later for i in n.inputs}
    uses = Counter(i for n in graph.nodes for i in n.inputs)
    # infinities and NaN are ordinary values here
    with np.errstate(all="ignore"), Pieces(default_threads()) as pieces:
        for node in graph.nodes:
            if earlier is not None and node not in later:
                _keep(node, earlier, values, picks)
                continue
            if node in demand.whole:
                large = _large_state(node, run) if settle is None else None
                values[node] = large or _node_value(node, run, [values[i] for i in node.inputs], settle, pieces)
            if node in demand.picked:
                picks[node] = _pick_rows(node, run, before, values, picks, settle)
            uses.subtract(node.inputs)
            for done in (i for i in node.inputs if not uses[i] and i not in ends):
                values.pop(done, None)
                picks.pop(done, None)
    return ExpectedValues(values, picks)


def _node_value(node: Node, run: StepValues, operands: list[Any], settle: Settle | None, pieces: Pieces) -> Any:
    """The settled value of a node; a large one is computed piece by piece."""
    if pieces.is_large_product(node, operands):
        return _product(node, run, [_read(a) for a in operands], settle, pieces)
    operands = [_read(a) for a in operands] if node.is_elementwise else operands
    axis = None if any(isinstance(a, Large) for a in operands) else pieces.axis(node, operands)
    if axis is None:
        return _settle(node, _value(node, run, operands), settle)
    value = pieces.evaluate(node, axis, operands, lambda part: _settle(node, _value(node, run, list(part)), None))
    return value if settle is None else settle(node, value)


def _product(node: Node, run: StepValues, operands: list[Array], settle: Settle | None, pieces: Pieces) -> Any:
    """The settled value of a large product, in float32 if one of its operands is."""
    if any(a.dtype == np.float32 for a in operands):
        operands = [a.astype(np.float32, copy=False) for a in operands]
    a, b = operands
    value = pieces.product(node, a, lambda part: _settle(node, _value(node, run, [part, b]), None))
    return value if settle is None else settle(node, value)


def _value(node: Node, run: StepValues, operands: list[Any]) -> Any:
    """The value of a node as in the interpreter; products with a large matrix in float32, whose rounding is below the
    tolerance.
    """
    if node.op == "matmul" and any(a.dtype == np.float32 for a in operands):
        if _is_product(node) and sum(isinstance(a, Large) for a in operands) == 1:
            return _product_by_rows(node, *operands)
        operands = [_read(a).astype(np.float32, copy=False) for a in operands]
    if node.op == "gather" and isinstance(operands[0], Large) and node.attrs.axis == 0:  # type: ignore[attr-defined]
        return operands[0].take(np.clip(operands[1].astype(np.int64), 0, operands[0].shape[0] - 1))
    operands = [_read(a) for a in operands]
    if _is_half_copy(node) and operands[0].dtype == np.float32:
        return operands[0].astype(node.type.dtype.numpy).astype(np.float32)
    return value_of(node, run, operands)


def _product_by_rows(node: Node, a: Array | Large, b: Array | Large) -> Array:
    """A product with a large state, which is read some rows at a time; for a large a it computes (bᵀ @ aᵀ)ᵀ."""
    flips, swapped = [flip for _, flip in _operands(node)], isinstance(a, Large)
    if swapped:
        a, b, flips = b, a, [not flip for flip in flips[::-1]]
    assert isinstance(b, Large)
    assert not isinstance(a, Large)
    other = (a.T if flips[0] else a).astype(np.float32, copy=False)
    if flips[1]:
        out = np.empty((len(other), b.shape[0]), np.float32)
        for some, rows in b.rows():
            np.matmul(other, rows.T, out=out[:, some])
    else:
        out = np.zeros((len(other), b.shape[1]), np.float32)
        for some, rows in b.rows():
            out += other[:, some] @ rows
    return out.T if swapped else out


def _is_half_copy(node: Node) -> bool:
    """Is the node a cast to a half type?  float32 represents all its values: large weights stay in float32."""
    return node.op == "cast" and node.type.dtype.is_half


def _keep(node: Node, earlier: ExpectedValues, values: dict[Node, Any], picks: dict[Node, Array]) -> None:
    if node in earlier.values:
        values[node] = earlier.values[node]
    if node in earlier.picks:
        picks[node] = earlier.picks[node]


def _pick_rows(
    node: Node,
    run: StepValues,
    before: Mapping[str, Array],
    values: Mapping[Node, Any],
    picks: Mapping[Node, Array],
    settle: Settle | None,
) -> Array:
    shape = run.shape(node.type.shape)
    if node in values and not isinstance(values[node], Large):
        rows: Array = values[node][grid(shape)]
        return rows
    if node.op in STATES:
        value = before[node.attrs.name]  # type: ignore[attr-defined]
    elif _is_product(node):
        operands = [(_read(values[i]), flip) for i, flip in _operands(node)]
        a, b = (np.swapaxes(value, 0, 1) if flip else value for value, flip in operands)
        rows, columns = (positions(n) for n in shape)
        value = a[rows] @ b[:, columns]
    elif _adds_rows(node):
        value = _add_rows(shape, *(_read(values[i]) for i in node.inputs))
    else:
        value = value_of(node, run, [picks[i] for i in node.inputs])
    out: Array = _settle(node, value, settle)
    return out


def _add_rows(shape: tuple[int, ...], updates: Array, index: Array) -> Array:
    """Add updates to the rows of a table's grid by index; an index outside its bounds is clamped."""
    size, *row = shape
    looked_at, indices = positions(size), np.clip(index.reshape(-1).astype(np.int64), 0, size - 1)
    places = np.searchsorted(looked_at, indices).clip(max=len(looked_at) - 1)
    seen = looked_at[places] == indices
    added = updates.reshape(index.size, *row)[np.ix_(np.flatnonzero(seen), *map(positions, row))]
    out = np.zeros((len(looked_at), *added.shape[1:]))
    np.add.at(out, places[seen], added)
    return out


def _large_state(node: Node, run: StepValues) -> Large | None:
    if node.op not in STATES or not isinstance(run.state, InterpretedStates):
        return None
    return run.state.large(node.attrs.name)  # type: ignore[attr-defined]


def _operands(node: Node) -> list[tuple[Node, bool]]:
    a = node.attrs
    return list(zip(node.inputs, (a.transpose_a, a.transpose_b), strict=True))  # type: ignore[attr-defined]


def _settle(node: Node, value: Any, settle: Settle | None) -> Any:
    if (node.op in VIEWS or _is_half_copy(node)) and value.dtype == np.float32:
        return value if settle is None else settle(node, value)
    several = isinstance(node.result, TupleType)
    results = value if several else (value,)
    arrays = [round_to(v, t.dtype) for v, t in zip(results, node.results, strict=True)]
    out: Any = tuple(arrays) if several else arrays[0]
    return out if settle is None else settle(node, out)


def dependents_of(graph: IRGraph, names: Iterable[str]) -> frozenset[Node]:
    """The nodes that depend on runtime scalars or states with these names."""
    changed, reached = set(names), set[Node]()
    for node in graph.nodes:
        leaf = node.op in (*STATES, "scalar") and node.attrs.name in changed  # type: ignore[attr-defined]
        inner = body_of(node)
        inside = inner is not None and not changed.isdisjoint(inner.leaves("scalar"))
        if leaf or inside or any(i in reached for i in node.inputs):
            reached.add(node)
    return frozenset(reached)
