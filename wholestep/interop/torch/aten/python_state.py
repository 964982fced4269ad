"""Python values that `forward` may change: attributes, containers, class attributes, globals, random generators."""

from __future__ import annotations

import collections
import itertools
import random
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from wholestep.records import dataclass

DEPTH, ENTRIES = 4, 1000  # the greatest depth and number of entries that are compared
_OF_MODULES = frozenset(vars(torch.nn.Module())) | {"_forward_hooks_always_called", "_is_full_backward_hook"}
_OPAQUE = (torch.nn.Module, torch.Tensor, types.ModuleType, type, types.FunctionType, types.MethodType)
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_CONTAINERS = (dict, list, set, collections.deque)
_REFILLED = (*_CONTAINERS, collections.OrderedDict)
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState)
_SHARED = (int, float, itertools.count, *_CONTAINERS, *_RANDOM)  # types that are compared in classes and files


@dataclass(frozen=True)
class Value:
    """The location of a Python value."""

    owner: str  # the path of a module, or the name of a class or file
    name: str
    kind: str = "attribute"  # also "global", "generator" or "clock"

    def __str__(self) -> str:
        if self.kind == "generator":
            return f"the generator of {self.name}"
        if self.kind == "clock":
            return self.name
        if self.kind == "global":
            return f"{self.owner}.{self.name}"
        return f"self.{self.name}" + (f" of the module {self.owner!r}" if self.owner else "")


Values = dict[Value, object]  # a summary of each value that can be compared
# generators that all modules share
GENERATORS = (Value("", "random", "generator"), Value("", "np.random", "generator"))


class PythonState:
    """The Python state of a module other than parameters and buffers, and how to restore it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._owners = {getattr(owner, "__qualname__", owner.__name__): owner for owner in _shared_owners(module)}
        self._copies = [(holder, type(holder)(holder)) for holder in _containers(module)]
        self._attributes = [(part, dict(vars(part))) for part in module.modules()]
        self._globals = [(owner, dict(_shared_values(owner))) for owner in self._owners.values()]
        self._generators = random.getstate(), np.random.get_state()
        self.before = self.values()
        self.seen: dict[Value, None] = {}

    def values(self) -> Values:
        summary = _Summary()
        summaries: Values = {value: _generator_state(value.name) for value in GENERATORS}
        for path, part in self._module.named_modules():
            attributes = ((k, v) for k, v in vars(part).items() if k not in _OF_MODULES)
            summaries |= {Value(path, name): summary.of(value) for name, value in attributes}
        for label, owner in self._owners.items():
            summaries |= {Value(label, name, "global"): summary.of(value) for name, value in _shared_values(owner)}
        return summaries

    def values_of(self, wanted: Sequence[Value]) -> Values:
        """The current summaries of some values; the line tracer reads them at every line."""
        summary, summaries = _Summary(), Values()
        for value in wanted:
            if value.kind == "attribute":
                summaries[value] = summary.of(vars(self._module.get_submodule(value.owner)).get(value.name))
            elif value.kind == "global":
                summaries[value] = summary.of(vars(self._owners[value.owner]).get(value.name))
            elif value.kind == "generator":
                summaries[value] = _generator_state(value.name)
        return summaries

    def see(self) -> None:
        """Record the values that have changed; called while torch traces."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            self.seen |= dict.fromkeys(diff(self.before, self.values()))

    def restore(self) -> None:
        for holder, copy in self._copies:
            _refill(holder, copy)
        for part, names in self._attributes:
            _refill(vars(part), names)
        for owner, names in self._globals:
            for name, value in names.items():
                if vars(owner).get(name) is not value:
                    setattr(owner, name, value)
        random.setstate(self._generators[0])
        np.random.set_state(self._generators[1])


def _generator_state(generator: str) -> object:
    return hash(random.getstate()) if generator == "random" else _Summary().of(np.random.mtrand._rand)


def diff(a: Values, b: Values) -> list[Value]:
    absent = object()
    return [key for key in {**a, **b} if a.get(key, absent) != b.get(key, absent)]


