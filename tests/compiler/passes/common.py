"""What the tests of all passes share: a pass keeps a graph well formed and its values equal."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.compiler.ir.random_graphs import example_values
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, SourceLine
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import DType, TensorType, as_shape, float64
from wholestep.compiler.ir.verify import verify

Array = np.ndarray[Any, Any]


def leaf(name: str, shape: tuple[int | str, ...], dtype: DType = float64, line: int | None = None) -> Node:
    attrs = at.InputAttrs(name, TensorType(as_shape(shape), dtype))
    return Node("input", (), attrs, name, SourceLine("user.py", line) if line else None)


def parameter(name: str, shape: tuple[int | str, ...], op: str = "parameter") -> Node:
    attrs = at.StateAttrs(name, TensorType(as_shape(shape), float64), at.Initializer("zeros"))
    return Node(op, (), attrs, name)


def graph_of(*nodes: Node) -> IRGraph:
    """The nodes as outputs out0, out1, ...; every input they read is declared."""
    outputs = tuple(Output(f"out{i}", n) for i, n in enumerate(nodes))
    return IRGraph(outputs, (), tuple(n for n in IRGraph(outputs).nodes if n.op == "input"))


def total(x: Node) -> Node:
    return b.sum_axes(x, range(x.type.rank))


def mean(x: Node) -> Node:
    """A mean as the frontend records it."""
    return b.make("ratio", (total(x), b.cast(b.size(x.type.elements), x.type.dtype)))


def ops_of(graph: IRGraph) -> list[str]:
    return [n.op for n in graph.nodes]


def assert_same_values(
    before: IRGraph, after: IRGraph, sizes: dict[str, int] | None = None, rtol: float = 1e-10
) -> None:
    """Both are well formed, and one step gives the same outputs and states."""
    verify(before)
    verify(after)
    sizes = dict.fromkeys(before.symbols, 3) if sizes is None else sizes
    inputs, state = example_values(before, sizes, np.random.default_rng(5))
    runs = [interpret(g, inputs=inputs, state=state, sizes=sizes) for g in (before, after)]
    for kind in ("outputs", "state"):
        ours, expected = (getattr(r, kind) for r in runs[::-1])
        assert ours.keys() == expected.keys()
        for name in expected:
            np.testing.assert_allclose(ours[name], expected[name], rtol=rtol, atol=rtol, err_msg=name)
