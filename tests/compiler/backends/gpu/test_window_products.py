"""Convolutions whose windows do not overlap are products: equal values, and the cases that remain convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import TARGET
from tests.compiler.backends.cuda.kernels.test_graphs import ORDERS, run, together
from tests.compiler.passes.common import assert_same_values, graph_of, leaf, ops_of
from wholestep.compiler.backends.gpu.window_products import OPS, multiply_disjoint_windows
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import bfloat16
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.lower.channels_last import LAST
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.options import CompileOptions
from wholestep.steps.states import first_values
from wholestep.steps.train import train_graph

# A target whose convolutions of any size are slow, so that all that may be products are.
COSTS = TARGET.cost_model
EAGER = replace(TARGET, cost_model=replace(COSTS, convolution=replace(COSTS.convolution, most_weights=0)))

# Image (rows, columns, channels), outputs, window, stride -> is it a product?
SHAPES: dict[str, tuple[tuple[int, int, int], int, tuple[int, int], tuple[int, int], bool]] = {
    "patches": ((6, 8, 3), 5, (2, 4), (2, 4), True),
    "patches with a margin": ((7, 9, 3), 4, (2, 4), (2, 4), True),
    "pixels": ((4, 3, 5), 6, (1, 1), (1, 1), True),
    "pixels of vectors": ((4, 3, 8), 16, (1, 1), (1, 1), True),
    "every second pixel": ((5, 4, 3), 2, (1, 1), (2, 2), True),
    "pixels of patches": ((6, 5, 3), 2, (2, 1), (2, 2), True),
    "the whole image": ((3, 4, 2), 7, (3, 4), (1, 1), True),
    "most of the image": ((4, 4, 2), 3, (3, 3), (2, 2), True),
    "overlapping": ((6, 6, 3), 4, (3, 3), (2, 2), False),
    "with gaps": ((8, 8, 3), 4, (2, 2), (3, 3), False),
}


def adjoints(name: str, stored_second: bool = False, **changes: Any) -> IRGraph:
    """A convolution and both of its adjoints, channels last."""
    (rows, columns, channels), outputs, window, stride, _ = SHAPES[name]
    given = {"low": (0, 0), "high": (0, 0), "dilation": (1, 1), "groups": 1, **changes}
    forward = at.ConvAttrs(stride, last=True, **given)
    shape = ("batch", channels, rows, columns) if stored_second else ("batch", rows, columns, channels)
    x = b.permute(leaf("x", shape), LAST) if stored_second else leaf("x", shape)
    w = leaf("w", (outputs, *window, channels // given["groups"]))
    y = b.make("conv2d", (x, w), forward)
    g = b.unary("tanh", y)

    def adjoint(op: str, inputs: tuple[Node, Node], size: tuple[int, int]) -> Node:
        return b.make(op, inputs, at.ConvGradAttrs(stride, last=True, size=size, **given))

    return graph_of(
        y, adjoint("conv2d_grad_input", (g, w), (rows, columns)), adjoint("conv2d_grad_weight", (x, g), window)
    )


@pytest.mark.parametrize("stored_second", [False, True])
@pytest.mark.parametrize("name", SHAPES)
def test_products_have_the_values_of_convolutions(name: str, stored_second: bool) -> None:
    graph = adjoints(name, stored_second)
    after = multiply_disjoint_windows(graph, EAGER)
    assert_same_values(graph, after)
    left = set(ops_of(after)) & set(OPS)
    assert left == (set() if SHAPES[name][-1] else set(OPS))


@pytest.mark.parametrize("changes", [{"low": (1, 0)}, {"high": (0, 1)}, {"dilation": (2, 1)}])
def test_padding_and_dilation_remain_convolutions(changes: dict[str, Any]) -> None:
    graph = adjoints("patches", **changes)
    assert set(OPS) <= set(ops_of(multiply_disjoint_windows(graph, EAGER)))


def test_convolutions_with_fast_kernels_remain() -> None:
    """Those of few weights are ours, those of many channels in half types the library's, unless of one window."""
    assert set(OPS) <= set(ops_of(multiply_disjoint_windows(adjoints("every second pixel"), TARGET)))
    assert set(OPS) <= set(ops_of(multiply_disjoint_windows(adjoints("pixels"), TARGET)))
    assert not set(OPS) & set(ops_of(multiply_disjoint_windows(adjoints("pixels of vectors"), TARGET)))
    left = {"pixels": set(OPS), "the whole image": set[str]()}
    for name, ops in left.items():
        (rows, columns, _), _, window, stride, _ = SHAPES[name]
        x, w = leaf("x", ("batch", rows, columns, 16), bfloat16), leaf("w", (8, *window, 16), bfloat16)
        y = b.make("conv2d", (x, w), at.ConvAttrs(stride, (0, 0), (0, 0), (1, 1), 1, True))
        size = at.ConvGradAttrs(stride, (0, 0), (0, 0), (1, 1), 1, True, (rows, columns))
        g = b.cast(y, bfloat16)
        nodes = (
            y,
            b.make("conv2d_grad_input", (g, w), size),
            b.make("conv2d_grad_weight", (x, g), replace(size, size=window)),
        )
        assert set(OPS) & set(ops_of(multiply_disjoint_windows(graph_of(*nodes), TARGET))) == ops


