"""Is a value that was read from a file what it should be?"""

from __future__ import annotations

from typing import Any


def is_count(value: Any) -> bool:
    """A number of steps, rows or epochs."""
    return type(value) is int and 0 <= value < 1 << 62


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def is_measure(value: Any) -> bool:
    """What logs hold: a number, or lists of them."""
    return is_number(value) or (type(value) is list and all(is_measure(v) for v in value))
