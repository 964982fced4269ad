"""Images of another size, and images read at places."""

from __future__ import annotations

from typing import Any

import torch

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.rows.shape import along
from wholestep.interop.torch.aten.table import row

_NEAREST = ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
_EXACT = ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
_LINEAR = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
_SMOOTH = ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")


@row(*_NEAREST, *_EXACT, *_LINEAR, "upsample_bicubic2d", *_SMOOTH)
def _upsample(r: AtenRecorder, x: Any, *rest: Any, **named: Any) -> Tensor:
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
            t = _apply_matrix(r, t, at, matrix)
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


def _apply_matrix(r: AtenRecorder, t: Tensor, at: int, matrix: Any) -> Tensor:
    order = [*(d for d in range(t.ndim) if d != at), at]
    weights = r.graph.constant(matrix.numpy().astype(t.dtype.numpy))
    return ws.matmul(t.permute(order), weights).permute([order.index(d) for d in range(t.ndim)])


@row("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def _grid_sample(r: AtenRecorder, x: Any, grid: Any, mode: int = 0, padding: int = 0, align: bool = False) -> Tensor:
    how, around = ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[padding]
    return ws.grid_sample(r.tensor(x), r.tensor(grid), how, around, bool(align))
