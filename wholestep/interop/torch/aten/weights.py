"""The arrays of a torch module by name, in both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import DTypeError, UnknownNameError
from wholestep.interop.torch.aten.record import DTYPES, SMALL_INTEGERS
from wholestep.nn.module.module import Module
from wholestep.records import dataclass

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Held:
    """A parameter or buffer of a module."""

    array: Array
    trained: bool  # is it a parameter, which a call does not change?
    requires_grad: bool
    live: bool  # is it a leaf of the graph, rather than a constant in it?
    is_complex: bool
    same_as: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> str:
        return str(self.array.dtype.name)


def state_arrays(module: Any, programs: Any) -> dict[str, Held]:
    """All arrays of a module's state_dict, and buffers that a call changes, under torch's names."""
    from wholestep.interop.torch.aten.assemble import is_leaf

    live: set[str] = set()
    for exported in programs:
        live |= {str(name) for _, kind, name in exported.placeholders() if name and is_leaf(exported, kind, name)}
    changed = set().union(*(exported.mutations for exported in programs))
    parameters = dict(module.named_parameters(remove_duplicate=False))
    buffers = dict(module.named_buffers(remove_duplicate=False))
    saved = module.state_dict(keep_vars=True)
    first: dict[Any, str] = {}
    arrays: dict[str, Held] = {}
    for name, tensor in {**parameters, **buffers}.items():
        if name not in saved and name not in live:
            continue  # a constant buffer outside of the state_dict is part of the graph
        if name in buffers and name not in live and tensor.is_floating_point():
            live.add(name)  # the graph does not use it, but it can be loaded like the others
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.dtype) if tensor.numel() else name
        array = _as_array(name, tensor)
        is_parameter = name in parameters and name not in changed and tensor.numel() > 0
        same = first.setdefault(key, name)
        arrays[name] = Held(
            array,
            is_parameter,
            is_parameter and tensor.requires_grad,
            name in live or name in parameters,
            tensor.is_complex(),
            "" if same == name else same,
        )
    return arrays


def _as_array(name: str, tensor: Any) -> Array:
    """The numbers of a tensor; a view of its memory where that holds them as they are needed."""
    if tensor.dtype in (torch.bfloat16, torch.float16):
        fail(
            DTypeError,
            f"{name!r} is {tensor.dtype}: parameters are kept in float32. Import module.float(), and say "
            "precision='bfloat16' to ws.fit.",
        )
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.detach().resolve_conj())
    if tensor.dtype in SMALL_INTEGERS:
        return np.asarray(tensor.detach().cpu().contiguous().numpy().astype(SMALL_INTEGERS[tensor.dtype]))
    if tensor.dtype not in DTYPES:
        fail(DTypeError, f"{name!r} is {tensor.dtype}, which is not computed with here.")
    return np.asarray(tensor.detach().cpu().contiguous().numpy())


def give_back(module: Any, network: Module) -> Any:
    """Copy a network's weights to the torch module; nothing changes unless all of them fit."""
    numbers = network.state_dict()
    targets = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    missing = [name for name in numbers if name not in targets]
    if missing:
        fail(UnknownNameError, f"the module has no {missing[0]!r}; this network was imported from another one.")
    moved = {}
    for name, array in numbers.items():
        value = torch.from_numpy(array)
        value = torch.view_as_complex(value) if targets[name].is_complex() else value
        if value.shape != targets[name].shape:
            fail(UnknownNameError, f"{name!r} is {(*targets[name].shape,)} in the module, {(*value.shape,)} here.")
        moved[name] = value
    with torch.no_grad():
        for name, value in moved.items():
            targets[name].copy_(value)
    return module
