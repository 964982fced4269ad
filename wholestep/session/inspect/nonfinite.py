"""The operation that computed the first non-finite value, found by evaluating the step in NumPy.

From a loss or a gradient that is not finite the search follows non-finite operands back to an operation whose operands
are all finite.  Infinite constants, such as those of attention masks, are intended: values that are infinite only
because of them are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wholestep.compiler.frontend.step import Step
from wholestep.compiler.frontend.trace import LOSS, UPDATE
from wholestep.compiler.ir.graph import IRGraph, Node, SourceLine, body_of
from wholestep.compiler.ir.semantics.interpret import infer_sizes, interpret
from wholestep.compiler.ir.types import TensorType, evaluate
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.runtime.memory import free_bytes
from wholestep.errors import OutOfMemoryError
from wholestep.session.programs import Programs
from wholestep.steps.definition import LOSS_AND_GRADIENTS, TRAIN

Array = np.ndarray[Any, Any]

BACKWARD = "gradient of "  # prefix in descriptions of backward nodes


@dataclass(frozen=True)
class Origin:
    """The operation, or the leaf, with the first value that is not finite."""

    op: str  # "log"; in the backward pass "gradient of log"; for a leaf "input" or "parameter"
    name: str  # name of an input or parameter
    layer: str  # the path of the module; "" outside of modules
    line: SourceLine | None
    value: float  # nan, inf or -inf
    index: tuple[int, ...]  # index of the first such element
    operands: tuple[tuple[float, float], ...] = ()  # the smallest and largest value of each operand
    count: int = 1  # elements that are not finite
    size: int = 1  # all elements
    reader: str = ""  # for a leaf: the operation that reads it first

    @property
    def is_leaf(self) -> bool:
        """Is it an input or a parameter rather than a computed value?"""
        return bool(self.name)

    @property
    def place(self) -> str:
        """The user's line, as errors show it."""
        return "" if self.line is None or (self.is_leaf and not self.reader) else self.line.error_note

    def __str__(self) -> str:
        where = f" at index {list(self.index)} ({self.count:,} of {self.size:,} elements)" if self.index else ""
        if self.is_leaf:
            read = f", which {self.reader}{_in(self.layer)} reads" if self.reader else ""
            return f"the {self.op} {self.name!r} is {self.value}{where}{read}"
        what = f"the {self.op}" if self.op.startswith(BACKWARD) else self.op
        ranges = ", ".join(_range(*bounds) for bounds in self.operands)
        operands = f", from finite operands ({ranges})" if ranges else ""
        return f"{what}{_in(self.layer)} computed the first value that is not finite, {self.value}{where}{operands}"


def _in(layer: str) -> str:
    if layer in (LOSS, UPDATE):
        return f" in the {layer.strip('()')}"
    if layer.startswith("("):  # such as "(Net)": the model itself, which its class names
        return f" in {layer.strip('()')}.forward"
    return f" in layer {layer!r}" if layer else ""


def _range(low: float, high: float) -> str:
    low, high = low + 0.0, high + 0.0  # avoid negative zeros
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def first_nonfinite(programs: Programs, inputs: Mapping[str, object]) -> Origin | None:
    """The origin of the first non-finite value of the loss of some inputs, or else of its gradients."""
    definition = programs.need("the step in NumPy").definition
    entry = TRAIN if isinstance(definition.model, Step) else LOSS_AND_GRADIENTS
    graph = strip_stop_gradients(expand_gradients(inline_calls(definition.trace(entry))))
    scalars = {**dict(programs.scalars.items()), **programs.starts()}
    wanted, state = graph.leaves("input"), programs.state
    arrays = {name: np.asarray(array) for name, array in inputs.items() if name in wanted}
    _need_memory(graph, arrays)
    values = _Values()
    interpret(
        graph,
        inputs=arrays,
        state={name: state.get(name) for name in graph.states()},
        scalars={name: scalars[name] for name in _scalars(graph) if name in scalars},
        seed=programs.where.seed,
        step=state.step,
        observe=values.observe,
    )
    loss, *others = [o.node for o in graph.outputs]
    for roots in ([loss], others, [u.node for u in graph.updates]):
        if origin := values.origin(graph, [node for node in roots if values.is_bad(node)]):
            return origin
    return None


