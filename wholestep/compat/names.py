"""Names that are not ours, looked up: what means the same is given, anything else is answered."""

from __future__ import annotations

import sys
from functools import cache, reduce
from importlib import import_module
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.trace import locate
from wholestep.errors import HabitError, HabitImportError

if TYPE_CHECKING:
    from wholestep.compat.rows import Names


@cache
def tables() -> dict[str, tuple[Names, ...]]:
    """Where a name is looked for here -> the tables of what others call it, in the order in which they are asked."""
    from wholestep.compat.tables.every import EVERY_TABLE

    found: dict[str, tuple[Names, ...]] = {}
    for table in EVERY_TABLE:
        found[table.ours] = (*found.get(table.ours, ()), table)
    return found


def path_of(place: str, name: str) -> str | None:
    """Ours for a name of theirs that means the same: a path from `ws`."""
    return next((t.same[name] for t in tables().get(place, ()) if name in t.same), None)


def answer_to(place: str, name: str) -> str | None:
    """What to write for a name of theirs, as a sentence without its full stop."""
    return next((text for t in tables().get(place, ()) if (text := t.answer(name)) is not None), None)


def resolve_path(path: str) -> Any:
    """The object that a path of the tables names: `ws.nn.Linear`, or `wholestep.compiler.ir.types:boolean`."""
    if ":" in path:
        home, _, own = path.partition(":")
        return reduce(getattr, own.split("."), import_module(home))
    value: Any = import_module("wholestep")
    for part in path.split(".")[1:]:
        value = getattr(value, part)
    return value


def answer_missing(package: str, name: str) -> Any:
    """What a package gives for a name that it does not export."""
    place = "ws" + package.removeprefix("wholestep")
    path = None if name.startswith("_") else path_of(place, name)
    if path is not None:
        return resolve_path(path)
    text = None if name.startswith("_") else answer_to(place, name)
    home = None if name.startswith("_") else _home(package, name)
    if text is None and home is None and not name.startswith("_"):
        text = _answer_elsewhere(name)
    if text is None:
        hint = f". It is {home}.{name}" if home else _close(package, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
    sentence = f"there is no `{place}.{name}`: {text}."
    # `from wholestep.nn import X` would turn an AttributeError into one that says nothing.
    raise locate(HabitImportError(sentence) if _imports(sys._getframe(2)) else HabitError(sentence))


def _answer_elsewhere(name: str) -> str | None:
    """Of names that people look for in many places: helpers, callbacks, transforms."""
    return next((text for place in ("ws.utils", "ws.callbacks", "ws.data") if (text := answer_to(place, name))), None)


def _imports(frame: Any) -> bool:
    """Is a frame at a `from ... import`?"""
    from opcode import opmap

    return bool(frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"])


_FOLDERS = ("nn", "losses", "optim", "nn.functional", "schedules", "metrics", "data", "callbacks")


def _home(package: str, name: str) -> str | None:
    """The package of ours that has the name."""
    places = (*(f"ws.{folder}" for folder in _FOLDERS), "ws")
    others = (place for place in places if place != "ws" + package.removeprefix("wholestep"))
    return next((place for place in others if name in resolve_path(place).__all__), None)


def _close(package: str, name: str) -> str:
    """The nearest name here."""
    from difflib import get_close_matches

    close = get_close_matches(name, getattr(sys.modules[package], "__all__", ()), 1, 0.75)
    return f". Did you mean {close[0]!r}?" if close else ""


def attribute(place: str, owner: object, name: str, what: str = "") -> Any:
    """What an object of ours gives for an attribute that it does not have: a method of theirs, or what to write."""
    path = None if name.startswith("_") else path_of(place, name)
    if path is not None:
        value = resolve_path(path)
        return MethodType(value, owner) if isinstance(value, FunctionType) else value
    text = None if name.startswith("_") else answer_to(place, name)
    if text is None and place == "a tensor" and not name.startswith("_"):
        text = answer_to("ws", name)  # most of their methods are functions as well
    if text is None:
        raise AttributeError(f"{what or place} has no attribute {name!r}")
    raise locate(HabitError(f"{place} has no `{name}`: {text}."))
