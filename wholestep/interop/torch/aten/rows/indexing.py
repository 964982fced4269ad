"""Gathers, embeddings and advanced indexing."""

from __future__ import annotations

import math
from typing import Any

import torch

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.types import Dim, Extent, Shape, divide, product
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


@row("embedding")
def _embedding(r: AtenRecorder, weight: Any, index: Any, padding_idx: Any = -1, *_: Any, **__: Any) -> Tensor:
    w, i = r.tensor(weight), r.tensor(index)
    out = ws.gather(w, i)
    if padding_idx is None or padding_idx < 0:
        return out
    padded = (i == padding_idx).reshape((*i.shape, 1))
    return ws.where(padded, ws.stop_gradient(out), out)


@row("_embedding_bag", "_embedding_bag_forward_only", refuses="an index that is left out of the maximum of bags")
def _embedding_bag(
    r: AtenRecorder, weight: Any, index: Any, offsets: Any, scale: bool = False, mode: int = 0, sparse: bool = False,
    weights: Any = None, last: bool = False, padding_idx: int = -1,
) -> tuple[Any, ...]:  # fmt: skip
    w, i = r.tensor(weight), r.tensor(index)
    rows, one = ws.gather(w, i), (*i.shape, 1)
    if mode == 2 and padding_idx >= 0:
        r.refuse("takes the maximum of each bag, and leaves out an index")
    if weights is not None:
        rows = rows * r.tensor(weights).reshape(one)
    counts = ws.ones_like(rows[:, :1]) if padding_idx < 0 else (i != padding_idx).astype(w.dtype).reshape(one)
    if padding_idx >= 0:
        rows = rows * counts
    out = _by_bag(r, rows, offsets, "max" if mode == 2 else "sum")
    if mode == 1:
        out = out / ws.maximum(_by_bag(r, counts, offsets, "sum"), 1.0)
    return out, None, None, None


def _by_bag(r: AtenRecorder, rows: Tensor, offsets: Any, how: str) -> Tensor:
    """The sum or the maximum of the rows in each bag; 0 for an empty bag."""
    bags, width = r.extent(r.result.shape[0]), rows.shape[1]
    each = divide(rows.shape[0], bags)
    if each is not None and _are_equal(r, offsets, each):
        apart = rows.reshape((bags, each, width))
        return apart.max(1) if how == "max" else apart.sum(1)
    begins = r.tensor(offsets, "int64")[:bags]
    bag = ws.searchsorted(begins, ws.iota(rows.shape[:1], 0, "int64"), True) - 1
    places = bag.reshape((rows.shape[0], 1)).expand(*rows.shape)
    empty = ws.full_like(rows[:1], -math.inf if how == "max" else 0.0).expand(bags, width)
    out = ws.put_along_axis(empty, places, rows, 0, how)
    return ws.where(out == -math.inf, 0.0, out) if how == "max" else out


def _are_equal(r: AtenRecorder, offsets: Any, each: Extent) -> bool:
    """Do all bags have the same size?  A matrix of indices has bags that start at multiples of its width."""
    if isinstance(offsets, torch.Tensor):
        return isinstance(each, int) and bool((offsets == torch.arange(len(offsets)) * each).all())
    source = r.node.args[2]
    return "arange" in str(source.target) and len(source.args) == 3 and r.value(source.args[2]) == each


@row("index_select", "index_select_backward")
def _index_select(r: AtenRecorder, x: Any, dim: int, index: Any) -> Tensor:
    t, i = r.tensor(x), r.tensor(index)
    if t.ndim == 0:
        return t
    return ws.gather(t, i.reshape(-1) if i.ndim == 0 else i, dim % t.ndim)


def from_start(r: AtenRecorder, index: Any, size: Extent) -> Any:
    """An index with negative values converted to positions from the start."""
    if isinstance(index, torch.Tensor) and isinstance(size, int):
        return torch.where(index < 0, index + size, index).to(torch.int64)
    i = r.tensor(index)
    if i.dtype.name == "uint8":
        i = i.astype("int64")
    return i if _never_negative(i) else ws.where(i < 0, i + r.operand(size, i.dtype.name), i)


def _never_negative(i: Tensor) -> bool:
    return i.node.op in ("iota", "argmax")


def spread(r: AtenRecorder, indices: Any) -> list[Any]:
    """Indices by axis; a constant mask becomes the indices of its True elements."""
    out: list[Any] = []
    for i in indices:
        if isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8):
            out += list(i.nonzero(as_tuple=True))
        elif isinstance(i, Tensor) and i.dtype.name == "bool":
            r.refuse("selects by a mask that depends on the data: the shape of its result is not known")
        else:
            out.append(i)
    return out


