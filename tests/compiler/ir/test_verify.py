"""Every way in which a graph can be damaged, and the message that names the place."""

from __future__ import annotations

import numpy as np
import pytest

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, Output, SourceLine, Update
from wholestep.compiler.ir.types import TensorType, float32, float64
from wholestep.compiler.ir.verify import verify
from wholestep.errors import GraphError

HERE = SourceLine("model.py", 12)
NO = at.NONE


def leaf(name: str, shape: tuple[int, ...] = (3,), op: str = "input") -> Node:
    t = TensorType(shape, float32)
    attrs = at.InputAttrs(name, t) if op == "input" else at.StateAttrs(name, t, at.Initializer("zeros"))
    return Node(op, (), attrs, line=HERE)


def graph(*nodes: Node, updates: tuple[Update, ...] = (), inputs: tuple[Node, ...] = ()) -> IRGraph:
    return IRGraph(tuple(Output(f"out{i}", n) for i, n in enumerate(nodes)), updates, inputs)


def refused(damaged: IRGraph, text: str) -> None:
    with pytest.raises(GraphError, match=text):
        verify(damaged)


def test_a_good_graph_passes():
    x, w = leaf("x"), leaf("w", op="parameter")
    y = Node("mul", [x, w], NO)
    verify(graph(y, updates=(Update("w", y),), inputs=(x,)))


def test_a_type_that_is_not_the_rules():
    y = Node("exp", [leaf("w", op="state")], NO, "y", HERE)
    y.result = TensorType((4,), float32)
    refused(
        graph(y),
        r"exp 'y' \(model.py:12\) has type float32\[4\], but the type inferred from its inputs is float32\[3\]",
    )


def test_inputs_that_do_not_fit():
    y = Node("add", [leaf("w", op="state"), leaf("w", op="state")], NO, "y", HERE)
    y.inputs = (y.inputs[0], Node("cast", [y.inputs[1]], at.CastAttrs(float64)))
    refused(graph(y), r"add 'y' \(model.py:12\) does not fit its inputs: add needs equal dtypes")
    y.inputs = y.inputs[:1]
    refused(graph(y), r"add 'y' \(model.py:12\) does not fit its inputs: add takes 2 inputs, not 1")


def test_attributes_of_another_class():
    y = Node("exp", [leaf("w", op="state")], NO, "y", HERE)
    y.attrs = at.MaxAttrs((0,))
    refused(graph(y), r"exp 'y' \(model.py:12\) has attributes MaxAttrs; expected Attrs")


def test_an_op_that_does_not_exist():
    y = Node("exp", [leaf("w", op="state")], NO)
    y.op = "frobnicate"
    refused(graph(y), "unknown op 'frobnicate'")


def test_an_input_that_is_not_declared():
    refused(graph(leaf("x")), r"input 'x' \(model.py:12\) is read but missing from the graph's inputs")


def test_a_declared_input_that_is_none():
    w = leaf("w", op="state")
    refused(graph(w, inputs=(w,)), r"state 'w' \(model.py:12\) is declared as an input of the graph")


def test_two_inputs_of_one_name():
    x, other = leaf("x"), leaf("x")
    refused(graph(x, other, inputs=(x, other)), "2 inputs are named 'x'")


def test_leaves_of_one_name_and_different_types():
    refused(graph(leaf("w", op="state"), leaf("w", (4,), op="state")), "two different leaves are named 'w'")
    refused(graph(leaf("w", op="state"), leaf("w", op="parameter")), "two different leaves are named 'w'")
    low, high = (Node("scalar", (), at.ScalarAttrs("lr", v)) for v in (0.1, 0.2))
    refused(graph(low, high), "two different leaves are named 'lr'")


def test_equal_leaves_may_be_two_nodes():
    verify(graph(leaf("w", op="state"), leaf("w", op="state")))


def test_a_state_and_an_input_may_share_a_name():
    x = leaf("x")
    verify(graph(x, leaf("x", op="state"), inputs=(x,)))


def test_outputs_of_one_name():
    w = leaf("w", op="state")
    refused(IRGraph((Output("y", w), Output("y", w))), "2 outputs are named 'y'")


def test_updates():
    w = leaf("w", op="state")
    y = Node("exp", [w], NO, "y", HERE)
    refused(graph(w, updates=(Update("v", y),)), r"exp 'y' \(model.py:12\) updates 'v', which is not a state of .*'w'")
    refused(graph(w, updates=(Update("w", y), Update("w", w))), "2 updates are named 'w'")
    total = Node("sum", [w], at.SumAttrs((0,), float32), "total", HERE)
    refused(graph(w, updates=(Update("w", total),)), r"sum 'total' .*updates 'w' of type float32\[3\] with float32\[\]")


def call(inner: IRGraph, *inputs: Node) -> Node:
    return Node("item", [Node("call", inputs, at.CallAttrs(inner), "block", HERE)], at.ItemAttrs(0))


def test_a_held_graph_is_verified_too():
    a, w = leaf("a"), leaf("w", op="state")
    y = Node("exp", [a], NO, "y", HERE)
    outer = graph(call(graph(y, inputs=(a,)), w))
    verify(outer)
    y.attrs = at.MaxAttrs((0,))
    refused(outer, r"in the body of call 'block' \(model.py:12\): exp 'y' .* has attributes MaxAttrs")


def test_a_held_graph_has_no_state():
    a, w = leaf("a"), leaf("w", op="state")
    changing = graph(a, updates=(Update("w", w),), inputs=(a,))
    refused(graph(call(changing, w)), "the body of call 'block' .* updates 'w'; return the value instead")
    reading = graph(a, w, inputs=(a,))
    refused(graph(call(reading, w)), "the body of call 'block' .* reads the state 'w'; pass it as an argument")


def test_a_node_with_several_results_is_no_output():
    a, w = leaf("a"), leaf("w", op="state")
    node = call(graph(a, inputs=(a,)), w).inputs[0]
    refused(graph(node), "the output 'out0' is call 'block' .* several results; pick one with an item node")
    refused(graph(w, updates=(Update("w", node),)), "the update of 'w' is call 'block'")


def test_constants_need_no_names():
    verify(graph(Node("constant", (), at.ConstantAttrs(at.Array(np.ones(2)))), leaf("w", op="state")))
