"""Half forms of states: which of them products read from a copy."""

from __future__ import annotations

import pytest

import wholestep as ws
from wholestep.compiler.backends.cpu.layout.operand_layout import CpuOperands
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import bfloat16, float32
from wholestep.compiler.passes.rematerialize.copies import Rematerialized
from wholestep.compiler.plan.lower.materialize import (
    HalfCopy,
    ReadableViews,
    broadcast_half_bias,
    half_copy_under,
    materialize_copies,
)


def biased() -> tuple[IRGraph, Node]:
    """A bias in half, repeated along rows, as a library's product takes it."""
    g = ws.Graph()
    x, bias = g.input("x", ("batch", 24)).node, g.parameter("bias", (24,)).node
    spread = b.expand_to(b.cast(bias, bfloat16), x.type.shape, (1,))
    row = Rematerialized("cast", (spread,), at.CastAttrs(float32))
    return IRGraph((Output("y", b.add(x, row)),), (), (x,)), row


@pytest.mark.parametrize(("rules", "kept"), [(ReadableViews(), True), (CpuOperands(), False)])
def test_a_bias_has_a_half_form_where_a_backend_keeps_rows_of_them(rules: ReadableViews, kept: bool) -> None:
    """The CPU keeps matrices alone: its half forms lie in panels."""
    graph, row = biased()
    assert broadcast_half_bias(row) is row.inputs[0].inputs[0]
    prepared = materialize_copies(graph, rules)
    assert [n.name for n in prepared.nodes if isinstance(n, HalfCopy)] == (["bias"] if kept else [])
    (found,) = (n for n in prepared.nodes if isinstance(n, Rematerialized))
    assert (half_copy_under(found.inputs[0]) is not None) == kept
    assert any(n.op == "cast" and n.type.rank == 1 for n in prepared.nodes) != kept
