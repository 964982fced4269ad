"""What a table of words is made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Say:
    """A word that is not taken: what to write instead, as a sentence without its full stop."""

    text: str


@dataclass(frozen=True)
class Only:
    """An argument that is taken, and left out, where its value is one of these; else it is answered."""

    values: tuple[object, ...]
    text: str


IN_PLACE = "*_"  # the names of what changes a tensor
EVERY = object()  # in Only: whatever the value, it changes nothing here


@dataclass(frozen=True)
class NameTable:
    """The public names of one of their modules, or the attributes of one of their classes.

    Args:
        theirs: what they call the place: "torch.nn".
        ours: where those names are looked for here: "ws.nn".
        same: their name -> ours, with which it means the same; a path from `ws`, or "module:name" of the package.
        say: their name, or a pattern, -> what to write.
        groups: the same for many names, separated by spaces.
        differs: names that are ours too, with another meaning: in what.
    """

    theirs: str
    ours: str
    same: Mapping[str, str] = field(default_factory=dict)
    say: Mapping[str, str] = field(default_factory=dict)
    groups: tuple[tuple[str, str], ...] = ()
    differs: Mapping[str, str] = field(default_factory=dict)

    def answer(self, name: str) -> str | None:
        """What to write for a name that is not the same here; `{name}` in a sentence is the name."""
        if name in self.say:
            return self.say[name].replace("{name}", name)
        for names, text in self.groups:
            if names == IN_PLACE and name.endswith("_") and (inner := self.answer(name.rstrip("_"))) is not None:
                return f"tensors are never changed in place; of `{name.rstrip('_')}`: {inner}"
            if any(fnmatchcase(name, pattern) for pattern in names.split()):
                return text.replace("{name}", name).replace("{plain}", name.rstrip("_"))
        return None

    def patterns(self) -> Iterator[str]:
        """Every name, or pattern of names, that is answered."""
        yield from self.say
        for names, _ in self.groups:
            yield from names.split()
