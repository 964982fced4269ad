"""Random numbers, drawn anew in every step; a `seed` in the file is ignored, since the session has one."""

from __future__ import annotations

from collections.abc import Sequence

import wholestep as ws
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.types import Shape
from wholestep.errors import UsageError
from wholestep.interop.onnx.read.reading import dtype_name
from wholestep.interop.onnx.read.table import NodeContext, onnx_op

Draw = tuple[Graph, Shape, str]


def _draw(node: NodeContext, like: Tensor | None, shape: Sequence[int] | None, dtype: int | None) -> Draw:
    """The graph of random numbers, and their shape and dtype: a tensor's, unless the node's attributes set them."""
    if node.graph is None:
        raise UsageError("random numbers cannot be folded to constants; record the network in a graph.")
    if like is None:
        return node.graph, tuple(shape or ()), dtype_name(1 if dtype is None else dtype)
    return node.graph, like.shape, like.dtype.name if dtype is None else dtype_name(dtype)


@onnx_op("RandomUniform", "RandomUniformLike")
def uniform(
    x: Tensor | None = None, *, shape: Sequence[int] | None = None, dtype: int | None = None, high: float = 1.0,
    low: float = 0.0, node: NodeContext,
) -> Tensor:  # fmt: skip
    graph, sizes, kind = _draw(node, x, shape, dtype)
    return ws.random_uniform(graph, sizes, low, high, kind)


@onnx_op("RandomNormal", "RandomNormalLike")
def normal(
    x: Tensor | None = None, *, shape: Sequence[int] | None = None, dtype: int | None = None, mean: float = 0.0,
    scale: float = 1.0, node: NodeContext,
) -> Tensor:  # fmt: skip
    graph, sizes, kind = _draw(node, x, shape, dtype)
    return ws.random_normal(graph, sizes, mean, scale, kind)


@onnx_op("Bernoulli")
def bernoulli(x: Tensor, *, dtype: int | None = None, node: NodeContext) -> Tensor:
    graph, sizes, kind = _draw(node, x, None, dtype)
    return (ws.random_uniform(graph, sizes, dtype=x.dtype) < x).astype(kind)
