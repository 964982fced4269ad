"""Graphs built by hand for the corners of the planner: planned, checked, compiled and run against the interpreter."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from tests.compiler.ir.random_graphs import example_values
from tests.compiler.native import Loaded, fenced, lower
from tests.compiler.ownership import violations
from tests.compiler.targets import make_plan
from tests.support.oracles import assert_close
from wholestep.compiler.backends.cpu.layout.stored_layout import PANELS
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import (
    Dim,
    DType,
    Extent,
    TensorType,
    as_shape,
    boolean,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from wholestep.compiler.ir.verify import verify
from wholestep.compiler.plan.check.soundness import check_file as check
from wholestep.compiler.plan.model.kernel import Layout, Plan, Space

CAPACITY = {"batch": 21, "time": 9}
SIZES = (CAPACITY, {"batch": 5, "time": 1}, {"batch": 1, "time": 7})
BATCH, TIME = Dim.symbol("batch"), Dim.symbol("time")
Shape = tuple[int | str | Extent, ...]


def x(name: str, *shape: int | str | Extent, dtype: DType = float32) -> Node:
    return Node("input", (), at.InputAttrs(name, TensorType(as_shape(shape), dtype)), name)


def w(name: str, *shape: int, dtype: DType = float32) -> Node:
    return Node(
        "state", (), at.StateAttrs(name, TensorType(as_shape(shape), dtype), at.Initializer("constant", (0.0,))), name
    )


def const(value: object, dtype: DType = float32) -> Node:
    return b.constant(value, dtype)


def out(*nodes: Node, **updates: Node) -> IRGraph:
    """The nodes as outputs out0, out1, ...; states by name and their new values."""
    outputs = tuple(Output(f"out{i}", n) for i, n in enumerate(nodes))
    found = tuple(Update(name, n) for name, n in updates.items())
    return IRGraph(outputs, found, tuple(n for n in IRGraph(outputs, found).nodes if n.op == "input"))


CASES: dict[str, Callable[[], IRGraph]] = {}


def case(make: Callable[[], IRGraph]) -> Callable[[], IRGraph]:
    CASES[make.__name__] = make
    return make


# -- sizes ---------------------------------------------------------------------------------------------------------


@case
def dimensions_of_one() -> IRGraph:
    a, v = x("a", "batch", 1), w("v", 1, 1)
    p = b.matmul(a, v)  # (batch, 1)
    return out(p, b.sum_axes(p, [0]), b.sum_axes(p, [1]), b.max_axes(p, [0, 1]), v=b.matmul(p, a, transpose_a=True))


@case
def a_number_in_all_places_of_an_operand() -> IRGraph:
    number = x("a")
    left = Node("expand", (number,), at.ExpandAttrs(as_shape(("batch", 5)), ()))
    right = Node("expand", (number,), at.ExpandAttrs(as_shape((5, 7)), ()))
    return out(b.matmul(left, w("u", 5, 7)), b.matmul(x("c", "batch", 5), right))


@case
def empty_dimensions() -> IRGraph:
    a, u = x("a", "batch", 0), w("u", 0, 9)
    none = b.slice_axes(x("c", "batch", 6), (0, 3), (BATCH, 3))
    return out(
        *(b.unary("sin", a), b.sum_axes(a, [1]), b.sum_axes(a, [0]), b.matmul(a, u)),
        *(b.matmul(a, none, transpose_b=True), b.concat([a, x("d", "batch", 2), none], 1)),
        u=b.scale(u, 0.5),
    )


@case
def empty_product_with_an_epilogue() -> IRGraph:
    a, u, v = x("a", "batch", 0), w("u", 0, 18), w("v", 18)
    return out(v=b.add(v, b.sum_axes(b.shift(b.matmul(a, u), 1.0), [0])))


@case
def symbol_reduced_along_rows() -> IRGraph:
    a = x("a", 3, "batch")
    centred = b.sub(a, b.restore_axes(b.max_axes(a, [1]), [1], a.type.shape))
    e = b.unary("exp", centred)
    return out(b.sum_axes(e, [1]), b.div(e, b.restore_axes(b.sum_axes(e, [1]), [1], e.type.shape)))


@case
def symbol_reduced_along_columns() -> IRGraph:
    a = x("a", "batch", 37)
    return out(b.sum_axes(a, [0]), b.max_axes(a, [0]), Node("argmax", (a,), at.ArgmaxAttrs(0)))


@case
def symbol_as_vector_axis() -> IRGraph:
    a, v = x("a", 5, "batch"), w("v", 5)
    return out(b.mul(b.unary("sin", a), b.expand_to(v, a.type.shape, (0,))), v=b.sum_axes(a, [1]))


@case
def two_symbols_flattened() -> IRGraph:
    a, v = x("a", "batch", "time", 4), w("v", 4, 18)
    flat = b.reshape(b.unary("tanh", a), (BATCH * TIME, 4))
    h = b.reshape(b.matmul(flat, v), (BATCH, TIME, 18))
    return out(h, b.sum_axes(h, [0, 1]), b.max_axes(h, [1]), v=b.matmul(flat, b.reshape(h, (BATCH * TIME, 18)), True))


@case
def symbol_as_n_of_a_matmul() -> IRGraph:
    a, c, v = x("a", 6, "batch"), x("c", 4, 6), w("v", 6, 20)
    p = b.unary("tanh", b.matmul(c, a))  # (4, batch)
    return out(p, b.matmul(v, a, transpose_a=True), b.matmul(a, a, transpose_a=True))


@case
def symbol_as_k_of_a_matmul() -> IRGraph:
    a, c = x("a", "batch", 6), x("c", "batch", 19)
    return out(b.matmul(a, c, transpose_a=True), b.matmul(b.transpose(a), b.unary("sin", c)))


@case
def matmul_of_a_symbol_with_itself() -> IRGraph:
    a = b.unary("sin", x("a", "batch", 17))
    return out(b.matmul(a, a, transpose_b=True), b.matmul(a, a, transpose_a=True))


# -- batched contractions ------------------------------------------------------------------------------------------


@case
def batched_matmul_with_all_transposes() -> IRGraph:
    q, k = b.unary("sin", x("q", "batch", 5, 18)), b.unary("cos", x("k", "batch", 5, 18))
    scores = b.matmul(q, k, transpose_b=True)  # (batch, 5, 5)
    mixed = b.matmul(b.softmax(scores, 2), q)
    turned = b.matmul(scores, k, transpose_a=True)
    return out(mixed, turned, b.matmul(b.transpose(q), b.transpose(scores)), b.matmul(q, k, transpose_a=True))


@case
def heads_by_permutation() -> IRGraph:
    a, v = x("a", "batch", "time", 8), w("v", 8, 24)
    h = b.reshape(b.matmul(b.reshape(a, (BATCH * TIME, 8)), v), (BATCH, TIME, 3, 2, 4))
    heads = [
        b.reshape(b.slice_axes(h, (0, 0, i, 0, 0), (BATCH, TIME, i + 1, 2, 4)), (BATCH, TIME, 2, 4)) for i in range(3)
    ]
    q, k, v2 = (b.permute(t, (0, 2, 1, 3)) for t in heads)  # (batch, head, time, 4)
    mixed = b.matmul(b.softmax(b.matmul(q, k, transpose_b=True), 3), v2)
    return out(b.reshape(b.permute(mixed, (0, 2, 1, 3)), (BATCH, TIME, 8)))


@case
def sliced_operands() -> IRGraph:
    v, a = w("v", 20, 40), x("a", "batch", 24)
    part = b.slice_axes(v, (3, 17), (15, 37))  # (12, 20) of a paneled state
    left = b.slice_axes(a, (0, 12), (BATCH, 24))
    other = b.slice_axes(a, (0, 0), (BATCH, 24), (1, 2))
    h = b.unary("relu", b.matmul(other, part))
    return out(b.matmul(left, part), b.matmul(h, b.slice_axes(h, (0, 4), (BATCH, 16)), transpose_a=True))


@case
def dot_of_constants_and_iota() -> IRGraph:
    a = x("a", "batch", 3)
    table = const(np.arange(15).reshape(3, 5) / 8)
    steps = b.cast(b.iota((5, 4), 0), float32)
    return out(b.matmul(b.matmul(a, table), steps), table, b.matmul(b.transpose(table), table), const(2.5))


# -- dtypes --------------------------------------------------------------------------------------------------------


@case
def doubles() -> IRGraph:
    a, v = x("a", "batch", 18, dtype=float64), w("v", 18, 21, dtype=float64)
    h = b.unary("tanh", b.matmul(a, v))
    g = b.matmul(a, h, transpose_a=True)
    return out(b.sum_axes(h, [0, 1]), b.matmul(h, v, transpose_b=True), v=b.sub(v, b.scale(g, 0.01)))


@case
def stores_of_every_dtype() -> IRGraph:
    a, n = x("a", "batch", 19), x("n", "batch", 19, dtype=int32)
    mask = b.less(a, b.full_like(a, 0.25))
    bytes_, longs = b.cast(n, uint8), b.cast(n, int64)
    flag, total, byte = w("flag", 19, dtype=boolean), w("total", 19, dtype=int64), w("byte", 19, dtype=uint8)
    counted = b.sum_axes(b.cast(mask, int64), [0])
    return out(
        *(mask, bytes_, longs, b.max_axes(bytes_, [1]), b.max_axes(longs, [0]), b.cast(mask, float32)),
        flag=b.make("logical_or", (flag, b.less(counted, b.full_like(counted, 3)))),
        total=b.add(total, counted),
        byte=b.add(byte, b.full_like(byte, 250)),
    )


@case
def integer_arithmetic_wraps() -> IRGraph:
    n, m = x("n", "batch", 3, dtype=uint8), x("m", "batch", 3, dtype=int64)
    return out(b.sub(n, b.full_like(n, 3)), b.mul(n, b.full_like(n, 100)), b.mul(m, b.full_like(m, 2**40)), b.neg(n))


@case
def sums_and_maxima_of_integers() -> IRGraph:
    n, m = x("n", "batch", 5, dtype=int64), x("m", "batch", 5, dtype=uint8)
    found = [Node("argmax", (t,), at.ArgmaxAttrs(d)) for t in (n, m) for d in (0, 1)]
    return out(b.sum_axes(n, [0]), b.sum_axes(n, [1]), b.max_axes(m, [0]), b.max_axes(n, [1]), *found)


@case
def comparisons_of_every_dtype() -> IRGraph:
    n, m, p = x("n", "batch", dtype=int64), x("m", "batch", dtype=uint8), x("p", "batch", dtype=boolean)
    d = x("d", "batch", dtype=float64)
    picked = b.where(p, b.cast(m, int64), n)
    return out(picked, b.where(b.less(d, b.full_like(d, 0.5)), m, b.full_like(m, 9)), b.make("logical_not", (p,)))


# -- states --------------------------------------------------------------------------------------------------------


@case
def states_smaller_than_a_panel() -> IRGraph:
    a, u, v = x("a", "batch", 3), w("u", 3, 2), w("v", 2, 9)
    h = b.matmul(b.matmul(a, u), v)  # (batch, 9)
    back = b.matmul(h, v, transpose_b=True)  # through the stored transpose
    return out(
        h,
        b.matmul(back, u, transpose_b=True),
        u=b.sub(u, b.scale(b.matmul(a, back, True), 0.1)),
        v=b.sub(v, b.scale(b.matmul(b.matmul(a, u), h, True), 0.1)),
    )


@case
def swapped_states() -> IRGraph:
    u, v = w("u", 5, 18), w("v", 5, 18)
    return out(b.sub(u, v), u=v, v=u)


@case
def rotated_states() -> IRGraph:
    u, v, z = w("u", 18), w("v", 18), w("z", 18)
    return out(u=b.add(v, z), v=b.mul(z, u), z=b.sub(u, v))


@case
def update_through_its_own_transpose() -> IRGraph:
    u = w("u", 18, 18)
    return out(u=b.add(u, b.scale(b.transpose(u), 0.5)))


@case
def update_through_a_product_with_itself() -> IRGraph:
    u = w("u", 18, 18)
    return out(b.sum_axes(u, [0]), u=b.sub(u, b.matmul(u, u, transpose_b=True)))


@case
def update_through_a_gather_of_itself() -> IRGraph:
    u, i = w("u", 6, 9), x("i", 6, dtype=int32)
    return out(b.gather(u, i, 0), u=b.add(b.gather(u, i, 0), u))


@case
def update_through_a_shift_of_itself() -> IRGraph:
    u = w("u", 20)
    shifted = b.pad(b.slice_axes(u, (0,), (19,)), (1,), (0,))
    return out(u=shifted)


@case
def update_through_its_own_norm() -> IRGraph:
    u = w("u", 4, 18)
    norm = b.unary("sqrt", b.sum_axes(b.mul(u, u), [1]))
    return out(norm, u=b.div(u, b.restore_axes(b.shift(norm, 1.0), [1], u.type.shape)))


@case
def update_of_a_row_that_its_own_kernel_spreads() -> IRGraph:
    """Row values and elements in one kernel: the row is read by every element, and overwritten."""
    a, u = x("a", 7, 18), w("u", 7)
    doubled = b.scale(u, 2.0)
    y = b.mul(b.unary("sin", a), b.restore_axes(doubled, [1], a.type.shape))
    return out(y, b.mul(y, b.restore_axes(u, [1], a.type.shape)), u=b.shift(doubled, 1.0))


@case
def two_updates_from_one_node() -> IRGraph:
    u, v, a = w("u", 18, 9), w("v", 18, 9), x("a", "batch", 18)
    step = b.add(b.scale(u, 0.5), v)
    return out(b.matmul(a, u), b.matmul(a, v), step, u=step, v=step)


@case
def update_by_an_input_or_a_constant() -> IRGraph:
    u, v, a = w("u", 3, 10), w("v", 3, 10), x("a", 3, 10)
    return out(b.add(u, v), u=a, v=b.full(0.25, v.type))


@case
def update_that_keeps_the_state() -> IRGraph:
    u, v = w("u", 3), w("v", 3)
    return out(b.add(u, v), u=u, v=u)


@case
def scalar_state() -> IRGraph:
    n, a = w("n"), x("a", "batch")
    return out(n, b.mul(a, b.expand_to(n, a.type.shape, ())), n=b.add(n, b.sum_axes(a, [0])))


@case
def state_that_is_counted_in_integers() -> IRGraph:
    seen, i = w("seen", 6, dtype=int64), x("i", "batch", dtype=int32)
    ones = b.full(1, TensorType((BATCH,), int64))
    return out(seen=b.add(seen, b.scatter_add(ones, i, 0, 6)))


# -- comparisons that wait for their reader --------------------------------------------------------------------------


def computed(*shape: Extent) -> Node:
    """Something that has a kernel of its own, which its readers may join."""
    return b.unary("sin", b.matmul(x("a", shape[0], 4), x("c", 4, *shape[1:])))


@case
def comparison_read_at_another_place() -> IRGraph:
    s = computed(9, 9)
    mask = b.less(s, b.full_like(s, 0.0))
    return out(b.where(b.transpose(mask), s, b.zeros_like(s)))


@case
def comparison_looked_up() -> IRGraph:
    s, i, j = computed(2, 3), x("i", 3, dtype=int32), x("j", dtype=int32)
    signs = b.cast(b.less(s, b.full_like(s, 0.0)), float32)
    return out(b.gather(signs, i, 1), b.add(s, b.gather(signs, i, 1)), b.gather(signs, j, 1))


@case
def comparison_padded() -> IRGraph:
    s = computed(BATCH, 5)
    signs = b.cast(b.less(s, b.full_like(s, 0.0)), float32)
    moved = b.pad(b.slice_axes(signs, (0, 0), (BATCH, 4)), (0, 1), (0, 0))
    return out(b.mul(s, moved), moved)


@case
def comparison_of_a_row_read_by_elements_and_reductions() -> IRGraph:
    a = computed(BATCH, 18)
    top = b.max_axes(a, [1])
    is_top = b.equal(a, b.restore_axes(top, [1], a.type.shape))
    ties = b.sum_axes(b.cast(is_top, float32), [1])
    share = b.div(b.cast(is_top, float32), b.restore_axes(ties, [1], a.type.shape))
    return out(share, b.matmul(share, a, transpose_a=True), b.sum_axes(b.cast(is_top, float32), [0]))


# -- outputs -------------------------------------------------------------------------------------------------------


@case
def outputs_that_nobody_computes() -> IRGraph:
    a, u = x("a", "batch", 6), w("u", 4, 9)
    flat = b.reshape(a, (BATCH * 6,))
    views = (b.transpose(a), b.slice_axes(a, (0, 1), (BATCH, 6), (1, 2)), flat, b.expand_to(u, (3, 4, 9), (1, 2)))
    return out(a, u, const(1.5), const([1.0, 2.0]), *views, b.transpose(u), b.iota((3, 4), 1), b.size(BATCH), a)


@case
def one_value_as_three_outputs_and_an_operand() -> IRGraph:
    a, u = x("a", "batch", 18), w("u", 18, 18)
    h = b.unary("relu", b.matmul(a, u))
    return out(h, h, b.matmul(h, u, transpose_b=True), b.matmul(a, h, transpose_a=True), h)


# -- indexing ------------------------------------------------------------------------------------------------------


@case
def embedding_and_its_gradient() -> IRGraph:
    table, i, a = w("table", 11, 18), x("i", "batch", "time", dtype=int32), x("a", "batch", "time", 18)
    rows = b.gather(table, i, 0)  # (batch, time, 18)
    grad = b.scatter_add(b.mul(rows, a), i, 0, 11)
    return out(rows, table=b.sub(table, b.scale(grad, 0.1)))


@case
def scatter_along_an_inner_axis() -> IRGraph:
    a, i = x("a", "batch", 5, 3), x("i", 5, dtype=int32)
    return out(b.scatter_add(a, i, 1, 7), b.gather(a, i, 1))


@case
def gather_of_a_gather() -> IRGraph:
    a, i = x("a", "batch", 5), x("i", 4, dtype=int32)
    picked = b.gather(b.unary("sin", a), i, 1)  # (batch, 4)
    return out(b.gather(b.transpose(picked), i, 0), b.sum_axes(picked, [0]))


@case
def concat_and_pad_of_what_is_computed() -> IRGraph:
    a, u = x("a", "batch", 6), w("u", 6, 20)
    h = b.unary("tanh", b.matmul(a, u))
    joined = b.concat([h, a, b.full(0.5, TensorType((BATCH, 1), float32))], 1)  # (batch, 27)
    stacked = b.concat([a, b.unary("sin", a)], 0)
    return out(joined, stacked, b.pad(h, (1, 2), (0, 3), -1.0), b.matmul(joined, joined, transpose_a=True))


# -- running them --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compiled() -> Mapping[str, tuple[IRGraph, Loaded, Loaded]]:
    """All cases, fused and not, in one C file: one run of the compiler."""
    graphs = {name: make() for name, make in CASES.items()}
    plans: dict[str, tuple[Plan, Plan]] = {}
    for name, graph in graphs.items():
        verify(graph)
        lowered = lower(graph)
        fused, plain = (fenced(make_plan(lowered, CAPACITY, fused=f)) for f in (True, False))
        plans[name] = fused, plain
    texts = [render(p, f"{name}_{kind}") for name, pair in plans.items() for kind, p in zip("fp", pair, strict=True)]
    source = "\n".join(texts)
    return {
        n: (graphs[n], Loaded(fused, source, f"{n}_f"), Loaded(plain, source, f"{n}_p"))
        for n, (fused, plain) in plans.items()
    }


def run(loaded: Loaded, graph: IRGraph, sizes: dict[str, int], threads: int) -> dict[str, np.ndarray]:
    inputs, state = example_values(graph, sizes, np.random.default_rng(7))
    ran = loaded.run(inputs, state, sizes, threads=threads)
    return ran.outputs | ran.state


@pytest.mark.parametrize("name", CASES)
def test_the_plan_is_sound(name: str) -> None:
    for fused in (True, False):
        plan = make_plan(lower(CASES[name]()), CAPACITY, fused=fused)
        check(plan)
        for sizes in SIZES:
            for threads in (1, 2, 7):
                assert violations(plan, sizes, threads) == []


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_the_interpreter_does(
    name: str, compiled: Mapping[str, tuple[IRGraph, Loaded, Loaded]]
) -> None:
    graph, fused, plain = compiled[name]
    for sizes in ({s: c[s] for s in graph.symbols} for c in SIZES):
        inputs, state = example_values(graph, sizes, np.random.default_rng(7))
        expected = interpret(graph, inputs=inputs, state=state, sizes=sizes)
        got = run(fused, graph, sizes, threads=1)
        for key, value in (expected.outputs | {n: expected.state[n] for n, _ in fused.plan.states}).items():
            assert_close(got[key], value, got[key].dtype.name)
        for other in (run(fused, graph, sizes, threads=3), run(plain, graph, sizes, threads=2)):
            assert {n: v.tobytes() for n, v in got.items()} == {n: v.tobytes() for n, v in other.items()}


def test_a_column_sum_computes_what_it_adds() -> None:
    a, c = x("a", "batch", 40), x("c", "batch", 40)
    product = b.mul(a, c)
    plan = make_plan(out(b.sum_axes(product, [0])), {"batch": 8})
    assert [k.kind.value for k in plan.kernels] == ["columns"]
    plan = make_plan(out(b.sum_axes(product, [0]), product), {"batch": 8})  # wanted for itself too: stored once
    assert len(plan.kernels) == 2


@pytest.mark.parametrize(("columns", "layout"), [(256, Layout.ROWS), (512, PANELS)])
def test_long_rows_that_are_read_by_columns_lie_in_panels(columns: int, layout: Layout) -> None:
    a, c = x("a", "batch", columns), x("c", "batch", 40)
    hidden = b.unary("sin", a)
    plan = make_plan(out(b.matmul(hidden, c, transpose_a=True), b.sum_axes(hidden, [1])), {"batch": 8})
    assert [k.layout for k in plan.buffers if k.space is Space.ARENA and k.type.shape[-1] == columns] == [layout]
