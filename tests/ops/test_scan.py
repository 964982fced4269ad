"""ws.scan: what it computes, how it is compiled, and what it says to mistakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import wholestep as ws
from tests.compiler.targets import HERE
from tests.support.oracles import assert_close
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.compiler.ir.graph import IRGraph, body_of
from wholestep.compiler.ir.printer import parse_graph, print_graph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.verify import verify
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.distribute.placement.placements import MeshAxis, Mixed, Sharded
from wholestep.compiler.passes.distribute.placement.rules import placements_of
from wholestep.compiler.passes.lower.scan import hoist_projections, merge_scans, sink_lookups
from wholestep.compiler.passes.simplify.inline import unroll_loops
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.kernel import Kind, Plan
from wholestep.errors import GraphError, InputError, ShapeError, UsageError

FEATURES, UNITS = 3, 20
RNG = np.random.default_rng(0)
WEIGHTS = {
    "w": 0.5 * RNG.normal(size=(FEATURES, UNITS)),
    "u": 0.3 * RNG.normal(size=(UNITS, UNITS)),
    "b": 0.1 * RNG.normal(size=UNITS),
}


def network(time: object = "time", dtype: str = "float64", reverse: bool = False) -> ws.Graph:
    """A recurrent network with its gradients as outputs."""
    g = ws.Graph()
    x = g.input("x", (time, "batch", FEATURES), dtype)
    w, u, b = (g.parameter(n, a.shape, init=a, dtype=dtype) for n, a in WEIGHTS.items())

    def cell(h: ws.Tensor, x: ws.Tensor) -> tuple[ws.Tensor, ws.Tensor]:
        h = ws.tanh(x @ w + h @ u.T + b)
        return h, 2.0 * h

    first = ws.Tensor(x.node, g)[0] @ w * 0.0
    last, every = ws.scan(cell, first, x, reverse=reverse)
    loss = (every * every).mean() + (last * last * last).sum()
    found = ws.gradients(loss, [w, u, b])
    g.set_outputs({"loss": loss, "every": every, "last": last, **dict(zip(("dw", "du", "db"), found, strict=True))})
    return g


def by_hand(x: np.ndarray, reverse: bool = False) -> tuple[np.ndarray, np.ndarray]:
    h, every = np.zeros((x.shape[1], UNITS)), np.zeros((*x.shape[:2], UNITS))
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        h = np.tanh(x[t] @ WEIGHTS["w"] + h @ WEIGHTS["u"].T + WEIGHTS["b"])
        every[t] = 2.0 * h
    return h, every


def sequence(time: int, batch: int) -> np.ndarray:
    return np.random.default_rng(time * 100 + batch).normal(size=(time, batch, FEATURES))


def plan_of(graph: ws.Graph, capacity: dict[str, int], **options: Any) -> Plan:
    return Compiler(ws.CompileOptions(**options)).plan(graph.to_ir(), capacity, HERE)[0]


# -- values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reverse", [False, True])
def test_the_interpreter_runs_the_loop(reverse: bool) -> None:
    x = sequence(5, 2)
    found = interpret(expand_gradients(network(reverse=reverse).to_ir()), inputs={"x": x}, state=WEIGHTS).outputs
    last, every = by_hand(x, reverse)
    np.testing.assert_allclose(found["last"], last)
    np.testing.assert_allclose(found["every"], every)


def test_the_compiled_loop_needs_no_recompile_for_other_lengths_and_batches() -> None:
    session = ws.build_inference_session(network(), capacity={"time": 30, "batch": 40}, threads=2)
    ir = expand_gradients(network().to_ir())
    for time, batch in ((30, 3), (1, 1), (7, 13)):
        x = sequence(time, batch)
        session.step(x=x)
        want = interpret(ir, inputs={"x": x}, state=WEIGHTS).outputs
        for name in want:
            assert_close(session.get(name), want[name], "float64", scale=float(np.abs(want[name]).max()))


@pytest.mark.parametrize("batch", [3, 40])  # dealt out by units, and by rows
def test_the_bits_do_not_depend_on_threads(batch: int) -> None:
    x, found = sequence(9, batch).astype(np.float32), []
    for threads in (1, 2, 3):
        g = network(dtype="float32")
        session = ws.build_inference_session(g, capacity={"time": 9, "batch": batch}, threads=threads)
        session.step(x=x)
        found.append({name: session.get(name) for name in ("every", "dw", "du", "db")})
    for other in found[1:]:
        for name, value in other.items():
            np.testing.assert_array_equal(value, found[0][name])


def test_a_carry_may_be_nested_and_hold_integers() -> None:
    g = ws.Graph()
    x = g.input("x", (4, 3))

    def body(carry: Any, x: ws.Tensor) -> tuple[Any, Any]:
        state = {"sum": carry["sum"] + x, "steps": carry["steps"] + 1}
        return state, {"mean": state["sum"] / state["steps"].astype("float32"), "none": None}

    zero = {"sum": x[0] * 0, "steps": ws.Tensor(x.node, g)[0, 0].astype("int32") * 0}
    last, ys = ws.scan(body, zero, x)
    assert ys["none"] is None
    g.set_outputs({"sum": last["sum"], "steps": last["steps"], "mean": ys["mean"]})
    session = ws.build_inference_session(g)
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    session.step(x=values)
    np.testing.assert_allclose(session.get("sum"), values.sum(0))
    assert session.get("steps") == 4
    np.testing.assert_allclose(session.get("mean"), values.cumsum(0) / np.arange(1, 5)[:, None])


def test_without_xs_a_length_is_enough() -> None:
    g = ws.Graph()
    a = g.input("a", ("batch",), "float64")
    last, ys = ws.scan(lambda c, _: (c * 0.5 + a, c), a, length=6)
    g.set_outputs({"last": last, "ys": ys})
    session = ws.build_inference_session(g, capacity={"batch": 4})
    session.step(a=np.ones(3))
    np.testing.assert_allclose(session.get("last"), 2 - 0.5**6)
    np.testing.assert_allclose(session.get("ys")[:, 0], [2 - 0.5**t for t in range(6)])


def test_a_lookup_inside_the_body() -> None:
    g = ws.Graph()
    tokens = g.input("tokens", (5, "batch"), "int32")
    table = g.parameter("table", (7, UNITS), dtype="float64")
    zero = ws.Tensor(tokens.node, g).astype("float64")[0][:, None] * table[0] * 0
    last, _ = ws.scan(lambda h, t: (ws.tanh(h * 0.5 + table[t]), None), zero, tokens)
    (grad,) = ws.gradients((last * last).sum(), [table])
    g.set_outputs({"last": last, "grad": grad})
    session = ws.build_inference_session(g, capacity={"batch": 8})
    data = np.random.default_rng(1).integers(0, 7, (5, 6)).astype(np.int32)
    session.step(tokens=data)
    want = interpret(
        expand_gradients(unroll_loops(g.to_ir())), inputs={"tokens": data}, state={"table": session.get("table")}
    ).outputs
    for name, value in want.items():
        np.testing.assert_allclose(session.get(name), value, rtol=1e-9, atol=1e-12)
    with pytest.raises(InputError, match="tokens"):
        session.step(tokens=data + 7)


# -- random bodies -----------------------------------------------------------------------------------------------

OPS: dict[str, Callable[..., ws.Tensor]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "tanh": lambda a, _: ws.tanh(a),
    "sigmoid": lambda a, _: ws.sigmoid(a),
    "product": lambda a, b: a @ WEIGHTS_NOW["v"] * 0.3 + b,
    "turned": lambda a, b: a @ WEIGHTS_NOW["v"].T * 0.3 - b,
    "halves": lambda a, b: ws.concat([a[:, UNITS // 2 :], b[:, : UNITS // 2]], axis=1),
    "row": lambda a, b: a - b.mean(-1, keepdims=True),
    "where": lambda a, b: ws.where(a < b, a, 0.5 * b),
    "scaled": lambda a, _: a * WEIGHTS_NOW["s"],
}
WEIGHTS_NOW: dict[str, ws.Tensor] = {}
STEPS = st.lists(st.tuples(st.sampled_from(sorted(OPS)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7)


def random_loop(steps: list[tuple[str, int, int]], carries: int, reverse: bool) -> ws.Graph:
    """Carries and slices combined as the list says; the last values are the new carries and the output."""
    g = ws.Graph()
    x = g.input("x", (4, "batch", UNITS), "float64")
    v = g.parameter(
        "v", (UNITS, UNITS), init=0.2 * np.random.default_rng(2).normal(size=(UNITS, UNITS)), dtype="float64"
    )
    s = g.parameter("s", (UNITS,), init=np.linspace(0.5, 1.5, UNITS), dtype="float64")
    WEIGHTS_NOW.update({"v": v, "s": s})

    def body(carry: tuple[ws.Tensor, ...], x: ws.Tensor) -> tuple[tuple[ws.Tensor, ...], ws.Tensor]:
        values = [*carry, x]
        for op, i, j in steps:
            values.append(OPS[op](values[-1 - i % len(values)], values[-1 - j % len(values)]))
        return tuple(ws.tanh(value) for value in values[-carries:]), values[-1] * values[0]

    last, every = ws.scan(body, tuple(0.1 * x[i] for i in range(carries)), x, reverse=reverse)
    loss = (every * every).sum() + sum((h * x[1]).sum() for h in last) + 0.01 * ((v * v).sum() + (s * s).sum())
    dx, dv, ds = ws.gradients(loss, [x, v, s])
    g.set_outputs({"loss": loss, "every": every, "dx": dx, "dv": dv, "ds": ds})
    return g


LOOPS = (STEPS, st.integers(1, 2), st.booleans(), st.sampled_from([1, 5, 33]), st.sampled_from([1, 3]), st.booleans())


@settings(max_examples=5, phases=(Phase.explicit, Phase.generate))
@given(*LOOPS)
def test_random_bodies(
    steps: list[tuple[str, int, int]], carries: int, reverse: bool, batch: int, threads: int, fuse: bool
) -> None:
    check_random_body(steps, carries, reverse, batch, threads, fuse)


@pytest.mark.long
@settings(max_examples=200, phases=(Phase.explicit, Phase.generate))
@given(*LOOPS)
def test_many_random_bodies(
    steps: list[tuple[str, int, int]], carries: int, reverse: bool, batch: int, threads: int, fuse: bool
) -> None:
    check_random_body(steps, carries, reverse, batch, threads, fuse)


def check_random_body(
    steps: list[tuple[str, int, int]], carries: int, reverse: bool, batch: int, threads: int, fuse: bool
) -> None:
    g = random_loop(steps, carries, reverse)
    options = ws.CompileOptions(fuse=fuse, check_passes=True)
    session = ws.build_inference_session(g, capacity={"batch": 40}, threads=threads, options=options)
    x = np.random.default_rng(batch).normal(size=(4, batch, UNITS))
    session.step(x=x)
    state = {name: session.get(name) for name in ("v", "s")}
    want = interpret(expand_gradients(unroll_loops(g.to_ir())), inputs={"x": x}, state=state).outputs
    for name, value in want.items():
        assert_close(session.get(name), value, "float64", scale=max(1.0, float(np.abs(value).max())))


# -- text, identity, checks --------------------------------------------------------------------------------------


def test_text_and_fingerprint_hold_the_body() -> None:
    ir = expand_gradients(network().to_ir())
    again = parse_graph(print_graph(ir))
    assert fingerprint(again) == fingerprint(ir)
    assert print_graph(again) == print_graph(ir)
    assert fingerprint(network(reverse=True).to_ir()) != fingerprint(network().to_ir())
    verify(again)


def bodies(graph: IRGraph) -> list[IRGraph]:
    found = [body_of(n) for n in graph.nodes if n.op == "scan"]
    return [b for b in found if b is not None]


def count(graph: IRGraph, op: str) -> int:
    return sum(n.op == op for n in graph.nodes)


# -- passes ------------------------------------------------------------------------------------------------------


def test_projections_and_weight_gradients_leave_the_loop() -> None:
    ir = merge_scans(expand_gradients(hoist_projections(network().to_ir())))
    forward, backward = bodies(ir)
    assert count(forward, "matmul") == 1, "h·U alone is left"
    assert count(backward, "matmul") == 1, "dh alone is left"
    assert count(backward, "sum") == 0, "the bias's gradient is a sum over steps and rows outside"


def test_twins_are_merged_and_only_what_is_read_is_stacked() -> None:
    g = ws.Graph()
    x = g.parameter("x", (3, 4))
    last, _ = ws.scan(lambda c, x: (ws.sigmoid(x + c) * x, None), x[0], x)  # the sigmoid is stacked for the gradient
    g.set_outputs({"dx": ws.gradients(last.sum(), [x])[0], "last": last})
    ir = expand_gradients(g.to_ir())
    assert count(ir, "scan") == 3
    assert count(merge_scans(ir), "scan") == 2
    g = ws.Graph()
    x = g.input("x", (3, 4))
    last, _ = ws.scan(lambda c, x: (c + x, c * x), x[0], x)
    g.set_outputs({"last": last})
    (body,) = bodies(merge_scans(g.to_ir()))
    assert len(body.outputs) == 1


def test_lookups_sink_into_the_loop() -> None:
    g = ws.Graph()
    tokens, table = g.input("tokens", (5, 4), "int32"), g.parameter("table", (7, 3))
    last, _ = ws.scan(lambda c, x: (c * 0.5 + x, None), table[0] * np.ones((4, 1), np.float32), table[tokens])
    g.set_outputs({"last": last})
    ir = sink_lookups(g.to_ir())
    verify(ir)
    assert [count(body, "gather") for body in bodies(ir)] == [1]
    assert all(n.op != "gather" or n.type.shape != (5, 4, 3) for n in ir.nodes)


def test_each_loop_is_one_loop_of_the_plan() -> None:
    plan = plan_of(network(), {"time": 64, "batch": 32})
    assert [loop.reverse for loop in plan.loops] == [False, True]
    assert [k.kind for k in plan.kernels if k.loop == 0] == [Kind.DOT], "tanh is in the product's epilogue"
    assert sum(k.kind is Kind.DOT for k in plan.kernels if k.loop == 1) == 1
    assert not any(loop.barrier for loop in plan.loops), "threads own rows throughout"


def test_a_table_is_multiplied_instead_of_its_rows() -> None:
    model = ws.models.lstm_lm(65, width=16, layers=1)
    g = ws.Graph()
    g.set_outputs({"scores": model(g.input("tokens", ("batch", 64), "int32"))})
    plan = plan_of(g, {"batch": 32})
    rows = sorted(k.axes[0] for k in plan.kernels if k.kind is Kind.DOT and isinstance(k.axes[0], int))
    assert rows == [65]


def test_a_loop_is_row_wise_where_its_steps_are() -> None:
    g = ws.Graph()
    x, w = g.input("x", (5, "batch", FEATURES)), g.parameter("w", (FEATURES, FEATURES))
    alone, every = ws.scan(lambda h, x: (ws.tanh(x + h @ w), h), x[0] * 0, x)
    mixed, _ = ws.scan(lambda h, x: (ws.tanh(x + h - h.mean(0)), None), x[0] * 0, x)
    kinds = placements_of([alone.node, every.node, mixed.node], MeshAxis.of_batch("batch"))
    assert (kinds[alone.node], kinds[every.node]) == (Sharded(0), Sharded(1))
    assert isinstance(kinds[mixed.node], Mixed)


# -- mistakes ----------------------------------------------------------------------------------------------------


def mistake(body: Any, init: Any = None, xs: Any = "x", **options: Any) -> Callable[[], object]:
    def run() -> object:
        g = ws.Graph()
        x = g.input("x", (4, 3))
        first = x[0] if init is None else init(x)
        return ws.scan(body, first, x if isinstance(xs, str) else xs, **options)

    return run


MISTAKES = {
    "no pair": (mistake(lambda c, x: c + x), UsageError, r"must return \(carry, y\)"),
    "another shape": (
        mistake(lambda c, x: (ws.concat([c, x]), None)),
        ShapeError,
        r"carry 0 begins as float32\[3\] and is float32\[6\] after a step",
    ),
    "another nesting": (mistake(lambda c, x: ((c, x), None)), UsageError, "nested like init"),
    "no length": (mistake(lambda c, x: (c, None), xs=None), UsageError, "pass it: length=10"),
    "lengths differ": (mistake(lambda c, x: (c, None), length=5), ShapeError, "received 4 and 5"),
    "a scalar sequence": (
        mistake(lambda c, x: (c, None), xs=1.0),
        ShapeError,
        "the first axis of xs must be the steps",
    ),
    "random numbers": (mistake(lambda c, x: (ws.dropout(c + x, 0.5), None)), GraphError, "the same in every step"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_explained_at_the_users_line(name: str) -> None:
    run, kind, text = MISTAKES[name]
    with pytest.raises(kind, match=text) as caught:
        run()
    assert "test_scan.py" in str(caught.value)


def test_an_inner_loop_of_unknown_length_is_refused() -> None:
    g = ws.Graph()
    x = g.input("x", (3, "time"))
    last, _ = ws.scan(lambda c, row: ws.scan(lambda d, v: (d + v, None), c, row), x[0, 0], x)
    g.set_outputs({"last": last})
    with pytest.raises(GraphError, match="a loop inside another one needs a fixed number of steps"):
        ws.build_inference_session(g, capacity={"time": 4})
