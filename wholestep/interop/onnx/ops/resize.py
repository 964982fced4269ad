"""Resize: each axis is a gather (nearest) or a product with a matrix of interpolation weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.shape.index_math import multiply_axis
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.errors import OptionError, ShapeError
from wholestep.interop.onnx.ops.shapes import along, axes_of
from wholestep.interop.onnx.read.sizes import need_room
from wholestep.interop.onnx.read.table import Array, onnx_op


@dataclass(frozen=True)
class Axis:
    """The parameters of a Resize along one axis: the size before and after, the scale, and the region of interest."""

    input_size: int
    output_size: int
    scale: float
    start: float = 0.0
    end: float = 1.0


@dataclass(frozen=True)
class How:
    mode: str
    places: str  # coordinate_transformation_mode
    nearest: str
    cubic: float
    antialias: bool
    exclude_outside: bool
    outside: float


def positions(a: Axis, how: str) -> Array:
    """The input coordinate of each output element."""
    i, n, m, s = np.arange(a.output_size, dtype=np.float64), a.input_size, a.output_size, a.scale
    exact = n * s  # the output size before rounding
    table: dict[str, Callable[[], Array]] = {
        "half_pixel": lambda: (i + 0.5) / s - 0.5,
        "half_pixel_symmetric": lambda: n / 2 * (1 - m / exact) + (i + 0.5) / s - 0.5,
        "pytorch_half_pixel": lambda: (i + 0.5) / s - 0.5 if m > 1 else i * 0.0,
        "asymmetric": lambda: i / s,
        "align_corners": lambda: i * (n - 1) / (exact - 1) if exact != 1 else i * 0.0,
        "tf_crop_and_resize": lambda: (
            a.start * (n - 1) + i * (a.end - a.start) * (n - 1) / (m - 1)
            if m > 1
            else np.full(1, 0.5 * (a.start + a.end) * (n - 1))
        ),
    }
    if how not in table:
        raise OptionError(f"coordinate_transformation_mode={how!r} is not supported; supported: {', '.join(table)}.")
    coordinates: Array = table[how]()
    return coordinates


def nearest_places(x: Array, n: int, how: str) -> Array:
    rounded = {
        "round_prefer_floor": lambda: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda: np.floor(x + 0.5),
        "floor": lambda: np.floor(x),
        "ceil": lambda: np.ceil(x),
    }[how]()
    nearest: Array = np.clip(rounded, 0, n - 1).astype(np.int64)
    return nearest


def _linear(d: Array) -> Array:
    weight: Array = np.maximum(1.0 - np.abs(d), 0.0)
    return weight


def _cubic(d: Array, a: float) -> Array:
    t = np.abs(d)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    weight: Array = np.where(t <= 1, near, np.where(t < 2, far, 0.0))
    return weight


def weights(a: Axis, how: How) -> Array:
    """The interpolation matrix (outputs, inputs): the weight of each input element in each output element."""
    x, n = positions(a, how.places), a.input_size
    stretch = max(1.0, 1.0 / a.scale) if how.antialias else 1.0  # widen the filter when downsampling
    reach = math.ceil((1 if how.mode == "linear" else 2) * stretch) + 1
    matrix = np.zeros((a.output_size, n))
    for i, place in enumerate(x):
        taps = np.arange(math.floor(place) - reach, math.floor(place) + reach + 2)
        d = (taps - place) / stretch
        w = _linear(d) if how.mode == "linear" else _cubic(d, how.cubic)
        if how.exclude_outside:
            w = np.where((taps < 0) | (taps >= n), 0.0, w)
        if how.exclude_outside or how.antialias:
            w = w / w.sum()
        np.add.at(matrix[i], np.clip(taps, 0, n - 1), w)
    return matrix


def resize_axis(x: Tensor, axis: int, a: Axis, how: How) -> Tensor:
    """Resize one axis of x."""
    crop = how.places == "tf_crop_and_resize"
    if a.input_size == a.output_size and a.scale == 1 and not crop:
        return x
    need_room([a.output_size] if how.mode == "nearest" else [a.output_size, a.input_size])
    where = positions(a, how.places)
    if how.mode == "nearest":
        x = along(x, nearest_places(where, a.input_size, how.nearest), axis)
    else:
        x = multiply_axis(x, axis, weights(a, how).T)
    if not crop:
        return x
    inside = ((where >= 0) & (where <= a.input_size - 1)).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
    return x if inside.all() else ws.where(as_tensor(inside), x, float(how.outside))


@onnx_op("Resize", static=("roi", "scales", "sizes"))
def resize(
    x: Tensor,
    roi: Array | None = None,
    scales: Array | None = None,
    sizes: Array | None = None,
    *,
    antialias: int = 0,
    axes: Sequence[int] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75,
    exclude_outside: int = 0,
    extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch",
    mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor",
) -> Tensor:
    how = How(
        mode,
        coordinate_transformation_mode,
        nearest_mode,
        cubic_coeff_a,
        bool(antialias),
        bool(exclude_outside),
        extrapolation_value,
    )
    places = axes_of(axes, x.ndim)
    for i, (d, a) in enumerate(zip(places, _axes(x, places, scales, sizes, keep_aspect_ratio_policy))):
        if a is not None:
            if roi is not None and roi.size and how.places == "tf_crop_and_resize":
                ends = roi.reshape(-1)
                a = Axis(a.input_size, a.output_size, a.scale, float(ends[i]), float(ends[i + len(places)]))
            x = resize_axis(x, d, a, how)
    return x


def _axes(
    x: Tensor, places: Sequence[int], scales: Array | None, sizes: Array | None, policy: str
) -> list[Axis | None]:
    by_scale = scales is not None and scales.size > 0
    if not by_scale and (sizes is None or not sizes.size):
        raise OptionError("Resize needs scales or sizes.")
    targets = scales if by_scale else sizes
    assert targets is not None
    numbers = targets.reshape(-1)
    if not by_scale and policy != "stretch":
        ratios = [float(m) / int(x.shape[d]) for d, m in zip(places, numbers)]
        ratio = (min if policy == "not_larger" else max)(ratios)
        return [Axis(int(x.shape[d]), math.floor(ratio * int(x.shape[d]) + 0.5), ratio) for d in places]
    resized: list[Axis | None] = []
    for d, value in zip(places, numbers):
        n = x.shape[d]
        if not isinstance(n, int):
            if value == n or (by_scale and value == 1):
                resized.append(None)
                continue
            raise ShapeError(f"Resize changes the symbolic dimension {n}; give the dimension a fixed size.")
        m = math.floor(n * float(value)) if by_scale else int(value)
        resized.append(Axis(n, m, float(value) if by_scale else m / n))
    return resized


@onnx_op("Upsample", static=("scales",))
def upsample(x: Tensor, scales: Array, *, mode: str = "nearest") -> Tensor:
    how = How(mode, "asymmetric", "floor", -0.75, False, False, 0.0)
    for d, a in enumerate(_axes(x, range(x.ndim), scales, None, "stretch")):
        x = x if a is None else resize_axis(x, d, a, how)
    return x
