"""Attention, linear attention and rotary position embedding."""

from __future__ import annotations

import math
from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.interop.onnx.ops.shapes import cut
from wholestep.interop.onnx.read.table import NodeContext, onnx_op


def heads_apart(x: Tensor, heads: int) -> Tensor:
    """(batch, time, heads · width) -> (batch, heads, time, width)"""
    batch, time, width = x.shape
    return x.reshape((batch, time, heads, int(width) // heads)).permute(0, 2, 1, 3)


def heads_together(x: Tensor) -> Tensor:
    batch, heads, time, width = x.shape
    return x.permute(0, 2, 1, 3).reshape((batch, time, heads * width))


def _repeat_heads(x: Tensor, heads: int) -> Tensor:
    batch, shared, time, width = x.shape
    if shared == heads:
        return x
    wide = x.reshape((batch, shared, 1, time, width)).expand(batch, shared, heads // int(shared), time, width)
    return wide.reshape((batch, heads, time, width))


@onnx_op("Attention")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    key_lengths: Tensor | None = None,
    *,
    is_causal: int = 0,
    kv_num_heads: int = 0,
    q_num_heads: int = 0,
    qk_matmul_output_mode: int = 0,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
    left_window_size: int = -1,
    right_window_size: int = -1,
    node: NodeContext,
) -> tuple[Tensor, ...]:
    flat = q.ndim == 3
    if flat:
        q, k, v = heads_apart(q, q_num_heads), heads_apart(k, kv_num_heads), heads_apart(v, kv_num_heads)
    before = 0 if past_key is None else past_key.shape[2]
    if past_key is not None and past_value is not None:
        k, v = ws.concat([past_key, k], 2), ws.concat([past_value, v], 2)
    scores = None
    simple = softcap == 0 and node.outputs <= 3 and key_lengths is None and not (is_causal and before != 0)
    windows = (left_window_size, 0 if is_causal else right_window_size)
    simple = simple and max(left_window_size, right_window_size) < 0
    if simple:
        whole = None if mask is None else _as_long_as(mask, k)
        out = ws.attention(q, k, v, causal=bool(is_causal), scale=scale, mask=whole)
    else:
        factor = 1.0 / math.sqrt(int(q.shape[-1])) if scale is None else scale
        out, scores = _attention_from_primitives(
            q, k, v, mask, key_lengths, windows, before, factor, softcap, qk_matmul_output_mode
        )
    out = heads_together(out) if flat else out
    return (out, k, v) if scores is None else (out, k, v, scores)


def _as_long_as(mask: Tensor, k: Tensor) -> Tensor:
    """Extend a mask to all keys; keys beyond its end are masked."""
    missing = k.shape[-2] - mask.shape[-1]
    if missing == 0:
        return mask
    around = [*[(0, 0)] * (mask.ndim - 1), (0, int(missing))]
    if mask.dtype.name == "bool":
        return ws.pad(mask.astype("int32"), around) != 0
    return ws.pad(mask, around, -math.inf)


def _attention_from_primitives(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    windows: tuple[int, int],
    before: Any,
    scale: float,
    softcap: float,
    shown: int,
) -> tuple[Tensor, Tensor]:
    """Attention composed of matrix products and a softmax, for options that `ws.attention` does not have."""
    heads = int(q.shape[1])
    k, v = _repeat_heads(k, heads), _repeat_heads(v, heads)
    raw = ws.matmul(q * scale, k.mT)
    capped = ws.tanh(raw * (1.0 / softcap)) * softcap if softcap else raw
    scores = capped
    if lengths is not None and before == 0:
        before = (lengths - as_tensor(q.shape[2]).astype(lengths.dtype)).astype("int64").reshape((-1, 1, 1, 1))
    if mask is not None:
        whole = _as_long_as(mask, k)
        kind = scores.dtype.numpy.type
        scores = scores + (ws.where(whole, kind(0), kind(-math.inf)) if whole.dtype.name == "bool" else whole)
    if max(windows) >= 0:
        rows, columns = (ws.iota(scores.shape[-2:], d, "int64") for d in (0, 1))
        behind = rows + before - columns  # the distance from a query back to a key
        left, right = windows
        if left >= 0:
            scores = ws.where(behind <= left, scores, -math.inf)
        if right >= 0:
            scores = ws.where(-behind <= right, scores, -math.inf)
    if lengths is not None:
        inside = ws.iota((k.shape[2],), 0, "int64") < lengths.astype("int64").reshape((-1, 1, 1, 1))
        scores = ws.where(inside, scores, -math.inf)
    sees = scores.max(-1, keepdims=True) > -math.inf
    probabilities = ws.where(sees, ws.softmax(ws.where(sees, scores, 0.0)), 0.0)
    return ws.matmul(probabilities, v), {0: capped, 1: capped, 2: scores, 3: probabilities}[shown]


@onnx_op("RotaryEmbedding")
def rotary_embedding(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None = None,
    *,
    interleaved: int = 0,
    num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:
    flat = x.ndim == 3
    y = heads_apart(x, num_heads) if flat else x  # (batch, heads, time, width)
    width = rotary_embedding_dim or int(y.shape[-1])
    rotated, rest = cut(y, 3, 0, width), cut(y, 3, width, int(y.shape[-1])) if width < int(y.shape[-1]) else None
    if positions is not None:
        cos, sin = ws.gather(cos, positions), ws.gather(sin, positions)
    cos, sin = (t.reshape((t.shape[0], 1, *t.shape[1:]))[..., : width // 2] for t in (cos, sin))
    if interleaved:
        a, b = rotated[..., 0::2], rotated[..., 1::2]
        out = ws.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(rotated.shape)
    else:
        a, b = ws.split(rotated, width // 2, -1)
        out = ws.concat([a * cos - b * sin, a * sin + b * cos], -1)
    out = out if rest is None else ws.concat([out, rest], -1)
    return heads_together(out) if flat else out


@onnx_op("LinearAttention")
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: Tensor | None = None,
    decay: Tensor | None = None,
    beta: Tensor | None = None,
    *,
    kv_num_heads: int,
    q_num_heads: int,
    scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:
    """Linear attention with a state (keys x values): S = exp(g)·S + k ⊗ β(v - Sᵀk); the output is scale·qᵀS."""
    heads, shared = q_num_heads, kv_num_heads
    queries, keys, values = heads_apart(q, heads), heads_apart(k, shared), heads_apart(v, shared)
    width, out_width = int(keys.shape[-1]), int(values.shape[-1])
    batch = q.shape[0]
    factor = scale or 1.0 / math.sqrt(width)
    first = ws.zeros((batch, shared, width, out_width), dtype=q.dtype) if state is None else state
    steps: dict[str, Tensor] = {"q": queries, "k": keys, "v": values}
    if decay is not None:
        steps["g"] = heads_apart(decay, shared)
    if beta is not None:
        steps["b"] = heads_apart(beta, int(beta.shape[-1]))

    def step(s: Tensor, x: Any) -> tuple[Tensor, Tensor]:
        key, new = x["k"], x["v"].reshape((batch, shared, 1, out_width))
        s = s * ws.exp(x["g"]).reshape((*x["g"].shape, 1)) if "g" in x else s
        tall = key.reshape((batch, shared, width, 1))
        if "b" in x:
            seen = ws.matmul(key.reshape((batch, shared, 1, width)), s)
            new = (new - seen) * x["b"].reshape((*x["b"].shape, 1))
        s = s + tall * new
        wide = s.reshape((batch, shared, 1, width, out_width)).expand(batch, shared, heads // shared, width, out_width)
        out = ws.matmul(x["q"].reshape((batch, heads, 1, width)), wide.reshape((batch, heads, width, out_width)))
        return s, out.reshape((batch, heads, out_width)) * factor

    last, out = ws.scan(step, first, {name: t.permute(2, 0, 1, 3) for name, t in steps.items()})
    return heads_together(out.permute(1, 2, 0, 3)), last
