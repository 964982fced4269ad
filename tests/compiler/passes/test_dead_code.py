"""Updates that change nothing."""

from __future__ import annotations

from tests.compiler.passes.common import assert_same_values, parameter
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Output, Update
from wholestep.compiler.passes.simplify.dead_code import drop_dead_code


def test_an_update_with_its_own_value_goes() -> None:
    w, v = parameter("w", (3,)), parameter("v", (3,), op="state")
    graph = IRGraph((Output("sum", b.add(w, v)),), (Update("v", v), Update("w", b.scale(w, 2))))
    after = drop_dead_code(graph)
    assert [u.name for u in after.updates] == ["w"]
    assert_same_values(graph, after)


def test_exchanged_states_stay() -> None:
    w, v = parameter("w", (3,)), parameter("v", (3,))
    graph = IRGraph((), (Update("v", w), Update("w", v)))
    assert drop_dead_code(graph) is graph
