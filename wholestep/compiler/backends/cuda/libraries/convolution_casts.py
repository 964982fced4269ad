"""Half-precision casts around library and grouped convolutions: their images are rounded once, for all readers.

    conv2d(x, w) in float32 becomes cast(cast(conv2d(x, w), half), float32), and so does x if it is rounded anyway

Later kernels read half the bytes, and an activation is stored once, as in PyTorch's autocast; the library's algorithms
for half operands produce half results.  Norms and updates stay in float32.  Weights and network inputs are rounded
directly into the library's channels-last layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from wholestep.compiler.backends.cuda.libraries.cudnn_convolution import (
    CHANNELS,
    OPS,
    computes_half,
    is_for_library,
    is_grouped_half,
)
from wholestep.compiler.backends.gpu.cost_model import LibraryCosts
from wholestep.compiler.backends.gpu.grids.convolution_operands import static_extent
from wholestep.compiler.backends.gpu.target import GpuTarget
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.ops import LEAVES, Trait, ops_with
from wholestep.compiler.ir.types import DType
from wholestep.compiler.plan.lower.materialize import stored_copy
from wholestep.records import dataclass

VIEWS = ops_with(Trait.VIEW)


def fill_channels(graph: IRGraph, target: GpuTarget) -> IRGraph:
    """Pads channels in half types with zeros to packs, so that the library computes the convolution on tensor cores.

    A pack of eight takes as long as the three channels of a network's first convolution, or the 21 scores of a pixel
    as 24.
    """
    return rewrite(graph, lambda node: _fill(node, target.cost_model.library))


def _fill(node: Node, costs: LibraryCosts) -> Node:
    if node.op not in OPS or computes_half(node):
        return node
    a = node.attrs
    assert isinstance(a, at.ConvAttrs | at.ConvGradAttrs)
    outputs, tall, wide, channels = map(static_extent, _weight_of(node).type.shape)
    missing = Missing(-channels % CHANNELS, -outputs % CHANNELS)
    if not (a.last and node.inputs[0].type.dtype.is_half and a.groups == 1 and (missing.channels or missing.outputs)):
        return node
    if missing.outputs or channels > CHANNELS:
        rows, columns = map(static_extent, _result_of(node).type.shape[1:3])
        is_slow = tall * wide > 1 or node.op == "conv2d_grad_weight"  # others have a kernel without tensor cores
        if not is_slow or rows * columns * outputs * tall * wide * channels < costs.padded_products:
            return node
    elif outputs % costs.padded_outputs:
        return node
    with b.origin(node):
        return missing.pad(node)


def _weight_of(node: Node) -> Node:
    return node if node.op == "conv2d_grad_weight" else node.inputs[1]


def _result_of(node: Node) -> Node:
    """The result of the forward convolution, or its gradient."""
    return {"conv2d": node, "conv2d_grad_input": node.inputs[0]}.get(node.op, node.inputs[1])


@dataclass(frozen=True)
class Missing:
    """The channels and outputs that a convolution lacks to be in packs."""

    channels: int
    outputs: int

    def pad(self, node: Node) -> Node:
        """The convolution, or the adjoint, of padded operands; its result without the padding."""
        images, weight = self._pad(self.channels, 3), self._pad(self.outputs, 0)
        results = self._pad(self.outputs, 3)
        first, second = node.inputs
        operands = {
            "conv2d": lambda: [images(first), weight(images(second))],
            "conv2d_grad_input": lambda: [results(first), weight(images(second))],
            "conv2d_grad_weight": lambda: [images(first), results(second)],
        }[node.op]()
        padded = node.with_inputs(operands)
        return padded if padded.type == node.type else b.slice_axes(padded, (0, 0, 0, 0), node.type.shape)

    @staticmethod
    def _pad(count: int, axis: int) -> Callable[[Node], Node]:
        """Pads one axis of an image or a weight with zeros."""
        high = tuple(count if d == axis else 0 for d in range(4))
        return lambda x: b.pad(x, (0, 0, 0, 0), high) if count else x


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
