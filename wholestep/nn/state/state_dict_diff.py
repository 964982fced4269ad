"""Compare the arrays of a file with the arrays of a model: renamed arrays, and a readable diff of mismatches."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wholestep.errors import InputError, OptionError, UsageError

Rename = Mapping[str, str | None] | Callable[[str], str | None]

SHOWN = 20  # the most names of each kind in an error; a report shows all
TRIED = 4  # the most prefixes that are counted for a hint


class OtherShape(NamedTuple):
    """An array whose shapes in the file and in the model differ."""

    name: str
    in_file: tuple[int, ...]
    in_model: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name!r} has shape {self.in_model} in the model; received {self.in_file}"


@dataclass(frozen=True)
class LoadReport:
    """What was loaded, and what did not match: names the model lacks, names the file lacks, other shapes.

    `str(report)` is a diff to read; `hint` is the `rename=` by which more names would match, where there is one.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...] = ()  # names of the model that are not in the file: these arrays keep their values
    unexpected: tuple[str, ...] = ()  # names in the file that the model does not have
    other_shape: tuple[OtherShape, ...] = ()  # names in both with different shapes: the model keeps its values
    hint: str = ""

    def __str__(self) -> str:
        return "\n".join([f"{len(self.loaded)} arrays loaded", *self.differences()])

    def differences(self, shown: int | None = None) -> Iterator[str]:
        """The mismatches as lines, with at most `shown` names of each kind."""
        if self.missing:
            yield f"missing in the file, left as they were: {_first(self.missing, shown, ', ')}"
        if self.unexpected:
            yield f"in the file but not in the model: {_first(self.unexpected, shown, ', ')}"
        if self.other_shape:
            yield f"of another shape, left as they were:\n  {_first(self.other_shape, shown, chr(10) + '  ')}"
        if self.hint:
            yield self.hint


def _first(parts: Sequence[object], shown: int | None, between: str) -> str:
    texts = [str(part) for part in parts[:shown]]
    return between.join([*texts, f"and {len(parts) - len(texts)} more"] if len(texts) < len(parts) else texts)


def rename_names(names: Iterable[str], rename: Rename | None) -> dict[str, str]:
    """A map from new names to names in the file, without names that are renamed to None."""
    names = list(names)
    other = _by_paths(names, rename) if isinstance(rename, Mapping) else rename
    if other is None:
        return {name: name for name in names}
    if not callable(other):
        raise UsageError(
            f"rename takes a dict of names or prefixes, e.g. {{'module.': ''}}, or a function of a name; received "
            f"{rename!r}."
        )
    old_names: dict[str, str] = {}
    for name in names:
        new = other(name)
        if new is None:
            continue
        if not isinstance(new, str):
            raise UsageError(f"rename gives a name, or None to leave an array out; received {new!r} for {name!r}.")
        if new in old_names:
            raise InputError(
                f"rename gives {old_names[new]!r} and {name!r} the same name, {new!r}. Nothing was loaded. Rename one "
                "of them to None to leave it out."
            )
        old_names[new] = name
    return old_names


def _by_paths(names: Sequence[str], rename: Mapping[str, str | None]) -> Callable[[str], str | None]:
    """Rename by the longest key that is the name or a path prefix of it: `fc` matches `fc.weight`, not `fc2.weight`."""
    for old in rename:
        if not isinstance(old, str):
            raise UsageError(f"rename takes names or prefixes as keys, e.g. {{'module.': ''}}; received {old!r}.")
        if not any(_is_before(old, name) for name in names):
            raise OptionError(
                f"{old!r} of rename is neither a name nor the prefix of one: {_first(names, SHOWN, ', ')}. "
                "Correct it, or leave it out."
            )
    for old, new in rename.items():
        if isinstance(new, str) and new.count("*") not in (0, old.count("*")):
            raise UsageError(
                f"rename gives {old!r} the new name {new!r}: each * of the new name is one of the old one, in order; "
                f"there are {new.count('*')} for {old.count('*')}."
            )
    keys = sorted(rename, key=lambda key: len(key.replace("*", "")), reverse=True)

    def other(name: str) -> str | None:
        for old in keys:
            part = _path_before(old, name)
            if part is not None:
                return _new_name(name, part, rename[old])
        return name

    return other


def _new_name(name: str, match: Match, new: str | None) -> str | None:
    if not isinstance(new, str):
        return new
    for part in match.stars if "*" in new else ():
        new = new.replace("*", part, 1)
    rest = name[match.length :].lstrip(".")
    return ".".join(part for part in (new.rstrip("."), rest) if part)


class Match(NamedTuple):
    """A match of a key, which may contain `*`, with a name: the length of the matched text, the text of each `*`."""

    length: int
    stars: tuple[str, ...]


def _path_before(path: str, name: str) -> Match | None:
    """The part of a name that a key matches: the whole name or a path prefix; None if it matches neither."""
    if path == "":
        return Match(0, ())
    plain = path.rstrip(".")
    if "*" not in plain:
        return Match(len(plain), ()) if name == path or name.startswith(plain + ".") else None
    pattern = "([^.]+)".join(re.escape(part) for part in plain.split("*"))
    match = re.match(rf"{pattern}(?=\.|$)", name)
    return None if match is None else Match(match.end(), match.groups())


def _is_before(path: str, name: str) -> bool:
    return _path_before(path, name) is not None


def hint_for(
    missing: Sequence[str], unexpected: Sequence[str], names: Sequence[str], model_names: Iterable[str]
) -> str:
    """The `rename=` by whose prefix most names of the file would match the model's; "" if none helps."""
    if not missing or not unexpected:
        return ""
    in_model = set(model_names)
    renames = Counter((prefix, "") for prefix in _prefixes(unexpected, set(missing)))
    renames.update(("", prefix) for prefix in _prefixes(missing, set(unexpected)))

    def count_matches(rename: Mapping[str, str | None]) -> int:
        other = _by_paths(names, rename)
        return len(in_model.intersection(filter(None, map(other, names))))

    counts = {pair: count_matches(dict([pair])) for pair, _ in renames.most_common(TRIED)}
    best = max(counts, key=lambda pair: counts[pair], default=("", ""))
    if counts.get(best, 0) <= count_matches({}):
        return ""
    return f"Pass rename={{{best[0]!r}: {best[1]!r}}}: {counts[best]} of {len(names)} names are then the model's."


def _prefixes(names: Iterable[str], wanted: set[str]) -> Iterator[str]:
    """Prefixes of other names that end in a missing one: `module.` if `module.0.bias` exists, `0.bias` is missing."""
    for name in names:
        for at, letter in enumerate(name):
            if letter == "." and name[at + 1 :] in wanted:
                yield name[: at + 1]
