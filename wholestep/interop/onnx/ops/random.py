"""Random numbers, drawn anew in every step; a `seed` in the file is ignored, since the session has one."""

from __future__ import annotations

from collections.abc import Sequence

import wholestep as ws
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.errors import UsageError
from wholestep.interop.onnx.read.reading import dtype_name
from wholestep.interop.onnx.read.table import NodeContext, onnx_op


def _graph(node: NodeContext) -> Graph:
    if node.graph is None:
        raise UsageError("random numbers cannot be folded to constants; record the network in a graph.")
    return node.graph


@onnx_op("RandomUniformLike")
def uniform_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    node: NodeContext,
) -> Tensor:
    return ws.random_uniform(_graph(node), x.shape, low, high, x.dtype if dtype is None else dtype_name(dtype))


@onnx_op("RandomNormalLike")
def normal_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    node: NodeContext,
) -> Tensor:
    return ws.random_normal(_graph(node), x.shape, mean, scale, x.dtype if dtype is None else dtype_name(dtype))


@onnx_op("RandomUniform")
def uniform(
    *,
    shape: Sequence[int],
    dtype: int = 1,
    high: float = 1.0,
    low: float = 0.0,
    seed: float | None = None,
    node: NodeContext,
) -> Tensor:
    return ws.random_uniform(_graph(node), tuple(shape), low, high, dtype_name(dtype))


@onnx_op("RandomNormal")
def normal(
    *,
    shape: Sequence[int],
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    node: NodeContext,
) -> Tensor:
    return ws.random_normal(_graph(node), tuple(shape), mean, scale, dtype_name(dtype))


@onnx_op("Bernoulli")
def bernoulli(x: Tensor, *, dtype: int | None = None, seed: float | None = None, node: NodeContext) -> Tensor:
    drawn = ws.random_uniform(_graph(node), x.shape, dtype=x.dtype) < x
    return drawn.astype(x.dtype if dtype is None else dtype_name(dtype))
