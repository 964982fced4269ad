"""Corner values of every dtype, and the expressions that are compiled over all pairs of them against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import wholestep as ws

Array = np.ndarray[Any, Any]
Expression = tuple[Callable[..., Any], Callable[..., Any]]  # ours over tensors, NumPy's over arrays

INTEGERS = ("int32", "int64", "uint8")
FLOATS = ("float32", "float64")


def corners(dtype: str) -> Array:
    """0, ±1, the ends of the range and their neighbours; of floats NaN, infinities and both zeros as well."""
    if dtype == "bool":
        return np.array([False, True])
    if dtype in FLOATS:
        big = np.finfo(dtype).max
        small = np.finfo(dtype).tiny
        numbers = [0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 3.0, -7.0, 1e-7, np.inf, -np.inf, np.nan, big, -big, small, 4e9]
        return np.array(numbers, dtype)
    ends = np.iinfo(dtype)
    numbers = [0, 1, 2, 3, 5, 7, 100, ends.max, ends.max - 1, ends.min, ends.min + 1]
    if ends.min < 0:
        numbers += [-1, -2, -7, ends.min // 2]
    return np.array(numbers, dtype)


def pairs(dtype: str) -> tuple[Array, Array]:
    values = corners(dtype)
    a, b = np.meshgrid(values, values, indexing="ij")
    return a.ravel(), b.ravel()


def mirrored(dtype: str) -> int:
    return 255 if dtype == "uint8" else -1


def numbers(dtype: str) -> dict[str, Expression]:
    """Expressions over two tensors of a dtype with an order and arithmetic."""
    ends = np.iinfo(dtype) if dtype in INTEGERS else None
    found: dict[str, Expression] = {
        "add": (lambda a, b: a + b, np.add),
        "sub": (lambda a, b: a - b, np.subtract),
        "mul": (lambda a, b: a * b, np.multiply),
        "mod": (ws.mod, np.mod),
        "maximum": (ws.maximum, np.maximum),
        "minimum": (ws.minimum, np.minimum),
        "neg": (lambda a, b: -a, lambda a, b: np.negative(a)),
        "abs": (lambda a, b: ws.abs(a), lambda a, b: np.abs(a)),
        "sign": (lambda a, b: ws.sign(a), lambda a, b: np.sign(a)),
        "less": (lambda a, b: a < b, np.less),
        "less_equal": (lambda a, b: a <= b, np.less_equal),
        "greater": (lambda a, b: a > b, np.greater),
        "greater_equal": (lambda a, b: a >= b, np.greater_equal),
        "equal": (lambda a, b: a == b, np.equal),
        "not_equal": (lambda a, b: a != b, np.not_equal),
        "where": (lambda a, b: ws.where(a < b, a, b), lambda a, b: np.where(a < b, a, b)),
        "twice, equal": (lambda a, b: (b + b) == (a + a), lambda a, b: (b + b) == (a + a)),
        "mod of a sum": (lambda a, b: ws.mod(a + b, b), lambda a, b: np.mod(a + b, b)),
        "product of differences": (lambda a, b: (a - b) * (b - a), lambda a, b: (a - b) * (b - a)),
        "negative, less": (lambda a, b: -a < b, lambda a, b: -a < b),
        "constants": (lambda a, b: a * 3 + 1, lambda a, b: a * a.dtype.type(3) + a.dtype.type(1)),
        "max": (lambda a, b: a.max(), lambda a, b: a.max()),
        "min": (lambda a, b: a.min(), lambda a, b: a.min()),
        "max of rows": (_rows(lambda x: x.max(1)), _rows(lambda x: x.max(1))),
        "min of rows": (_rows(lambda x: x.min(1)), _rows(lambda x: x.min(1))),
        "min of columns": (_rows(lambda x: x.min(0)), _rows(lambda x: x.min(0))),
        "min, kept": (_rows(lambda x: x.min(1, keepdims=True)), _rows(lambda x: x.min(1, keepdims=True))),
        "argmax": (_rows(lambda x: x.argmax(1)), _rows(lambda x: x.argmax(1).astype(np.int32))),
        "argmax of columns": (_rows(lambda x: x.argmax(0)), _rows(lambda x: x.argmax(0).astype(np.int32))),
    }
    if ends is None:
        found["relu"] = (lambda a, b: ws.relu(a), lambda a, b: np.where(a <= 0, 0, a).astype(a.dtype))  # NaN stays
    else:
        found |= {
            "floor_divide": (lambda a, b: a // b, np.floor_divide),
            "bits": (lambda a, b: (a & b) + (a | b) * (a ^ b), lambda a, b: (a & b) + (a | b) * (a ^ b)),
            "not": (lambda a, b: ~a, lambda a, b: ~a),
            "left_shift": (lambda a, b: a << b, np.left_shift),
            "right_shift": (lambda a, b: a >> b, np.right_shift),
        }
    if ends is not None:  # the order of a float sum is its own matter
        found["sum"] = (lambda a, b: a.sum(), lambda a, b: a.sum(dtype=a.dtype))
        found["sum of rows"] = (_rows(lambda x: x.sum(1)), _rows(lambda x: x.sum(1, dtype=x.dtype)))
        found["sum of columns"] = (_rows(lambda x: x.sum(0)), _rows(lambda x: x.sum(0, dtype=x.dtype)))
        for name, number in (("largest", ends.max), ("lowest", ends.min), ("a large one", ends.max - 12)):
            known = np.array(number, dtype)
            found[f"plus the {name}"] = (lambda a, b, c=known: a + c, lambda a, b, c=known: a + c)
            found[f"modulo the {name}"] = (lambda a, b, c=known: ws.mod(a, c), lambda a, b, c=known: np.mod(a, c))
    else:
        found["floor"] = (lambda a, b: ws.floor(a), lambda a, b: np.floor(a))
        found["div"] = (lambda a, b: a / b, np.divide)
    return found


def _rows(function: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """Over the pairs as a square: one row for each value of a, b along it."""

    def over(a: Any, b: Any) -> Any:
        side = round(int(np.prod([int(e) for e in b.shape])) ** 0.5)
        return function(b.reshape(side, side))

    return over


def truths() -> dict[str, Expression]:
    return {
        "and": (lambda a, b: a & b, np.logical_and),
        "or": (lambda a, b: a | b, np.logical_or),
        "not": (lambda a, b: ~a, lambda a, b: ~a),
        "equal": (lambda a, b: a == b, np.equal),
        "not_equal": (lambda a, b: a != b, np.not_equal),
        "where": (lambda a, b: ws.where(a, b, ~b), lambda a, b: np.where(a, b, ~b)),
    }


def cast(a: Array, dtype: str) -> Array:
    """NumPy's where it says what happens; a float outside an integer's range goes to its nearest end, NaN to 0."""
    if a.dtype.kind != "f" or dtype not in INTEGERS:
        return a.astype(dtype)
    ends = np.iinfo(dtype)
    out = [0 if np.isnan(x) else ends.max if x >= ends.max else ends.min if x <= ends.min else int(x) for x in a]
    return np.array(out, dtype)


def random_expression(rng: np.random.Generator, dtype: str, depth: int) -> Expression:
    """A tree over two tensors, ours and NumPy's."""
    if depth == 0:
        pick = int(rng.integers(0, 3))
        if pick == 2:
            number = np.array(rng.choice(corners(dtype)), dtype)
            return (lambda a, b: b - b + number), (lambda a, b: b - b + number)
        return (lambda a, b: (a, b)[pick]), (lambda a, b: (a, b)[pick])
    names = ["add", "sub", "mul", "mod", "maximum", "minimum", "neg", "abs", "sign", "where"]
    ours, theirs = numbers(dtype)[str(rng.choice(names))]
    (x, p), (y, q) = random_expression(rng, dtype, depth - 1), random_expression(rng, dtype, depth - 1)
    return (lambda a, b: ours(x(a, b), y(a, b))), (lambda a, b: theirs(p(a, b), q(a, b)))
