"""Images in half types around the convolutions that a library makes: what it reads and leaves is rounded for everyone.

    conv2d(x, w) in float32 becomes cast(cast(conv2d(x, w), half), float32), and so does x where it is rounded anyway

What follows a convolution reads half the bytes, and an activation is stored once, as in PyTorch's autocast; the
library's algorithms for half operands leave half results.  Norms and updates stay in float32.  Weights are rounded as
they lie in the library's order, channels last, and so is what a network is given.
"""

from __future__ import annotations

from collections.abc import Iterable

from wholestep.compiler.backends.cuda.libraries.cudnn_convolution import CHANNELS, OPS, is_for_library
from wholestep.compiler.backends.cuda.target import uses_tf32
from wholestep.compiler.backends.gpu.convolution.direct import static_extent
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update, rewrite
from wholestep.compiler.ir.ops import LEAVES, Trait, ops_with
from wholestep.compiler.ir.types import DType
from wholestep.compiler.plan.lower.materialize import copy_of
from wholestep.compiler.target import Target

VIEWS = ops_with(Trait.VIEW)
MANY = 32  # outputs of a convolution that is worth being filled up


def fill_channels(graph: IRGraph) -> IRGraph:
    """Convolutions in half types of a few channels into many, a network's first, see channels of zeros beside them.

    Tensor cores multiply whole packs of channels: three take as long as eight.
    """
    return rewrite(graph, _pad_channels)


def _pad_channels(node: Node) -> Node:
    if node.op not in OPS or is_for_library(node):
        return node
    a = node.attrs
    assert isinstance(a, at.ConvAttrs | at.ConvGradAttrs)
    weight = node if node.op == "conv2d_grad_weight" else node.inputs[1]
    outputs, _, _, channels = map(static_extent, weight.type.shape)
    missing = -channels % CHANNELS
    if not (a.last and node.inputs[0].type.dtype.is_half and a.groups == 1 and missing and outputs % MANY == 0):
        return node

    def wider(x: Node) -> Node:
        return b.pad(x, (0, 0, 0, 0), (0, 0, 0, missing))

    first, second = node.inputs
    with b.origin(node):
        if node.op == "conv2d":
            return node.with_inputs([wider(first), wider(second)])
        made = node.with_inputs([wider(first), second] if node.op == "conv2d_grad_weight" else [first, wider(second)])
        return b.slice_axes(made, (0, 0, 0, 0), node.type.shape)


def round_images(graph: IRGraph) -> IRGraph:
    """The same graph where no library makes convolutions."""
    calls = {n: None for n in graph.nodes if is_for_library(n)}
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
        moved = node.with_inputs([_cast_after_view(i) for i in inputs] if node in calls else inputs)
        if node.op in VIEWS and node.inputs[0] in halves:
            with b.origin(node):
                halves[node] = node.with_inputs([halves[node.inputs[0]]])
                moved = b.cast(halves[node], node.type.dtype)
        if node in rounded:
            with b.origin(node):
                halves[node] = b.cast(moved, rounded[node])
                moved = b.cast(halves[node], node.type.dtype)
        new[node] = moved
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _half_results(calls: Iterable[Node]) -> dict[Node, DType]:
    """Results of the library, and what it reads in a half type."""
    found: dict[Node, DType] = {}
    for node in calls:
        image = node.inputs[0]
        found[node] = image.type.dtype
        if node.op == "conv2d" and image.op == "cast" and image.inputs[0].op not in LEAVES:
            found[image.inputs[0]] = image.type.dtype
    return found


def _cast_after_view(operand: Node) -> Node:
    """A view of something rounded, perhaps filled up, as something rounded in the order of the view."""
    if operand.op == "pad":
        (inner,) = operand.inputs
        turned = _cast_after_view(inner)
        if turned is inner or turned.op != "cast":
            return operand
        with b.origin(operand):
            return b.cast(operand.with_inputs(turned.inputs), turned.type.dtype)
    if operand.op != "permute" or operand.inputs[0].op != "cast":
        return operand
    (cast,) = operand.inputs
    with b.origin(cast):
        order = attrs_of(operand, at.PermuteAttrs).order
        return b.cast(b.permute(cast.inputs[0], order), cast.type.dtype)


def copy_operands(graph: IRGraph, target: Target) -> IRGraph:
    """What the library multiplies in tf32 lies in its order, channels last: weights, and what a network is given."""
    if not uses_tf32(target.name):
        return graph
    copies: dict[Node, Node] = {}

    def rule(node: Node) -> Node:
        if not is_for_library(node, tf32=True):
            return node
        return node.with_inputs([copies.setdefault(i, copy_of(i)) if i.op == "permute" else i for i in node.inputs])

    return rewrite(graph, rule)
