"""Discrete Fourier transforms as products with constant matrices: complex numbers are pairs of real tensors."""

from __future__ import annotations

import math

import numpy as np

from wholestep.compat.arguments import take_their_words
from wholestep.compiler.frontend.precision import pin_float32
from wholestep.compiler.frontend.shape.index_math import along, last_and_back
from wholestep.compiler.frontend.shape.padding import pad
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError

__all__ = ["dft", "irfft", "rfft"]

LARGEST = 4096  # a matrix of more rows is larger than what it transforms

_SCALES = {"backward": (0.0, 1.0), "ortho": (0.5, 0.5), "forward": (1.0, 0.0)}  # 1 / nᵃ there, 1 / nᵇ back


def rfft(x: Tensor, n: int | None = None, axis: int = -1, norm: str = "backward") -> tuple[Tensor, Tensor]:
    """The Fourier transform of real numbers along an axis: real and imaginary parts of its n // 2 + 1 frequencies.

    Args:
        n: x is cut, or followed by zeros, to this length first.
        norm: "backward": only the way back divides, by n; "ortho": both by √n; "forward": this one, by n.

    Example: `real, imaginary = ws.rfft(signal)`.
    """
    rows, length, back = _rows("rfft", x, n, axis)
    angles = -2.0 * math.pi * np.outer(np.arange(length), np.arange(length // 2 + 1)) / length
    scale = _scale("rfft", norm, length, 0)
    return _times(rows, np.cos(angles) * scale).permute(back), _times(rows, np.sin(angles) * scale).permute(back)


def irfft(real: Tensor, imaginary: Tensor, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """What `rfft` was taken of: n numbers, an even length unless n says otherwise.

    Example: `ws.irfft(*ws.rfft(signal))`.
    """
    _same("irfft", real, imaginary)
    at = along("irfft", real, axis)
    given = real.shape[at]
    length = 2 * (given - 1) if n is None and isinstance(given, int) else n
    if not isinstance(length, int) or length < 1:
        fail(OptionError, f"irfft: n is the length of the result, at least 1; received {n!r} for {given} frequencies.")
    a, known, back = _rows("irfft", real, length // 2 + 1, axis)
    b, _, _ = _rows("irfft", imaginary, length // 2 + 1, axis)
    angles = 2.0 * math.pi * np.outer(np.arange(known), np.arange(length)) / length
    twice = np.full((known, 1), 2.0)  # a frequency and its mirror image
    twice[0] = 1.0
    if length % 2 == 0:
        twice[-1] = 1.0
    scale = twice * _scale("irfft", norm, length, 1)
    return (_times(a, np.cos(angles) * scale) - _times(b, np.sin(angles) * scale)).permute(back)


def dft(
    real: Tensor,
    imaginary: Tensor | None = None,
    n: int | None = None,
    axis: int = -1,
    norm: str = "backward",
    inverse: bool = False,
) -> tuple[Tensor, Tensor]:
    """The Fourier transform of complex numbers along an axis, or its inverse; both are pairs (real, imaginary).

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


def _scale(op: str, norm: str, n: int, way: int) -> float:
    if norm not in _SCALES:
        fail(OptionError, f"{op}: norm is one of {', '.join(_SCALES)}; received {norm!r}.")
    return math.pow(n, -_SCALES[norm][way])


def _same(op: str, real: Tensor, imaginary: Tensor) -> None:
    if real.shape != imaginary.shape:
        fail(
            ShapeError,
            f"{op}: real and imaginary parts have one shape; received {shape_text(real.shape)} and "
            f"{shape_text(imaginary.shape)}.",
        )


def _rows(op: str, x: Tensor, n: int | None, axis: int) -> tuple[Tensor, int, list[int]]:
    """x with the axis last and n long, n, and the order of axes that puts it back."""
    at = along(op, x, axis)
    if not x.dtype.is_float:
        fail(DTypeError, f"{op} transforms floats; received {x!r}. Cast them: x.astype('float32').")
    size = x.shape[at]
    length = size if n is None else n
    if not isinstance(size, int) or not isinstance(length, int) or not 1 <= length <= LARGEST:
        fail(
            ShapeError, f"{op}: the axis has 1 to {LARGEST} elements, a number; received {shape_text(x.shape)}, n={n}."
        )
    last, back = last_and_back(x.ndim, at)
    rows = x.permute(last)
    if length < size:
        rows = rows[..., :length]
    elif length > size:
        rows = pad(rows, [(0, 0)] * (x.ndim - 1) + [(0, length - size)])
    return rows, length, back


def _times(x: Tensor, matrix: np.ndarray) -> Tensor:
    with pin_float32():  # no weights of the model
        return x @ as_tensor(matrix.astype(x.dtype.numpy))


take_their_words(globals(), __all__)
