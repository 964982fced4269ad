"""Gradient rules of reductions, views, indexing and contraction.  All but `max` are linear: the gradient is the
adjoint.  y is the node, g the upstream gradient of its output."""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import Extent
from wholestep.compiler.passes.autodiff.pointwise import Gradients

# -- reduce ------------------------------------------------------------------------------------------------------


# y = Σ x over axes:  dx = g broadcast along them
def sum_rule(y: Node, g: Node) -> Gradients:
    return (b.restore_axes(g, attrs_of(y, at.SumAttrs).axes, y.inputs[0].type.shape),)


# y = max x over axes:  dx = g / (number of maxima) if x = y, else 0: ties share evenly
def max_rule(y: Node, g: Node) -> Gradients:
    (x,), axes = y.inputs, attrs_of(y, at.MaxAttrs).axes
    winners = b.equal(x, b.restore_axes(y, axes, x.type.shape))
    share = b.div(g, b.sum_axes(b.cast(winners, x.type.dtype), axes))
    return (b.where(winners, b.restore_axes(share, axes, x.type.shape), b.zeros_like(x)),)


# -- collectives: the adjoint of a sum over ranks is itself, that of a scatter is a gather -----------------------


def all_reduce_rule(y: Node, g: Node) -> Gradients:
    return (b.make("all_reduce", (g,), y.attrs),)


def reduce_scatter_rule(y: Node, g: Node) -> Gradients:
    return (b.make("all_gather", (g,), y.attrs),)


def all_gather_rule(y: Node, g: Node) -> Gradients:
    return (b.make("reduce_scatter", (g,), y.attrs),)


# -- views: each is linear, its gradient is its adjoint ----------------------------------------------------------


def reshape_rule(y: Node, g: Node) -> Gradients:
    return (b.reshape(g, y.inputs[0].type.shape),)


# the inverse order
def permute_rule(y: Node, g: Node) -> Gradients:
    order = attrs_of(y, at.PermuteAttrs).order
    return (b.permute(g, [order.index(d) for d in range(len(order))]),)


# the sum over the axes that expand added
def expand_rule(y: Node, g: Node) -> Gradients:
    input_axes = attrs_of(y, at.ExpandAttrs).axes
    return (b.sum_axes(g, [d for d in range(y.type.rank) if d not in input_axes]),)


# zeros at positions that were not read: between the elements, then around them, axis by axis
def slice_rule(y: Node, g: Node) -> Gradients:
    a, sizes = attrs_of(y, at.SliceAttrs), y.inputs[0].type.shape
    g = b.interleave_zeros(g, a.steps)  # read at 0, step, 2·step, ...; ends with step - 1 zeros
    for axis, (start, stop, step, size) in enumerate(zip(a.starts, a.stops, a.steps, sizes, strict=True)):
        g = _unslice(g, axis, start, stop if step == 1 else start + g.type.shape[axis], size)
    return (g,)


def _unslice(g: Node, axis: int, start: Extent, stop: Extent, size: Extent) -> Node:
    after = size - stop
    if isinstance(start, int) and isinstance(after, int):
        if after < 0:  # the zeros after the last element exceed the input
            g = _cut(g, axis, g.type.shape[axis] + after)
            after = 0
        low, high = [0] * g.type.rank, [0] * g.type.rank
        low[axis], high[axis] = start, after
        return b.pad(g, low, high)
    # Bounds that are known at run time only: each row is scattered into zeros at its index.
    length = g.type.shape[axis]
    index = b.iota((length,), 0)
    begin = b.expand_to(b.cast(b.size(start), index.type.dtype), (length,), ())
    return b.scatter_add(g, b.add(index, begin), axis, size)


def _cut(x: Node, axis: int, stop: Extent, start: Extent = 0) -> Node:
    shape = x.type.shape
    starts, stops = [0] * len(shape), list(shape)
    return b.slice_axes(x, (*starts[:axis], start, *starts[axis + 1 :]), (*stops[:axis], stop, *stops[axis + 1 :]))


# the part without the padding
def pad_rule(y: Node, g: Node) -> Gradients:
    low, shape = attrs_of(y, at.PadAttrs).low, y.inputs[0].type.shape
    return (b.slice_axes(g, low, tuple(e + lo for e, lo in zip(shape, low, strict=True))),)


# the part of each input
def concat_rule(y: Node, g: Node) -> Gradients:
    axis = attrs_of(y, at.ConcatAttrs).axis
    parts: list[Node] = []
    start: Extent = 0
    for x in y.inputs:
        stop = x.type.shape[axis] + start
        parts.append(_cut(g, axis, stop, start))
        start = stop
    return tuple(parts)


# -- indexing and contraction ------------------------------------------------------------------------------------


# y[i] = x[index[i]]:  dx[j] = Σ g[i] over the i with index[i] = j
def gather_rule(y: Node, g: Node) -> Gradients:
    data, index = y.inputs
    axis = attrs_of(y, at.GatherAttrs).axis
    return b.scatter_add(g, index, axis, data.type.shape[axis]), None


# y[j] = Σ u[i] over the i with index[i] = j:  du[i] = g[index[i]]
def scatter_add_rule(y: Node, g: Node) -> Gradients:
    return b.gather(g, y.inputs[1], attrs_of(y, at.ScatterAddAttrs).axis), None


# y = A·C:  dA = g·Cᵀ, dC = Aᵀ·g; if an operand is stored transposed, so is its gradient: (g·Cᵀ)ᵀ = C·gᵀ
def matmul_rule(y: Node, g: Node) -> Gradients:
    (a, c), flags = y.inputs, attrs_of(y, at.MatmulAttrs)
    ta, tc = flags.transpose_a, flags.transpose_b
    g = b.cast(g, a.type.dtype)  # products of half operands have half gradients, and accumulate as they do
    da = b.matmul(c, g, tc, True) if ta else b.matmul(g, c, False, not tc)
    dc = b.matmul(g, a, True, ta) if tc else b.matmul(a, g, not ta, False)
    return da, dc
