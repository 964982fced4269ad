"""The fingerprint: what it must tell apart, what it must not, and its speed."""

from __future__ import annotations

import dataclasses
import itertools
import struct
import time

import numpy as np
from hypothesis import given, settings

from tests.compiler.ir.random_graphs import graphs
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.fingerprint import ENCODERS, fingerprint
from wholestep.compiler.ir.graph import IRGraph, Node, Output, SourceLine, Update, rewrite
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.types import Dim, TensorType, float32, float64

NO = at.NONE
PAYLOAD_NAN = struct.unpack("<d", bytes.fromhex("010000000000f87f"))[0]
UNIFORM = at.Initializer("uniform", (0.0, 1.0))


def state(name="w", shape=(3,), dtype=float32, op="state", init=UNIFORM) -> Node:
    return Node(op, (), at.StateAttrs(name, TensorType(shape, dtype), init))


def scalar(default: float, name: str = "s") -> Node:
    return Node("scalar", (), at.ScalarAttrs(name, default))


def constant(value: object) -> Node:
    return Node("constant", (), at.ConstantAttrs(at.Array(np.asarray(value))))


def single(node: Node, name: str = "y") -> IRGraph:
    return IRGraph((Output(name, node),))


def held(inner: Node) -> IRGraph:
    return single(Node("item", [Node("call", [], at.CallAttrs(single(inner)))], at.ItemAttrs(0)))


def different_graphs() -> list[IRGraph]:
    w, v = state("w"), state("v")
    a, b = Dim.symbol("a"), Dim.symbol("b")
    x = Node("input", (), at.InputAttrs("w", TensorType((3,), float32)))
    exp = Node("exp", [w], NO)
    return [
        *map(single, [w, v, exp, Node("log", [w], NO), Node("sub", [w, v], NO), Node("sub", [v, w], NO)]),
        *map(single, [state(shape=(3, 1)), state(shape=(a,)), state(shape=(b,)), state(shape=(a + b,))]),
        *map(single, [state(shape=(a * b,)), state(shape=(Dim.symbol("a*b"),)), state(shape=(a * 2,))]),
        *map(single, [state(dtype=float64), state(op="parameter"), state(init=at.Initializer("zeros"))]),
        *map(single, [state(init=at.Initializer("uniform", (-0.0, 1.0))), state(init=at.Initializer("uniform"))]),
        *map(single, map(scalar, [0.0, -0.0, 1.0, float("inf"), float("nan"), PAYLOAD_NAN])),
        *map(single, map(constant, [0.0, -0.0, [0.0], [[0.0]], 0, np.int32(0), np.float32(0), False])),
        *map(single, [Node("gelu", [w], at.GeluAttrs(flag)) for flag in (False, True)]),
        single(w, "z"),
        IRGraph((Output("y", w), Output("z", v))),
        IRGraph((Output("z", v), Output("y", w))),
        IRGraph((Output("y", w),), (Update("w", w),)),
        IRGraph((Output("y", w),), (Update("w", exp),)),
        IRGraph((Output("y", w),), (), (x,)),
        single(Node("mul", [exp, exp], NO)),
        single(Node("mul", [exp, Node("exp", [w], NO)], NO)),  # the same twice is not the same once
        held(constant(1.0)),
        held(constant(2.0)),
    ]


def test_different_graphs_have_different_fingerprints():
    marks = [fingerprint(g) for g in different_graphs()]
    for (i, a), (j, b) in itertools.combinations(enumerate(marks), 2):
        assert a != b, (i, j)


def test_equal_graphs_have_equal_fingerprints():
    assert list(map(fingerprint, different_graphs())) == list(map(fingerprint, different_graphs()))
    assert len(fingerprint(different_graphs()[0])) == 64


def test_the_memory_layout_of_a_constant_does_not_count():
    value = np.arange(6.0).reshape(2, 3)
    others = [np.asfortranarray(value), value.astype(">f8")]
    assert {fingerprint(single(constant(v))) for v in (value, *others)} == {fingerprint(single(constant(value)))}


@settings(max_examples=50)
@given(graphs(control=True))
def test_names_and_lines_of_nodes_do_not_count(graph):
    renamed = rewrite(graph, lambda n: Node(n.op, n.inputs, n.attrs, n.name + "!", SourceLine("elsewhere.py", 99)))
    assert fingerprint(renamed) == fingerprint(graph)


def test_every_kind_of_attribute_counts():
    kinds = {str(f.type) for op in OPS.values() for f in dataclasses.fields(op.attrs)}
    assert kinds <= ENCODERS.keys()


def test_thousands_of_nodes_take_tens_of_milliseconds():
    node = state()
    for _ in range(2500):
        wide = Node("expand", [node], at.ExpandAttrs((4, 3), (1,)))
        node = Node("sum", [wide], at.SumAttrs((0,), float32))
    graph = single(node)
    assert len(graph.nodes) == 5001
    best = min(_seconds(graph) for _ in range(3))
    assert best < 0.2, f"{best:.3f} s"  # 0.025 s on an idle core


def _seconds(graph: IRGraph) -> float:
    start = time.thread_time()  # others may have the core meanwhile
    fingerprint(graph)
    return time.thread_time() - start


def test_without_defaults_only_the_names_of_runtime_scalars_count() -> None:
    keys = [fingerprint(single(node), defaults=False) for node in (scalar(1.0), scalar(2.0), scalar(1.0, "t"))]
    assert keys[0] == keys[1] != keys[2]
    assert fingerprint(single(scalar(1.0))) != fingerprint(single(scalar(2.0)))
