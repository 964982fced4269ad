"""Channels last, relus after pools, adjoints through pools: equal values, and the expected ops."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.targets import HERE
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.lower.channels_last import LAST, channels_last
from wholestep.compiler.passes.lower.max_pooling import drop_unit_pools, fuse_pool_gradients, sink_relu_below_pool
from wholestep.compiler.passes.simplify.dead_code import drop_dead_code

RNG = np.random.default_rng(5)
STATE = {"w": RNG.normal(size=(4, 3, 3, 3)), "b": RNG.normal(size=(4,)), "v": RNG.normal(size=(60, 4, 3, 3))}
X = RNG.normal(size=(2, 3, 8, 9))


def network(wide: bool = False, kept: bool = False) -> IRGraph:
    """Convolution, relu, pool, slice, a second convolution; the loss and the gradients of all parameters."""
    g = ws.Graph()
    x = g.input("x", ("batch", 3, 8, 9), "float64")
    p = {n: g.parameter(n, a.shape, dtype="float64") for n, a in STATE.items()}
    hidden = ws.relu(ws.conv2d(x, p["w"], p["b"], padding=1))
    if kept:
        hidden.keep("hidden")
    pooled = ws.max_pool2d(hidden, 2)
    out = ws.max_pool2d(ws.conv2d(pooled, p["v"] if wide else p["v"][:3], padding=1), (2, 2))[:, :, ::2, ::2]
    loss = (out * out).sum()
    grads = ws.gradients(loss, list(p.values()))
    g.set_outputs({"loss": loss, **{f"{n}.grad": d for n, d in zip(p, grads, strict=True)}})
    return g.to_ir()


def values(graph: IRGraph) -> dict[str, np.ndarray]:
    return interpret(graph, inputs={"x": X}, state=STATE, sizes={"batch": 2}).outputs


def ops(graph: IRGraph) -> list[str]:
    return [n.op for n in graph.nodes]


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    return values(expand_gradients(network()))


def assert_equal(graph: IRGraph, expected: dict[str, np.ndarray]) -> None:
    got = values(graph)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-12, atol=1e-12)


def test_a_pool_of_one_is_its_input() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 3, 8, 9), "float64")
    g.set_outputs({"same": ws.max_pool2d(x, 1), "steps": ws.max_pool2d(x, 1, 2), "wide": ws.max_pool2d(x, (1, 2), 1)})
    graph = g.to_ir()
    dropped = drop_unit_pools(graph)
    assert ops(dropped).count("max_pool2d") == 2
    assert_equal(dropped, values(graph))


def test_a_relu_waits_behind_its_pool(expected: dict[str, np.ndarray]) -> None:
    moved = sink_relu_below_pool(network())
    (relu,) = (n for n in moved.nodes if n.op == "relu")
    assert relu.inputs[0].op == "max_pool2d"
    assert_equal(expand_gradients(moved), expected)


def test_a_relu_that_others_read_stays() -> None:
    graph = network(kept=True)
    assert sink_relu_below_pool(graph) is graph


def test_channels_come_last_and_almost_no_permutation_is_left(expected: dict[str, np.ndarray]) -> None:
    moved = drop_dead_code(channels_last(expand_gradients(sink_relu_below_pool(network()))))
    windows = [n for n in moved.nodes if n.op.startswith(("conv2d", "max_pool2d"))]
    assert all(n.attrs.last for n in windows)  # type: ignore[attr-defined]
    of_images = [n for n in moved.nodes if n.op == "permute" and "batch" in str(n.type)]
    assert [n.attrs.order for n in of_images] == [LAST]  # type: ignore[attr-defined]  # the input's own
    assert_equal(moved, expected)


def test_without_images_nothing_changes() -> None:
    g = ws.Graph()
    g.set_outputs([(g.input("x", (3, 4)) * 2.0).sum()])
    graph = g.to_ir()
    assert channels_last(graph) is graph


def test_adjoints_take_the_pooled_gradient(expected: dict[str, np.ndarray]) -> None:
    moved = channels_last(expand_gradients(sink_relu_below_pool(network())))
    through = drop_dead_code(fuse_pool_gradients(moved, HERE))
    assert ops(through).count("pooled_grad_weight") == 2
    assert ops(through).count("pooled_grad_input") == 1
    assert "max_pool2d_grad" not in ops(through)
    assert_equal(through, expected)


def test_kernels_too_large_for_the_cache_are_convolved_with_the_gradient_spread_out() -> None:
    moved = channels_last(expand_gradients(sink_relu_below_pool(network(wide=True))))
    through = drop_dead_code(fuse_pool_gradients(moved, HERE))
    assert "conv2d_grad_input" in ops(through)
    assert "pooled_grad_input" not in ops(through)
    assert_equal(through, values(expand_gradients(network(wide=True))))
