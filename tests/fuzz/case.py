"""What every mode has: cases as plain data, drawn from a random source, checked, made smaller, told as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, Protocol


class Unfit(Exception):  # noqa: N818 - no failure: the case says nothing
    """A case that cannot be judged: the oracle's own numbers are not finite, or nothing is left to compare."""


class Wrong(AssertionError):  # noqa: N818 - what a fuzzer is for
    """Numbers that are not what they should be."""


class Mode(Protocol):
    """A module of this folder; `MODES` of worker.py lists them."""

    def draw(self, rng: Random) -> Any: ...

    def check(self, case: Any) -> None:
        """Raise where something is wrong; `Unfit` where the case says nothing."""

    def smaller(self, case: Any) -> Iterator[Any]: ...

    def text(self, case: Any) -> str: ...

    def to_data(self, case: Any) -> Mapping[str, Any]: ...

    def from_data(self, data: Mapping[str, Any]) -> Any: ...
