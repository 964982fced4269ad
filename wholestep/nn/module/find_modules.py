"""The names under which a step refers to its modules: variables, attributes, entries of lists and dicts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import getattr_static
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wholestep.nn.module.module import Module

LARGEST = 1000  # lists and dicts with more entries are taken for data and not searched


def holders(function: Callable[..., Any], besides: Module | None = None) -> dict[str, Module]:
    """The modules with weights that a function refers to, itself or through functions that it calls, by path.

    A module inside another one of them, or inside `besides`, is left out.  The answer depends on the text of the
    functions and on what their variables hold, not on what they call when: each recording of a step has the same names.
    """
    search = _ModuleSearch()
    search.callable(function)
    modules = {path: module for path, module in search.found.items() if module.named_arrays()}
    inner = {part for module in modules.values() for path, part in module.named_modules() if path}
    inner |= {part for _, part in besides.named_modules()} if besides is not None else set()
    return {path: module for path, module in modules.items() if module not in inner}


class _ModuleSearch:
    def __init__(self) -> None:
        self.found: dict[str, Module] = {}
        self._seen: set[object] = set()

    def callable(self, function: Any) -> None:
        """Search a function, a method, or a partial of either."""
        if isinstance(function, partial):
            for name, value in function.keywords.items():
                self.value(name, value, ())
            self.callable(function.func)
        elif isinstance(function, MethodType):
            seen = (id(function.__self__), function.__func__)
            if seen not in self._seen:  # a function may be reached several times: methods of a library call each other
                self._seen.add(seen)
                self.callable(function.__func__)
                self.value("self", function.__self__, _names(function.__func__.__code__))
        elif isinstance(function, FunctionType) and function not in self._seen and not _is_installed(function):
            self._seen.add(function)
            names = _names(function.__code__)
            for name, value in _variables(function, names):
                self.value(name, value, names)
        elif isinstance(method := getattr(function, "__call__", None), MethodType) and not _is_ours(function):  # noqa: B004
            self.callable(method)

    def value(self, path: str, value: Any, names: tuple[str, ...]) -> None:
        """Search the value of one variable; of an object, the attributes that the code names."""
        from wholestep.nn.module.module import Module

        if isinstance(value, Module):
            self._take(path, value)
        elif isinstance(value, list | tuple | dict):
            entries = (
                list(value.items() if isinstance(value, dict) else enumerate(value)) if len(value) < LARGEST else []
            )
            for key, entry in entries:
                if isinstance(entry, Module):
                    self._take(f"{path}.{key}", entry)
        elif isinstance(value, FunctionType | MethodType | partial):
            self.callable(value)
        elif not isinstance(value, type) and not _is_ours(value):
            self._attributes(path, value, names)

    def _attributes(self, path: str, value: Any, names: tuple[str, ...]) -> None:
        held: Mapping[str, Any] = getattr(value, "__dict__", None) or {}
        for name in names:
            if name in held and (id(value), name) not in self._seen:
                self._seen.add((id(value), name))
                self.value(name if path == "self" else f"{path}.{name}", held[name], names)
            method = getattr_static(type(value), name, None)
            if isinstance(method, FunctionType) and not isinstance(value, ModuleType) and method not in self._seen:
                self.callable(MethodType(method, value))

    def _take(self, path: str, module: Module) -> None:
        if any(other is module for other in self.found.values()):
            return
        free, count = path, 2
        while free in self.found:  # two functions may have variables of the same name
            free, count = f"{path}_{count}", count + 1
        self.found[free] = module


def _is_ours(value: Any) -> bool:
    where = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return isinstance(where, str) and where.partition(".")[0] == "wholestep"


def _is_installed(function: FunctionType) -> bool:
    """Does the function belong to an installed library?  These do not hold the user's networks and are not searched."""
    places = Path(function.__code__.co_filename).parts
    package = (function.__module__ or "").partition(".")[0]
    foreign = package in sys.stdlib_module_names or not {"site-packages", "dist-packages"}.isdisjoint(places)
    return foreign or _is_ours(function)


def _names(code: CodeType) -> tuple[str, ...]:
    """Every name that the code and its nested functions read."""
    nested = [name for inner in code.co_consts if isinstance(inner, CodeType) for name in _names(inner)]
    return tuple(dict.fromkeys((*code.co_names, *nested)))


def _variables(function: FunctionType, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """The variables that a function can read before it runs: enclosing ones, defaults, globals."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # the variable has no value yet
            continue
    defaults = function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    yield from zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    for name in names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
