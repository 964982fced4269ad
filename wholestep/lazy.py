"""Lazy loading: a package imports its names at their first use, so that a program loads only the modules it uses.

`Exports` is the `__getattr__` of a package.  `interop` stands for the package `wholestep.interop`, which knows the
names and arguments of other libraries: every other package calls it through this object and does not import it.
`AdaptOnImport` is a post-import hook: after a module with public functions or layers is executed, `interop.adapt` wraps
them so that they accept the argument names of PyTorch and Keras.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wholestep import interop as interop
else:

    class _Interop:
        """Attributes of `wholestep.interop`, imported when one of them is first read."""

        def __getattr__(self, name: str) -> Any:
            value = getattr(import_module("wholestep.interop"), name)
            setattr(self, name, value)
            return value

    interop = _Interop()


class Exports:
    """The exports of a package, by its `__init__.pyi`: `from wholestep.losses.basic import mse as mse`, `l2 = mse`.

    >>> Exports("wholestep.optim", import_module("wholestep.optim").__file__).home_of["Lion"]
    ('wholestep.optim.algorithms.sign_based', 'Lion')
    """

    def __init__(self, package: str, file: str | None) -> None:
        assert file is not None, "a package of files"
        self._package, self._folder = package, Path(file).parent
        self.home_of: dict[str, tuple[str, str]] = {}  # exported name -> module that defines it, its name there
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
        """The exported names in the order of the list."""
        return list(self.home_of)

    def dir(self) -> list[str]:
        """The `__dir__` of the package."""
        return sorted(self.home_of)

    def _is_file(self, name: str) -> bool:
        return (self._folder / f"{name}.py").is_file() or (self._folder / name).is_dir()

    def load(self, name: str) -> Any:
        """The `__getattr__` of the package."""
        if name not in self.home_of:
            if name.startswith("_"):
                raise AttributeError(f"module {self._package!r} has no attribute {name!r}")
            if self._is_file(name):
                return import_module(f"{self._package}.{name}")
            return interop.resolve_missing(self._package, name)
        home, attribute = self.home_of[name]
        value = None if home == self._package else getattr(import_module(home), attribute, None)
        if value is None:  # the name is a module
            value = import_module(f"{home}.{attribute}")
        setattr(sys.modules[self._package], name, value)  # the next lookup does not call __getattr__
        return value


def missing_names(module: str) -> Callable[[str], Any]:
    """A `__getattr__` for a public module: names of other libraries are translated, or the error says what to write."""

    def resolve(name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return interop.resolve_missing(module, name)

    return resolve


class AdaptOnImport:
    """A finder for `sys.meta_path`: modules below `prefixes` are passed to `interop.adapt` after they are executed."""

    def __init__(self, prefixes: tuple[str, ...]) -> None:
        self._prefixes = prefixes

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if not name.startswith(self._prefixes):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                interop.adapt(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
