"""Gradient rules of reductions, views, indexing, contraction, convolution and pooling.

All but the maxima are linear: the gradient is the adjoint.  y is the node, g the upstream gradient of its output.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.type_rules.convolution import image_dims
from wholestep.compiler.ir.types import Extent, TensorType, int64
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


# -- collectives: the adjoint of a sum over ranks is itself, the adjoint of a scatter is a gather ----------------


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


# dx = the sum of g over the axes that expand added
def expand_rule(y: Node, g: Node) -> Gradients:
    input_axes = attrs_of(y, at.ExpandAttrs).axes
    return (b.sum_axes(g, [d for d in range(y.type.rank) if d not in input_axes]),)


# dx = g with zeros at the positions that were not read: between the elements, then around them, axis by axis
def slice_rule(y: Node, g: Node) -> Gradients:
    a, sizes = attrs_of(y, at.SliceAttrs), y.inputs[0].type.shape
    g = b.interleave_zeros(g, a.steps)  # g is at 0, step, 2·step, ...; step - 1 zeros follow the last element
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
    # If the bounds are known at run time only, each row is scattered into zeros at its index.
    length = g.type.shape[axis]
    index = b.iota((length,), 0)
    begin = b.expand_to(b.cast(b.size(start), index.type.dtype), (length,), ())
    return b.scatter_add(g, b.add(index, begin), axis, size)


def _cut(x: Node, axis: int, stop: Extent, start: Extent = 0) -> Node:
    shape = x.type.shape
    starts, stops = [0] * len(shape), list(shape)
    return b.slice_axes(x, (*starts[:axis], start, *starts[axis + 1 :]), (*stops[:axis], stop, *stops[axis + 1 :]))


# dx = the part of g without the padding
def pad_rule(y: Node, g: Node) -> Gradients:
    low, shape = attrs_of(y, at.PadAttrs).low, y.inputs[0].type.shape
    return (b.slice_axes(g, low, tuple(e + lo for e, lo in zip(shape, low, strict=True))),)


# the gradient of each input is its part of g
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


# y = x with rows start ... start+n-1 replaced by r:  dx = g with zeros there;  dr = those rows of g, 0 if out of range
def write_rows_rule(y: Node, g: Node) -> Gradients:
    x, rows, start = y.inputs
    count = rows.type.shape[0]
    index_type = TensorType((count,), int64)
    index = b.add(b.iota((count,), 0, int64), b.expand_to(b.cast(start, int64), (count,), ()))
    length = b.expand_to(b.count(x.type.shape[0], int64), (count,), ())
    inside = b.make("logical_and", (b.make("less_equal", (b.full(0, index_type), index)), b.less(index, length)))
    zeros = b.zeros_like(rows)
    return (
        b.write_rows(g, zeros, start),
        b.where(b.expand_to(inside, rows.type.shape, (0,)), b.gather(g, index, 0), zeros),
        None,
    )


# y = A·C:  dA = g·Cᵀ, dC = Aᵀ·g; if an operand is stored transposed, so is its gradient: (g·Cᵀ)ᵀ = C·gᵀ
def matmul_rule(y: Node, g: Node) -> Gradients:
    (a, c), flags = y.inputs, attrs_of(y, at.MatmulAttrs)
    ta, tc = flags.transpose_a, flags.transpose_b
    g = b.cast(g, a.type.dtype)  # products of half operands have half gradients, which accumulate in the same type
    da = b.matmul(c, g, tc, True) if ta else b.matmul(g, c, False, not tc)
    dc = b.matmul(g, a, True, ta) if tc else b.matmul(a, g, not ta, False)
    return da, dc


# -- convolution and max pooling ---------------------------------------------------------------------------------
# A convolution and its two gradients are the three partial derivatives of one trilinear form, so the gradients of each
# are the other two.  The argmax of a pool is piecewise constant: its adjoint is linear, and so is the adjoint of that.


def _image_size(images: Node, last: bool) -> tuple[int, int]:
    _, _, (height, width) = image_dims(images.type, last)
    assert isinstance(height, int), "type rules require integer extents"
    assert isinstance(width, int), "type rules require integer extents"
    return height, width


def _adjoint(op: str, inputs: tuple[Node, Node], a: at.ConvAttrs, like: Node) -> Node:
    size = _image_size(like, a.last)
    return b.make(op, inputs, at.ConvGradAttrs(a.stride, a.low, a.high, a.dilation, a.groups, a.last, size))


# y = x * w:  dx = conv_grad_input(g, w), dw = conv_grad_weight(x, g)
def conv2d_rule(y: Node, g: Node) -> Gradients:
    (x, w), a = y.inputs, attrs_of(y, at.ConvAttrs)
    g = b.cast(g, x.type.dtype)
    return _adjoint("conv2d_grad_input", (g, w), a, x), _adjoint("conv2d_grad_weight", (x, g), a, w)


# y(u, w) is bilinear, h is the upstream gradient:  du = h * w, dw = conv_grad_weight(h, u)
def conv2d_grad_input_rule(y: Node, h: Node) -> Gradients:
    (u, w), a = y.inputs, attrs_of(y, at.ConvGradAttrs).forward
    h = b.cast(h, u.type.dtype)
    return b.make("conv2d", (h, w), a), _adjoint("conv2d_grad_weight", (h, u), a, w)


# y(x, u) is bilinear, h is the upstream gradient, of a weight's shape:  dx = conv_grad_input(u, h), du = x * h
def conv2d_grad_weight_rule(y: Node, h: Node) -> Gradients:
    (x, u), a = y.inputs, attrs_of(y, at.ConvGradAttrs).forward
    h = b.cast(h, u.type.dtype)
    return _adjoint("conv2d_grad_input", (u, h), a, x), b.make("conv2d", (x, h), a)


# y = max over each window:  dx = g at the first maximum, 0 elsewhere
def max_pool2d_rule(y: Node, g: Node) -> Gradients:
    (x,), a = y.inputs, attrs_of(y, at.PoolAttrs)
    return (_pool_gradient(g, b.make("max_pool2d_index", (x,), a), a, x),)


def _pool_gradient(g: Node, index: Node, a: at.PoolAttrs, like: Node) -> Node:
    size = _image_size(like, a.last)
    return b.make("max_pool2d_grad", (g, index), at.PoolGradAttrs(a.window, a.stride, a.low, a.high, a.last, size))


# y = u at the given positions, 0 elsewhere:  du = h at those positions
def max_pool2d_grad_rule(y: Node, h: Node) -> Gradients:
    return b.make("max_pool2d_pick", (h, y.inputs[1]), attrs_of(y, at.PoolGradAttrs).forward), None


# y = x at the given positions:  dx = g there, 0 elsewhere
def max_pool2d_pick_rule(y: Node, g: Node) -> Gradients:
    x, index = y.inputs
    return _pool_gradient(g, index, attrs_of(y, at.PoolAttrs), x), None
