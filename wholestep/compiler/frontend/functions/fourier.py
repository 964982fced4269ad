"""Discrete Fourier transforms as matmuls with constant DFT matrices; complex numbers are pairs of real tensors."""

from __future__ import annotations

import math

import numpy as np

from wholestep.compiler.frontend.functions.reductions import normalize_axis
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.shape.index_math import move_axis_last
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = ["dft", "irfft", "rfft"]

LARGEST = 4096  # elements; the n × n matrix of a longer transform would exceed the size of its data

# Exponents (a, b): 1 / nᵃ forward, 1 / nᵇ inverse.
_SCALES = {
    "backward": (0.0, 1.0),
    "ortho": (0.5, 0.5),
    "forward": (1.0, 0.0),
}


def rfft(x: Tensor, n: int | None = None, axis: int = -1, norm: str = "backward") -> tuple[Tensor, Tensor]:
    """The Fourier transform of real values along an axis: real and imaginary parts of its n // 2 + 1 frequencies.

    Args:
        n: x is truncated or zero-padded to this length first.
        norm: "backward": only the inverse divides, by n; "ortho": both by √n; "forward": only this one, by n.

    Example: `real, imaginary = ws.rfft(signal)`.
    """
    rows, length, back = _rows("rfft", x, n, axis)
    angles = -2.0 * math.pi * np.outer(np.arange(length), np.arange(length // 2 + 1)) / length
    scale = _scale("rfft", norm, length, 0)
    return _times(rows, np.cos(angles) * scale).permute(back), _times(rows, np.sin(angles) * scale).permute(back)


def irfft(real: Tensor, imaginary: Tensor, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `rfft`: n real values; by default an even number of them.

    Example: `ws.irfft(*ws.rfft(signal))`.
    """
    _same("irfft", real, imaginary)
    at = normalize_axis("irfft", real, axis)
    frequencies = real.shape[at]
    length = 2 * (frequencies - 1) if n is None and isinstance(frequencies, int) else n
    if not isinstance(length, int) or length < 1:
        fail(OptionError, f"irfft: n, the length, must be at least 1; received {n!r} for {frequencies} frequencies.")
    a, count, back = _rows("irfft", real, length // 2 + 1, axis)
    b, _, _ = _rows("irfft", imaginary, length // 2 + 1, axis)
    angles = 2.0 * math.pi * np.outer(np.arange(count), np.arange(length)) / length
    multiplicity = np.full((count, 1), 2.0)  # each frequency also stands for its complex conjugate
    multiplicity[0] = 1.0
    if length % 2 == 0:
        multiplicity[-1] = 1.0
    scale = multiplicity * _scale("irfft", norm, length, 1)
    return (_times(a, np.cos(angles) * scale) - _times(b, np.sin(angles) * scale)).permute(back)


def dft(
    real: Tensor,
    imaginary: Tensor | None = None,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
    inverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """The Fourier transform of complex values along an axis, or its inverse; both are pairs (real, imaginary).

    Example: `real, imaginary = ws.dft(*ws.dft(x), inverse=True)`.
    """
    a, length, back = _rows("dft", real, n, axis)
    angles = (1 if inverse else -1) * 2.0 * math.pi * np.outer(np.arange(length), np.arange(length)) / length
    scale = _scale("dft", norm, length, int(inverse))
    cosine, sine = np.cos(angles) * scale, np.sin(angles) * scale
    if imaginary is None:
        return _times(a, cosine).permute(back), _times(a, sine).permute(back)
    _same("dft", real, imaginary)
    b, _, _ = _rows("dft", imaginary, n, axis)
    out = _times(a, cosine) - _times(b, sine), _times(a, sine) + _times(b, cosine)
    return out[0].permute(back), out[1].permute(back)


def _scale(op: str, norm: str, n: int, direction: int) -> float:
    if norm not in _SCALES:
        fail(OptionError, f"{op}: norm must be one of {', '.join(_SCALES)}; received {norm!r}.")
    return math.pow(n, -_SCALES[norm][direction])


def _same(op: str, real: Tensor, imaginary: Tensor) -> None:
    if real.shape != imaginary.shape:
        fail(
            ShapeError,
            f"{op}: real and imaginary parts must have the same shape; received {shape_text(real.shape)} and "
            f"{shape_text(imaginary.shape)}.",
        )


def _rows(op: str, x: Tensor, n: int | None, axis: int) -> tuple[Tensor, int, list[int]]:
    """(x with the axis last and truncated or padded to n elements, n, the inverse permutation)."""
    at = normalize_axis(op, x, axis)
    if not x.dtype.is_float:
        fail(DTypeError, f"{op} needs floats; received {x!r}. Cast them: x.astype('float32').")
    size = x.shape[at]
    length = size if n is None else n
    if not isinstance(size, int) or not isinstance(length, int) or not 1 <= length <= LARGEST:
        fail(ShapeError, f"{op}: the axis needs a fixed size of 1 to {LARGEST}; received {shape_text(x.shape)}, n={n}.")
    last, back = move_axis_last(x.ndim, at)
    rows = x.permute(last)
    if length < size:
        rows = rows[..., :length]
    elif length > size:
        rows = pad(rows, [(0, 0)] * (x.ndim - 1) + [(0, length - size)])
    return rows, length, back


def _times(x: Tensor, matrix: np.ndarray) -> Tensor:
    with pin_float32():  # not weights of the model: exempt from autocast
        return x @ as_tensor(matrix.astype(x.dtype.numpy))
