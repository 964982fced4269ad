"""The functions used in schedule formulas, for floats and for tensors.

A schedule is one formula: `schedule(3)` evaluates it in Python, a session records it over runtime scalars.
"""

from __future__ import annotations

import math
from typing import Any

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.tensor import Tensor

Value = Any  # a float, or a scalar Tensor


def cos(x: Value) -> Value:
    return fn.cos(x) if isinstance(x, Tensor) else math.cos(x)


def floor(x: Value) -> Value:
    return fn.floor(x) if isinstance(x, Tensor) else float(math.floor(x))


def sqrt(x: Value) -> Value:
    return fn.sqrt(x) if isinstance(x, Tensor) else math.sqrt(x)


def log(x: Value) -> Value:
    return fn.log(x) if isinstance(x, Tensor) else math.log(x)


def least(x: Value, y: Value) -> Value:
    """The minimum of two values."""
    return fn.minimum(x, y) if isinstance(x, Tensor) or isinstance(y, Tensor) else min(x, y)


def most(x: Value, y: Value) -> Value:
    """The maximum of two values."""
    return fn.maximum(x, y) if isinstance(x, Tensor) or isinstance(y, Tensor) else max(x, y)


def choose(condition: Value, x: Value, y: Value) -> Value:
    """x if the condition is true, else y.  Both are evaluated, so neither may be undefined."""
    return fn.where(condition, x, y) if isinstance(condition, Tensor) else (x if condition else y)


def part(n: Value, length: Value) -> Value:
    """The completed fraction min(n/length, 1)."""
    return least(n / length, 1.0)


def half_cosine(done: Value) -> Value:
    """The factor (1 + cos(π·done))/2, which falls from 1 to 0."""
    return (cos(done * math.pi) + 1.0) * 0.5
