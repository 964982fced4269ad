"""Random inputs, states and scalars for a trial step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wholestep.compiler.frontend.update_counters import is_counter
from wholestep.compiler.ir.attrs import Initializer
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.semantics.interpret import Result
from wholestep.compiler.ir.types import Extent, TensorType, evaluate, letter_of
from wholestep.compiler.plan.model.kernel import Bound, Least
from wholestep.optim.core.config import trial_values
from wholestep.session.verify.state_samples import is_large, positions

Array = np.ndarray[Any, Any]
Random = np.random.Generator

SMALL = (3, 2, 1)  # sizes of the symbolic dimensions, assigned cyclically
STEP = 3  # step count at which bias corrections and schedules have an effect
SEED = 7
INTEGERS = 8  # number of distinct values of an integer input that is not an index
TILE = 65521  # numbers drawn for a large state, which repeats them; a prime, so that its rows differ

RATE = "lr"
UNKNOWN = 0.1  # value of a scalar that is unknown to the optimizers and off (0) by default


@dataclass(frozen=True)
class RepeatedState:
    """The values of a large state, which repeat in memory order."""

    numbers: Array


@dataclass(frozen=True)
class Trial:
    """The random numbers of one trial step."""

    seed: int
    sizes: Mapping[str, int]
    inputs: Mapping[str, Array]
    state: Mapping[str, Array | RepeatedState]
    scalars: Mapping[str, float]


@dataclass(frozen=True)
class TrialDraw:
    """The options for drawing trials of a graph whose gradients are expanded."""

    graph: IRGraph
    bounds: tuple[Bound, ...]
    centred: bool = True  # float inputs around 0, instead of between 0 and 1
    rate: float = 1.0
    spread: Mapping[str, float] | None = None  # state -> the size of its update in one step

    def trial(self, sizes: Mapping[str, int], seed: int) -> Trial:
        rng = np.random.default_rng(seed)
        inputs = {n.attrs.name: self._input(n, sizes, rng) for n in self.graph.inputs}  # type: ignore[attr-defined]
        state = {name: self._state(node, rng) for name, node in self.graph.states().items()}
        tried = trial_values()
        scalars = {
            name: _scalar(name, node.attrs.default, self.rate, tried)  # type: ignore[attr-defined]
            for name, node in self.graph.leaves("scalar").items()
            if not is_counter(name)
        }
        return Trial(seed, sizes, inputs, state, scalars)

    def _input(self, node: Node, sizes: Mapping[str, int], rng: Random) -> Array:
        dtype, shape = node.type.dtype, tuple(evaluate(e, sizes) for e in node.type.shape)
        if dtype.is_float:
            drawn = rng.standard_normal(shape) if self.centred else rng.uniform(0.05, 0.95, shape)
            return drawn.astype(dtype.numpy)
        if not dtype.is_integer:
            return rng.random(shape) < 0.5
        limits = [evaluate(b.size, sizes) for b in self.bounds if b.input == node.attrs.name]  # type: ignore[attr-defined]
        # Labels that are indices only after some are ignored are classes nevertheless.
        classes = [evaluate(n.inputs[0].type.shape[-1], sizes) for n in self.graph.nodes if n.op == "cross_entropy"]
        limit = min(limits or classes, default=INTEGERS)
        # Every second index refers to a compared row, so that gradients of large tables reach compared rows.
        seen = rng.choice(positions(limit), shape)
        return np.where(rng.random(shape) < 0.5, seen, rng.integers(0, limit, shape)).astype(dtype.numpy)

    def _state(self, node: Node, rng: Random) -> Array | RepeatedState:
        init, type = node.attrs.init, node.type  # type: ignore[attr-defined]
        shape = tuple(int(e) for e in type.shape)
        tiled = is_large(shape) and init.kind != "values"
        size = (TILE,) if tiled else shape
        drawn = _DRAWS[init.kind](rng, size, *init.args) if init.kind in _DRAWS else _fan(rng, size, shape[:-1])
        if _is_filled(node, init):
            drawn = _fan(rng, size, shape[1:])
        elif init.kind == "constant" and type.dtype.is_float:
            drawn += _distance(node, init, self.spread) * rng.uniform(0.1, 1.0, size)
        numbers = drawn.astype(type.dtype.numpy)
        return RepeatedState(numbers) if tiled else numbers


def _distance(node: Node, init: Initializer, spread: Mapping[str, float] | None) -> float:
    """The largest increment of a state above its constant initial value; positive, since some states are variances.

    An optimizer's own states have the scale of their updates, so that errors in the updates are visible.
    """
    (value,) = init.args
    if node.op == "parameter" or value != 0.0:
        return 0.1 * max(1.0, abs(value))
    most = math.sqrt(float(node.type.dtype.largest))  # so that its square is finite too
    return 0.0 if spread is None else min(max(1e-8, spread.get(node.attrs.name, 0.0)), most)  # type: ignore[attr-defined]


def _is_filled(node: Node, init: Initializer) -> bool:
    """Is a parameter a matrix initialized with 0, as in imported networks, which get their weights later?

    If it were drawn like other constants, slightly above 0, all weights would be positive: activations would grow by
    the width in each layer, and overflow in a deep network. The first axis is that of the outputs.
    """
    return node.op == "parameter" and init.kind == "constant" and init.args == (0.0,) and len(node.type.shape) > 1


def _fan(rng: Random, size: tuple[int, ...], summed: tuple[int, ...]) -> Array:
    return rng.standard_normal(size) / math.sqrt(max(1, math.prod(summed)))


_DRAWS: dict[str, Callable[..., Array]] = {
    "constant": lambda rng, shape, value: np.full(shape, value),
    "values": lambda rng, shape, *values: np.array(values).reshape(shape),
    "normal": lambda rng, shape, mean, std: mean + std * rng.standard_normal(shape),
    "uniform": lambda rng, shape, low, high: rng.uniform(low, high, shape),
}


def _scalar(name: str, default: float, rate: float, tried: Mapping[str, float]) -> float:
    """The value that the optimizer suggests for a scalar in trials, by the last part of the scalar's name."""
    kind = name.rpartition(".")[2]
    if kind == RATE:
        return rate
    return tried.get(kind, default if default != 0.0 else UNKNOWN)