def linear(r: AtenRecorder, indices: list[Any], used: list[int], shape: Shape) -> Any:
    """Combine the indices of several axes to one index of these axes flattened."""
    total: Any = None
    for d in used:
        part = from_start(r, indices[d], shape[d])
        if total is None:
            total = part
        elif isinstance(total, Tensor) or isinstance(part, Tensor) or isinstance(shape[d], Dim):
            total = r.tensor(total, "int64") * r.operand(shape[d], "int64") + r.tensor(part, "int64")
        else:
            total = total * shape[d] + part
    return total


@row("masked_select", refuses="masks that depend on the data")
def _masked_select(r: AtenRecorder, x: Any, mask: Any) -> Tensor:
    t = r.tensor(x)
    if not isinstance(mask, torch.Tensor):
        r.refuse("selects by a mask that depends on the data: the shape of its result is not known")
    shape = torch.broadcast_shapes(mask.shape, tuple(r.fixed(e, "a size") for e in t.shape))
    selected = mask.expand(shape).reshape(-1).nonzero().reshape(-1)
    return ws.gather(t.expand(*shape).reshape(-1), r.tensor(selected))


@row("index", "_unsafe_index", "_unsafe_masked_index", refuses="masks that depend on the data")
def _index(r: AtenRecorder, x: Any, indices: Any, *more: Any) -> Tensor:
    if more:  # _unsafe_masked_index(x, mask, indices, fill)
        r.refuse("indexes by a mask")
    t, by_axis = r.tensor(x), spread(r, indices)
    used = [d for d, i in enumerate(by_axis) if i is not None]
    if not used:
        return t
    k, first = len(used), used[0]
    together = used == list(range(first, first + k))
    if not together:
        t = t.permute([*used, *(d for d in range(t.ndim) if d not in used)])
        by_axis = [*(by_axis[d] for d in used)]
        used, first = list(range(k)), 0
    place = linear(r, by_axis, used, t.shape)
    if k > 1:
        t = t.reshape((*t.shape[:first], product(t.shape[first : first + k]), *t.shape[first + k :]))
    i = r.tensor(place)
    elements = ws.gather(t, i.reshape(1) if i.ndim == 0 else i, first)
    return elements if i.ndim else elements.reshape((*t.shape[:first], *t.shape[first + 1 :]))


def grid(r: AtenRecorder, index: Any, dim: int, shape: Shape) -> Tensor:
    """The flat positions, in a tensor of a shape, that an index of torch.gather refers to."""
    i = from_start(r, index, shape[dim]) if not isinstance(index, torch.Tensor) else index
    i = r.tensor(i, "int64")
    total: Tensor | None = None
    for d in range(i.ndim):
        stride = product(shape[d + 1 :])
        part = i if d == dim else ws.iota(i.shape, d, "int64")
        part = part if stride == 1 else part * r.operand(stride, "int64")
        total = part if total is None else total + part
    assert total is not None
    return total


@row("gather")
def _gather(r: AtenRecorder, x: Any, dim: int, index: Any, **_: Any) -> Tensor:
    t, i = r.tensor(x), r.tensor(index)
    if t.ndim == 0 or i.ndim == 0:
        return ws.gather(t.reshape(1) if t.ndim == 0 else t, i.reshape(-1), 0).reshape(r.shape)
    at = dim % t.ndim
    alike = all(d == at or a == b for d, (a, b) in enumerate(zip(i.shape, t.shape)))
    if alike:
        return ws.take_along_axis(t, i, at)
    if all(isinstance(e, int) for e in (*i.shape, *t.shape)):
        cut = t[tuple(slice(None) if d == at else slice(0, e) for d, e in enumerate(i.shape))]
        return ws.take_along_axis(cut, i, at)
    return ws.gather(t.reshape(-1), grid(r, index, at, t.shape))


@row("take_along_dim", whole=False)
def _take_along_dim(r: AtenRecorder, x: Any, index: Any, dim: int | None = None) -> Tensor:
    t, i = r.tensor(x), r.tensor(index)
    if dim is None:
        return ws.gather(t.reshape(-1), i.reshape(-1))
    return ws.take_along_axis(t, i, dim)


@row("take")
def _take(r: AtenRecorder, x: Any, index: Any) -> Tensor:
    t = r.tensor(x)
    return ws.gather(t.reshape(-1), r.tensor(from_start(r, index, product(t.shape)))).reshape(r.shape)


@row("one_hot", refuses="a number of classes that depends on the data")
def _one_hot(r: AtenRecorder, x: Any, classes: int = -1) -> Tensor:
    if classes < 0:
        r.refuse("has no number of classes: F.one_hot(x, num_classes=...)")
    return ws.one_hot(r.tensor(x), classes, r.dtype)


@row("tril_indices", "triu_indices")
def _triangle_indices(r: AtenRecorder, *_: Any, **__: Any) -> Tensor:
    r.refuse("depends on a symbolic dimension")
