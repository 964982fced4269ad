"""Images of another size, and images read at places."""

from __future__ import annotations

from itertools import product as cartesian
from typing import Any

import torch

import wholestep as ws
from wholestep.aten.movement import along
from wholestep.aten.record import Recorder
from wholestep.aten.table import row
from wholestep.compiler.frontend.tensor import Tensor

_NEAREST = ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
_EXACT = ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
_LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
_SMOOTH = ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")


@row(*_NEAREST, *_EXACT, *_LINEAR, "upsample_bicubic2d", *_SMOOTH)
def _upsample(r: Recorder, x: Any, *rest: Any, **named: Any) -> Tensor:
    """Axis by axis: rows of the result are rows, or weighted sums of rows, as torch itself says of one axis."""
    t, packet = r.tensor(x), str(r.node.target).split(".")[1]
    outs = r.shape[2:]
    flags = [a for a in (*rest, *named.values()) if isinstance(a, bool)]
    align = flags[0] if flags else False
    scales = _scales(rest, named, len(outs))
    for j, (out, scale) in enumerate(zip(outs, scales)):
        at = 2 + j
        given, wanted = r.fixed(t.shape[at], "a size"), r.fixed(out, "a size")
        if given == wanted and (scale is None or scale == 1.0):
            continue
        matrix = _one_axis(packet, given, wanted, scale, align)
        if packet in (*_NEAREST, *_EXACT):
            t = along(t, matrix.argmax(0).numpy(), at)
        else:
            t = _mixed(r, t, at, matrix)
    return t


def _scales(rest: Any, named: Any, axes: int) -> list[float | None]:
    lists = [a for a in (*rest, *named.values()) if isinstance(a, list | tuple) and a and isinstance(a[0], float)]
    if lists:
        return list(lists[-1])
    single = [a for a in (*rest, *named.values()) if isinstance(a, float)]
    return [*single[-axes:]] if len(single) >= axes else [None] * axes


def _one_axis(packet: str, given: int, wanted: int, scale: float | None, align: bool) -> Any:
    """(given, wanted): what each row of the result is made of, from torch's own resizing of unit vectors."""
    mode = "nearest-exact" if "exact" in packet else "nearest" if "nearest" in packet else "bilinear"
    mode = "bicubic" if "bicubic" in packet else mode
    options: dict[str, Any] = {"mode": mode}
    if mode in ("bilinear", "bicubic"):
        options |= {"align_corners": align, "antialias": packet in _SMOOTH}
    size = (
        {"size": (given, wanted)} if scale is None else {"scale_factor": (1.0, scale), "recompute_scale_factor": False}
    )
    unit = torch.eye(given, dtype=torch.float64).reshape(1, 1, given, given)
    return torch.nn.functional.interpolate(unit, **size, **options)[0, 0]


def _mixed(r: Recorder, t: Tensor, at: int, matrix: Any) -> Tensor:
    order = [*(d for d in range(t.ndim) if d != at), at]
    weights = r.graph.constant(matrix.numpy().astype(t.dtype.numpy))
    return ws.matmul(t.permute(order), weights).permute([order.index(d) for d in range(t.ndim)])


# -- places ------------------------------------------------------------------------------------------------------


@row("grid_sampler_2d", "grid_sampler", refuses="volumes, and bicubic")
def _grid_sample(r: Recorder, x: Any, grid: Any, mode: int = 0, padding: int = 0, align: bool = False) -> Tensor:
    t, g = r.tensor(x), r.tensor(grid)
    if t.ndim != 4 or mode == 2:
        r.refuse("samples volumes, or by bicubic")
    n, c, h, w = t.shape
    px = _pixels(g[..., 0], r.fixed(w, "the width"), padding, align)
    py = _pixels(g[..., 1], r.fixed(h, "the height"), padding, align)
    rows = t.permute(0, 2, 3, 1).reshape((n * h * w, c))
    image = ws.iota(px.shape, 0, "int64") * r.operand(h * w, "int64")
    if mode == 1:
        return _pixel(rows, image, ws.round(px), ws.round(py), int(h), int(w), None)
    left, top = ws.stop_gradient(ws.floor(px)), ws.stop_gradient(ws.floor(py))
    total: Tensor | None = None
    for dx, dy in cartesian((0.0, 1.0), (0.0, 1.0)):
        cx, cy = left + dx, top + dy
        share = (1.0 - ws.abs(px - cx)) * (1.0 - ws.abs(py - cy))
        part = _pixel(rows, image, cx, cy, int(h), int(w), share)
        total = part if total is None else total + part
    assert total is not None
    return total


def _pixels(place: Tensor, size: int, padding: int, align: bool) -> Tensor:
    """From -1 ... 1 to pixels."""
    p = (place + 1.0) * ((size - 1) / 2) if align else ((place + 1.0) * float(size) - 1.0) * 0.5
    if padding == 1:
        return ws.clip(p, 0.0, float(size - 1))
    if padding == 2:
        low, span = (0.0, float(size - 1)) if align else (-0.5, float(size))
        if span == 0.0:
            return p * 0.0
        away = ws.abs(p - low)
        turns = ws.stop_gradient(ws.floor(away / span))
        rest = away - turns * span
        odd = ws.mod(turns, 2.0) == 1.0
        return ws.clip(ws.where(odd, span - rest, rest) + low, 0.0, float(size - 1))
    return p


def _pixel(rows: Tensor, image: Tensor, x: Tensor, y: Tensor, h: int, w: int, share: Tensor | None) -> Tensor:
    inside = (x >= 0.0) & (x <= float(w - 1)) & (y >= 0.0) & (y <= float(h - 1))
    column, line = ws.clip(x, 0.0, float(w - 1)), ws.clip(y, 0.0, float(h - 1))
    place = image + ws.stop_gradient(line * float(w) + column).astype("int64")
    found = ws.gather(rows, place)
    weight = ws.where(inside, 1.0 if share is None else share, ws.zeros_like(x))
    return (found * weight.reshape((*weight.shape, 1))).permute(0, 3, 1, 2)
