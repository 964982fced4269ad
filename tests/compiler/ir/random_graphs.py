"""Random well-typed graphs for property tests: `@given(graphs())`, then `example_values(graph, sizes, rng)`.

Values stay small and away from poles, so that float32 and float64 agree closely.  Ops that jump (floor, compare,
argmax, casts to integers) read only values that float32 holds exactly, so that rounding cannot make them differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.compiler.ir.graph_pool import LARGEST_SIZE, LARGEST_VALUE, SYMBOLS, Pool
from tests.compiler.ir.layer_makers import LAYER_MAKERS
from tests.compiler.ir.window_makers import make_window
from tests.ops.unary import Domain, names
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import OPS, Family
from wholestep.compiler.ir.types import (
    Dim,
    DType,
    Extent,
    TensorType,
    boolean,
    evaluate,
    float32,
    float64,
    int32,
    int64,
    product,
)

__all__ = ["LARGEST_SIZE", "LARGEST_VALUE", "example_values", "graphs", "size_choices"]


@st.composite
def graphs(
    draw: Any,
    max_nodes: int = 12,
    dtype: DType = float32,
    symbolic: bool = True,
    control: bool = False,
    only: Callable[[Pool], None] | None = None,
) -> IRGraph:
    """A graph over all pointwise, reduce, movement, index, contraction, ratio and composite ops, and all leaves.

    `max_nodes` counts the operations that are drawn; helpers that keep values in their domain come on top.
    `control` adds stop_gradient, by_mode, call, custom_gradient and item, which are gone before planning.
    `only`: operations of this maker, and what they need.
    """
    pool = Pool(draw, dtype, SYMBOLS[: draw(st.integers(1, 2))] if symbolic else ())
    pool.new_input((*map(Dim.symbol, pool.symbols), 3))
    pool.new_state((2, 3))
    makers = [*MAKERS, *(CONTROL_MAKERS if control else ())] if only is None else [only]
    for _ in range(draw(st.integers(1, max_nodes))):
        draw(st.sampled_from(makers))(pool)
    return _finish(pool)


def example_values(
    graph: IRGraph, sizes: Mapping[str, int], rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(inputs, state): floats are multiples of 1/64 below 2, in their dtype; integers are valid indices."""
    limits = _index_limits(graph, sizes)

    def value(node: Node) -> np.ndarray:
        shape = tuple(evaluate(e, sizes) for e in node.type.shape)
        if node.type.dtype.is_float:
            return (rng.integers(-127, 128, shape) / 64).astype(node.type.dtype.numpy)
        return rng.integers(0, 2 if node.type.dtype == boolean else limits.get(node, 4), shape).astype(
            node.type.dtype.numpy
        )

    inputs = {name: value(node) for name, node in graph.leaves("input").items()}
    return inputs, {name: value(node) for name, node in graph.states().items()}


def size_choices(graph: IRGraph) -> st.SearchStrategy[dict[str, int]]:
    """Sizes for the symbolic dimensions of a graph."""
    return st.fixed_dictionaries({s: st.integers(1, LARGEST_SIZE) for s in graph.symbols})


def _index_limits(graph: IRGraph, sizes: Mapping[str, int]) -> dict[Node, int]:
    limits: dict[Node, int] = {}
    extent_of: dict[str, Callable[[Node], Extent]] = {
        "gather": lambda n: n.inputs[0].type.shape[n.attrs.axis],
        "scatter_add": lambda n: n.attrs.size,
        "cross_entropy": lambda n: n.inputs[0].type.shape[-1],
    }
    for node in graph.nodes:
        if node.op in extent_of:
            limit = evaluate(extent_of[node.op](node), sizes)
            limits[node.inputs[1]] = min(limit, limits.get(node.inputs[1], limit))
    return limits


def _finish(p: Pool) -> IRGraph:
    read = {i for n in p.bound for i in n.inputs}
    ends = [n for n in p.bound if n not in read and n not in p.inputs] or list(p.bound)[:1]
    outputs = [Output(f"out{i}", n) for i, n in enumerate(ends[-6:])]
    updates = []
    for state in p.states:
        if p.chance():
            step = p.node("mul", p.fit(state.type), p.full(0.1, state.type))
            updates.append(Update(state.attrs.name, p.node("sub", state, step)))
    return IRGraph(tuple(outputs), tuple(updates), tuple(p.inputs))


