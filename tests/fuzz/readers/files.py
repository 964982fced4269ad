"""Files that were changed, given to whoever reads them: see `READERS` of readers.py."""

from __future__ import annotations

import atexit
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.readers.readers import READERS, runs_left


@dataclass(frozen=True)
class Mutation:
    """A reader, and the seed of what is changed in its file."""

    reader: str
    seed: int


@cache
def folder_of(reader: str) -> Path:
    """Where its file is made, once in a process; it ends with the process."""
    folder = tempfile.TemporaryDirectory(prefix="wholestep-reader-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def draw(rng: Random) -> Mutation:
    return Mutation(rng.choice(list(READERS)), rng.randrange(10**9))


def check(m: Mutation) -> None:
    runs_left["plan"] = 1  # every plan that is accepted is run, not only some of them as in the tests
    READERS[m.reader](Random(m.seed), folder_of(m.reader))


def smaller(m: Mutation) -> Iterator[Mutation]:
    """One change is as small as it gets."""
    return iter(())


def text(m: Mutation) -> str:
    return f'READERS["{m.reader}"](Random({m.seed}), folder)'


def to_data(m: Mutation) -> dict[str, Any]:
    return asdict(m)


def from_data(data: Mapping[str, Any]) -> Mutation:
    return Mutation(**data)
