"""Every op through the compiled step against torch: values, and gradients mid-graph with an upstream other than 1."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.ops.compiled_ops import UPSTREAM, compiled, group_graph, typed, weights_of
from tests.ops.table import GROUPS, SYMBOLIC, Array, Case
from tests.support.compilers import quick
from tests.support.complete import assert_equal_rows
from tests.support.oracles import assert_close
from tests.support.recording import initial_state
from wholestep.compiler.ir.graph import IRGraph, toposort
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.steps.train import train_graph

DTYPES = ("float32", "float64")
CASES = [(group, name) for group, rows in GROUPS.items() for name in rows]


# -- torch, in float64 on the same numbers ---------------------------------------------------------------------------


def reference(case: Case, dtype: str) -> tuple[Array, list[Array]]:
    leaves = [2.0 * typed(a, dtype).astype("float64") if a.dtype.kind == "f" else a for a in case.arrays]
    tensors = [torch.tensor(a, requires_grad=case.slope and a.dtype.kind == "f") for a in leaves]
    out = case.theirs(*(0.5 * t if t.is_floating_point() else t for t in tensors))
    if not case.slope:
        return out.numpy(), []
    upstream = torch.tensor(weights_of(tuple(out.shape)).astype(dtype).astype("float64"))
    ((out * upstream).sum() * UPSTREAM).backward()
    return out.detach().numpy(), [t.grad.numpy() for t in tensors if t.requires_grad]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("group", "name"), CASES, ids=[name for _, name in CASES])
def test_value_and_gradients_equal_torch(group: str, name: str, dtype: str) -> None:
    ours = compiled(group, dtype)
    value, grads = reference(GROUPS[group][name], dtype)
    exact = "exact" if ours.values[name].dtype.kind in "iub" else dtype
    assert_close(ours.values[name], value, exact)
    assert len(ours.grads[name]) == len(grads)
    for mine, theirs in zip(ours.grads[name], grads, strict=True):
        assert mine.dtype == dtype
        assert_close(mine, theirs, dtype)


# -- symbolic dimensions -----------------------------------------------------------------------------------------------


def symbolic_graph() -> ws.Graph:
    """Each case reads x·w with its own w; the sine makes every element's upstream gradient another."""
    g = ws.Graph()
    x = g.input("x", ("batch", "time", 5), "float64")
    loss: Any = 0.0
    for name, (ours, *_) in SYMBOLIC.items():
        w = g.parameter(f"{name}/w", (5,), init=WEIGHTS, dtype="float64").keep()
        loss = loss + ours(x * w).keep(name).sin().sum() * UPSTREAM
    g.set_outputs({"loss": loss})
    return g


WEIGHTS = np.linspace(0.5, 1.5, 5)


@functools.cache
def symbolic_session() -> ws.Session:
    capacity = {"batch": 19, "time": 6}
    return ws.build_session(symbolic_graph(), optimizer=ws.SGD(lr=0.0), capacity=capacity, options=quick())


@functools.cache
def symbolic_outputs(batch: int, time: int) -> dict[str, Array]:
    return dict(symbolic_session().step(x=symbolic_data(batch, time)).outputs)


def symbolic_data(batch: int, time: int) -> Array:
    return np.random.default_rng(batch).normal(size=(batch, time, 5))


@pytest.mark.parametrize(("batch", "time"), [(19, 6), (17, 1), (1, 6), (1, 1), (8, 3)])
@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_dimensions_equal_torch(name: str, batch: int, time: int) -> None:
    ours = symbolic_outputs(batch, time)
    w = torch.tensor(WEIGHTS, requires_grad=True)
    out = SYMBOLIC[name][-1](torch.tensor(symbolic_data(batch, time)) * w)
    (out.sin().sum() * UPSTREAM).backward()
    assert_close(ours[name], out.detach().numpy(), "float64")
    assert_close(ours[f"{name}/w.grad"], w.grad.numpy(), "float64", scale=1.0)


# -- random numbers, states and scalars --------------------------------------------------------------------------------


def random_graph() -> ws.Graph:
    g = ws.Graph()
    x = g.input("x", ("batch", 21))
    count, scale = g.state("count", (21,), init=1.0), g.scalar("scale", 0.25)
    uniform = ws.random_uniform(g, ("batch", 21), -1.0, 2.0).keep("uniform")
    normal = ws.random_normal(g, ("batch", 21)).keep("normal")
    w = g.parameter("w", (21,), init=1.0).keep()
    dropped = ws.dropout(x * w, 0.7).keep("dropped")
    g.update(count, count + uniform.sum(0) * scale.astype("float32"))
    g.set_outputs({"loss": (x * w * uniform + normal + dropped * dropped).mean()})
    return g


