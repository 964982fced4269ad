"""Packages whose names are loaded when they are first asked for, so that a start loads what it uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def postponed(
    package: str, homes: Mapping[str, Sequence[str]], aliases: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `homes` says which names each of its modules has, `aliases` other names of them.

    >>> postponed("wholestep.optim", {"lion": ["Lion"]})("Lion").__module__
    'wholestep.optim.lion'
    """
    home_of = {name: f"{package}.{module}" for module, names in homes.items() for name in names}
    other = dict(aliases or {})

    def find(name: str) -> Any:
        known = other.get(name, name)
        if known not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(home_of[known]), known)
        setattr(sys.modules[package], name, found)  # from now on it is an ordinary attribute
        return found

    return find
