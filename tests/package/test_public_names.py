"""The public interface as a golden file: every exported name with its kind and signature.

A refactoring leaves the file as it is; a change of the interface shows in its diff.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import fields, is_dataclass
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from wholestep import errors

GOLDEN = Path(__file__).parents[1] / "golden" / "public_names.json"
RECORD = (
    "the public interface has changed; if that is intended, record it and read the diff of tests/golden: "
    "python -m pytest tests/package/test_public_names.py --update-golden"
)
PACKAGES = (
    *("wholestep", "wholestep.nn", "wholestep.losses", "wholestep.optim", "wholestep.schedules", "wholestep.metrics"),
    *("wholestep.data", "wholestep.callbacks", "wholestep.models", "wholestep.session", "wholestep.train"),
    *("wholestep.privacy", "wholestep.sklearn"),
)

EXPORTED = frozenset(name for package in PACKAGES for name in import_module(package).__all__)


def signature_of(value: object) -> str:
    """Names, kinds and defaults of the arguments; annotations name modules, which may move."""
    if is_dataclass(value) and isinstance(value, type):  # `records.py` writes the constructor when it is first called
        return str([field.name for field in fields(value) if field.init])
    try:
        found = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return "..."
    bare = [p.replace(annotation=p.empty, default=default_of(p)) for p in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=found.empty))


def default_of(parameter: inspect.Parameter) -> object:
    """A default as text that is the same in every process."""
    value = parameter.default
    if value is parameter.empty or isinstance(value, bool | int | float | str | type(None)):
        return value
    return type(value).__name__ if not isinstance(value, tuple | Enum) else str(value)


def public_methods(value: type) -> dict[str, str]:
    """Methods and attributes that a class defines itself; those of its bases are listed with the bases."""
    members = {n: member for n, member in sorted(vars(value).items()) if not n.startswith("_")}
    functions = {n: getattr(value, n) for n, m in members.items() if inspect.isroutine(getattr(m, "__func__", m))}
    return {n: signature_of(functions[n]) if n in functions else "attribute" for n in members}


def describe(value: object) -> object:
    if inspect.ismodule(value):
        return "module"
    if inspect.isclass(value):
        if issubclass(value, Exception):
            return [base.__name__ for base in value.__mro__[1:-1]]
        bases = [base.__name__ for base in value.__mro__[1:] if base.__name__ in EXPORTED]
        return {"call": signature_of(value), "bases": bases, **public_methods(value)}
    return signature_of(value) if callable(value) else "value"


def interface() -> dict[str, object]:
    public: dict[str, object] = {}
    for package in PACKAGES:
        module = import_module(package)
        public[package] = {name: describe(getattr(module, name)) for name in sorted(module.__all__)}
    classes = {n: v for n, v in vars(errors).items() if inspect.isclass(v) and v.__module__ == errors.__name__}
    public["wholestep.errors"] = {name: describe(value) for name, value in sorted(classes.items())}
    return public


def differences(recorded: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Names that were added, removed or changed, with their package."""
    pairs = {(package, name) for both in (recorded, current) for package in both for name in both[package]}
    found = []
    for package, name in sorted(pairs):
        before, now = recorded.get(package, {}).get(name), current.get(package, {}).get(name)
        if before != now:
            what = "new" if before is None else "gone" if now is None else "changed"
            found.append(f"{what}: {package}.{name}")
    return found


def test_the_public_interface_is_as_recorded(request: pytest.FixtureRequest) -> None:
    current = json.dumps(interface(), indent=1) + "\n"
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(current)
    recorded = GOLDEN.read_text()
    assert differences(json.loads(recorded), json.loads(current)) == [], RECORD
    assert current == recorded, RECORD


def test_a_difference_names_what_changed() -> None:
    before = {"ws": {"elu": "(x)", "relu": "(x)"}, "ws.nn": {"ELU": "value"}}
    now = {"ws": {"elu": "(x, alpha=1.0)", "squareplus": "(x)"}, "ws.nn": {"ELU": "value"}}
    assert differences(before, now) == ["changed: ws.elu", "gone: ws.relu", "new: ws.squareplus"]


def test_the_import_path_of_a_backend_of_ones_own_still_works() -> None:
    from wholestep.compiler.backends import host
    from wholestep.compiler.backends.common import numpy_program

    assert (host.HostDevice, host.HostProgram) == (numpy_program.HostDevice, numpy_program.HostProgram)
    assert host.Memory is numpy_program.LaunchMemory