# -- a first look ------------------------------------------------------------------------------------------------


def adapt_draw(draw: TrialDraw, first: Mapping[str, Array], seen: Result) -> TrialDraw:
    """A draw whose learning rate and states make every state affect the updates, from the results of a first step."""
    graph = draw.graph
    moved = {u.name: scale(seen.state[u.name] - first[u.name]) for u in graph.updates if u.node.type.dtype.is_float}
    return replace(draw, spread=moved, rate=_rate(graph, first, moved))


def names_changed_by_adapting(graph: IRGraph) -> set[str]:
    """The runtime scalars and states that `adapt_draw` draws again: rates, and states that an optimizer initializes
    with 0.
    """
    states = {
        name
        for name, node in graph.states().items()
        if node.op == "state" and node.attrs.init.kind == "constant"  # type: ignore[attr-defined]
    }
    return states | {name for name in graph.leaves("scalar") if name.rpartition(".")[2] == RATE}


def _rate(graph: IRGraph, first: Mapping[str, Array], moved: Mapping[str, float]) -> float:
    """The learning rate with which parameters change by about their own magnitude."""
    pairs = [(scale(first[name]), moved.get(name, 0.0)) for name in graph.leaves("parameter")]
    logs = [math.log(size / change) for size, change in pairs if size > 0 and change > 0]
    return float(np.clip(math.exp(sum(logs) / len(logs)), 1e-2, 1e4)) if logs else 1.0


def scale(array: Array) -> float:
    """The largest finite magnitude."""
    largest = max(float(array.max(initial=0)), -float(array.min(initial=0)))
    if math.isfinite(largest):  # NaN counts as the largest
        return largest
    finite = np.abs(array[np.isfinite(array)]) if letter_of(array.dtype) == "f" else np.abs(array)
    return float(finite.max(initial=0))


def all_finite(result: Result) -> bool:
    return all(np.isfinite(a).all() for a in (*result.outputs.values(), *result.state.values()))


def small_sizes(
    graph: IRGraph, capacity: Mapping[str, int], least: Sequence[Least] = (), first: Sequence[int] = SMALL
) -> dict[str, int]:
    """Sizes of 1, 2 or 3 for each symbol; larger if a shape of the graph or an op requires it."""
    extents = {e for n in graph.nodes for e in _extents(n)}
    for more in range(max(capacity.values(), default=1)):
        sizes = {s: min(capacity[s], first[i % len(first)] + more) for i, s in enumerate(graph.symbols)}
        if all(evaluate(e, sizes) > 0 for e in extents) and all(n.value(sizes) >= n.size for n in least):
            return sizes
    return dict(capacity)


def _extents(node: Node) -> Sequence[Extent]:
    items = (node.result,) if isinstance(node.result, TensorType) else node.result.items
    return [e for t in items for e in t.shape if not isinstance(e, int)]
