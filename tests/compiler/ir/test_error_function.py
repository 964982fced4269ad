"""The error functions of large arrays against the C library's functions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from wholestep.compiler.ir.semantics.error_function import FEW, MEDIUM, SMALL, erf, erfc

EDGES = [0.0, -0.0, 1e-300, SMALL, np.nextafter(SMALL, 1.0), -SMALL, MEDIUM, np.nextafter(MEDIUM, 5.0), -MEDIUM, 26.5]
NUMBERS = np.concatenate([np.linspace(-30.0, 30.0, 20_001), np.random.default_rng(3).standard_normal(20_000), EDGES])


@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_values_are_those_of_the_library_within_five_roundings(name: str) -> None:
    ours = {"erf": erf, "erfc": erfc}[name](NUMBERS)
    theirs = np.array([getattr(math, name)(x) for x in NUMBERS])
    normal = np.abs(theirs) > 1e-300
    assert (np.abs(ours - theirs)[normal] <= 5 * 2.0**-52 * np.abs(theirs)[normal]).all()
    assert (np.abs(ours[~normal]) <= 1e-300).all()


def test_values_that_are_not_finite() -> None:
    special = np.array([np.inf, -np.inf, np.nan] * FEW)
    np.testing.assert_array_equal(erf(special)[:3], [1.0, -1.0, np.nan])
    np.testing.assert_array_equal(erfc(special)[:3], [0.0, 2.0, np.nan])


def test_few_numbers_have_the_bits_of_the_library() -> None:
    x = NUMBERS[:FEW]
    np.testing.assert_array_equal(erf(x), [math.erf(v) for v in x])
    np.testing.assert_array_equal(erfc(x), [math.erfc(v) for v in x])
