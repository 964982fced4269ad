"""Functions of the scalar prologue: an ulp or so, exact remainders, and the same bits on every target."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.compiler.backends.cpu.test_math import Array, ulps
from wholestep.compiler.backends.cpu.runtime.compiler import compile_c
from wholestep.compiler.backends.cpu.target import available_targets

ARGUMENTS = {"pow": "x[i], y[i]", "mod": "x[i], y[i]", "sin": "x[i]", "cos": "x[i]", "floor": "x[i]"}
DRIVER = '#include "math_prologue.h"\n' + "".join(
    f'__attribute__((visibility("default"))) void {name}(const double *x, const double *y, double *z, long n) {{\n'
    f"  (void)y;\n  for (long i = 0; i < n; i++) z[i] = ws_prologue_{name}({arguments});\n}}\n"
    for name, arguments in ARGUMENTS.items()
)
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -2, 0.5, -0.5, 3, -3, 1e300, 1e-300, 0.1]


@pytest.fixture(scope="module")
def libraries() -> list[ctypes.CDLL]:
    names = {target.name for target in available_targets()} & {"cpu/portable", "cpu/avx2"}
    return [ctypes.CDLL(str(compile_c(DRIVER, target=name))) for name in sorted(names)]


def apply(libraries: list[ctypes.CDLL], name: str, x: Array, y: Array | None = None) -> Array:
    """The values; every target gives the same bits."""
    y = x if y is None else y
    results = []
    for library in libraries:
        z = np.empty_like(x)
        getattr(library, name)(*(ctypes.c_void_p(a.ctypes.data) for a in (x, y, z)), ctypes.c_long(x.size))
        results.append(z)
    for z in results:
        np.testing.assert_array_equal(z.view(np.uint64), results[0].view(np.uint64))
    return results[0]


def test_pow(libraries: list[ctypes.CDLL]) -> None:
    rng = np.random.default_rng(0)
    parts = [
        (rng.uniform(0.5, 2, 5000), rng.uniform(-100, 100, 5000)),
        (np.exp(rng.uniform(-300, 300, 5000)), rng.uniform(-2, 2, 5000)),
        (np.repeat([0.9, 0.99, 0.999, 0.5], 5000), np.tile(np.arange(5000.0), 4)),
        (1 + rng.uniform(-1e-6, 1e-6, 5000), rng.uniform(-1e8, 1e8, 5000)),
    ]
    x, y = (np.concatenate(values) for values in zip(*parts, strict=True))
    got = apply(libraries, "pow", x, y)
    assert ulps(got, np.power(x.astype(np.longdouble), y.astype(np.longdouble))).max() < 0.8
    np.testing.assert_array_equal(apply(libraries, "pow", np.full(9, 2.0), np.arange(-4.0, 5)), 2.0 ** np.arange(-4, 5))


@pytest.mark.parametrize("name", ["pow", "mod"])
def test_special_values(libraries: list[ctypes.CDLL], name: str) -> None:
    x, y = (np.ascontiguousarray(a.ravel()) for a in np.meshgrid(SPECIAL, SPECIAL))
    with np.errstate(all="ignore"):
        expected = np.power(x, y) if name == "pow" else np.mod(x, y)
    np.testing.assert_array_max_ulp(apply(libraries, name, x, y), expected, maxulp=1 if name == "pow" else 0)


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles(libraries: list[ctypes.CDLL], name: str) -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(-4, 4, 20_000), rng.uniform(-1e6, 1e6, 20_000), rng.uniform(-1e-6, 1e-6, 999), [0]])
    assert ulps(apply(libraries, name, x), getattr(np, name)(x.astype(np.longdouble))).max() < 1.5


def test_floor_and_mod_are_exact(libraries: list[ctypes.CDLL]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1e6, 1e6, 10_000), rng.uniform(-3, 3, 10_000)
    np.testing.assert_array_equal(apply(libraries, "mod", x, y), np.mod(x, y))
    x = np.concatenate([x, [0.0, -0.0, 2.0**53, -(2.0**60), np.inf, 0.5, -0.5]])
    np.testing.assert_array_equal(apply(libraries, "floor", x), np.floor(x))
