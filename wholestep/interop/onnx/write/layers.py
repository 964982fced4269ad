"""Layers as ONNX operators, and ops that only training steps contain: gradients of convolutions, random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.types import product
from wholestep.errors import GraphError
from wholestep.interop.onnx.write.emitter import OnnxEmitter, kind_of
from wholestep.interop.onnx.write.values import Row, value


def _window(a: at.ConvAttrs | at.ConvGradAttrs, kernel: Sequence[int]) -> dict[str, object]:
    return {
        "kernel_shape": list(kernel),
        "strides": list(a.stride),
        "pads": [*a.low, *a.high],
        "dilations": list(a.dilation),
        "group": a.groups,
    }


def conv2d(e: OnnxEmitter, node: ir.Node, bias: ir.Node | None = None) -> str:
    a, (x, w) = attrs_of(node, at.ConvAttrs), node.inputs
    if a.last:
        raise GraphError("a convolution with channels last has no ONNX operator.")
    kernel = [int(k) for k in w.type.shape[2:]]
    if bias is None and _is_mean(node):
        attributes = {
            "kernel_shape": kernel,
            "strides": list(a.stride),
            "pads": [*a.low, *a.high],
            "count_include_pad": 1,
        }
        return e.add("AveragePool", [value(e, x)], attributes)
    inputs = [value(e, x), value(e, w), *([] if bias is None else [value(e, bias)])]
    return e.add("Conv", inputs, _window(a, kernel))


def _is_mean(node: ir.Node) -> bool:
    """Is a convolution the mean over windows of each channel, as `avg_pool2d` records it?"""
    a, w = attrs_of(node, at.ConvAttrs), node.inputs[1]
    if w.op != "constant" or a.groups != node.inputs[0].type.shape[1] or w.type.shape[0] != a.groups:
        return False
    numbers = attrs_of(w, at.ConstantAttrs).array.value
    share = numbers.dtype.type(1.0 / (numbers.shape[2] * numbers.shape[3]))
    return max(a.dilation) == 1 and a.low == a.high and bool((numbers == share).all())


def conv_transpose(e: OnnxEmitter, node: ir.Node, bias: ir.Node | None = None) -> str:
    a, (x, w) = attrs_of(node, at.ConvGradAttrs), node.inputs
    kernel = [int(k) for k in w.type.shape[2:]]
    full = [
        (int(n) - 1) * s + d * (k - 1) + 1 - lo - hi
        for n, s, d, k, lo, hi in zip(x.type.shape[2:], a.stride, a.dilation, kernel, a.low, a.high)
    ]
    more = [wanted - size for wanted, size in zip(a.size, full)]
    inputs = [value(e, x), value(e, w), *([] if bias is None else [value(e, bias)])]
    return e.add("ConvTranspose", inputs, {**_window(a, kernel), "output_padding": more})


def gemm(e: OnnxEmitter, node: ir.Node, bias: ir.Node) -> str:
    """Write a matrix product and its bias as Gemm."""
    a = attrs_of(node, at.MatmulAttrs)
    transposed = {"transA": int(a.transpose_a), "transB": int(a.transpose_b)}
    return e.add("Gemm", [*(value(e, i) for i in node.inputs), value(e, bias)], transposed)


def max_pool(e: OnnxEmitter, node: ir.Node) -> str:
    a = attrs_of(node, at.PoolAttrs)
    attributes = {"kernel_shape": list(a.window), "strides": list(a.stride), "pads": [*a.low, *a.high]}
    return e.add("MaxPool", [value(e, node.inputs[0])], attributes)


def _norm(op: str, e: OnnxEmitter, node: ir.Node, attributes: dict[str, object]) -> str:
    return e.own(f"{op}{len(node.inputs) - 1 or ''}", [value(e, i) for i in node.inputs], attributes)


def layer_norm(e: OnnxEmitter, node: ir.Node) -> str:
    a = attrs_of(node, at.NormAttrs)
    if len(node.inputs) == 1:
        return _norm("layer_norm", e, node, {"eps": a.eps})
    return e.add("LayerNormalization", [value(e, i) for i in node.inputs], {"axis": -1, "epsilon": a.eps})


def rms_norm(e: OnnxEmitter, node: ir.Node) -> str:
    a = attrs_of(node, at.NormAttrs)
    if e.opset >= 23 and len(node.inputs) == 2:
        return e.add("RMSNormalization", [value(e, i) for i in node.inputs], {"axis": -1, "epsilon": a.eps})
    return _norm("rms_norm", e, node, {"eps": a.eps})


def group_norm(e: OnnxEmitter, node: ir.Node) -> str:
    a = attrs_of(node, at.GroupNormAttrs)
    return _norm("group_norm", e, node, {"eps": a.eps, "groups": a.groups})


def batch_norm(e: OnnxEmitter, node: ir.Node) -> str:
    return _norm("batch_norm", e, node, {"eps": attrs_of(node, at.NormAttrs).eps})


def cross_entropy(e: OnnxEmitter, node: ir.Node) -> str:
    return e.own("cross_entropy", [value(e, i) for i in node.inputs])


def attention(e: OnnxEmitter, node: ir.Node) -> str:
    a, (q, k, *_) = attrs_of(node, at.AttentionAttrs), node.inputs
    inputs = [value(e, i) for i in node.inputs]
    grouped = q.type.rank == 4 and q.type.shape[1] != k.type.shape[1]
    if e.opset >= 23 and q.type.rank == 4:
        return e.add("Attention", inputs, {"is_causal": int(a.causal), "scale": a.scale})
    if q.type.rank != 4 and q.type.shape[:-2] != k.type.shape[:-2]:
        raise GraphError("attention with shared key heads is only exported for tensors (batch, heads, time, width).")
    kinds = ("grouped_" if grouped else "", "causal_" if a.causal else "", "masked_" if len(inputs) > 3 else "")
    axes = "" if q.type.rank == 4 else str(q.type.rank)
    return e.own(f"{''.join(kinds)}attention{axes}", inputs, {"scale": a.scale})


def dropout(e: OnnxEmitter, node: ir.Node) -> str:
    a, (x, rate) = attrs_of(node, at.DropoutAttrs), node.inputs
    default = rate.attrs.default if isinstance(rate.attrs, at.ScalarAttrs) else None
    if default is None:
        return value(e, x)
    ratio = e.constant(np.asarray(default, np.float64))
    return e.add("Dropout", [value(e, x), ratio, e.constant(np.asarray(False))], name=a.key)


@dataclass(frozen=True)
class BatchNorm:
    """The parts of a batch norm whose statistics are states: x, weight, bias, mean, variance."""

    inputs: tuple[ir.Node, ir.Node, ir.Node, ir.Node, ir.Node]
    eps: float


def match_batch_norm(node: ir.Node) -> BatchNorm | None:
    """The batch norm that `ws.batch_norm` records for evaluation; None if the expression has another form."""
    if node.op != "add" or node.inputs[0].op != "mul" or node.inputs[0].inputs[0].op != "sub":
        return None
    (_scaled, shift), (centred, slope) = node.inputs, node.inputs[0].inputs
    x, middle = centred.inputs
    mean, bias, factor = _per_channel(middle, x), _per_channel(shift, x), _per_channel(slope, x)
    if mean is None or bias is None or factor is None or factor.op != "mul" or factor.inputs[0].op != "div":
        return None
    (_root, weight), (one, spread) = factor.inputs, factor.inputs[0].inputs
    if _constant(one) != 1 or spread.op != "sqrt" or spread.inputs[0].op != "add" or not mean.is_state:
        return None
    variance, least = spread.inputs[0].inputs
    eps = _constant(least)
    if eps is None or not variance.is_state:
        return None
    return BatchNorm((x, weight, bias, mean, variance), float(str(np.float32(eps))))


def _per_channel(node: ir.Node, x: ir.Node) -> ir.Node | None:
    """The per-channel vector that a node broadcasts over x."""
    if node.op != "expand" or attrs_of(node, at.ExpandAttrs).axes != (1,) or node.type.shape != x.type.shape:
        return None
    (vector,) = node.inputs
    while vector.op == "reshape":
        vector = vector.inputs[0]
    return vector if vector.type.rank == 1 else None


def _constant(node: ir.Node) -> float | None:
    while node.op in ("expand", "cast"):
        node = node.inputs[0]
    is_number = isinstance(node.attrs, at.ConstantAttrs) and node.type.rank == 0
    return float(node.attrs.array.value) if is_number else None  # type: ignore[attr-defined]


def momentum_of(update: ir.Node | None) -> float:
    """The momentum of a running statistic: 1 - share in `now · (1 - share) + batch · share`."""
    default = 0.9
    while update is not None and update.op == "stop_gradient":
        (update,) = update.inputs
    if update is None or update.op != "add" or update.inputs[1].op != "mul":
        return default
    share = _constant(update.inputs[1].inputs[1])
    return default if share is None else round(1.0 - share, 7)


LAYERS: dict[str, Row] = {
    "conv2d": conv2d,
    "conv2d_grad_input": conv_transpose,
    "max_pool2d": max_pool,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "group_norm": group_norm,
    "batch_norm": batch_norm,
    "cross_entropy": cross_entropy,
    "attention": attention,
    "dropout": dropout,
}


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
