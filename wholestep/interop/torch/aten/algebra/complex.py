"""Complex numbers as pairs of real tensors, and Fourier transforms as products with constant matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import wholestep as ws
from wholestep.compiler.frontend.shape.index_math import multiply_axis
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder, Pair
from wholestep.interop.torch.aten.table import ROWS, row


def real_name(dtype: Any) -> str:
    """The dtype of the parts."""
    return "float64" if dtype in (torch.complex128, torch.float64) else "float32"


def _kind(r: AtenRecorder) -> str:
    return real_name(r.result.dtype)


def parts(r: AtenRecorder, x: Any, kind: str) -> tuple[Any, Any]:
    """The real and the imaginary part, tensors or numbers; the imaginary part of a real number is None."""
    if isinstance(x, Pair):
        return x.real.astype(kind), x.imag.astype(kind)
    if isinstance(x, torch.Tensor) and x.is_complex():
        plain = torch.view_as_real(x.resolve_conj())
        return r.tensor(plain[..., 0].contiguous(), kind), r.tensor(plain[..., 1].contiguous(), kind)
    if isinstance(x, complex):
        return x.real, x.imag
    return r.operand(x, kind), None


def pair(r: AtenRecorder, x: Any) -> Pair:
    kind = _kind(r) if r.result.dtype.is_complex else "float32" if not isinstance(x, Pair) else x.real.dtype.name
    real, imag = parts(r, x, kind)
    real = r.tensor(real, kind)
    return Pair(real, ws.zeros_like(real) if imag is None else r.tensor(imag, kind))


# -- ops that treat both parts alike -----------------------------------------------------------------------------

_LINEAR = (
    *("view", "reshape", "_unsafe_view", "squeeze", "unsqueeze", "flatten", "expand", "permute", "transpose", "t"),
    *("slice", "select", "cat", "stack", "split_with_sizes", "split", "unbind", "repeat", "flip", "roll", "clone"),
    *("alias", "contiguous", "lift_fresh_copy", "slice_scatter", "select_scatter", "sum", "mean", "neg", "copy"),
    *("constant_pad_nd", "index", "index_select", "gather", "where", "wholestep.stop_gradient", "detach", "tril"),
    *("triu", "diagonal", "cumsum", "index_put", "scatter", "scatter_add", "zeros_like", "zeros", "new_zeros"),
    *("empty", "empty_like", "full", "full_like", "_to_copy", "masked_fill", "view_copy", "movedim", "unfold"),
)


def _part(r: AtenRecorder, x: Any, which: int) -> Any:
    if isinstance(x, list | tuple):
        return type(x)(_part(r, item, which) for item in x)
    if isinstance(x, Pair | complex):
        return (x.real, x.imag)[which]
    if isinstance(x, torch.Tensor) and x.is_complex():
        return torch.view_as_real(x.resolve_conj())[..., which].contiguous()
    if which and isinstance(x, Tensor) and x.dtype.is_float:  # integers and booleans are indices and masks
        return ws.zeros_like(x)
    if which and isinstance(x, torch.Tensor) and x.is_floating_point():
        return torch.zeros_like(x)
    return x


# ops with a real scalar, whose imaginary part is 0
_WITH_NUMBER = ("full", "full_like", "masked_fill", "constant_pad_nd")


def _register(name: str) -> None:
    real_row = ROWS[name]

    @row(f"complex.{name}")
    def record(r: AtenRecorder, *args: Any, **named: Any) -> Any:
        pairs, meta = [], r.meta
        for which in (0, 1):
            chosen = [_part(r, a, which) for a in args]
            if which and name in _WITH_NUMBER:
                real = [isinstance(a, int | float) and i > 0 for i, a in enumerate(args)]
                chosen = [0.0 if is_real else a for is_real, a in zip(real, chosen)]
            if which and name == "_to_copy" and isinstance(args[0], Tensor):
                chosen[0] = ws.zeros_like(args[0])
            r.meta = _as_real(meta)
            out = real_row.record(r, *chosen, **{k: _part(r, v, which) for k, v in named.items() if k != "dtype"})
            pairs.append(out)
            r.meta = meta
        real, imag = pairs
        if isinstance(real, tuple):
            return tuple(Pair(r.tensor(a), r.tensor(b)) for a, b in zip(real, imag))
        return Pair(r.tensor(real), r.tensor(imag))


def _as_real(meta: Any) -> Any:
    if isinstance(meta, tuple | list):
        return type(meta)(_as_real(m) for m in meta)
    if isinstance(meta, torch.Tensor) and meta.is_complex():
        return torch.empty_like(meta, dtype=torch.float64 if meta.dtype == torch.complex128 else torch.float32)
    return meta


for _name in _LINEAR:
    _register(_name)


# -- arithmetic --------------------------------------------------------------------------------------------------


@row("complex.add")
def _add(r: AtenRecorder, a: Any, b: Any, alpha: Any = 1) -> Pair:
    x, y = pair(r, a), pair(r, b)
    return Pair(x.real + y.real * float(alpha), x.imag + y.imag * float(alpha))


@row("complex.sub")
def _sub(r: AtenRecorder, a: Any, b: Any, alpha: Any = 1) -> Pair:
    return _add(r, a, b, -alpha)


@row("complex.mul")
def _mul(r: AtenRecorder, a: Any, b: Any) -> Pair:
    (ar, ai), (br, bi) = (parts(r, x, _kind(r)) for x in (a, b))
    if bi is None:
        return Pair(ar * br, ai * br)
    if ai is None:
        return Pair(ar * br, ar * bi)
    return Pair(ar * br - ai * bi, ar * bi + ai * br)


@row("complex.div")
def _div(r: AtenRecorder, a: Any, b: Any) -> Pair:
    (br, bi) = parts(r, b, _kind(r))
    if bi is None:
        x = pair(r, a)
        return Pair(x.real / br, x.imag / br)
    size = br * br + bi * bi
    return _mul(r, a, Pair(r.tensor(br / size), r.tensor(-bi / size)))


@row("complex.bmm", "complex.mm", "complex.matmul")
def _matmul(r: AtenRecorder, a: Any, b: Any) -> Pair:
    x, y = pair(r, a), pair(r, b)
    return Pair(x.real @ y.real - x.imag @ y.imag, x.real @ y.imag + x.imag @ y.real)


@row("complex.einsum")
def _einsum(r: AtenRecorder, equation: str, operands: Any, path: Any = None) -> Pair:
    if len(operands) != 2:
        r.refuse("multiplies other than two complex tensors")
    x, y = pair(r, operands[0]), pair(r, operands[1])
    times = lambda p, q: ws.einsum(equation, p, q)  # noqa: E731
    return Pair(times(x.real, y.real) - times(x.imag, y.imag), times(x.real, y.imag) + times(x.imag, y.real))


@row("complex._conj", "complex.conj", "complex._conj_physical", "complex.conj_physical")
def _conj(r: AtenRecorder, x: Any) -> Pair:
    p = pair(r, x)
    return Pair(p.real, -p.imag)


@row("complex.polar")
def _polar(r: AtenRecorder, size: Any, angle: Any) -> Pair:
    a, t = r.tensor(size, _kind(r)), r.tensor(angle, _kind(r))
    return Pair(a * ws.cos(t), a * ws.sin(t))


@row("complex.abs")
def _abs(r: AtenRecorder, x: Any) -> Tensor:
    p = x if isinstance(x, Pair) else pair(r, x)
    square = p.real * p.real + p.imag * p.imag
    return ws.where(square == 0.0, 0.0, ws.sqrt(ws.where(square == 0.0, 1.0, square)))  # the gradient at 0 is 0


@row("complex.complex")
def _complex(r: AtenRecorder, real: Any, imag: Any) -> Pair:
    return Pair(r.tensor(real, _kind(r)).expand(*r.shape), r.tensor(imag, _kind(r)).expand(*r.shape))


@row("complex.view_as_complex", "complex.view_as_complex_copy")
def _view_as_complex(r: AtenRecorder, x: Any) -> Pair:
    t = r.tensor(x)
    return Pair(t[..., 0], t[..., 1])


@row("complex.view_as_real", "complex.view_as_real_copy")
def _view_as_real(r: AtenRecorder, x: Any) -> Tensor:
    return ws.stack([x.real, x.imag], len(r.shape) - 1)


row("complex.resolve_conj", "complex.resolve_neg", "complex.positive")(pair)
row("complex.real")(lambda r, x: x.real)
row("complex.imag")(lambda r, x: x.imag)

# -- Fourier transforms ------------------------------------------------------------------------------------------


def _factor(sizes: Sequence[int], normalization: int) -> float:
    count = math.prod(sizes)
    return {0: 1.0, 1: 1.0 / math.sqrt(count), 2: 1.0 / count}[int(normalization)]


def _turns(n: int, m: int, kind: str) -> tuple[Any, Any]:
    """The matrices cos and sin of 2πjk/n for rows j < n and columns k < m."""
    angle = 2.0 * math.pi / n * (np.outer(np.arange(n), np.arange(m)) % n)
    return np.cos(angle).astype(kind), np.sin(angle).astype(kind)


def _fourier_transform(r: AtenRecorder, x: Pair, at: int, forward: bool) -> Pair:
    n = r.fixed(x.shape[at], "the size of the axis")
    cos, sin = _turns(n, n, x.real.dtype.name)
    sin = sin if forward else -sin  # e^(-iφ) forward, e^(iφ) back
    real = multiply_axis(x.real, at, cos) + multiply_axis(x.imag, at, sin)
    return Pair(real, multiply_axis(x.imag, at, cos) - multiply_axis(x.real, at, sin))


@row("complex._fft_r2c")
def _fft_r2c(r: AtenRecorder, x: Any, dims: Any, normalization: int, onesided: bool) -> Pair:
    t = r.tensor(x, _kind(r))
    axes = [d % t.ndim for d in dims]
    sizes = [r.fixed(t.shape[d], "the size of the axis") for d in axes]
    n = sizes[-1]
    cos, sin = _turns(n, n // 2 + 1 if onesided else n, t.dtype.name)
    out = Pair(multiply_axis(t, axes[-1], cos), multiply_axis(t, axes[-1], -sin))
    for at in axes[:-1]:
        out = _fourier_transform(r, out, at, True)
    scale = _factor(sizes, normalization)
    return out if scale == 1.0 else Pair(out.real * scale, out.imag * scale)


@row("complex._fft_c2c")
def _fft_c2c(r: AtenRecorder, x: Any, dims: Any, normalization: int, forward: bool) -> Pair:
    out = pair(r, x)
    axes = [d % out.ndim for d in dims]
    scale = _factor([r.fixed(out.shape[d], "the size of the axis") for d in axes], normalization)
    for at in axes:
        out = _fourier_transform(r, out, at, forward)
    return out if scale == 1.0 else Pair(out.real * scale, out.imag * scale)


@row("complex._fft_c2r")
def _fft_c2r(r: AtenRecorder, x: Any, dims: Any, normalization: int, last: Any) -> Tensor:
    out = x if isinstance(x, Pair) else pair(r, x)
    axes, n = [d % out.ndim for d in dims], r.fixed(last, "the size of the result")
    sizes = [*(r.fixed(out.shape[d], "the size of the axis") for d in axes[:-1]), n]
    for at in axes[:-1]:
        out = _fourier_transform(r, out, at, False)
    half = n // 2 + 1
    cos, sin = _turns(n, half, out.real.dtype.name)
    twice = np.where((np.arange(half) == 0) | (2 * np.arange(half) == n), 1.0, 2.0).astype(cos.dtype)
    real = multiply_axis(_first(out.real, axes[-1], half), axes[-1], (cos * twice).T)
    imag = multiply_axis(_first(out.imag, axes[-1], half), axes[-1], (sin * twice).T)
    scale = _factor(sizes, normalization)
    return real - imag if scale == 1.0 else (real - imag) * scale


def _first(x: Tensor, at: int, count: int) -> Tensor:
    return x if x.shape[at] == count else x[(*(slice(None),) * at, slice(0, count))]
