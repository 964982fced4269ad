"""Graphs of attention and its gradients, for the plans of several backends."""

from __future__ import annotations

from collections.abc import Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import DType, Extent, TensorType, as_shape, float32

Shape = tuple[int | str | Extent, ...]


def leaf(name: str, shape: Shape, dtype: DType) -> Node:
    return Node("input", (), at.InputAttrs(name, TensorType(as_shape(shape), dtype)), name)


def attention(
    q: Shape,
    k: Shape,
    v: Shape,
    *,
    causal: bool = False,
    mask: Shape | None = None,
    axes: Sequence[int] | None = None,
    dtype: DType = float32,
) -> IRGraph:
    """The result, the statistic and every gradient for an upstream gradient of its own.

    The mask has the given axes of the scores; by default the last ones.
    """
    inputs = [leaf(n, s, dtype) for n, s in zip("qkv", (q, k, v), strict=True)]
    scores = (*inputs[0].type.shape[:-1], inputs[1].type.shape[-2])
    if mask is not None:
        m = leaf("mask", mask, dtype.accumulate)
        last = range(len(scores) - m.type.rank, len(scores))
        inputs.append(b.expand_to(m, scores, list(axes or last)))
    attrs = at.AttentionAttrs(causal, 0.3)
    y, lse = (b.make(op, inputs, attrs) for op in ("attention", "attention_lse"))
    upstream = leaf("g", y.type.shape, dtype)
    results = [y, lse, *b.results("attention_grad", (*inputs, lse, upstream), attrs)]
    outputs = tuple(Output(f"out{i}", n) for i, n in enumerate(results))
    return IRGraph(outputs, (), tuple(n for n in IRGraph(outputs).nodes if n.op == "input"))