# -- makers: each adds one operation -----------------------------------------------------------------------------


# Domain -> the primitive functions of one float on it; composites, such as tanh, have separate makers.
PRIMITIVES = {d: [n for n in names(d) if OPS[n].family is Family.POINTWISE] for d in Domain}


def make_unary(p: Pool) -> None:
    op = p.pick(PRIMITIVES[Domain.REALS])
    x = p.any_float(bound=8.0)
    p.add(p.node(op, x), max(1.0, p.bound[x]), exact=op in ("neg", "abs") and x in p.exact)


def make_exponential(p: Pool) -> None:
    x = p.any_float(bound=2.0)
    p.add(p.node(p.pick(PRIMITIVES[Domain.BELOW_TWO]), x), 8.0)


def make_on_positive(p: Pool) -> None:
    x = p.at_least_one(p.any_float(bound=5.0))
    p.add(p.node(p.pick(PRIMITIVES[Domain.POSITIVE]), x), max(5.0, p.bound[x] ** 0.5))


def make_power(p: Pool) -> None:
    x = p.at_least_one(p.any_float(bound=2.0))
    y = p.node("tanh", p.fit(x.type))
    p.add(p.node("pow", x, y), 5.0)


def make_jump(p: Pool) -> None:
    x = p.any_exact()
    p.add(p.node(p.pick(["floor", "sign"]), x), p.bound[x] + 1.0, exact=True)


def make_binary(p: Pool) -> None:
    op, x = p.pick(["add", "sub", "mul", "maximum", "minimum"]), p.any_float()
    y = p.fit(x.type)
    a, b = p.bound[x], p.bound[y]
    p.add(p.node(op, x, y), a * b if op == "mul" else a + b, exact=op in ("maximum", "minimum") and {x, y} <= p.exact)


def make_quotient(p: Pool) -> None:
    x = p.any_float()
    p.add(p.node(p.pick(["div", "ratio"]), x, p.at_least_one(p.fit(x.type))), p.bound[x])


def make_mod(p: Pool) -> None:
    x = p.any_exact()
    p.add(p.node("mod", x, p.full(p.pick([0.5, 2.0, 3.0]), x.type)), 3.0, exact=True)


def make_compare(p: Pool) -> None:
    x = p.any_exact()
    p.add(p.node(p.pick(["less", "less_equal", "equal", "not_equal"]), x, p.fit(x.type, exact=True)), 1.0)


def make_logic(p: Pool) -> None:
    if not p.of(boolean):
        make_compare(p)
    x = p.pick(p.of(boolean) or [p.constant(True, boolean)])
    op = p.pick(["logical_and", "logical_or", "logical_not"])
    others = [n for n in p.of(boolean) if n.type == x.type]
    p.add(p.node(op, x, *([] if op == "logical_not" else [p.pick(others)])), 1.0)


def make_where(p: Pool) -> None:
    make_compare(p)
    c = p.pick(p.of(boolean) or [p.constant(True, boolean)])
    x = p.fit(TensorType(c.type.shape, p.dtype))
    y = p.fit(x.type)
    p.add(p.node("where", c, x, y), max(p.bound[x], p.bound[y]), exact={x, y} <= p.exact)


def make_cast(p: Pool) -> None:
    """To integers and back, from bool to numbers."""
    x = p.pick([*p.floats(exact=True), *p.of(boolean), *p.of(int32), *p.of(int64)])
    target = p.pick([int32, int64]) if x.type.dtype.is_float else p.pick([p.dtype, int32, p.dtype])
    p.add(p.node("cast", x, attrs=at.CastAttrs(target)), p.bound[x], exact=True)


BITS = ["bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"]


