"""The example that a module is exported with: arrays become tensors, sizes that may vary become symbols."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.importers.aten.export import Call


def example_call(module: Any, example: Any, batch: str | None, dynamic: Mapping[str, Mapping[int, str]] | None) -> Call:
    """How the module is called; a batch of one row is made two, since torch takes a size of 1 for a constant."""
    args: tuple[Any, ...]
    named: dict[str, Any]
    if isinstance(example, Mapping):
        args, named = (), dict(example)
    else:
        args, named = tuple(example) if isinstance(example, tuple | list) else (example,), {}
    kind = _float_of(module)
    args = tuple(_as_tensor(a, kind) for a in args)
    named = {name: _as_tensor(a, kind) for name, a in named.items()}
    tensors = {**dict(zip(_names(module, len(args)), args)), **named}
    rows = next((len(t) for t in tensors.values() if isinstance(t, torch.Tensor) and t.ndim), None)
    if not any(isinstance(t, torch.Tensor) for t in tensors.values()):
        fail(UsageError, f"from_torch: the example holds arrays or tensors; received {example!r}.")
    symbols: dict[str, dict[int, str]] = {}
    for name, t in tensors.items():
        if batch is not None and isinstance(t, torch.Tensor) and t.ndim and len(t) == rows:
            symbols[name] = {0: batch}
    for name, axes in (dynamic or {}).items():
        if name not in tensors:
            fail(UsageError, f"dynamic: the module takes {', '.join(tensors)}; received {name!r}.")
        symbols[name] = {**symbols.get(name, {}), **axes}
    wide = {name: _widened(t, symbols.get(name, {})) for name, t in tensors.items()}
    call = tuple(wide[name] for name in list(tensors)[: len(args)])
    by_id = {id(wide[name]): axes for name, axes in symbols.items() if axes}
    return Call(call, {name: wide[name] for name in named}, by_id)


def _names(module: Any, count: int) -> list[str]:
    """What positional arguments are called; those of *args are numbered."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):  # of a forward that Python did not write: torch says what it thinks of it
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "input")
    return (names + [f"{rest}_{i}" for i in range(max(count - len(names), 0))])[:count]


def _float_of(module: Any) -> Any:
    return next((p.dtype for p in module.parameters() if p.dtype.is_floating_point), torch.float32)


def _as_tensor(value: Any, kind: Any) -> Any:
    """A tensor as it is; an array as a tensor, floats in the dtype of the module."""
    if isinstance(value, np.ndarray | np.generic):
        if np.asarray(value).dtype.kind not in "biufc":
            fail(UsageError, f"from_torch: the example holds numbers; received an array of {np.asarray(value).dtype}.")
        made = torch.from_numpy(np.array(value))
        return made.to(kind) if made.is_floating_point() else made
    return value.detach() if isinstance(value, torch.Tensor) else value


def _widened(value: Any, axes: Mapping[int, str]) -> Any:
    """At least two along each symbolic axis, and a tensor of its own: symbols are told by identity."""
    if not isinstance(value, torch.Tensor) or not axes:
        return value
    for axis in axes:
        if not -value.ndim <= axis < value.ndim or value.shape[axis] == 0:
            fail(
                UsageError,
                f"dynamic: axis {axis} of an input of shape {tuple(value.shape)} does not exist, or is empty.",
            )
        if value.shape[axis] == 1:
            value = torch.cat([value, value], axis)
    return value.clone()