def test_a_pool_keeps_its_convolution() -> None:
    x, w = leaf("x", ("batch", 4, 4, 5)), leaf("w", (6, 1, 1, 5))
    y = b.make("conv2d", (x, w), at.ConvAttrs((1, 1), (0, 0), (0, 0), (1, 1), 1, True))
    graph = graph_of(b.make("max_pool2d", (y,), at.PoolAttrs((2, 2), (2, 2), (0, 0), (0, 0), True)))
    assert "conv2d" in ops_of(multiply_disjoint_windows(graph, EAGER))


def test_a_network_of_patches_and_excitation_trains_as_the_interpreter_says() -> None:
    """A patch embedding, squeeze-excitation, upsampling by a transposed convolution: no kernel of windows."""
    g = ws.Graph()
    x = g.input("x", ("batch", 3, 8, 8))
    embed, squeeze, spread = ws.nn.Conv2d(3, 8, 4, 4), ws.nn.Conv2d(8, 2, 1), ws.nn.Conv2d(2, 8, 1)
    with g.scope("embed"):
        y = ws.tanh(embed(x))
    with g.scope("squeeze"):
        z = ws.relu(squeeze(y.mean((2, 3), keepdims=True)))
    with g.scope("spread"):
        y = y * ws.sigmoid(spread(z))
    with g.scope("up"):
        y = ws.nn.ConvTranspose2d(8, 3, 2, 2)(y)
    g.set_outputs({"loss": (y**2).sum()})
    graph = train_graph(g, ws.SGD(lr=0.01))
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(graph, {"batch": 5}, EAGER)
    assert not [k for k in plan.kernels if isinstance(k.body, Window)]
    check(graph, plan)


def check(graph: IRGraph, plan: Plan) -> None:
    (emulated,) = together([plan])
    state = {name: first_values(plan, seed=0)(name) for name, _ in plan.states}
    inputs = {"x": np.random.default_rng(3).standard_normal((3, 3, 8, 8)).astype(np.float32)}
    meant = strip_stop_gradients(expand_gradients(inline_calls(graph)))
    want = interpret(meant, inputs=inputs, state=state, sizes={"batch": 3})
    results = [run(emulated, inputs, state, {"batch": 3}, 0, orders) for orders in ORDERS]
    for key, value in {**want.outputs, **want.state}.items():
        np.testing.assert_allclose(results[0][key], value, rtol=2e-5, atol=2e-5, err_msg=key)
        np.testing.assert_array_equal(results[0][key], results[1][key], err_msg="bits depend on an order")


def test_a_patch_embedding_in_half_types_is_one_copy_and_products() -> None:
    """Of an image that is stored with channels second: no other copy of it, and none of its weight's order."""
    g = ws.Graph()
    x = g.input("x", ("batch", 3, 224, 224))
    g.set_outputs({"loss": (ws.nn.Conv2d(3, 768, 16, 16)(x) ** 2).mean()})
    options = CompileOptions(egraph=False, verify=False)
    plan = ws.build_session(
        g, optimizer=ws.SGD(lr=0.1), batch_size=32, precision="bfloat16", device="null:cuda/sm_90", options=options
    ).plan
    assert not [k for k in plan.kernels if isinstance(k.body, Window)]
    stored = [str(plan.buffers[s.buffer].type) for k in plan.kernels for s in k.body.stores()]
    assert [t for t in stored if "batch, 14, 14" in t] == ["bfloat16[batch, 14, 14, 3, 16, 16]"]
    assert not [t for t in stored if "16, 16, 3]" in t]
