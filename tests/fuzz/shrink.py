"""Reduces a failing case to a small case that fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TypeVar

Case = TypeVar("Case")


def smallest(
    case: Case, smaller: Callable[[Case], Iterable[Case]], fails: Callable[[Case], bool], seconds: float
) -> Case:
    """Take the first simpler case that still fails, again and again, until there is none or the time is over."""
    until = time.monotonic() + seconds
    while True:
        for candidate in smaller(case):
            if time.monotonic() > until:
                return case
            if fails(candidate):
                case = candidate
                break
        else:
            return case
