"""Padding, im2col, resizing and grid sampling of images and signals."""

from __future__ import annotations

from typing import Any

import torch

import wholestep as ws
from wholestep.compiler.frontend.shape.index_math import multiply_axis
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
    """Resize axis by axis: output rows are input rows or weighted sums of them, with weights computed by torch."""
    t, packet = r.tensor(x), str(r.node.target).split(".")[1]
    outs = r.shape[2:]
    flags = [a for a in (*rest, *named.values()) if isinstance(a, bool)]
    align = flags[0] if flags else False
    scales = _scales(rest, named, len(outs))
    for j, (out, scale) in enumerate(zip(outs, scales)):
        at = 2 + j
        size, wanted = r.fixed(t.shape[at], "a size"), r.fixed(out, "a size")
        if size == wanted and (scale is None or scale == 1.0):
            continue
        matrix = _one_axis(packet, size, wanted, scale, align)
        if packet in (*_NEAREST, *_EXACT):
            t = along(t, matrix.argmax(0).numpy(), at)
        else:
            t = multiply_axis(t, at, matrix.numpy())
    return t


def _scales(rest: Any, named: Any, axes: int) -> list[float | None]:
    lists = [a for a in (*rest, *named.values()) if isinstance(a, list | tuple) and a and isinstance(a[0], float)]
    if lists:
        return list(lists[-1])
    single = [a for a in (*rest, *named.values()) if isinstance(a, float)]
    return [*single[-axes:]] if len(single) >= axes else [None] * axes


def _one_axis(packet: str, inputs: int, outputs: int, scale: float | None, align: bool) -> Any:
    """The matrix (outputs, inputs) of a resize along one axis: torch's own resize of unit vectors."""
    mode = "nearest-exact" if "exact" in packet else "nearest" if "nearest" in packet else "bilinear"
    mode = "bicubic" if "bicubic" in packet else mode
    options: dict[str, Any] = {"mode": mode}
    if mode in ("bilinear", "bicubic"):
        options |= {"align_corners": align, "antialias": packet in _SMOOTH}
    size = (
        {"size": (inputs, outputs)}
        if scale is None
        else {"scale_factor": (1.0, scale), "recompute_scale_factor": False}
    )
    unit = torch.eye(inputs, dtype=torch.float64).reshape(1, 1, inputs, inputs)
    return torch.nn.functional.interpolate(unit, **size, **options)[0, 0]


@row("grid_sampler_2d", "grid_sampler_3d", "grid_sampler")
def _grid_sample(r: AtenRecorder, x: Any, grid: Any, mode: int = 0, padding: int = 0, align: bool = False) -> Tensor:
    how, around = ("bilinear", "nearest", "bicubic")[mode], ("zeros", "border", "reflection")[padding]
    return ws.grid_sample(r.tensor(x), r.tensor(grid), how, around, bool(align))


# -- margins and columns -----------------------------------------------------------------------------------------------


def _amounts(t: Tensor, pads: Any) -> tuple[Tensor, list[tuple[int, int]]]:
    """The tensor, cropped where padding is negative, and the rest of it by axis; torch's list starts with the last."""
    pairs = [(0, 0)] * (t.ndim - len(pads) // 2) + [(pads[i], pads[i + 1]) for i in range(len(pads) - 2, -1, -2)]
    cuts = tuple(slice(max(0, -a) or None, -max(0, -b) or None) for a, b in pairs)
    t = t if all(c == slice(None) for c in cuts) else t[cuts]
    return t, [(max(a, 0), max(b, 0)) for a, b in pairs]


@row("constant_pad_nd", refuses="amounts that depend on a symbolic dimension")
def _constant_pad(r: AtenRecorder, x: Any, pads: Any, value: Any = 0.0) -> Tensor:
    t, amounts = _amounts(r.tensor(x), [r.fixed(p, "an amount") for p in pads])
    if not any(map(any, amounts)):
        return t
    if t.dtype.is_float:
        return ws.pad(t, amounts, float(value))
    wide = ws.pad(t.astype("float64"), amounts, float(value))  # float64 represents integers up to 2**53 exactly
    return wide != 0.0 if t.dtype.name == "bool" else wide.astype(t.dtype)


@row("pad", whole=False)
def _pad(r: AtenRecorder, x: Any, pads: Any, mode: str = "constant", value: Any = None) -> Tensor:
    if mode == "constant":
        return _constant_pad(r, x, pads, 0.0 if value is None else value)
    t, amounts = _amounts(r.tensor(x), pads)
    return ws.pad(t, amounts, mode=mode)


def _register_padding(mode: str, *names: str) -> None:
    @row(*names)
    def record(r: AtenRecorder, x: Any, pads: Any) -> Tensor:
        return _pad(r, x, pads, mode)


_register_padding("reflect", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
_register_padding("replicate", "replication_pad1d", "replication_pad2d", "replication_pad3d")
_register_padding("circular", "_pad_circular")


@row("im2col")
def _im2col(r: AtenRecorder, x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    t = r.tensor(x)
    many = t if t.ndim == 4 else t.reshape((1, *t.shape))
    return ws.unfold(many, tuple(kernel), tuple(dilation), tuple(padding), tuple(stride)).reshape(r.shape)


@row("col2im")
def _col2im(r: AtenRecorder, x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    t = r.tensor(x)
    many = t if t.ndim == 3 else t.reshape((1, *t.shape))
    return ws.fold(many, tuple(size), tuple(kernel), tuple(dilation), tuple(padding), tuple(stride)).reshape(r.shape)
