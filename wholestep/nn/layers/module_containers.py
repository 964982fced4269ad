"""Lists and dicts of modules, and modules that only change shapes or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wholestep.compiler.frontend.shape import axes
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.nn.module.function_module import FunctionModule
from wholestep.nn.module.module import Module


def _check_module(kind: str, module: Any) -> Any:
    if not isinstance(module, Module | ModuleList | ModuleDict):
        fail(UsageError, f"{kind} holds modules; received {module!r}. For a function write ws.nn.Lambda(f).")
    return module


class ModuleList(list[Any]):
    """A list of modules.  A plain list in an attribute is found as well; this one refuses what is no module.

    Example: `self.blocks = ws.nn.ModuleList(ws.nn.Linear(8, 8) for _ in range(3))`.
    """

    def __init__(self, modules: Iterable[Any] = ()) -> None:
        super().__init__(_check_module("ModuleList", m) for m in modules)

    def append(self, module: Any) -> None:
        super().append(_check_module("ModuleList", module))


class ModuleDict(dict[str, Any]):
    """A dict of modules.  A plain dict in an attribute is found as well; this one refuses what is no module.

    Example: `self.heads = ws.nn.ModuleDict({"left": ws.nn.Linear(8, 2), "right": ws.nn.Linear(8, 3)})`.
    """

    def __init__(self, modules: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        super().__init__({name: _check_module("ModuleDict", m) for name, m in dict(modules).items()})

    def __setitem__(self, name: str, module: Any) -> None:
        super().__setitem__(name, _check_module("ModuleDict", module))

    def __getattr__(self, name: str) -> Any:
        """`self.blocks.first` is `self.blocks["first"]`."""
        if name in self:
            return self[name]
        raise AttributeError(f"this ModuleDict has no module {name!r}; it has: {', '.join(self) or 'none'}")


class Identity(Module):
    """x itself; arguments are ignored, as in PyTorch.  Example: `model.head = ws.nn.Identity()`."""

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def forward(self, x: Any) -> Any:
        return x


class Unflatten(FunctionModule, function=axes.unflatten):
    """One axis as several.  Example: `ws.nn.Unflatten(1, (16, 7, 7))`."""

    def __init__(self, axis: int, sizes: Sequence[int]) -> None:
        self.axis, self.sizes = axis, tuple(sizes)
