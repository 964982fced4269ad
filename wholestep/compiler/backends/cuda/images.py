"""Images in half types around the convolutions that a library makes: what it reads and leaves is rounded for everyone.

    conv2d(x, w) in float32 becomes cast(cast(conv2d(x, w), half), float32), and so does x where it is rounded anyway

What follows a convolution reads half the bytes, and an activation is stored once, as in PyTorch's autocast; the
library's algorithms for half operands leave half results.  Norms and updates stay in float32.  Weights are rounded as
they lie in the library's order, channels last, and so is what a network is given.
"""

from __future__ import annotations

from collections.abc import Iterable

from wholestep.compiler.backends.cuda.convolutions import is_for_library
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Graph, Node, Output, Update
from wholestep.compiler.ir.ops import LEAVES
from wholestep.compiler.ir.types import DType


def round_images(graph: Graph) -> Graph:
    """The same graph where no library makes convolutions."""
    calls = {n: None for n in graph.nodes if is_for_library(n)}
    if not calls:
        return graph
    rounded = _rounded(calls)
    new: dict[Node, Node] = {}
    halves: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op == "cast" and rounded.get(node.inputs[0]) == node.type.dtype:
            new[node] = halves[node.inputs[0]]
            continue
        inputs = [new[i] for i in node.inputs]
        moved = node.with_inputs([_turned_first(i) for i in inputs] if node in calls else inputs)
        if node in rounded:
            with b.origin(node):
                halves[node] = b.cast(moved, rounded[node])
                moved = b.cast(halves[node], node.type.dtype)
        new[node] = moved
    return Graph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _rounded(calls: Iterable[Node]) -> dict[Node, DType]:
    """Results of the library, and what it reads in a half type."""
    found: dict[Node, DType] = {}
    for node in calls:
        image = node.inputs[0]
        found[node] = image.type.dtype
        if node.op == "conv2d" and image.op == "cast" and image.inputs[0].op not in LEAVES:
            found[image.inputs[0]] = image.type.dtype
    return found


def _turned_first(operand: Node) -> Node:
    """A view of something rounded, as something rounded in the order of the view."""
    if operand.op != "permute" or operand.inputs[0].op != "cast":
        return operand
    (cast,) = operand.inputs
    with b.origin(cast):
        order = attrs_of(operand, at.PermuteAttrs).order
        return b.cast(b.permute(cast.inputs[0], order), cast.type.dtype)
