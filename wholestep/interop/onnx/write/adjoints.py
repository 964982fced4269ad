"""Rows for ops that only training steps contain: gradients of convolutions and pools, random numbers."""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.types import product
from wholestep.interop.onnx.write.emitter import OnnxEmitter, kind_of
from wholestep.interop.onnx.write.values import Row, value


def conv_grad_weight(e: OnnxEmitter, node: ir.Node) -> str:
    """A convolution of x by the gradient, with batch and channels swapped, and with stride and dilation swapped."""
    a, (x, g) = attrs_of(node, at.ConvGradAttrs), node.inputs
    groups = a.groups
    images = _parts(e, value(e, x), int(x.type.shape[1]) // groups, groups)
    slopes = _parts(e, value(e, g), int(g.type.shape[1]) // groups, groups)
    gradients = [_one_group(e, a, image, slope) for image, slope in zip(images, slopes)]
    return gradients[0] if groups == 1 else e.add("Concat", gradients, {"axis": 0})


def _parts(e: OnnxEmitter, name: str, each: int, groups: int) -> list[str]:
    if groups == 1:
        return [name]
    return e.add_many("Split", [name, e.constant([each] * groups)], {"axis": 1}, outputs=groups)


def _one_group(e: OnnxEmitter, a: at.ConvGradAttrs, x: str, g: str) -> str:
    swapped = [e.add("Transpose", [t], {"perm": [1, 0, 2, 3]}) for t in (x, g)]
    attributes = {"strides": list(a.dilation), "dilations": list(a.stride), "pads": [*a.low, *a.high]}
    out = e.add("Conv", swapped, attributes)  # (C, O, at least KH, at least KW)
    cut = e.add("Slice", [out, e.constant([0, 0]), e.constant(list(a.size)), e.constant([2, 3])])
    return e.add("Transpose", [cut], {"perm": [1, 0, 2, 3]})


def pool_index(e: OnnxEmitter, node: ir.Node) -> str:
    """The flat index of each maximum in x; only the other two rows read it."""
    a = attrs_of(node, at.PoolAttrs)
    attributes = {"kernel_shape": list(a.window), "strides": list(a.stride), "pads": [*a.low, *a.high]}
    return e.add_many("MaxPool", [value(e, node.inputs[0])], attributes, outputs=2)[1]


def pool_grad(e: OnnxEmitter, node: ir.Node) -> str:
    a, (g, index) = attrs_of(node, at.PoolGradAttrs), node.inputs
    shape = (*g.type.shape[:2], *a.size)
    flat, place = (e.reshape(value(e, t), (product(t.type.shape),)) for t in (g, index))
    return e.reshape(e.own("scatter_add", [flat, place, e.shape((product(shape),))]), shape)


def pool_pick(e: OnnxEmitter, node: ir.Node) -> str:
    x, index = node.inputs
    return e.add("Gather", [e.reshape(value(e, x), (product(x.type.shape),)), value(e, index)], {"axis": 0})


def random(e: OnnxEmitter, node: ir.Node) -> str:
    """Uniform random numbers from the runtime's generator; nodes with equal keys share one draw."""
    a = attrs_of(node, at.RandomAttrs)
    key = f"{a.key}, {a.type}, {a.first}"
    if key not in e.draws:
        blank = e.add("ConstantOfShape", [e.shape(a.type.shape)])
        e.draws[key] = e.add("RandomUniformLike", [blank], {"dtype": kind_of(a.type.dtype)})
    return e.draws[key]


ADJOINTS: dict[str, Row] = {
    "conv2d_grad_weight": conv_grad_weight,
    "max_pool2d_index": pool_index,
    "max_pool2d_grad": pool_grad,
    "max_pool2d_pick": pool_pick,
    "random": random,
}
