"""Matrix products, attention, distances, batch norm."""

from __future__ import annotations

from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.layers.composites import batch_statistics, normalize_by
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.types import Extent, Shape
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.rows.functions import is_nonzero
from wholestep.interop.torch.aten.table import row
from wholestep.interop.torch.functions import outer


def _product(r: AtenRecorder, a: Any, b: Any) -> Tensor:
    x, y = r.tensor(a, r.dtype), r.tensor(b, r.dtype)
    if x.dtype.is_float:
        return ws.matmul(x, y)
    return ws.round(ws.matmul(x.astype("float64"), y.astype("float64"))).astype(r.dtype)


@row("mm", "bmm", "matmul", "mv", "dot", "vdot", "linalg_vecdot")
def _matmul(r: AtenRecorder, a: Any, b: Any) -> Tensor:
    if "vecdot" in str(r.node.target):
        return (r.tensor(a, r.dtype) * r.tensor(b, r.dtype)).sum(-1)
    return _product(r, a, b)


def _blend(r: AtenRecorder, c: Any, out: Tensor, beta: Any, alpha: Any) -> Tensor:
    out = out if alpha == 1 else out * r.operand(alpha)
    if beta == 0:
        return out
    added = r.tensor(c, r.dtype)
    return out + (added if beta == 1 else added * r.operand(beta))


@row("addmm", "baddbmm", "addmv", "addmm_")
def _addmm(r: AtenRecorder, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, **_: Any) -> Tensor:
    return _blend(r, c, _product(r, a, b), beta, alpha)