def test_random_numbers_states_and_scalars_equal_the_interpreter() -> None:
    g, x = random_graph(), np.random.default_rng(0).normal(size=(9, 21)).astype(np.float32)
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.5), batch_size=10, seed=7)
    graph = expand_gradients(train_graph(g, ws.SGD(lr=0.5)))
    state = initial_state(graph, seed=7)
    for step in range(3):
        expected = interpret(graph, inputs={"x": x}, state=state, seed=7, step=step)
        got, state = session.step(x=x), expected.state
        assert_close(got["uniform"], expected.outputs["uniform"])
        assert_close(got["normal"], expected.outputs["normal"], scale=4.0)
        assert_close(got["dropped"], expected.outputs["dropped"])
        assert_close(got["w.grad"], expected.outputs["w.grad"])
        for name in ("count", "w"):
            assert_close(session.get(name), state[name])
    assert len(np.unique(got["uniform"])) > 180  # 189 draws of 24 bits


def test_plain_uniform_draws_have_the_bits_of_the_interpreter() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 3))
    draw = ws.random_uniform(g, ("batch", 37)).keep("draw")
    g.set_outputs([x.sum() + draw.sum()])
    session = ws.build_inference_session(g, batch_size=8, seed=3)
    expected = interpret(g.to_ir(), inputs={"x": np.zeros((5, 3))}, seed=3, step=0)
    got = session.step(x=np.zeros((5, 3), np.float32))["draw"]
    np.testing.assert_array_equal(got, expected.outputs["draw"].astype(np.float32))


# -- nothing is left out -----------------------------------------------------------------------------------------------

UNTESTED = {
    "call": "nothing that users call records one yet; inlined before planning, tests/compiler/passes/test_inline",
    "by_mode": "has two values, by the entry point: tests/ops/test_dropout",
    **dict.fromkeys(
        ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "exchange"), "of several ranks: tests/distributed"
    ),
    "max_pool2d_pick": "only second derivatives have it: tests/ops/test_second_order, group windows",
    "pooled_grad_input": "made by a pass: tests/compiler/passes/test_max_pooling, tests/ops/test_windows",
    "pooled_grad_weight": "made by a pass: tests/compiler/passes/test_max_pooling, tests/ops/test_windows",
}


def ops_of(graph: IRGraph) -> set[str]:
    return {n.op for n in toposort(graph.roots)}


def test_every_op_is_in_the_tables_above() -> None:
    graphs = [*(group_graph(group, "float32")[0] for group in GROUPS), symbolic_graph(), random_graph()]
    traced = [train_graph(g, ws.SGD()) for g in graphs]
    used = set().union(*(ops_of(g) | ops_of(expand_gradients(g)) for g in traced))
    assert_equal_rows(used | set(UNTESTED), OPS, "the table of tests/ops/table.py")
    assert not used & set(UNTESTED), "no longer untested"


# -- finite differences ------------------------------------------------------------------------------------------------


def composed() -> ws.Graph:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 9), "float64"), g.input("labels", ("batch",), "int32")
    w1, b1 = g.parameter("w1", (9, 20), dtype="float64"), g.parameter("b1", (20,), dtype="float64")
    w2, gain = g.parameter("w2", (4, 20), dtype="float64"), g.parameter("gain", (20,), init=1.0, dtype="float64")
    hidden = ws.gelu(ws.layer_norm(x @ w1 + b1) * gain) + ws.tanh(x @ w1) * 0.5
    logits = ws.silu(hidden) @ w2.T
    penalty = (ws.softmax(hidden, 0) ** 2).sum() * 0.1
    loss = ws.losses.cross_entropy(logits, labels) * UPSTREAM + penalty + hidden.max(1).mean()
    for p in (w1, b1, w2, gain):
        p.keep()
    g.set_outputs({"loss": loss})
    return g


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_equal_finite_differences_in_a_random_direction(seed: int) -> None:
    rng = np.random.default_rng(seed)
    session = ws.build_session(composed(), optimizer=ws.SGD(lr=0.0), batch_size=8)
    batch = {"x": rng.normal(size=(6, 9)), "labels": rng.integers(0, 4, 6).astype(np.int32)}
    names = ("w1", "b1", "w2", "gain")
    start = {name: session.get(name) for name in names}
    direction = {name: rng.normal(size=start[name].shape) for name in names}
    out = session.step(**batch)
    slope = sum((out[f"{name}.grad"] * direction[name]).sum() for name in names)

    def moved(t: float) -> float:
        for name in names:
            session.set(name, start[name] + t * direction[name])
        return session.step(**batch).loss

    h = 1e-5
    central = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h)
    assert slope == pytest.approx(central, rel=1e-7)
