"""Every op and random graphs: the generated source of the kernels, emulated, against the interpreter.

Threads and blocks run in several orders; a result that depends on one has a barrier missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import wholestep as ws
from docs import make_ops
from tests.compiler.backends.cuda.emulation.emulated import TARGET, Emulated, compiled_text
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.compiler.ir.random_graphs import LARGEST_VALUE, example_values, graphs
from tests.ops.compiled_ops import group_graph
from tests.ops.table import GROUPS
from tests.support.oracles import assert_close
from wholestep.compiler.backends.common.numpy_program import LaunchMemory, prologue
from wholestep.compiler.backends.gpu.render.source import render
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.printer import print_graph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import DTYPES, DType, as_dtype, evaluate, float64
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.kernel import Plan, Space
from wholestep.options import CompileOptions
from wholestep.steps.states import first_values
from wholestep.steps.train import train_graph

Array = np.ndarray[Any, Any]

PHASES = (Phase.explicit, Phase.generate)  # a failing graph is printed whole
CAPACITY = {"batch": 40, "time": 5}
SIZES = st.fixed_dictionaries({"batch": st.sampled_from([1, 5, 17, 33]), "time": st.integers(1, 5)})
STEP = 3
ORDERS = ((0, 0), (1, 1), (2, 0))  # of the threads of a block, and of the blocks of a grid


def together(plans: list[Plan]) -> list[Emulated]:
    """The kernels of several plans, compiled at once."""
    sources = [render(plan, f"g{i}_") for i, plan in enumerate(plans)]
    names = [name for source in sources for name in source.functions]
    dll, _ = compiled_text("\n".join(s.text for s in sources), names)
    return [Emulated(plan, source, dll) for plan, source in zip(plans, sources, strict=True)]


def run(
    emulated: Emulated,
    inputs: Mapping[str, Array],
    values: Mapping[str, Array],
    sizes: Mapping[str, int],
    seed: int,
    orders: tuple[int, int],
) -> dict[str, Array]:
    """Outputs and states after one launch; intermediates lie where the plan says, and nothing is zero before."""
    plan, constants = emulated.plan, dict(emulated.plan.constants)
    arena = np.full(plan.arena_bytes, 255, np.uint8)
    arrays: dict[int, Array] = {}
    for b in plan.buffers:
        dtype = b.type.dtype.numpy
        if b.space is Space.ARENA:
            arrays[b.id] = arena[b.offset : b.offset + b.bytes].view(dtype)
            continue
        raw = np.full(b.bytes, 255, np.uint8)
        given = {Space.INPUT: inputs, Space.STATE: values, Space.COPY: values}.get(b.space, {}).get(b.name)
        data = constants.get(b.id) if given is None else np.ascontiguousarray(given, dtype).tobytes()
        if data:
            raw[: len(data)] = np.frombuffer(data, np.uint8)
        arrays[b.id] = raw.view(dtype)
    with np.errstate(all="ignore"):
        scalars = {s.name: s.default for s in plan.scalars} | {"step": float(STEP)}
        slots = prologue(plan, sizes, [scalars[s.name] for s in plan.scalars])
    emulated.run(LaunchMemory(plan, arrays, sizes, slots, seed, STEP), *orders)

    def read(id: int) -> Array:
        shape = [evaluate(e, sizes) for e in plan.buffers[id].type.shape]
        return arrays[id][: int(np.prod(shape))].reshape(shape)

    return {name: read(id) for name, id in (*plan.outputs, *plan.states)}


def check(many: list[IRGraph], sizes: dict[str, int], seed: int, fused: bool = True) -> None:
    compiler = Compiler(CompileOptions(egraph=False, fuse=fused))
    plans = [compiler.plan(graph, CAPACITY, TARGET)[0] for graph in many]
    for graph, emulated in zip(many, together(plans), strict=True):
        inputs, values = example_values(graph, sizes, np.random.default_rng(seed))
        want = interpret(graph, inputs=inputs, state=values, sizes=sizes, seed=seed, step=STEP)
        found = [run(emulated, inputs, values, sizes, seed, orders) for orders in ORDERS]
        expected = {**want.outputs, **{name: want.state[name] for name, _ in emulated.plan.states}}
        for name, value in expected.items():
            try:
                assert_close(found[0][name], value, found[0][name].dtype.name, scale=LARGEST_VALUE)
                for other in found[1:]:
                    np.testing.assert_array_equal(found[0][name], other[name], err_msg="bits depend on an order")
            except AssertionError as error:
                raise AssertionError(f"{name} of\n{print_graph(graph)}\n{error}") from None


@settings(max_examples=1, phases=PHASES)
@given(st.lists(graphs(max_nodes=16), min_size=8, max_size=8), SIZES, st.integers(0, 2**31))
def test_graphs_in_float32(many: list[IRGraph], sizes: dict[str, int], seed: int) -> None:
    check(many, sizes, seed)


@settings(max_examples=1, phases=PHASES)
@given(st.lists(graphs(max_nodes=16, dtype=float64), min_size=4, max_size=4), SIZES, st.integers(0, 2**31))
def test_graphs_in_float64_unfused(many: list[IRGraph], sizes: dict[str, int], seed: int) -> None:
    check(many, sizes, seed, fused=False)


@pytest.mark.long
@settings(max_examples=40, phases=PHASES)
@given(st.lists(graphs(max_nodes=24), min_size=12, max_size=12), SIZES, st.integers(0, 2**31), st.booleans())
def test_many_graphs(many: list[IRGraph], sizes: dict[str, int], seed: int, fused: bool) -> None:
    check(many, sizes, seed, fused)


def test_rows_that_are_too_long_for_registers() -> None:
    """A softmax and its gradient over 12,000 columns, which carry exponentials from pass to pass; a wide embedding."""
    g = ws.Graph()
    x, at = g.input("x", ("batch", 12_000)), g.input("at", ("batch",), dtype="int32")
    table = g.parameter("table", (7, 700))
    g.set_outputs({"loss": (ws.softmax(x * 3.0, -1) * x).sum() + (ws.take(table, at) ** 2).sum()})
    graph = train_graph(g, ws.SGD(lr=0.1))
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(graph, {"batch": 3}, TARGET)
    assert any(k.schedule.form == "rows" and k.schedule.vector == 8 for k in plan.kernels)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.standard_normal((3, 12_000)).astype(np.float32), "at": np.array([6, 2, 6], np.int32)}
    state = {name: first_values(plan, seed=0)(name) for name, _ in plan.states}
    meant = strip_stop_gradients(expand_gradients(inline_calls(graph)))
    want = interpret(meant, inputs=inputs, state=state, sizes={"batch": 3}, step=STEP)
    (emulated,) = together([plan])
    found = [run(emulated, inputs, state, {"batch": 3}, 0, orders) for orders in ORDERS]
    for name, value in {**want.outputs, **want.state}.items():
        np.testing.assert_allclose(found[0][name], value, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found[0][name], found[1][name])


def test_a_short_sum_over_columns_has_the_bits_of_warps_that_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that are added to every row of a batch: one thread a column, or a part of it a warp."""
    g = ws.Graph()
    x = g.input("x", ("batch", 2, 304))
    g.set_outputs({"loss": ((x + g.parameter("positions", (2, 304))) ** 2).sum()})
    graph = train_graph(g, ws.SGD(lr=0.1))
    rng, found = np.random.default_rng(0), []
    inputs = {"x": rng.standard_normal((19, 2, 304)).astype(np.float32)}
    for longest, width in ((32, 256), (0, 32)):
        set_costs(monkeypatch, "reductions", short_column=longest)
        plan, _ = Compiler(CompileOptions(egraph=False)).plan(graph, {"batch": 21}, TARGET)
        assert [k.schedule.width for k in plan.kernels if k.schedule.form == "columns"] == [width]
        state = {name: first_values(plan, seed=0)(name) for name, _ in plan.states}
        (emulated,) = together([plan])
        found.append(run(emulated, inputs, state, {"batch": 19}, 0, ORDERS[0]))
    meant = strip_stop_gradients(expand_gradients(inline_calls(graph)))
    want = interpret(meant, inputs=inputs, state=state, sizes={"batch": 19}, step=STEP)
    for name, value in want.state.items():
        np.testing.assert_allclose(found[0][name], value, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize("dtype", ["float32"])
def test_every_op_and_its_gradient(dtype: str) -> None:
    """All groups of cases in one compilation."""
    traced = {group: (train_graph(g, ws.SGD(lr=0.0)), inputs) for group in GROUPS
              for g, inputs in [group_graph(group, dtype)]}  # fmt: skip
    compiler = Compiler(CompileOptions(egraph=False))
    plans = [compiler.plan(graph, {}, TARGET)[0] for graph, _ in traced.values()]
    for (graph, inputs), emulated in zip(traced.values(), together(plans), strict=True):
        state = {name: first_values(emulated.plan, seed=0)(name) for name, _ in emulated.plan.states}
        meant = strip_stop_gradients(expand_gradients(inline_calls(graph)))
        found = run(emulated, inputs, state, {}, 0, (0, 0))
        for name, value in interpret(meant, inputs=inputs, state=state, step=STEP).outputs.items():
            scale = float(np.abs(np.nan_to_num(value.astype(np.float64), posinf=0, neginf=0)).max(initial=1.0))
            assert_close(found[name], value, found[name].dtype.name, scale=scale)


# -- every op in every dtype -----------------------------------------------------------------------------------------


def test_the_page_of_ops_is_up_to_date() -> None:
    """Every op of the IR is on it, for every device: it runs there, or is refused by name."""
    assert make_ops.PAGE.read_text() == make_ops.render(), "run python docs/make_ops.py"
    assert set(make_ops.FAMILIES) == {op.family for op in OPS.values()}


def values_for(graph: IRGraph, rng: np.random.Generator) -> tuple[dict[str, Array], dict[str, Array]]:
    """Floats between 0.2 and 0.9, which suit every function; integers that are indices everywhere."""

    def value(node: Node) -> Array:
        shape, dtype = [evaluate(e, make_ops.SIZES) for e in node.type.shape], node.type.dtype
        drawn = rng.uniform(0.2, 0.9, shape) if dtype.is_float else rng.integers(0, 2, shape)
        return drawn.astype(dtype.numpy)

    inputs = {name: value(node) for name, node in graph.leaves("input").items()}
    return inputs, {name: value(node) for name, node in graph.states().items()}


def assert_rounded(got: Array, want: Array, dtype: DType) -> None:
    """Of half types a few roundings off: a float32 sum may lie on either side of a tie, and terms may cancel."""
    if not dtype.is_half:
        assert_close(got, want, dtype.name, scale=LARGEST_VALUE)
        return
    exact = want.astype(np.float64)
    scale = float(np.abs(exact).max(initial=0.0))
    np.testing.assert_allclose(got.astype(np.float64), exact, rtol=0, atol=4 * dtype.eps * scale + 1e-5)


EVERY_DAY = ("bfloat16", "int32")  # float32 and its gradients have a separate test


@pytest.mark.parametrize("dtype", [d if d in EVERY_DAY else pytest.param(d, marks=pytest.mark.long) for d in DTYPES])
def test_every_op_in_a_dtype(dtype: str) -> None:
    """What the page says of `cuda`: kernels of all ops, beside the interpreter."""
    named = {op: make_ops.example(op, DTYPES[dtype]) for op in OPS}
    many = {op: graph for op, graph in named.items() if graph is not None}
    plans = [make_ops.planned(graph, TARGET) for graph in many.values()]
    rng = np.random.default_rng(0)
    for (op, graph), emulated in zip(many.items(), together(plans), strict=True):
        inputs, state = values_for(graph, rng)
        meant = strip_stop_gradients(expand_gradients(inline_calls(graph)))
        found = run(emulated, inputs, state, make_ops.SIZES, 0, (0, 0))
        want = interpret(meant, inputs=inputs, state=state, sizes=make_ops.SIZES, step=STEP)
        for name, value in want.outputs.items():
            try:
                own = as_dtype(found[name].dtype)
                assert_rounded(found[name], value, DTYPES[dtype] if own.is_float and DTYPES[dtype].is_half else own)
            except AssertionError as error:
                raise AssertionError(f"{op} in {dtype}: {error}") from None
