"""Half-precision attention has half results, and its gradient reads attention's result, also through views of it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.compiler.attention_graphs import leaf
from tests.compiler.ir.random_graphs import example_values
from tests.support.oracles import assert_close
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import DType, bfloat16, float32
from wholestep.compiler.ir.verify import verify
from wholestep.compiler.passes.lower.attention_precision import adapt_attention_routines

MOVED = at.AttentionAttrs(True, 0.3)


def graph(dtype: DType) -> IRGraph:
    """(batch, heads, time, width) in, (batch, time, heads · width) out; gradients as sums in float32."""
    q, k, v = (leaf(name, (2, 3, 5, 4), dtype) for name in "qkv")
    y = b.make("attention", (q, k, v), MOVED)
    mixed = b.cast(b.reshape(b.permute(y, (0, 2, 1, 3)), (2, 5, 12)), dtype)
    lse = b.make("attention_lse", (q, k, v), MOVED)
    upstream = b.permute(b.reshape(leaf("g", (2, 5, 12), float32), (2, 5, 3, 4)), (0, 2, 1, 3))
    given = (q, k, v, lse, b.cast(upstream, dtype))
    flat = [b.reshape(b.permute(x, (0, 2, 1, 3)), (2, 5, 12)) for x in b.results("attention_grad", given, MOVED)]
    together = Node("concat", flat, at.ConcatAttrs(2))
    outputs = {"mixed": mixed, "bias": b.sum_axes(together, (0,)), "operand": b.cast(together, dtype)}
    made = tuple(Output(name, node) for name, node in outputs.items())
    return IRGraph(made, (), tuple(n for n in IRGraph(made).nodes if n.op == "input"))


@pytest.mark.parametrize("dtype", [float32, bfloat16], ids=str)
def test_values_stay_and_results_are_given(dtype: DType) -> None:
    before = graph(dtype)
    after = adapt_attention_routines(before)
    verify(after)
    (gradient,) = [n for n in after.nodes if n.op == "attention_grad"]
    (result,) = [n for n in after.nodes if n.op == "attention"]
    given = gradient.inputs[-1]
    assert (given.op, given.type) == ("permute", result.type), "what lies behind the views, as it was before them"
    assert len(after.consumers()[result]) == 1, "so that it lies in memory once"
    assert result.type.dtype == dtype
    assert all(t.dtype == dtype for t in gradient.results)
    if dtype == bfloat16:
        operand = next(o.node for o in after.outputs if o.name == "operand")
        assert (operand.op, operand.type.dtype) == ("concat", bfloat16), "no cast is left"
    again = adapt_attention_routines(after)
    assert (
        [o.node.type for o in again.outputs]
        == [o.node.type for o in after.outputs]
        == [o.node.type for o in before.outputs]
    ), "bodies of loops are passed over twice"
    inputs, _ = example_values(before, {}, np.random.default_rng(0))
    want, found = (interpret(g, inputs=inputs, state={}, sizes={}).outputs for g in (before, after))
    for name, value in want.items():
        if dtype == float32:
            assert_close(found[name], value, scale=3.0)
        else:  # a result is rounded once more than it was
            got, expected = (x.astype(np.float32) for x in (found[name], value))
            np.testing.assert_allclose(got, expected, rtol=2e-2, atol=2e-2)
