"""Products of medium size against the interpreter: every layout of the operands, partial tiles, epilogues."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.attention_graphs import leaf
from tests.compiler.backends.cuda.emulation.emulated import TARGET
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.compiler.backends.cuda.kernels.test_graphs import ORDERS, STEP, run, together
from tests.compiler.ir.random_graphs import example_values
from tests.support.oracles import assert_close
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Output
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import as_shape, float32
from wholestep.compiler.pipeline import Compiler
from wholestep.options import CompileOptions


def graph(left: bool, right: bool) -> IRGraph:
    """relu(x w + bias) with either of them transposed."""
    rows = 4 * as_shape(("batch",))[0]
    x = leaf("x", (68, rows) if left else (rows, 68), float32)
    w = leaf("w", (40, 68) if right else (68, 40), float32)
    product = b.matmul(x, w, transpose_a=left, transpose_b=right)
    y = b.add(product, b.expand_to(leaf("bias", (40,), float32), product.type.shape, [1]))
    outputs = (Output("y", b.unary("relu", y)), Output("kept", b.scale(y, 2.0)))
    return IRGraph(outputs, (), tuple(n for n in IRGraph(outputs).nodes if n.op == "input"))


def test_products_beside_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    set_costs(monkeypatch, "gemm", medium_flops=0, fewest_medium_blocks=1)
    compiler = Compiler(CompileOptions(egraph=False))
    cases = [(graph(left, right), enough) for left in (False, True) for right in (False, True) for enough in (1, 1000)]
    plans = []
    for found, enough in cases:
        set_costs(monkeypatch, "gemm", medium_blocks=enough)
        plans.append(compiler.plan(found, {"batch": 25}, TARGET)[0])
    forms = [k.schedule for plan in plans for k in plan.kernels if type(k.body).__name__ == "Dot"]
    assert [s.tile[:2] for s in forms] == [(64, 64), (32, 32)] * 4
    assert {s.form for s in forms} == {"middle"}
    for (found, _), emulated in zip(cases, together(plans), strict=True):
        for rows in (25, 3):
            inputs, _ = example_values(found, {"batch": rows}, np.random.default_rng(rows))
            want = interpret(found, inputs=inputs, state={}, sizes={"batch": rows}, seed=0, step=STEP).outputs
            made = [run(emulated, inputs, {}, {"batch": rows}, 0, orders) for orders in ORDERS[:2]]
            for name, value in want.items():
                assert_close(made[0][name], value, "float32", scale=20.0)
                np.testing.assert_array_equal(made[0][name], made[1][name], err_msg="bits depend on an order")