@row("addbmm")
def _addbmm(r: AtenRecorder, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _blend(r, c, _product(r, a, b).sum(0), beta, alpha)


@row("addr")
def _addr(r: AtenRecorder, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _blend(r, c, outer(r.tensor(a, r.dtype), r.tensor(b, r.dtype)), beta, alpha)


@row("bilinear")
def _bilinear(r: AtenRecorder, x: Any, y: Any, weight: Any, bias: Any = None) -> Tensor:
    out = ws.einsum("...i,oij,...j->...o", r.tensor(x), r.tensor(weight), r.tensor(y))
    return out if bias is None else out + r.tensor(bias)


@row("scaled_dot_product_attention", "_scaled_dot_product_attention_math")
def _attention(
    r: AtenRecorder, q: Any, k: Any, v: Any, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    *_: Any, scale: float | None = None, enable_gqa: bool = False,
) -> Any:  # fmt: skip
    query, key, value = r.tensor(q), r.tensor(k), r.tensor(v)
    mask = None if attn_mask is None else r.tensor(attn_mask)
    ends = -3 if enable_gqa else -2  # with grouped queries, several heads share keys and values
    lead = _broadcast(query.shape[:ends], key.shape[:ends], value.shape[:ends])
    query, key, value = (t.expand(*lead, *t.shape[ends:]) for t in (query, key, value))
    if mask is not None and mask.dtype.name not in ("bool", query.dtype.name):
        mask = mask.astype(query.dtype) if mask.dtype.is_float else is_nonzero(r, mask)
    out = ws.attention(query, key, value, causal=is_causal, scale=scale, mask=mask, dropout=float(dropout_p))
    return (out, None) if isinstance(r.meta, tuple | list) else out


def _broadcast(*shapes: Shape) -> list[Extent]:
    """The broadcast shape of all batch axes."""
    rank = max(map(len, shapes))
    aligned = zip(*((*(1,) * (rank - len(s)), *s) for s in shapes))
    return [next((e for e in extents if e != 1), 1) for extents in aligned]


@row("_weight_norm_interface")
def _weight_norm(r: AtenRecorder, v: Any, g: Any, dim: int = 0) -> tuple[Tensor, Tensor]:
    t = r.tensor(v)
    axes = tuple(d for d in range(t.ndim) if d != dim % t.ndim)
    norm = ws.sqrt((t * t).sum(axes, True))
    return t * (r.tensor(g) / norm), norm


@row("_pdist_forward", "pdist")
def _pdist(r: AtenRecorder, a: Any, p: float = 2.0) -> Tensor:
    x = r.tensor(a)
    first, second = np.triu_indices(r.fixed(x.shape[0], "the number of rows"), 1)
    return ws.norm(ws.gather(x, first.astype(np.int32)) - ws.gather(x, second.astype(np.int32)), p, -1)


@row("linalg_cross", "cross")
def _cross(r: AtenRecorder, a: Any, b: Any, dim: Any = None) -> Tensor:
    x, y = r.tensor(a, r.dtype).expand(*r.shape), r.tensor(b, r.dtype).expand(*r.shape)
    at = (-1 if dim is None else dim) % x.ndim
    if dim is None and "linalg" not in str(r.node.target):
        at = next(d for d, e in enumerate(x.shape) if e == 3)
    (x0, x1, x2), (y0, y1, y2) = ws.unbind(x, at), ws.unbind(y, at)
    return ws.stack([x1 * y2 - x2 * y1, x2 * y0 - x0 * y2, x0 * y1 - x1 * y0], at)


@row("einsum")
def _einsum(r: AtenRecorder, equation: str, operands: Any, path: Any = None) -> Tensor:
    return ws.einsum(equation, *(r.tensor(x, r.dtype) for x in operands))


@row(
    "_grouped_mm",
    "transformers.grouped_mm",
    "transformers.grouped_mm_fallback",
    refuses="anything but rows in runs times a matrix for each run",
)
def _grouped_mm(r: AtenRecorder, a: Any, b: Any, offs: Any = None, bias: Any = None, *_: Any, **__: Any) -> Tensor:
    """A grouped matrix product: each run of rows is multiplied by its own matrix; `offs` are the ends of the runs.

    Each run is multiplied over all rows, and the rows outside of the run are masked: one product per run.
    """
    x, w = r.tensor(a), r.tensor(b)
    if x.ndim != 2 or w.ndim != 3 or offs is None:
        r.refuse("multiplies other things than rows in runs by a matrix for each run")
    ends = r.tensor(offs, "int64")
    rows, groups = x.shape[0], r.fixed(w.shape[0], "the number of groups")
    number = ws.arange(rows, dtype="int64").reshape((rows, 1))
    run = (number >= ends).astype("int32").sum(-1)
    out: Tensor | None = None
    for g in range(groups):
        mine = (run == g).reshape((rows, 1))
        part = ws.matmul(ws.where(mine, x, 0.0), w[g])
        out = part if out is None else out + part
    assert out is not None
    return out if bias is None else out + r.tensor(bias)


@row("_native_batch_norm_legit_functional", "_batch_norm_with_update_functional", "_native_batch_norm_legit.no_stats",
     "_native_batch_norm_legit_no_training", "_batch_norm_no_update", "native_batch_norm",
     "_native_batch_norm_legit.default", "cudnn_batch_norm", "miopen_batch_norm")  # fmt: skip
def _batch_norm(r: AtenRecorder, *args: Any) -> tuple[Any, ...]:
    """A batch norm; the last two results of the functional ops are the next running statistics."""
    name, by_name = str(r.node.target), dict(zip((a.name for a in r.node.target._schema.arguments), args))
    x, weight, bias = r.tensor(by_name["input"]), r.optional(by_name["weight"]), r.optional(by_name["bias"])
    states = [r.tensor(s) for s in map(by_name.get, ("running_mean", "running_var")) if s is not None]
    eps, share = float(args[-1]), float(args[-2])  # the last two, which overloads name differently
    if by_name.get("training", "with_update" in name) or not states:
        out = ws.batch_norm(x, weight, bias, eps=eps)
        states = [old * (1.0 - share) + new * share for old, new in zip(states, batch_statistics(x))]
    else:
        out = normalize_by(x, states[0], states[1], eps, weight, bias)
    results = states if "functional" in name else []
    return (out, *[None] * (len(r.meta) - 1 - len(results)), *results)
