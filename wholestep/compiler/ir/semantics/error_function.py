"""The error functions of arrays, by W. J. Cody's rational approximations (Math. Comp. 23, 1969), within 1e-15.

A call of the C library's scalar functions through NumPy and Python takes a microsecond; the calls for a BERT's
feed-forward layers took a third of its self-check.  Small arrays still use them: constants are folded to their bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

FEW = 64  # elements; the largest constant that is folded has as many
SMALL, MEDIUM = 0.46875, 4.0  # bounds of the three intervals of |x|
# numerators and denominators in x² (erf x / x), |x| (erfc x · e^x²) and 1/x², the highest power first
_ERF = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_ERFC = (
    (
        *(2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1),
        *(2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3),
        1.23033935479799725e3,
    ),
    (
        *(1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3),
        *(3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
    ),
)
_TAIL = (
    (
        *(1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1),
        *(1.25781726111229246e-1, 1.60837851487422766e-2, 6.58749161529837803e-4),
    ),
    (
        *(1.0, 2.56852019228982242, 1.87295284992346725),
        *(5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3),
    ),
)


def _by_the_library(function: Callable[[float], float]) -> Callable[[Array], Array]:
    return np.vectorize(function, otypes=[np.float64])


_erf_of_few, _erfc_of_few = _by_the_library(math.erf), _by_the_library(math.erfc)


def erf(x: Array) -> Array:
    """The error function."""
    if np.size(x) <= FEW:
        return _erf_of_few(x)
    y = np.abs(x)
    return np.where(y <= SMALL, x * _quotient(_ERF, np.minimum(y, SMALL) ** 2), np.copysign(1.0 - _tail(y), x))


def erfc(x: Array) -> Array:
    """1 - erf(x), without cancellation for large x."""
    if np.size(x) <= FEW:
        return _erfc_of_few(x)
    y = np.abs(x)
    tail = _tail(y)
    return np.where(y <= SMALL, 1.0 - x * _quotient(_ERF, np.minimum(y, SMALL) ** 2), np.where(x < 0, 2.0 - tail, tail))


def _quotient(coefficients: tuple[Sequence[float], Sequence[float]], x: Array) -> Array:
    above, below = (_polynomial(row, x) for row in coefficients)
    return above / below


def _polynomial(coefficients: Sequence[float], x: Array) -> Array:
    value = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        value = value * x + coefficient
    return value


def _tail(y: Array) -> Array:
    """erfc of y >= SMALL; smaller elements have any value, NaN stays NaN."""
    middle = _quotient(_ERFC, np.clip(y, SMALL, MEDIUM))
    z = 1.0 / np.square(np.maximum(y, MEDIUM))
    far = (1.0 / math.sqrt(math.pi) - z * _quotient(_TAIL, z)) / np.maximum(y, MEDIUM)
    # y² in two parts, the first of which is exact: e^-y² keeps its last digits
    head = np.trunc(np.minimum(y, 30.0) * 16.0) / 16.0
    rest = (np.minimum(y, 30.0) - head) * (np.minimum(y, 30.0) + head)
    return np.exp(-head * head) * np.exp(-rest) * np.where(y <= MEDIUM, middle, far)
