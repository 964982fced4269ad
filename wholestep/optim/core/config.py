"""Optimizers as JSON data and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.trace import report_config_errors
from wholestep.errors import OptionError, UsageError
from wholestep.optim.core.groups import Group, group_from_config
from wholestep.optim.core.options import Runtime, trials_of

if TYPE_CHECKING:
    from wholestep.optim.core.base import Optimizer

# Every optimizer by its class name; `__init_subclass__` adds user-defined ones.
REGISTRY: dict[str, type[Optimizer]] = {}


def trial_values() -> dict[str, float]:
    """The values of scalars for the self-check of new plans, by the last part of their names, for all loaded
    optimizers.
    """
    return {name: value for cls in REGISTRY.values() for name, value in trials_of(cls).items()}


def as_config(value: object) -> Any:
    """A value of a configuration as plain data."""
    from wholestep.optim.core.base import Optimizer

    if isinstance(value, Runtime):
        return {"runtime": value.value}
    if isinstance(value, Group | Optimizer):
        return value.to_config()
    if isinstance(value, tuple):
        return [as_config(v) for v in value]
    return value


def from_plain(value: Any) -> Any:
    """The value that `as_config` wrote."""
    if isinstance(value, Mapping):
        if "runtime" in value:
            return Runtime(float(value["runtime"]))
        return optimizer_from_config(value) if "kind" in value else group_from_config(value)
    if isinstance(value, list | tuple):
        return tuple(from_plain(v) for v in value)
    return value


@cache
def _load_all() -> None:
    """Import all optimizers, so that they are in the table."""
    package = import_module("wholestep.optim")
    for name in package.__all__:
        getattr(package, name)


def optimizer_from_config(config: Mapping[str, Any]) -> Optimizer:
    """The optimizer of a configuration; OptionError for an unknown kind or option."""
    if not isinstance(config, Mapping) or not isinstance(config.get("kind"), str):
        raise UsageError(f"an optimizer's config is a dict with a 'kind', e.g. {{'kind': 'SGD'}}; received {config!r}.")
    kind = config["kind"]
    _load_all()
    if kind not in REGISTRY:
        raise OptionError(f"there is no optimizer {kind!r}; there are: {', '.join(sorted(REGISTRY))}.")
    cls = REGISTRY[kind]
    options = [f.name for f in fields(cls) if f.init]
    unknown = [name for name in config if name != "kind" and name not in options]
    if unknown:
        raise OptionError(f"{kind} has no option {unknown[0]!r}; it has: {', '.join(options)}.")
    with report_config_errors(kind):
        return cls(**{name: from_plain(value) for name, value in config.items() if name != "kind"})