def _shared_owners(module: torch.nn.Module) -> list[Any]:
    """The user-defined classes of a module's submodules, and the files that define them."""
    kinds = dict.fromkeys(
        c
        for part in module.modules()
        for c in type(part).__mro__
        if not c.__module__.startswith(("torch.", "builtins"))
    )
    files = dict.fromkeys(sys.modules[c.__module__] for c in kinds if c.__module__ in sys.modules)
    return [*kinds, *files]


def _shared_values(owner: Any) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(owner).items()):
        if isinstance(value, _SHARED) and not isinstance(value, bool) and not name.startswith("__"):
            yield name, value


def _containers(module: torch.nn.Module) -> list[Any]:
    """Every mutable container that the modules, their classes and files hold, and the `vars` of objects."""
    containers: dict[int, Any] = {}

    def visit(value: Any, depth: int) -> None:
        holder: Any = value if type(value) in _REFILLED else getattr(value, "__dict__", None)
        if isinstance(value, _OPAQUE) or type(holder) not in _REFILLED:
            return
        if id(holder) in containers or depth == 0 or len(holder) > ENTRIES:
            return
        containers[id(holder)] = holder
        for inner in holder.values() if isinstance(holder, dict) else holder:
            visit(inner, depth - 1)

    for part in module.modules():
        for value in vars(part).values():
            visit(value, DEPTH)
    for owner in _shared_owners(module):
        for _, value in _shared_values(owner):
            visit(value, DEPTH)
    return list(containers.values())


def _refill(holder: Any, copy: Any) -> None:
    """Restore the items of a container; an unchanged one is not touched."""
    if len(holder) == len(copy) and all(a is b for a, b in zip(_items(holder), _items(copy))):
        return
    holder.clear()
    holder.extend(copy) if isinstance(holder, list | collections.deque) else holder.update(copy)


def _items(holder: Any) -> Iterator[Any]:
    return itertools.chain(holder, holder.values()) if isinstance(holder, dict) else iter(holder)


class _Summary:
    """Builds comparable summaries of values; each object is visited once."""

    def __init__(self) -> None:
        self._known: dict[int, object] = {}

    def of(self, value: Any, depth: int = DEPTH) -> object:
        if isinstance(value, _PLAIN):
            return repr(value)
        if id(value) not in self._known:
            self._known[id(value)] = type(value).__name__  # returned when a reference cycle reaches the object again
            self._known[id(value)] = self._look(value, depth)
        return self._known[id(value)]

    def _look(self, value: Any, depth: int) -> object:
        if isinstance(value, torch.Tensor):
            return _summary_of_tensor(value)
        if isinstance(value, np.ndarray):
            return value.shape, str(value.dtype), hash(value.tobytes()) if value.dtype.kind != "O" else None
        if isinstance(value, random.Random):
            return hash(value.getstate())
        if isinstance(value, np.random.Generator):
            return repr(value.bit_generator.state)
        if isinstance(value, np.random.RandomState):
            state: Any = value.get_state()
            return state[1].tobytes(), state[2]
        if isinstance(value, itertools.count):
            return repr(value)
        if depth == 0 or isinstance(value, _OPAQUE):
            return type(value).__name__
        if isinstance(value, list | tuple | collections.deque):
            return len(value), [self.of(v, depth - 1) for v in itertools.islice(value, ENTRIES)]
        if isinstance(value, set | frozenset):
            return len(value), {str(v) for v in itertools.islice(value, ENTRIES)}
        if isinstance(value, Mapping):
            return len(value), {str(k): self.of(v, depth - 1) for k, v in itertools.islice(value.items(), ENTRIES)}
        return type(value).__name__, {k: self.of(v, depth - 1) for k, v in getattr(value, "__dict__", {}).items()}


def _summary_of_tensor(tensor: torch.Tensor) -> object:
    kind = (tuple(map(str, tensor.shape)), str(tensor.dtype))
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_meta:
        return kind  # created by tracing, hence without values
    dense = tensor.detach().to_dense() if tensor.layout is not torch.strided else tensor.detach()
    return *kind, hash(dense.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
