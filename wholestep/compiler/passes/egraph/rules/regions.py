"""Laws of slices, pads and concatenations that cancel, nest or adjoin.

Bounds may be symbolic, which slots of terms, being numbers, cannot hold, so these laws are instantiated per program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import Dim, Extent, Shape, TensorType, float64
from wholestep.compiler.passes.egraph.rules.from_nodes import InstanceLaw, Pair, leaf
from wholestep.compiler.passes.egraph.rules.rule import Exactness, RuleScope
from wholestep.compiler.passes.simplify.pad_sum_to_concat import padded_axis

B, R = Exactness.BITWISE, Exactness.REASSOCIATING
MOST_PADS = 8  # terms of one sum that is rewritten as a concatenation; the number of instances is cubic in it


def _pairs_of_ops(graph: IRGraph, op: str, over: str) -> Iterator[tuple[Node, Node]]:
    """Pairs of a node of `op` and its operand of op `over`."""
    return ((n, n.inputs[0]) for n in graph.nodes if n.op == op and n.inputs[0].op == over)


def _slice(x: Node, starts: Shape, stops: Shape, steps: Sequence[int] | None = None) -> Node:
    """A slice; x itself if the slice is the identity."""
    is_identity = all(_equals(s, 0) and stop == e for s, stop, e in zip(starts, stops, x.type.shape, strict=True))
    return x if is_identity and (steps is None or set(steps) <= {1}) else b.slice_axes(x, starts, stops, steps)


def _equals(extent: Extent, value: int) -> bool:
    return isinstance(extent, int) and extent == value


def _at_most(a: Extent, c: Extent) -> bool:
    """Is a ≤ c for all values of the symbols?"""
    gap = c - a
    return isinstance(gap, int) and gap >= 0


def _rebuild(node: Node, *inputs: Node) -> Node:
    return b.make(node.op, inputs, node.attrs)


# -- slices ------------------------------------------------------------------------------------------------------


def _identity_slices(graph: IRGraph) -> Iterator[Pair]:
    for n in graph.nodes:
        if n.op == "slice" and n.type == n.inputs[0].type:
            x = leaf("x", n.type)
            yield _rebuild(n, x), x


def _slices_of_slices(graph: IRGraph) -> Iterator[Pair]:
    for outer, inner in _pairs_of_ops(graph, "slice", "slice"):
        o, i = attrs_of(outer, at.SliceAttrs), attrs_of(inner, at.SliceAttrs)
        if set(i.steps) != {1}:
            continue
        x = leaf("x", inner.inputs[0].type)
        starts = tuple(p + q for p, q in zip(i.starts, o.starts, strict=True))
        stops = tuple(p + q for p, q in zip(i.starts, o.stops, strict=True))
        yield _rebuild(outer, _rebuild(inner, x)), _slice(x, starts, stops, o.steps)


def _slices_of_concats(graph: IRGraph) -> Iterator[Pair]:
    for sliced, concat in _pairs_of_ops(graph, "slice", "concat"):
        parts = [leaf(f"x{i}", x.type) for i, x in enumerate(concat.inputs)]
        if (
            right := _slice_of_parts(attrs_of(sliced, at.SliceAttrs), parts, attrs_of(concat, at.ConcatAttrs).axis)
        ) is not None:
            yield _rebuild(sliced, _rebuild(concat, *parts)), right


def _slice_of_parts(a: at.SliceAttrs, parts: Sequence[Node], axis: int) -> Node | None:
    """The concatenation of the slices of each part; None if it depends on symbols or strides across parts."""
    if a.steps[axis] != 1:
        return None
    start, stop = a.starts[axis], a.stops[axis]
    taken: list[Node] = []
    for part, (begin, end) in zip(parts, _bounds(parts, axis), strict=True):
        if _at_most(end, start) or _at_most(stop, begin):
            continue
        low: Extent = 0 if _at_most(start, begin) else start - begin
        high = part.type.shape[axis] if _at_most(end, stop) else stop - begin
        if not (_at_most(start, begin) or _at_most(begin, start)) or not (_at_most(end, stop) or _at_most(stop, end)):
            return None
        starts = (*a.starts[:axis], low, *a.starts[axis + 1 :])
        stops = (*a.stops[:axis], high, *a.stops[axis + 1 :])
        taken.append(_slice(part, starts, stops, a.steps))
    return b.concat(taken, axis) if taken else None


def _bounds(parts: Sequence[Node], axis: int) -> list[tuple[Extent, Extent]]:
    """The start and end of each part in the concatenation."""
    ends: list[Extent] = [0]
    for part in parts:
        ends.append(part.type.shape[axis] + ends[-1])
    return list(pairwise(ends))


def _slices_of_pads(graph: IRGraph) -> Iterator[Pair]:
    """Slices that lie entirely inside the padded tensor, or entirely in the padding."""
    for sliced, padded in _pairs_of_ops(graph, "slice", "pad"):
        a, p = attrs_of(sliced, at.SliceAttrs), attrs_of(padded, at.PadAttrs)
        x = leaf("x", padded.inputs[0].type)
        ends = [lo + e for lo, e in zip(p.low, x.type.shape, strict=True)]
        left = _rebuild(sliced, _rebuild(padded, x))
        bounds = list(zip(a.starts, a.stops, p.low, ends, strict=True))
        if all(_at_most(low, start) and _at_most(stop, end) for start, stop, low, end in bounds):
            starts = tuple(s - lo for s, lo in zip(a.starts, p.low, strict=True))
            stops = tuple(s - lo for s, lo in zip(a.stops, p.low, strict=True))
            yield left, _slice(x, starts, stops, a.steps)
        elif any(_at_most(stop, low) or _at_most(end, start) for start, stop, low, end in bounds):
            yield left, b.full(p.value, sliced.type)


# -- paddings and concatenations -----------------------------------------------------------------------------------


def _pads_of_pads(graph: IRGraph) -> Iterator[Pair]:
    for outer, inner in _pairs_of_ops(graph, "pad", "pad"):
        o, i = attrs_of(outer, at.PadAttrs), attrs_of(inner, at.PadAttrs)
        if o.value == i.value:
            x = leaf("x", inner.inputs[0].type)
            low, high = ([p + q for p, q in zip(*two, strict=True)] for two in ((o.low, i.low), (o.high, i.high)))
            yield _rebuild(outer, _rebuild(inner, x)), b.pad(x, low, high, o.value)


def _concats_of_slices(graph: IRGraph) -> Iterator[Pair]:
    for n in graph.nodes:
        if n.op != "concat" or {i.op for i in n.inputs} != {"slice"} or len({i.inputs[0] for i in n.inputs}) != 1:
            continue
        axis = attrs_of(n, at.ConcatAttrs).axis
        slices = [attrs_of(i, at.SliceAttrs) for i in n.inputs]
        others = {(_without(c.starts, axis), _without(c.stops, axis), c.steps) for c in slices}
        are_adjacent = all(p.stops[axis] == q.starts[axis] for p, q in pairwise(slices))
        if len(others) == 1 and are_adjacent and slices[0].steps[axis] == 1:
            x = leaf("x", n.inputs[0].inputs[0].type)
            stops = (*slices[0].stops[:axis], slices[-1].stops[axis], *slices[0].stops[axis + 1 :])
            merged = _slice(x, slices[0].starts, stops, slices[0].steps)
            yield _rebuild(n, *(_rebuild(i, x) for i in n.inputs)), merged


def _without(shape: Shape, axis: int) -> Shape:
    return (*shape[:axis], *shape[axis + 1 :])


def _sums_of_pads(graph: IRGraph) -> Iterator[Pair]:
    """pad(x) + pad(y) of adjacent slices, for any run of them: the gradient of a tensor that was sliced."""
    for n in graph.nodes:
        pads = _summands(n) if n.op == "add" else []
        axis = padded_axis(pads)
        if 2 <= len(pads) <= MOST_PADS and axis is not None:
            yield from _runs(sorted(pads, key=lambda p: attrs_of(p, at.PadAttrs).low[axis]), axis)


def _summands(node: Node) -> list[Node]:
    """The zero pads that are the terms of a sum; empty if it has other terms."""
    if node.op == "pad" and attrs_of(node, at.PadAttrs).value == 0:
        return [node]
    terms = [_summands(i) for i in node.inputs] if node.op == "add" else []
    return [p for part in terms for p in part] if terms and all(terms) else []


def _runs(pads: Sequence[Node], axis: int) -> Iterator[Pair]:
    begins = [attrs_of(p, at.PadAttrs).low[axis] for p in pads]
    ends = [lo + p.inputs[0].type.shape[axis] for lo, p in zip(begins, pads, strict=True)]
    for i in range(len(pads)):
        for j in range(i + 1, len(pads)):
            for k in range(j + 1, len(pads) + 1):
                if all(ends[m] == begins[m + 1] for m in range(i, k - 1)):
                    x, y = (_run(pads[p:q], axis, name) for name, p, q in (("x", i, j), ("y", j, k)))
                    yield b.add(x, y), _pad_along(pads[i:k], axis, b.concat([x.inputs[0], y.inputs[0]], axis))


def _run(pads: Sequence[Node], axis: int, name: str) -> Node:
    """Adjacent slices as one padded leaf."""
    shape = list(pads[0].inputs[0].type.shape)
    for p in pads[1:]:
        shape[axis] = p.inputs[0].type.shape[axis] + shape[axis]
    return _pad_along(pads, axis, leaf(name, TensorType(tuple(shape), pads[0].type.dtype)))


def _pad_along(pads: Sequence[Node], axis: int, x: Node) -> Node:
    low, high = [0] * x.type.rank, [0] * x.type.rank
    low[axis] = attrs_of(pads[0], at.PadAttrs).low[axis]
    high[axis] = attrs_of(pads[-1], at.PadAttrs).high[axis]
    return b.pad(x, low, high)


# -- samples -----------------------------------------------------------------------------------------------------

_N = Dim.symbol("n")


def _tensor(name: str, *shape: Extent) -> Node:
    return b.make("input", (), at.InputAttrs(name, TensorType(shape, float64)))


def _sample(*nodes: Node) -> IRGraph:
    outputs = tuple(Output(f"y{i}", n) for i, n in enumerate(nodes))
    return IRGraph(outputs, (), tuple(n for n in IRGraph(outputs).nodes if n.op == "input"))


def _whole_sample() -> IRGraph:
    return _sample(b.slice_axes(_tensor("x", _N, 5), (0, 0), (_N, 5)))


def _slices_sample() -> IRGraph:
    x = _tensor("x", _N, 9)
    return _sample(b.slice_axes(b.slice_axes(x, (0, 2), (_N, 8)), (0, 1), (_N, 6), (1, 2)))


def _concat_sample() -> IRGraph:
    joined = b.concat([_tensor("x", _N, 3), _tensor("y", _N, 4), _tensor("z", _N, 2)], 1)
    ranges = ((0, 3), (3, 7), (4, 6), (1, 8), (7, 9))
    rows = b.concat([_tensor("p", _N, 2), _tensor("q", 3, 2)], 0)
    return _sample(
        *(b.slice_axes(joined, (0, lo), (_N, hi)) for lo, hi in ranges), b.slice_axes(rows, (_N, 0), (_N + 3, 2))
    )


def _pad_sample() -> IRGraph:
    padded = b.pad(_tensor("x", _N, 5), (0, 2), (0, 3), 1.5)
    return _sample(*(b.slice_axes(padded, (0, lo), (_N, hi)) for lo, hi in ((2, 7), (3, 6), (0, 2), (8, 10))))


def _pads_sample() -> IRGraph:
    return _sample(b.pad(b.pad(_tensor("x", 3, 4), (1, 0), (0, 2), 0.5), (0, 1), (2, 0), 0.5))


def _sample_of_joined_slices() -> IRGraph:
    x = _tensor("x", _N, 9)
    cuts = [b.slice_axes(x, (0, lo), (_N, hi)) for lo, hi in ((0, 4), (4, 7), (7, 9))]
    return _sample(b.concat(cuts, 1), b.concat(cuts[:2], 1))


def _sum_sample() -> IRGraph:
    x, y, z = _tensor("x", _N, 3), _tensor("y", _N, 4), _tensor("z", _N, 2)
    pads = b.pad(x, (0, 0), (0, 6)), b.pad(y, (0, 3), (0, 2)), b.pad(z, (0, 7), (0, 0))
    return _sample(b.add(b.add(pads[2], pads[1]), pads[0]), b.add(b.add(pads[0], pads[1]), pads[2]))


def _law(name: str, law: str, reason: str, level: Exactness, pairs: object, sample: object) -> InstanceLaw:
    return InstanceLaw(name, "regions", law, reason, level, pairs, sample, RuleScope.ANYWHERE)  # type: ignore[arg-type]


LAWS: tuple[InstanceLaw, ...] = (
    _law("slice-whole", "x[:] = x", "the slice is the whole tensor", B, _identity_slices, _whole_sample),
    _law("slice-slice", "x[i:][j:] = x[i+j:]", "two slices are one", B, _slices_of_slices, _slices_sample),
    _law(
        "slice-concat",
        "[x, y][i:j] = [x[i:], y[:j]]",
        "the parts are sliced before they are concatenated",
        B,
        _slices_of_concats,
        _concat_sample,
    ),
    _law(
        "slice-pad",
        "pad(x, l, h)[l+i:l+j] = x[i:j]",
        "padding that is sliced off again",
        B,
        _slices_of_pads,
        _pad_sample,
    ),
    _law("pad-pad", "pad(pad(x)) = pad(x)", "two pads with the same value are one", B, _pads_of_pads, _pads_sample),
    _law(
        "concat-slices",
        "[x[i:j], x[j:k]] = x[i:k]",
        "adjacent slices are concatenated again",
        B,
        _concats_of_slices,
        _sample_of_joined_slices,
    ),
    _law(
        "sum-of-pads",
        "pad(x) + pad(y) = pad([x, y])",
        "the terms do not overlap: only zeros are added, and -0 + 0 is 0",
        R,
        _sums_of_pads,
        _sum_sample,
    ),
)
