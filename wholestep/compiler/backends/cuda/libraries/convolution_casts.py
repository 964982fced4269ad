"""Half-precision casts around library convolutions and grouped ones: their images are rounded once, for all readers.

    conv2d(x, w) in float32 becomes cast(cast(conv2d(x, w), half), float32), and so does x if it is rounded anyway

Later kernels read half the bytes, and an activation is stored once, as in PyTorch's autocast; the library's algorithms
for half operands produce half results.  Norms and updates stay in float32.  Weights and network inputs are rounded
directly into the library's channels-last layout.
"""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compiler.backends.cuda.libraries.cudnn_convolution import (
    CHANNELS,
    OPS,
    computes_half,
    is_for_library,
    is_grouped_half,
)
from wholestep.compiler.backends.gpu.grids.convolution_operands import static_extent
from wholestep.compiler.backends.gpu.target import GpuTarget
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.ops import LEAVES, Trait, ops_with
from wholestep.compiler.ir.types import DType
from wholestep.compiler.plan.lower.materialize import stored_copy

VIEWS = ops_with(Trait.VIEW)


def fill_channels(graph: IRGraph, target: GpuTarget) -> IRGraph:
    """Pads the channels of a network's first convolution with zeros (half types, few channels in, many out).

    Tensor cores multiply packs of channels: three take as long as eight.
    """
    return rewrite(graph, lambda node: _pad_channels(node, target.cost_model.library.padded_outputs))


def _pad_channels(node: Node, outputs_step: int) -> Node:
    if node.op not in OPS or computes_half(node):
        return node
    a = node.attrs
    assert isinstance(a, at.ConvAttrs | at.ConvGradAttrs)
    weight = node if node.op == "conv2d_grad_weight" else node.inputs[1]
    outputs, _, _, channels = map(static_extent, weight.type.shape)
    missing = -channels % CHANNELS
    if not (a.last and node.inputs[0].type.dtype.is_half and a.groups == 1 and missing and outputs % outputs_step == 0):
        return node

    def pad_last(x: Node) -> Node:
        return b.pad(x, (0, 0, 0, 0), (0, 0, 0, missing))

    first, second = node.inputs
    with b.origin(node):
        if node.op == "conv2d":
            return node.with_inputs([pad_last(first), pad_last(second)])
        padded = node.with_inputs(
            [pad_last(first), second] if node.op == "conv2d_grad_weight" else [first, pad_last(second)]
        )
        return b.slice_axes(padded, (0, 0, 0, 0), node.type.shape)


def round_images(graph: IRGraph) -> IRGraph:
    """Inserts the casts; returns the same graph if there is no such convolution."""
    calls = {n: is_grouped_half(n) for n in graph.nodes if computes_half(n) or is_grouped_half(n)}
    if not calls:
        return graph
    rounded = _half_results(calls)
    new: dict[Node, Node] = {}
    halves: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op == "cast" and rounded.get(node.inputs[0]) == node.type.dtype:
            new[node] = halves[node.inputs[0]]
            continue
        inputs = [new[i] for i in node.inputs]
        if node in calls:  # our grouped kernels read weights in any layout
            images = 1 if calls[node] and node.op != "conv2d_grad_weight" else 2
            inputs = [*map(_cast_after_view, inputs[:images]), *inputs[images:]]
        rebuilt = node.with_inputs(inputs)
        if node.op in VIEWS and node.inputs[0] in halves:
            with b.origin(node):
                halves[node] = node.with_inputs([halves[node.inputs[0]]])
                rebuilt = b.cast(halves[node], node.type.dtype)
        if node in rounded:
            with b.origin(node):
                halves[node] = b.cast(rebuilt, rounded[node])
                rebuilt = b.cast(halves[node], node.type.dtype)
        new[node] = rebuilt
    return graph.with_nodes(new)


def _half_results(calls: Mapping[Node, bool]) -> dict[Node, DType]:
    """Nodes to be rounded: results, except weight gradients of grouped kernels, and float32 images that are read."""
    half_types: dict[Node, DType] = {}
    for node, is_grouped in calls.items():
        image = node.inputs[0]
        if not (is_grouped and node.op == "conv2d_grad_weight"):
            half_types[node] = image.type.dtype
        if node.op == "conv2d" and image.op == "cast" and image.inputs[0].op not in LEAVES:
            half_types[image.inputs[0]] = image.type.dtype
    return half_types


def _cast_after_view(operand: Node) -> Node:
    """Moves a cast after a permute (and a pad), so that the rounded copy is stored in the view's order."""
    if operand.op == "pad":
        (inner,) = operand.inputs
        inner_cast = _cast_after_view(inner)
        if inner_cast is inner or inner_cast.op != "cast":
            return operand
        with b.origin(operand):
            return b.cast(operand.with_inputs(inner_cast.inputs), inner_cast.type.dtype)
    if operand.op != "permute" or operand.inputs[0].op != "cast":
        return operand
    (cast,) = operand.inputs
    with b.origin(cast):
        order = attrs_of(operand, at.PermuteAttrs).order
        return b.cast(b.permute(cast.inputs[0], order), cast.type.dtype)


def copy_operands(graph: IRGraph, target: GpuTarget) -> IRGraph:
    """Copies operands of library convolutions that are stored in another layout into the library's channels-last one.

    These are the weights and inputs of tf32 convolutions, images that an op without a channels-last form computes, and
    gradients that are the same for all pixels.
    """
    copies: dict[Node, Node] = {}

    def rule(node: Node) -> Node:
        if not is_for_library(node, target):
            return node
        return node.with_inputs([copies.setdefault(i, stored_copy(i)) if is_strided(i) else i for i in node.inputs])

    return rewrite(graph, rule)


def is_strided(operand: Node) -> bool:
    """Is the operand a view whose channels are not contiguous, or whose pixels are one value that is read repeatedly?

    The library reads such a repeated value a hundred times slower than a copy of it.
    """
    if operand.op == "expand":
        axes, shape = attrs_of(operand, at.ExpandAttrs).axes, operand.type.shape
        return any(extent != 1 and axis not in axes for axis, extent in enumerate(shape))
    return operand.op == "permute" and attrs_of(operand, at.PermuteAttrs).order[-1] != operand.type.rank - 1