def make_integer(p: Pool) -> None:
    x = p.pick(p.of(int32) or [p.constant(3, int32)])
    arithmetic = ["add", "sub", "mul", "maximum", "minimum", "mod", "floor_divide", "neg", "abs", "sign", "less"]
    op = p.pick([*arithmetic, *BITS])
    unary, a = op in ("neg", "abs", "sign"), p.bound[x]
    fixed = op in ("mod", "floor_divide", "left_shift", "right_shift")
    y = p.full(3, x.type) if fixed else p.pick([n for n in p.of(int32) if n.type == x.type] or [x])
    grown = {"mul": a * p.bound[y], "left_shift": 8 * a}.get(op, 2 * max(a, p.bound[y]) + (op in BITS))
    p.add(p.node(op, x, *([] if unary else [y])), max(3.0, grown))


def make_iota(p: Pool) -> None:
    shape = (*p.small_shape(), p.pick([2, 3, *map(Dim.symbol, p.symbols)]))
    t = TensorType(shape, p.pick([int32, int64]))
    p.add(p.node("iota", attrs=at.IotaAttrs(t, p.draw(st.integers(0, len(shape) - 1)))), LARGEST_SIZE)


def make_random(p: Pool) -> None:
    t = TensorType(p.small_shape(), p.dtype)
    p.add(p.node("random", attrs=at.RandomAttrs(p.pick(["drop.0", "mask/é"]), t)), 1.0, exact=True)


def make_constant(p: Pool) -> None:
    shape = p.pick([(), (3,), (2, 3), (4, 5)])
    p.constant(np.arange(int(np.prod(shape))).reshape(shape) / 8 - 0.5, p.dtype)


def make_host(p: Pool) -> None:
    """An expression of runtime scalars and sizes: float64, then cast and broadcast."""
    step = p.node("scalar", attrs=at.ScalarAttrs("step", 0.0))
    rate = p.node("scalar", attrs=at.ScalarAttrs(p.pick(["lr", "decay"]), 0.125))
    size = p.node("size", attrs=at.SizeAttrs(Dim.symbol(p.pick(p.symbols)) * 2 if p.symbols else 6))
    one = Node("constant", (), at.ConstantAttrs(at.Array(np.float64(1.0))))
    host = p.node(p.pick(["mul", "sub"]), rate, p.node("recip", p.node("add", one, p.pick([step, size]))))
    value = host if p.dtype == float64 else p.node("cast", host, attrs=at.CastAttrs(p.dtype))
    p.expand(p.add(value, 1.5), p.any_float().type.shape, ())


def make_sum(p: Pool) -> None:
    x = p.pick([n for n in [*p.floats(rank=1), *p.of(int32)] if n.type.rank])
    axes = _some_axes(p, x)
    count = p.length(*(x.type.shape[d] for d in axes))
    p.add(p.node("sum", x, attrs=at.SumAttrs(axes, x.type.dtype)), p.bound[x] * count)


def make_max(p: Pool) -> None:
    x = p.pick([n for n in [*p.floats(rank=1), *p.of(int32)] if n.type.rank])
    p.add(p.node("max", x, attrs=at.MaxAttrs(_some_axes(p, x))), p.bound[x], exact=x in p.exact)


def _some_axes(p: Pool, x: Node) -> tuple[int, ...]:
    return tuple(sorted(p.draw(st.sets(st.integers(0, x.type.rank - 1), min_size=1))))


def make_argmax(p: Pool) -> None:
    x = p.any_exact(rank=1)
    axis = p.draw(st.integers(0, x.type.rank - 1))
    p.add(p.node("argmax", x, attrs=at.ArgmaxAttrs(axis)), p.length(x.type.shape[axis]))


def _move(p: Pool, op: str, x: Node, attrs: at.Attrs) -> None:
    p.add(p.node(op, x, attrs=attrs), p.bound[x], exact=x in p.exact)


