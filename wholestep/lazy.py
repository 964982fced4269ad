"""Packages whose names are loaded when they are first asked for, so that a start loads what it uses."""

from __future__ import annotations

import ast
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


class Exports:
    """What a package exports, by its `__init__.pyi`: `from wholestep.losses.basic import mse as mse`, `l2 = mse`.

    >>> Exports("wholestep.optim", import_module("wholestep.optim").__file__).home_of["Lion"]
    ('wholestep.optim.algorithms.lion', 'Lion')
    """

    def __init__(self, package: str, file: str | None) -> None:
        assert file is not None, "a package of files"
        self._package, self._folder = package, Path(file).parent
        self.home_of: dict[str, tuple[str, str]] = {}  # name -> its module, and what it is called there
        imported: dict[str, tuple[str, str]] = {}
        for statement in ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body:
            if isinstance(statement, ast.ImportFrom):
                for name in statement.names:
                    imported[name.name] = (str(statement.module), name.name)
                    if name.asname is not None:
                        self.home_of[name.asname] = imported[name.name]
            elif isinstance(statement, ast.Assign):
                self.home_of[ast.unparse(statement.targets[0])] = imported[ast.unparse(statement.value)]

    @property
    def names(self) -> list[str]:
        """In the order in which they are listed."""
        return list(self.home_of)

    def _is_file(self, name: str) -> bool:
        return (self._folder / f"{name}.py").is_file() or (self._folder / name).is_dir()

    def load(self, name: str) -> Any:
        """The `__getattr__` of the package."""
        if name not in self.home_of:
            if name.startswith("_"):
                raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
            if self._is_file(name):
                return import_module(f"{self._package}.{name}")
            from wholestep.compat.names import answer_missing

            return answer_missing(self._package, name)
        home, own = self.home_of[name]
        found = None if home == self._package else getattr(import_module(home), own, None)
        if found is None:  # it is a module itself
            found = import_module(f"{home}.{own}")
        setattr(sys.modules[self._package], name, found)  # from now on it is an ordinary attribute
        return found
