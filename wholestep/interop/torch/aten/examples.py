"""The example call for an export: arrays become tensors, variable sizes become symbols."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.interop.torch.aten.export import ExampleCall


def example_call(
    module: Any, example: Any, batch: str | None, dynamic: Mapping[str, Mapping[int, str]] | None
) -> ExampleCall:
    """The example call of a module; a batch of one row is extended to two, since torch treats a size of 1 as a
    constant.

    Arguments may be dicts, lists and tuples of tensors, nested.
    """
    args: tuple[Any, ...]
    named: dict[str, Any]
    if isinstance(example, Mapping):
        args, named = (), dict(example)
    else:
        args, named = tuple(example) if isinstance(example, tuple | list) else (example,), {}
    arguments = {**dict(zip(_names(module, len(args)), args)), **named}
    kind = _float_of(module)
    paths, structure = tree_flatten_with_path(arguments)
    dicts = [name for name, value in arguments.items() if isinstance(value, Mapping)]
    shared = dicts[0] if dicts and len(arguments) == 1 else ""
    leaves = {input_name("_".join(map(_key, path)), shared): _as_tensor(leaf, kind) for path, leaf in paths}
    rows = next((len(t) for t in leaves.values() if isinstance(t, torch.Tensor) and t.ndim), None)
    if not any(isinstance(t, torch.Tensor) for t in leaves.values()):
        fail(
            UsageError,
            "from_torch: the example holds arrays or tensors, in tuples, lists and dicts; received "
            f"{', '.join(f'{name}: {type(t).__name__}' for name, t in leaves.items()) or 'nothing'}.",
        )
    symbols: dict[str, dict[int, str]] = {}
    for name, t in leaves.items():
        if batch is not None and isinstance(t, torch.Tensor) and t.ndim and len(t) == rows:
            symbols[name] = {0: batch}
    for name, axes in (dynamic or {}).items():
        if name not in leaves:
            fail(UsageError, f"dynamic: the module takes {', '.join(leaves)}; received {name!r}.")
        symbols[name] = {**symbols.get(name, {}), **axes}
    wide = {name: _widen_symbolic_axes(t, symbols.get(name, {})) for name, t in leaves.items()}
    by_id = {id(wide[name]): axes for name, axes in symbols.items() if axes}
    filled = tree_unflatten(list(wide.values()), structure)
    call = tuple(filled.values())
    return ExampleCall(call[: len(args)], {name: filled[name] for name in named}, by_id, shared)


def input_name(path: str, shared: str) -> str:
    """The name of an input; if `forward` takes a single dict, inputs are named by its keys."""
    short = path.removeprefix(f"{shared}_") if shared else path
    return short if short.isidentifier() else path


def _key(part: Any) -> str:
    return str(getattr(part, "key", getattr(part, "idx", getattr(part, "name", part))))


def _names(module: Any, count: int) -> list[str]:
    """The names of positional arguments; arguments in *args are numbered."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):  # a forward without a Python signature: torch will raise its own error
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "input")
    return (names + [f"{rest}_{i}" for i in range(max(count - len(names), 0))])[:count]


def _float_of(module: Any) -> Any:
    return next((p.dtype for p in module.parameters() if p.dtype.is_floating_point), torch.float32)


def _as_tensor(value: Any, kind: Any) -> Any:
    """A tensor unchanged; an array as a tensor, floats in the dtype of the module."""
    if isinstance(value, np.ndarray | np.generic):
        if np.asarray(value).dtype.kind not in "biufc":
            fail(UsageError, f"from_torch: the example holds numbers; received an array of {np.asarray(value).dtype}.")
        tensor = torch.from_numpy(np.array(value))
        return tensor.to(kind) if tensor.is_floating_point() else tensor
    return value.detach() if isinstance(value, torch.Tensor) else value


def _widen_symbolic_axes(value: Any, axes: Mapping[int, str]) -> Any:
    """A new tensor of size at least two along each symbolic axis; tensors are told apart by identity."""
    if not isinstance(value, torch.Tensor) or not axes:
        return value
    for axis in axes:
        if not -value.ndim <= axis < value.ndim or value.shape[axis] == 0:
            fail(UsageError, f"dynamic: axis {axis} of an input of shape {tuple(value.shape)} is missing or empty.")
        if value.shape[axis] == 1:
            value = torch.cat([value, value], axis)
    return value.clone()