def make_reshape(p: Pool) -> None:
    x = p.any_float()
    shape = x.type.shape
    cut = p.draw(st.integers(0, len(shape)))
    ways = [(product(shape),), (*shape[:cut], 1, *shape[cut:]), (product(shape[:cut]), product(shape[cut:]))]
    ways += [(*shape[:d], e // 2, 2, *shape[d + 1 :]) for d, e in enumerate(shape) if isinstance(e, int) and e % 2 == 0]
    _move(p, "reshape", x, at.ReshapeAttrs(p.pick(ways)))


def make_permute(p: Pool) -> None:
    x = p.any_float(rank=1)
    _move(p, "permute", x, at.PermuteAttrs(tuple(p.draw(st.permutations(range(x.type.rank))))))


def make_expand(p: Pool) -> None:
    x = p.any_float()
    new = p.draw(st.integers(0, x.type.rank))
    extent = p.pick([2, 3, *map(Dim.symbol, p.symbols)])
    shape = (*x.type.shape[:new], extent, *x.type.shape[new:])
    _move(p, "expand", x, at.ExpandAttrs(shape, tuple(d for d in range(len(shape)) if d != new)))


def make_slice(p: Pool) -> None:
    x = p.any_float(rank=1)
    parts = [_slice_part(p, e) for e in x.type.shape]
    starts, stops, steps = zip(*parts, strict=True)
    _move(p, "slice", x, at.SliceAttrs(starts, stops, steps))


def _slice_part(p: Pool, extent: Extent) -> tuple[Extent, Extent, int]:
    """Never empty; of a symbolic dimension all, or the first (it is at least 1)."""
    if isinstance(extent, Dim):
        return 0, p.pick([extent, 1]), 1
    start = p.draw(st.integers(0, extent - 1))
    return start, p.draw(st.integers(start + 1, extent)), p.draw(st.integers(1, 2))


def make_pad(p: Pool) -> None:
    x = p.any_float(rank=1)
    low, high = (tuple(p.draw(st.integers(0, 2)) for _ in x.type.shape) for _ in range(2))
    _move(p, "pad", x, at.PadAttrs(low, high, p.pick([0.0, -1.5])))


def make_concat(p: Pool) -> None:
    x = p.any_float(rank=1)
    axis = p.draw(st.integers(0, x.type.rank - 1))
    rest = x.type.shape[:axis], x.type.shape[axis + 1 :]
    fits = [n for n in p.floats(rank=axis + 1) if (n.type.shape[:axis], n.type.shape[axis + 1 :]) == rest]
    xs = [x, *(p.pick(fits) for _ in range(p.draw(st.integers(1, 2))))]
    node = p.node("concat", *xs, attrs=at.ConcatAttrs(axis))
    p.add(node, max(p.bound[n] for n in xs), exact=set(xs) <= p.exact)


def make_gather(p: Pool) -> None:
    x = p.any_float(rank=1)
    axis = p.draw(st.integers(0, x.type.rank - 1))
    p.add(p.node("gather", x, p.index(), attrs=at.GatherAttrs(axis)), p.bound[x], exact=x in p.exact)


def make_scatter_add(p: Pool) -> None:
    index = p.index()
    before, after = (p.draw(st.lists(st.sampled_from([2, 3]), max_size=1)) for _ in range(2))
    updates = p.fit(TensorType((*before, *index.type.shape, *after), p.dtype))
    size = p.pick([2, 5, *map(Dim.symbol, p.symbols)])
    node = p.node("scatter_add", updates, index, attrs=at.ScatterAddAttrs(len(before), size))
    p.add(node, p.bound[updates] * p.length(*index.type.shape))


def make_write_rows(p: Pool) -> None:
    x = p.any_float(rank=1)
    rows = p.fit(TensorType((p.pick([1, 2, 5, *map(Dim.symbol, p.symbols)]), *x.type.shape[1:]), p.dtype))
    start = p.node("constant", attrs=at.ConstantAttrs(at.Array(np.asarray(p.draw(st.integers(-2, 4)), np.int64))))
    node = p.node("write_rows", x, rows, start)
    p.add(node, max(p.bound[x], p.bound[rows]), exact={x, rows} <= p.exact)


def make_matmul(p: Pool) -> None:
    ranked = p.floats(rank=2)
    x = p.pick(ranked) if ranked else p.new_state((3, 4))
    if x.type.rank == 2 and isinstance(x.type.shape[1], int) and p.chance():
        p.new_state((x.type.shape[1], p.pick([1, 4, 17])))
    made = [m for y in [*p.floats(rank=2), x] for m in _products(p, x, y)]
    p.add(*p.pick(made))


def _products(p: Pool, x: Node, y: Node) -> list[tuple[Node, float]]:
    out = []
    if x.type.rank == y.type.rank and x.type.shape[:-2] == y.type.shape[:-2]:
        for ta in (False, True):
            for tb in (False, True):
                k = x.type.shape[-2 if ta else -1]
                if k == y.type.shape[-1 if tb else -2]:
                    node = Node("matmul", (x, y), at.MatmulAttrs(ta, tb, p.dtype))
                    out.append((node, p.bound[x] * p.bound[y] * p.length(k)))
    return out


def make_activation(p: Pool) -> None:
    x = p.any_float()
    op = p.pick(["relu", "sigmoid", "tanh", "silu", "softplus"])
    p.add(p.node(op, x), max(1.0, p.bound[x] + 0.7), exact=op == "relu" and x in p.exact)


def make_bce(p: Pool) -> None:
    x = p.any_float()
    y = p.pick([n for n in p.floats() if n.type == x.type])
    p.add(p.node("bce_with_logits", x, y), p.bound[x] * (1 + p.bound[y]) + 0.7)


def make_gelu(p: Pool) -> None:
    x = p.any_float()
    p.add(p.node("gelu", x, attrs=at.GeluAttrs(p.chance())), p.bound[x])


def make_softmax(p: Pool) -> None:
    x = p.any_float(rank=1)
    axis = p.draw(st.integers(0, x.type.rank - 1))
    op = p.pick(["softmax", "log_softmax", "logsumexp"])
    p.add(p.node(op, x, attrs=at.SoftmaxAttrs(axis)), 1.0 if op == "softmax" else 2 * p.bound[x] + 4)


def make_cross_entropy(p: Pool) -> None:
    x = p.any_float(rank=1)
    p.add(p.node("cross_entropy", x, p.index(x.type.shape[:-1])), 2 * p.bound[x] + 4)


def make_stop_gradient(p: Pool) -> None:
    x = p.any_float()
    _move(p, "stop_gradient", x, at.NONE)


def make_call(p: Pool) -> None:
    """A function of two tensors with two results."""
    x, y = p.any_float(), p.any_float()
    a, b = (Node("input", (), at.InputAttrs(n, t.type)) for n, t in (("a", x), ("b", y)))
    inner = IRGraph((Output("twice", p.node("add", a, a)), Output("gate", p.node("sigmoid", b))), (), (a, b))
    call = p.node("call", x, y, attrs=at.CallAttrs(inner))
    p.add(p.node("item", call, attrs=at.ItemAttrs(0)), 2 * p.bound[x])
    p.add(p.node("item", call, attrs=at.ItemAttrs(1)), 1.0)


def make_by_mode(p: Pool) -> None:
    x = p.any_float()
    p.add(p.node("by_mode", x, p.node("neg", x)), p.bound[x])


def make_custom_gradient(p: Pool) -> None:
    """y = sin x with the gradients upstream · cos x and, for another tensor, upstream · the sum of its sines."""
    x, other = p.any_float(), p.any_float()
    names = ("upstream", x), ("x", x), ("other", other), ("slope", x)
    upstream, same, inside, slope = (Node("input", (), at.InputAttrs(n, t.type)) for n, t in names)
    axes = tuple(range(x.type.rank))
    arrived = p.node("sum", upstream, attrs=at.SumAttrs(axes, x.type.dtype)) if axes else upstream
    rank = other.type.rank
    spread = p.node("expand", arrived, attrs=at.ExpandAttrs(other.type.shape, ())) if rank else arrived
    gradients = p.node("mul", upstream, slope), p.node("mul", spread, p.node("sin", inside))
    held = IRGraph(tuple(Output(f"y{i}", g) for i, g in enumerate(gradients)), (), (upstream, same, inside, slope))
    inputs = p.node("sin", x), x, other, p.node("cos", x)
    node = p.node("custom_gradient", *inputs, attrs=at.CustomGradientAttrs(held, 1))
    p.add(p.node("item", node, attrs=at.ItemAttrs(0)), 1.0)


CONTROL_MAKERS = [make_stop_gradient, make_call, make_by_mode, make_custom_gradient]
MAKERS = [f for name, f in list(globals().items()) if name.startswith("make_") and f not in CONTROL_MAKERS]
MAKERS += [make_window, *LAYER_MAKERS]
