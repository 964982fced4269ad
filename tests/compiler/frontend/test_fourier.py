"""Fourier transforms as pairs of real tensors, against NumPy; their gradients against torch; what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.oracles import assert_close
from tests.support.recording import value, value_and_gradients
from wholestep.errors import DTypeError, OptionError, ShapeError

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(3, 8, 5)), RNG.normal(size=(3, 8, 5))


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize(("n", "axis"), [(None, -1), (None, 1), (4, 1), (7, -1)])
def test_transforms_equal_numpys(norm: Any, n: int | None, axis: int) -> None:
    def both(x: ws.Tensor, y: ws.Tensor) -> ws.Tensor:
        half, whole = ws.rfft(x, n, axis, norm), ws.dft(x, y, n, axis, norm)
        back, inverse = (
            ws.irfft(*half, n or x.shape[axis], axis, norm),
            ws.dft(*whole, axis=axis, norm=norm, inverse=True),
        )
        return ws.concat([t.reshape(-1) for t in (*half, *whole, back, *inverse)])

    half, whole = np.fft.rfft(X, n, axis, norm), np.fft.fft(X + 1j * Y, n, axis, norm)
    back, inverse = np.fft.irfft(half, n or X.shape[axis], axis, norm), np.fft.ifft(whole, axis=axis, norm=norm)
    parts = (half.real, half.imag, whole.real, whole.imag, back, inverse.real, inverse.imag)
    assert_close(value(both, X, Y), np.concatenate([p.ravel() for p in parts]), "float64", scale=1.0)


def test_the_gradient_of_a_filter_equals_torchs() -> None:
    w = RNG.normal(size=(5,))

    def ours(x: ws.Tensor, w: ws.Tensor) -> ws.Tensor:
        real, imaginary = ws.rfft(x, axis=1)
        real, imaginary = (t.transpose(1, 2) * w for t in (real, imaginary))
        return (ws.irfft(real, imaginary) ** 3).sum()

    loss, grads = value_and_gradients(ours, X, w)
    x, v = torch.tensor(X, requires_grad=True), torch.tensor(w, requires_grad=True)
    expected = (torch.fft.irfft(torch.fft.rfft(x, dim=1).transpose(1, 2) * v) ** 3).sum()
    expected.backward()
    assert_close(loss, expected.detach().numpy(), "float64")
    for mine, theirs in zip(grads, (x.grad, v.grad), strict=True):
        assert theirs is not None
        assert_close(mine, theirs.numpy(), "float64", scale=1.0)


@pytest.mark.parametrize(
    ("line", "error", "text"),
    [
        (lambda x: ws.rfft(x, norm="both")[0], OptionError, "rfft: norm must be one of backward, ortho, forward"),
        (lambda x: ws.rfft(x, 5000)[0], ShapeError, "the axis must have a fixed size from 1 to 4096"),
        (lambda x: ws.rfft(x.astype("int32"))[0], DTypeError, "rfft needs floats"),
        (lambda x: ws.irfft(x, x[:1]), ShapeError, "real and imaginary parts must have the same shape"),
        (lambda x: ws.irfft(x, x, 0), OptionError, "n, the length of the result, must be"),
        (lambda x: ws.grid_sample(x, x), ShapeError, "grid_sample needs"),
        (lambda x: ws.unfold(x[None], 9), ShapeError, r"a window of \(9, 9\) does not fit"),
        (lambda x: ws.fold(x, (4, 4), 2), ShapeError, "have 9 windows of 4 pixels"),
        (lambda x: ws.windows_along(x, 1, 9), OptionError, "size must be from 1 to 8"),
        (lambda x: ws.bincount(x, 3), DTypeError, "bincount needs integers"),
        (lambda x: ws.asin(x > 0), DTypeError, "asin needs a float tensor"),
    ],
)
def test_what_does_not_fit_is_said(line: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        value(line, X)
