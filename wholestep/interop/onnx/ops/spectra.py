"""Fourier transforms, window functions, mel filter banks, determinants."""

from __future__ import annotations

import numpy as np

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.errors import ShapeError
from wholestep.interop.onnx.ops.shapes import along, axis_of, cut
from wholestep.interop.onnx.read.reading import dtype_name
from wholestep.interop.onnx.read.sizes import need_room, number
from wholestep.interop.onnx.read.table import Array, NodeContext, onnx_op

COSINES = {  # cosine coefficients of window functions, for 0, 1 and 2 times the angle
    "HannWindow": (0.5, -0.5, 0.0),
    "HammingWindow": (25 / 46, -21 / 46, 0.0),
    "BlackmanWindow": (0.42, -0.5, 0.08),
}


@onnx_op(*COSINES, static=("size",))
def window(size: Array, *, output_datatype: int = 1, periodic: int = 1, node: NodeContext) -> Array:
    n = int(number(size))
    need_room([n])
    angle = 2 * np.pi * np.arange(n) / (n if periodic else n - 1)
    samples: Array = sum(c * np.cos(i * angle) for i, c in enumerate(COSINES[node.op]))  # type: ignore[assignment]
    return samples.astype(dtype_name(output_datatype))


@onnx_op("DFT", static=("dft_length", "axis_given"))
def dft(
    x: Tensor,
    dft_length: Array | None = None,
    axis_given: Array | None = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
    node: NodeContext,
) -> Tensor:
    """The discrete Fourier transform; the last axis of x holds real parts, or real and imaginary parts."""
    default = axis if node.opset < 20 else -2
    at = axis_of(default if axis_given is None else int(number(axis_given)), x.ndim)
    n = None if dft_length is None else int(number(dft_length))
    need_room([n or 1, *(e for d, e in enumerate(x.shape) if d != at)])
    real, imaginary = x[..., 0], x[..., 1] if x.shape[-1] == 2 else None
    if inverse and onesided:
        back = ws.irfft(real, ws.zeros_like(real) if imaginary is None else imaginary, n, at)
        return back.reshape((*back.shape, 1))
    parts = ws.dft(real, imaginary, n, at, inverse=bool(inverse))
    if onesided:
        parts = (
            cut(parts[0], at, 0, int(parts[0].shape[at]) // 2 + 1),
            cut(parts[1], at, 0, int(parts[1].shape[at]) // 2 + 1),
        )
    return ws.stack(parts, -1)


@onnx_op("STFT", static=("frame_step", "frame_length"))
def stft(
    x: Tensor,
    frame_step: Array,
    window: Tensor | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """The short-time Fourier transform: x (batch, time, 1 or 2) -> (batch, frames, frequencies, 2)."""
    step = int(number(frame_step))
    length = (
        int(number(frame_length)) if frame_length is not None else int(window.shape[0]) if window is not None else 0
    )
    time = x.shape[1]
    if length < 1 or not isinstance(time, int):
        raise ShapeError(f"STFT of {x.shape} needs a frame_length or a window, and a signal of known length.")
    places = np.arange(1 + (time - length) // step)[:, None] * step + np.arange(length)
    frames = along(x, places.reshape(-1), 1).reshape((x.shape[0], *places.shape, x.shape[2]))
    frames = frames if window is None else frames * window.reshape((length, 1))
    real, imaginary = frames[..., 0], frames[..., 1] if x.shape[2] == 2 else None
    bins = length // 2 + 1 if onesided else length
    return ws.stack([cut(p, 2, 0, bins) for p in ws.dft(real, imaginary, axis=2)], -1)


@onnx_op("MelWeightMatrix", static=("bins", "dft_length", "rate", "low", "high"))
def mel_weight_matrix(
    bins: Array, dft_length: Array, rate: Array, low: Array, high: Array, *, output_datatype: int = 1
) -> Array:
    """The filter bank (frequencies, bins): triangles that are equally spaced on the mel scale."""
    many, length = int(number(bins)), int(number(dft_length))
    need_room([length // 2 + 1, many + 2])
    ends = [2595 * np.log10(1 + number(hertz) / 700) for hertz in (low, high)]
    mels = np.arange(many + 2) * (ends[1] - ends[0]) / (many + 2) + ends[0]
    edges = ((length + 1) * 700 * (10 ** (mels / 2595) - 1) // number(rate)).astype(int)
    out = np.zeros((length // 2 + 1, many))
    for i in range(many):
        left, middle, right = edges[i : i + 3]
        rise = np.arange(left, middle + 1)
        out[rise, i] = (rise - left) / (middle - left) if middle > left else 1.0
        fall = np.arange(middle, right)
        out[fall, i] = (right - fall) / max(right - middle, 1)
    return out.astype(dtype_name(output_datatype))


@onnx_op("Det")
def det(x: Tensor) -> Tensor:
    """The determinant by cofactor expansion; matrices of more than five rows would need too many terms."""
    n = x.shape[-1]
    if not isinstance(n, int) or n != x.shape[-2] or n > 5:
        raise ShapeError(f"Det of matrices of 1 to 5 rows and as many columns; received {x.shape}.")
    if n == 1:
        return x[..., 0, 0]
    total = as_tensor(x.dtype.numpy.type(0))
    for column in range(n):
        rest = along(x[..., 1:, :], [c for c in range(n) if c != column], x.ndim - 1)
        total = total + (-1.0) ** column * x[..., 0, column] * _det(rest)
    return total


def _det(x: Tensor) -> Tensor:
    determinant: Tensor = det(x)
    return determinant
