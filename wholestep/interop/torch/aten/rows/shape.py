"""Views, slices, concatenation, permutations and diagonals."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.types import Dim, product
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


def before(axis: int) -> tuple[slice, ...]:
    """Full slices for the axes before a given one."""
    return (slice(None),) * axis


@row("view", "reshape", "_unsafe_view", "view_copy", "_reshape_copy", "squeeze", "squeeze_copy", "unsqueeze",
     "unsqueeze_copy", "flatten", "unflatten", "view_as", "reshape_as", "_reshape_alias", "ravel",
     "atleast_1d", "atleast_2d", "atleast_3d", refuses="a view as another dtype")  # fmt: skip
def _view(r: AtenRecorder, x: Any, *_: Any) -> Tensor:
    t = r.tensor(x)
    if t.dtype.name != r.dtype:
        r.refuse(f"reads the bits of {t.dtype} as {r.dtype}")
    return t.reshape(r.shape)


@row("atleast_1d.Sequence", "atleast_2d.Sequence", "atleast_3d.Sequence")
def _views(r: AtenRecorder, tensors: Any) -> tuple[Tensor, ...]:
    shapes = (tuple(map(r.extent, m.shape)) for m in r.meta)
    return tuple(r.tensor(x).reshape(shape) for x, shape in zip(tensors, shapes))


@row("expand", "expand_copy", "broadcast_to", "expand_as")
def _expand(r: AtenRecorder, x: Any, *_: Any, **__: Any) -> Tensor:
    t = r.tensor(x)
    return t.expand(*r.shape) if r.shape else t


@row("transpose", "transpose_copy", "swapaxes", "swapdims")
def _transpose(r: AtenRecorder, x: Any, a: int, b: int) -> Tensor:
    t = r.tensor(x)
    return t.transpose(a, b) if t.ndim > 1 else t


@row("t", "t_copy", "numpy_T", "adjoint", "mT", "mH")
def _t(r: AtenRecorder, x: Any) -> Tensor:
    t = r.tensor(x)
    return t.transpose(-2, -1) if t.ndim > 1 else t


@row("slice", "slice_copy")
def _slice(r: AtenRecorder, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    t = r.tensor(x)
    at = dim % t.ndim
    size = t.shape[at]
    end = None if isinstance(end, int) and end >= 2**62 else end
    if isinstance(size, Dim):
        whole = (start is None or start == 0) and (end is None or end == size or r.shape[at] == size)
        if whole and step == 1:
            return t
        if r.shape[at] == size and not isinstance(start, Dim):
            return t
        return _of_symbol(r, t, at, start, end, step)
    if isinstance(start, Dim) or isinstance(end, Dim):
        start, end = _numbers(r, at, start, end, size)
    return t[(*before(at), slice(start, end, step))]


def _numbers(r: AtenRecorder, at: int, start: Any, end: Any, size: int) -> tuple[Any, Any]:
    """The bounds of a slice along an axis of known size; a symbolic bound is derived from the size of the result."""
    count = r.fixed(r.shape[at], "the size of the slice")
    if isinstance(start, Dim):
        return (size - count if end is None else end - count), end
    return start, (start or 0) + count


def _of_symbol(r: AtenRecorder, t: Tensor, at: int, start: Any, end: Any, step: int) -> Tensor:
    """A slice of a symbolic axis by row index, where a slice expression might not exist."""
    if step == 1:
        try:
            return t[(*before(at), slice(start, end))]
        except Exception as error:
            text = str(error)
            if "may be out of range" not in text and "has no value" not in text:
                raise
    first: Any = 0 if start is None else start
    if isinstance(first, int) and first < 0:
        first = t.shape[at] + first
    rows = ws.arange(r.shape[at], dtype="int32")
    rows = rows if step == 1 else rows * step
    return ws.gather(t, rows + r.tensor(first, "int32"), at)


@row("narrow", "narrow_copy")
def _narrow(r: AtenRecorder, x: Any, dim: int, start: Any, length: Any) -> Tensor:
    return _slice(r, x, dim, start, start + length)


@row("cat", "concat", "concatenate")
def _cat(r: AtenRecorder, tensors: Any, dim: int = 0) -> Tensor:
    rank = len(r.shape)
    at = dim % rank
    nonempty = [x for x in tensors if not (len(x.shape) == 1 and x.shape[0] == 0 and rank > 1)]
    nonempty = [x for x in nonempty if x.shape[at] != 0] or nonempty[:1]
    parts = [r.tensor(x, r.dtype) for x in nonempty]
    return parts[0] if len(parts) == 1 else ws.concat(parts, at)


def _pieces(t: Tensor, sizes: list[Any], at: int) -> tuple[Tensor, ...]:
    ends = [0]
    for size in sizes:
        ends.append(ends[-1] + size)
    return tuple(t[(*before(at), slice(a, b))] for a, b in pairwise(ends))


@row("split_with_sizes", "split_with_sizes_copy")
def _split_with_sizes(r: AtenRecorder, x: Any, sizes: Any, dim: int = 0) -> tuple[Tensor, ...]:
    t = r.tensor(x)
    return _pieces(t, list(sizes), dim % t.ndim)


@row(
    "split",
    "split_copy",
    "chunk",
    "tensor_split",
    "unsafe_split",
    "unsafe_chunk",
    "hsplit",
    "vsplit",
    "unsafe_split_with_sizes",
)
def _split(r: AtenRecorder, x: Any, _: Any, dim: int = 0) -> tuple[Tensor, ...]:
    t = r.tensor(x)
    at = dim % t.ndim
    return _pieces(t, [r.extent(m.shape[at]) for m in r.meta], at)


@row("repeat", "tile")
def _repeat(r: AtenRecorder, x: Any, times: Any) -> Tensor:
    t = r.tensor(x)
    counts = [*[1] * (t.ndim - len(times)), *times]
    shape = (*[1] * (len(counts) - t.ndim), *t.shape)
    apart = t.reshape(tuple(e for s in shape for e in (1, s)))
    return apart.expand(*(e for n, s in zip(counts, shape) for e in (n, s))).reshape(r.shape)


@row("repeat_interleave.self_int", "repeat_interleave.self_Tensor", refuses="counts that differ")
def _repeat_interleave(r: AtenRecorder, x: Any, repeats: Any, dim: int | None = None, **_: Any) -> Tensor:
    import torch

    t = r.tensor(x) if dim is not None else r.tensor(x).reshape(-1)
    at = (dim or 0) % t.ndim
    if isinstance(repeats, torch.Tensor) and repeats.numel() > 1:
        rows = torch.repeat_interleave(torch.arange(len(repeats)), repeats).numpy()
        return ws.gather(t, rows.astype(np.int32), at)
    count = int(repeats)
    apart = t.reshape((*t.shape[: at + 1], 1, *t.shape[at + 1 :]))
    return apart.expand(*t.shape[: at + 1], count, *t.shape[at + 1 :]).reshape(r.shape)


def along(t: Tensor, table: Any, at: int) -> Tensor:
    """A tensor at constant positions along one axis."""
    return ws.gather(t, np.asarray(table, np.int32), at)


@row("flip", "fliplr", "flipud")
def _flip(r: AtenRecorder, x: Any, dims: Any = None) -> Tensor:
    t = r.tensor(x)
    axes = {"aten.fliplr": [1], "aten.flipud": [0]}.get(str(r.node.target).rpartition(".")[0], dims)
    return ws.flip(t, [d % t.ndim for d in axes])


@row("rot90")
def _rot90(r: AtenRecorder, x: Any, k: int = 1, dims: Any = (0, 1)) -> Tensor:
    t, (a, b) = r.tensor(x), dims
    k %= 4
    if k == 0:
        return t
    if k == 2:
        return ws.flip(t, [a, b])
    return ws.flip(t, b).transpose(a, b) if k == 1 else ws.flip(t.transpose(a, b), b)


@row("roll")
def _roll(r: AtenRecorder, x: Any, shifts: Any, dims: Any = ()) -> Tensor:
    t = r.tensor(x)
    if not isinstance(dims, int) and not dims:
        return ws.roll(t, shifts if isinstance(shifts, int) else shifts[0])
    return ws.roll(t, shifts, dims)


@row("diagonal", "diagonal_copy")
def _diagonal(r: AtenRecorder, x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    t = r.tensor(x)
    a, b = dim1 % t.ndim, dim2 % t.ndim
    moved = t.permute([*(d for d in range(t.ndim) if d not in (a, b)), a, b])
    count, width = r.fixed(r.shape[-1], "the length of the diagonal"), r.fixed(moved.shape[-1], "the width")
    places = (np.arange(count) + max(0, -offset)) * width + np.arange(count) + max(0, offset)
    flat = moved.reshape((*moved.shape[:-2], product(moved.shape[-2:])))
    return along(flat, places, flat.ndim - 1)


@row("diag_embed")
def _diag_embed(r: AtenRecorder, x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    t, rank = r.tensor(x), len(r.shape)
    a, b = dim1 % rank, dim2 % rank
    size = r.shape[a]
    wide = ws.pad(
        t, [(0, 0)] * (t.ndim - 1) + [(max(offset, 0), max(-offset, 0))]
    )  # column j has the element j - offset
    spread = wide.reshape((*wide.shape[:-1], 1, size)).expand(*wide.shape[:-1], size, size)
    on = (ws.iota((size, size), 1) - ws.iota((size, size), 0)) == offset
    out = ws.where(on, spread, r.operand(0))
    order = [d for d in range(rank) if d not in (a, b)]
    where = {d: i for i, d in enumerate([*order, a, b])}
    return out.permute([where[d] for d in range(rank)])


def strided_places(size: Any, stride: Any, offset: int | None) -> Any:
    """The memory position of each element of a strided view."""
    places = np.full(tuple(size), offset or 0, np.int64)
    for axis, (count, step) in enumerate(zip(size, stride)):
        places += np.arange(count).reshape([-1 if i == axis else 1 for i in range(len(size))]) * step
    return places


@row("as_strided", "as_strided_copy", refuses="what is not contiguous")
def _as_strided(r: AtenRecorder, x: Any, size: Any, stride: Any, offset: Any = None) -> Tensor:
    t, meta = r.tensor(x), r.node.args[0].meta["val"]
    if not meta.is_contiguous():
        r.refuse("reads memory that is not contiguous")
    places = strided_places([r.fixed(n, "a size") for n in size], stride, offset)
    if places.size == math.prod(map(int, t.shape)) and (places.reshape(-1) == np.arange(places.size)).all():
        return t.reshape(tuple(size))
    return ws.gather(t.reshape(-1), places.astype(np.int32))


@row("pixel_shuffle", "pixel_unshuffle")
def _pixel_shuffle(r: AtenRecorder, x: Any, factor: int) -> Tensor:
    t = r.tensor(x)
    images = t if t.ndim == 4 else t.reshape((-1, *t.shape[-3:]))
    function = ws.pixel_unshuffle if "unshuffle" in str(r.node.target) else ws.pixel_shuffle
    return function(images, factor).reshape(r.shape)


@row("channel_shuffle", "native_channel_shuffle")
def _channel_shuffle(r: AtenRecorder, x: Any, groups: int) -> Tensor:
    t = r.tensor(x)
    n, c = t.shape[:2]
    apart = t.reshape((n, groups, c // groups, *t.shape[2:]))  # type: ignore[operator]
    return apart.transpose(1, 2).reshape(t.shape)


@row("meshgrid")
def _meshgrid(r: AtenRecorder, tensors: Any, indexing: str = "ij") -> tuple[Tensor, ...]:
    parts, rank = [r.tensor(t).reshape(-1) for t in tensors], len(tensors)
    out = []
    for d, (part, meta) in enumerate(zip(parts, r.meta)):
        at = {0: 1, 1: 0}.get(d, d) if indexing == "xy" and rank > 1 else d
        shape = tuple(r.extent(e) for e in meta.shape)
        out.append(part.reshape([part.shape[0] if i == at else 1 for i in range(rank)]).expand(*shape))
    return tuple(out)
