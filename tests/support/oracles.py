"""What tests compare against, and how closely."""

from __future__ import annotations

from typing import Any

import numpy as np

# Relative to the largest magnitude of the expected tensor: a few hundred roundings of the dtype.
TOLERANCE = {"float32": 2e-5, "float64": 1e-12}


def assert_close(actual: Any, expected: Any, dtype: Any = "float32", *, scale: float = 0.0) -> None:
    """Equal within the tolerance of `dtype`: relative per element, with a floor by the scale of the whole tensor.

    `scale` is the magnitude of the values on the way to the tensor, where they may have cancelled.
    Integers and bools must be equal, shapes too; infinities and NaN must stand at the same places.
    """
    name = getattr(dtype, "name", str(dtype))
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    if name not in TOLERANCE:
        np.testing.assert_array_equal(actual, expected)
        return
    finite = np.abs(expected[np.isfinite(expected)])
    scale = max(1e-30, scale, float(finite.max(initial=0.0)))
    tolerance = TOLERANCE[name]
    np.testing.assert_allclose(actual, expected, rtol=10 * tolerance, atol=tolerance * scale)
