"""Graphs as text: what it looks like, that it comes back bit by bit, and that damage is refused."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.compiler.ir.random_graphs import graphs
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.compiler.ir.graph import IRGraph, Node, Output, SourceLine, Update
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.parser import READERS
from wholestep.compiler.ir.printer import PRINTERS, parse_graph, print_graph
from wholestep.compiler.ir.types import Dim, TensorType, float32
from wholestep.errors import GraphError

GOLDEN = """\
graph {
  inputs %0
  %0 = input() {name="x", type=float32[batch, 4]} : float32[batch, 4]
  %1 = parameter() {name="w", type=float32[4, 2], init=uniform(-0.5, 0.5), by_columns=false} : float32[4, 2]
  %2 = matmul(%0, %1) {transpose_a=false, transpose_b=false, accumulate=float32} : float32[batch, 2]  "y" @ m.py:12
  %3 = constant() {array=float32[2] [0.5, -0.0]} : float32[2]
  %4 = call(%3) {graph=graph {
    inputs %0
    %0 = input() {name="a", type=float32[2]} : float32[2]
    %1 = exp(%0) : float32[2]
    output "b" = %1
  }} : (float32[2])
  %5 = item(%4) {index=0} : float32[2]
  output "y" = %2
  output "c" = %5
  update "w" = %1
}
"""


def example() -> IRGraph:
    x = Node("input", (), at.InputAttrs("x", TensorType((Dim.symbol("batch"), 4), float32)))
    w = Node("parameter", (), at.StateAttrs("w", TensorType((4, 2), float32), at.Initializer("uniform", (-0.5, 0.5))))
    y = Node("matmul", [x, w], at.MatmulAttrs(False, False, float32), "y", SourceLine("m.py", 12))
    a = Node("input", (), at.InputAttrs("a", TensorType((2,), float32)))
    inner = IRGraph((Output("b", Node("exp", [a], at.NONE)),), (), (a,))
    c = Node("constant", (), at.ConstantAttrs(at.Array(np.array([0.5, -0.0], np.float32))))
    item = Node("item", [Node("call", [c], at.CallAttrs(inner))], at.ItemAttrs(0))
    return IRGraph((Output("y", y), Output("c", item)), (Update("w", w),), (x,))


def constant(value: object) -> Node:
    return Node("constant", (), at.ConstantAttrs(at.Array(np.asarray(value))))


def returned(*nodes: Node) -> IRGraph:
    """The graph of some nodes after a round trip."""
    graph = IRGraph(tuple(Output(str(i), n) for i, n in enumerate(nodes)))
    back = parse_graph(print_graph(graph))
    assert fingerprint(back) == fingerprint(graph)
    assert print_graph(back) == print_graph(graph)
    return back


def test_the_text_and_back():
    assert print_graph(example()) == GOLDEN
    assert print_graph(parse_graph(GOLDEN)) == GOLDEN
    assert fingerprint(parse_graph(GOLDEN)) == fingerprint(example())


def test_every_kind_of_attribute_can_be_printed_and_read():
    kinds = {str(f.type) for op in OPS.values() for f in dataclasses.fields(op.attrs)}
    assert kinds <= PRINTERS.keys()
    assert PRINTERS.keys() == READERS.keys()


@settings(max_examples=150)
@given(graphs(control=True))
def test_random_graphs_come_back(graph):
    text = print_graph(graph)
    back = parse_graph(text)
    assert print_graph(back) == text
    assert fingerprint(back) == fingerprint(graph)
    for old, new in zip(graph.nodes, back.nodes, strict=True):
        assert (new.op, new.result, new.name, new.line, new.host) == (old.op, old.result, old.name, old.line, old.host)


@given(st.text(min_size=1), st.text(), st.text(min_size=1))
def test_any_name_survives(name, cosmetic, symbol):
    t = TensorType((Dim.symbol(symbol) * 2 - 1, 3), float32)
    line = SourceLine(name, 3)
    x = Node("input", (), at.InputAttrs(name, t), cosmetic, line)
    back = parse_graph(print_graph(IRGraph((Output(name, x),), (), (x,))))
    assert back.outputs[0].name == name
    assert back.inputs[0].attrs == x.attrs
    assert (back.inputs[0].name, back.inputs[0].line) == (cosmetic, line)


@pytest.mark.parametrize(
    "symbol", ["inf", "nan", "bits", "graph", "true", "output", "e5", "2", "a*b", 'q"\n', "\ud800"]
)
def test_symbols_that_look_like_the_format(symbol):
    extent = Dim.symbol(symbol) * 3 + Dim.symbol("n") * Dim.symbol(symbol) - 7
    (node,) = returned(Node("size", (), at.SizeAttrs(extent))).nodes
    assert node.attrs.extent == extent


@given(st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0]))
def test_floats_keep_every_bit(value):
    (node,) = returned(Node("scalar", (), at.ScalarAttrs("s", value))).nodes
    assert struct.pack("<d", node.attrs.default) == struct.pack("<d", value)


@pytest.mark.parametrize(
    "value",
    [
        np.array(3, np.int64),
        np.array([-(2**63), 2**63 - 1]),
        np.array([[True, False]]),
        np.array([np.inf, -np.inf, -0.0], np.float32),
        np.array([np.nan, 1.0], np.float32),
        np.frombuffer(bytes.fromhex("0100c07f"), np.float32),  # a NaN with a payload
        np.zeros((0, 3), np.uint8),
        np.linspace(0, 1, 60).reshape(3, 4, 5),
        np.arange(6.0).reshape(2, 3).T,
        np.arange(3, dtype=">i4"),
    ],
)
def test_arrays_keep_every_bit(value):
    (node,) = returned(constant(value)).nodes
    back = node.attrs.array.value
    assert (back.shape, back.dtype) == (value.shape, value.dtype.newbyteorder("="))
    assert back.tobytes() == value.astype(back.dtype).tobytes()


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("matmul(%0", "matmul(%9", "%9 is read before it is defined"),
        ("matmul(", "matmool(", "there is no op named 'matmool'"),
        ("{transpose_a=false", "{transpose_a=maybe", "line 5 .* expected true or false, received 'maybe'"),
        ("{transpose_a", "{transposed", "expected 'transpose_a', received 'transposed'"),
        (
            ": float32[batch, 2]",
            ": float32[batch, 3]",
            r"matmul is declared as float32\[batch, 3\], but the type inferred from its inputs is",
        ),
        ("(%0, %1)", "(%0)", "matmul takes 2 inputs"),
        ("(%0, %1)", "(%1, %0)", "inner dimensions differ"),
        ("[0.5, -0.0]", "[0.5]", r"invalid array of float32\[2\]"),
        ("[0.5, -0.0]", 'base64 "!"', r"invalid array of float32\[2\]"),
        ("float32[4, 2], init", "float8[4, 2], init", "'float8' is not a dtype"),
        ("index=0", "index=0.5", "expected an integer, received '0.5'"),
        ('"x"', '"\\x"', "invalid JSON string"),
        ('output "y"', "output y", "expected a string, received 'y'"),
        ("graph {\n  inputs", "  inputs", "expected 'graph', received 'inputs'"),
        ("update", "$update", "invalid token"),
        ("uniform(-0.5", "uniform(number", "expected a number, received 'number'"),
    ],
)
def test_damage_is_named(old, new, text):
    assert old in GOLDEN
    with pytest.raises(GraphError, match=text):
        parse_graph(GOLDEN.replace(old, new, 1))


def test_what_follows_a_graph_is_refused():
    with pytest.raises(GraphError, match="expected the end of the text, received 'graph'"):
        parse_graph(GOLDEN + GOLDEN)


@settings(max_examples=200)
@given(
    st.integers(0, len(GOLDEN)),
    st.integers(0, 6),
    st.sampled_from(["", "%", '"', "}", "0", "-1", "e", "é", "[", "inf"]),
)
def test_damaged_text_is_a_graph_or_a_graph_error(position, removed, inserted):
    damaged = GOLDEN[:position] + inserted + GOLDEN[position + removed :]
    try:
        text = print_graph(parse_graph(damaged))
    except GraphError:
        return
    assert print_graph(parse_graph(text)) == text