def _need_memory(graph: IRGraph, inputs: Mapping[str, Array]) -> None:
    """Raise OutOfMemoryError if the values of all nodes, in float64, take more than the machine has left."""
    sizes = infer_sizes(graph, inputs)
    needed = sum(8 * evaluate(t.elements, sizes) for node in graph.nodes for t in node.results)
    if needed > (free := free_bytes()):
        raise OutOfMemoryError(
            f"NumPy needs {needed:,} bytes for the values of this step, and {free:,} are free.",
            needed,
            "Ask about fewer rows.",
        )


def _scalars(graph: IRGraph) -> set[str]:
    inner = (body_of(node) for node in graph.nodes)
    return {*graph.leaves("scalar"), *(name for g in inner if g is not None for name in _scalars(g))}


class _Values:
    """The ranges of nodes' values, and which of them are not finite."""

    def __init__(self) -> None:
        self._ranges: dict[Node, tuple[float, float]] = {}
        # the first value and its index, how many there are, and all elements; in the order of evaluation
        self._bad: dict[Node, tuple[float, tuple[int, ...], int, int]] = {}
        self._intended: set[Node] = set()  # nodes that are infinite because of infinite constants

    def observe(self, node: Node, value: Array) -> Array:
        """Round a value as the step would store it, and record its range."""
        if value.dtype.kind != "f" or not value.size:
            return value
        kind = node.result.dtype if isinstance(node.result, TensorType) else None
        if kind is not None and not kind.is_half and not node.host:  # half types are rounded already
            value = value.astype(kind.numpy).astype(np.float64)
        finite = np.isfinite(value)
        if finite.all():
            self._ranges[node] = float(value.min()), float(value.max())
        elif node not in self._bad:
            index = np.argwhere(~finite)[0]
            first = float(value[tuple(index)]), tuple(map(int, index))
            self._bad[node] = (*first, int((~finite).sum()), value.size)
            if not np.isnan(value).any() and self._is_intended(node):
                self._intended.add(node)
        return value

    def _is_intended(self, node: Node) -> bool:
        bad = [i for i in node.inputs if i in self._bad]
        return node.op == "constant" or (bool(bad) and all(i in self._intended for i in bad))

    def is_bad(self, node: Node) -> bool:
        return node in self._bad and node not in self._intended

    def origin(self, graph: IRGraph, roots: Iterable[Node]) -> Origin | None:
        """The first non-finite operation, in order of evaluation, that the roots depend on."""
        stack, seen = list(roots), set[Node]()
        while stack:
            node = stack.pop()
            if node not in seen:
                seen.add(node)
                stack += [i for i in node.inputs if self.is_bad(i)]
        first = next((n for n in graph.nodes if n in seen and not any(map(self.is_bad, n.inputs))), None)
        if first is None:
            return None
        inner = body_of(first)
        inside = [] if inner is None else [n for n in self._bad if n in _nodes(inner) and self.is_bad(n)]
        if first.is_state and (reader := next((n for n in graph.nodes if first in n.inputs and n in seen), None)):
            named = self._origin_of(first)
            return replace(named, reader=reader.op, layer=_layer(reader), line=reader.line)
        return self._origin_of(inside[0] if inside else first)

    def _origin_of(self, node: Node) -> Origin:
        value, index, count, size = self._bad[node]
        name = getattr(node.attrs, "name", "") if not node.inputs else ""
        op = node.name if node.name.startswith(BACKWARD) else node.op
        operands = tuple(self._ranges[i] for i in dict.fromkeys(node.inputs) if i in self._ranges)
        return Origin(op, name, _layer(node), node.line, value, index, operands, count, size)


def _layer(node: Node) -> str:
    return "" if node.line is None else node.line.layer


def _nodes(graph: IRGraph) -> set[Node]:
    inner = (body_of(node) for node in graph.nodes)
    return {*graph.nodes, *(n for g in inner if g is not None for n in _nodes(g))}
