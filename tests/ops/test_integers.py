"""Integers, bools, NaN and infinities at the corners of their ranges, compiled, against NumPy: many in one step."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.ops.cases.integers import (
    FLOATS,
    INTEGERS,
    Array,
    Expression,
    cast,
    corners,
    numbers,
    pairs,
    random_expression,
    truths,
)
from tests.support.compilers import QUICK
from wholestep.errors import DTypeError

DTYPES = (*INTEGERS, *FLOATS, "bool")


def expressions(dtype: str) -> dict[str, Expression]:
    found = truths() if dtype == "bool" else numbers(dtype)
    found |= {f"as {to}": (lambda a, b, to=to: a.astype(to), lambda a, b, to=to: cast(a, to)) for to in DTYPES}
    if dtype in INTEGERS:
        rng = np.random.default_rng(7)
        found |= {f"drawn {i}": random_expression(rng, dtype, 1 + i % 3) for i in range(60)}
    return found


SCALARS: dict[str, Expression] = {
    name: numbers("float64")[name]
    for name in ("add", "mul", "div", "mod", "maximum", "minimum", "abs", "sign", "floor", "less", "equal", "where")
} | {f"as {to}": (lambda a, b, to=to: a.astype(to), lambda a, b, to=to: cast(a, to)) for to in ("int32", "bool")}


@functools.cache
def session() -> ws.Session:
    """Every expression of every dtype, in one program; those of runtime scalars are computed once a step, in double."""
    g = ws.Graph()
    outputs = {}
    for dtype in DTYPES:
        a, b = (g.input(f"{dtype}_{n}", array.shape, dtype) for n, array in zip("ab", pairs(dtype), strict=True))
        outputs |= {f"{dtype}: {name}": ours(a, b) for name, (ours, _) in expressions(dtype).items()}
    p, q = g.scalar("p", 1.0), g.scalar("q", 1.0)
    outputs |= {f"scalar: {name}": ours(p, q) for name, (ours, _) in SCALARS.items()}
    g.set_outputs(outputs)
    return ws.build_inference_session(g, options=ws.CompileOptions(compiler=QUICK, verify=False))


def step() -> ws.StepResult:
    return session().step(
        **{f"{dtype}_{n}": array for dtype in DTYPES for n, array in zip("ab", pairs(dtype), strict=True)}
    )


@functools.cache
def computed() -> dict[str, Array]:
    found = step()
    return {name: np.array(found[name]) for name in found.outputs}


@pytest.mark.parametrize("dtype", DTYPES)
def test_corners_are_numpys(dtype: str) -> None:
    wrong = []
    a, b = pairs(dtype)
    for name, (_, theirs) in expressions(dtype).items():
        with np.errstate(all="ignore"):
            expected: Any = np.asarray(theirs(a, b))
        got = computed()[f"{dtype}: {name}"]
        assert got.dtype == expected.dtype, name
        if not np.array_equal(flushed(got), flushed(expected), equal_nan=got.dtype.kind == "f"):
            at = np.flatnonzero(~((got == expected) | ((got != got) & (expected != expected))))[0]
            where = f" of {a[at]}, {b[at]}" if got.shape == a.shape else f" at {at}"
            wrong.append(f"{name}{where}: {got.flat[at]}, not {expected.flat[at]}")
    assert not wrong, "\n".join(wrong)


def test_scalars_have_numpys_corners_too() -> None:
    values = corners("float64")
    values = values[np.isfinite(values)]  # others are refused
    for x, y in zip(values, np.roll(values, 5), strict=True):
        session().scalars["p"], session().scalars["q"] = float(x), float(y)
        found = step()
        for name, (_, theirs) in SCALARS.items():
            with np.errstate(all="ignore"):
                expected = np.asarray(theirs(np.array([x]), np.array([y])))[0]
            got = np.asarray(found[f"scalar: {name}"])
            same = np.array_equal(flushed(got), flushed(expected), equal_nan=got.dtype.kind == "f")
            assert same, f"{name} of {x}, {y}: {got}, not {expected}"


def flushed(x: Array) -> Array:
    """A step counts what is smaller than the smallest normal number as 0."""
    return np.where(np.abs(x) < np.finfo(x.dtype).tiny, 0, x) if x.dtype.kind == "f" else x


def test_the_smallest_of_truths_is_refused_by_its_name() -> None:
    with pytest.raises(DTypeError, match=r"min needs numbers; received bool\[3\](?s:.*)test_integers\.py"):
        ws.Graph().input("x", (3,), "bool").min()
