"""Optimizers by name: `optimizer="adam"`."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from wholestep.errors import UnknownNameError, UsageError
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.config import optimizer_from_config


def get(optimizer: Any) -> Optimizer:
    """The optimizer with a name, with its defaults: `ws.optim.get("adam")` is `ws.Adam()`.

    A configuration, `{"kind": "Adam", "lr": 0.01}`, is accepted too; an optimizer is returned unchanged.
    """
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, Mapping):
        return optimizer_from_config(optimizer)
    if isinstance(optimizer, type) and issubclass(optimizer, Optimizer):
        name = optimizer.__name__
        raise UsageError(f"optimizer= is the class ws.{name}; give an instance: optimizer=ws.{name}(lr=...).")
    if isinstance(optimizer, str):
        return _by_name(optimizer)
    if hasattr(optimizer, "param_groups"):
        name = type(optimizer).__name__
        raise UsageError(f"optimizer= is another library's, {name}; ours have the same names: ws.{name}(lr=...).")
    raise UsageError(
        f"optimizer= must be a description such as ws.Adam(lr=1e-3), or a name such as 'adam'; received {optimizer!r}."
    )


def _by_name(name: str) -> Optimizer:
    package = import_module("wholestep.optim")
    exports = {n.lower(): n for n in package.__all__ if n[0].isupper()}
    exported = exports.get(name.lower().replace("_", "").replace("-", ""))
    cls = getattr(package, exported) if exported else None
    if isinstance(cls, type) and issubclass(cls, Optimizer) and cls is not Optimizer:
        try:
            return cls()
        except TypeError:
            raise UsageError(f"optimizer={name!r} needs arguments: write optimizer=ws.optim.{exported}(...).") from None
    close = get_close_matches(name.lower(), exports, 2, 0.5)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    raise UnknownNameError(
        f"there is no optimizer {name!r}.{hint} There are: sgd, adam, adamw, rmsprop, adagrad, lion and the others of "
        "ws.optim, by the names of their classes."
    )
