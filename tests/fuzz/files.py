"""Files that were changed, given to whoever reads them: see `READERS` of readers.py."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.case import Unfit


@dataclass(frozen=True)
class Mutation:
    """A reader, and the seed of what is changed in its file."""

    reader: str
    seed: int


def readers() -> dict[str, Callable[[Random, Path], None]]:
    """Each changes one file in a folder, reads it, and raises AssertionError where the reader misbehaves."""
    if find_spec("tests.fuzz.readers") is None:
        return {}
    return dict(import_module("tests.fuzz.readers").READERS)


def draw(rng: Random) -> Mutation:
    known = readers()
    return Mutation(rng.choice(list(known)) if known else "none", rng.randrange(10**9))


def check(m: Mutation) -> None:
    known = readers()
    if m.reader not in known:
        raise Unfit(f"there is no reader {m.reader!r}; there are: {', '.join(known) or 'none'}")
    with tempfile.TemporaryDirectory() as folder:
        known[m.reader](Random(m.seed), Path(folder))


def smaller(m: Mutation) -> Iterator[Mutation]:
    """One change is as small as it gets."""
    return iter(())


def text(m: Mutation) -> str:
    return f'READERS["{m.reader}"](Random({m.seed}), folder)'


def to_data(m: Mutation) -> dict[str, Any]:
    return asdict(m)


def from_data(data: Mapping[str, Any]) -> Mutation:
    return Mutation(**data)
