"""Modules made of modules."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.nn.module import Module


class Sequential(Module):
    """Modules one after the other.

    Example: `ws.nn.Sequential(ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10))`.
    """

    def __init__(self, *modules: Module) -> None:
        for m in modules:
            if not isinstance(m, Module):
                fail(UsageError, f"Sequential takes modules; received {m!r}. For a function write ws.nn.Lambda(f).")
        self.modules = list(modules)

    def children(self) -> dict[str, Module]:
        return {str(i): m for i, m in enumerate(self.modules)}

    def forward(self, x: Any) -> Any:
        for module in self.modules:
            x = module(x)
        return x

    def __len__(self) -> int:
        return len(self.modules)

    def __getitem__(self, position: int) -> Module:
        return self.modules[position]

    def __iter__(self) -> Iterator[Module]:
        return iter(self.modules)


class Residual(Module):
    """x + body(x) (arXiv:1512.03385), or shortcut(x) + body(x) where the shapes differ.

    Example: `ws.nn.Residual(ws.nn.Sequential(ws.nn.LayerNorm(64), ws.nn.Linear(64, 64)))`.
    """

    def __init__(self, body: Module, shortcut: Module | None = None) -> None:
        self.body, self.shortcut = body, shortcut

    def forward(self, x: Tensor) -> Tensor:
        straight = x if self.shortcut is None else self.shortcut(x)
        bent = self.body(x)
        if bent.shape != straight.shape:
            fail(
                UsageError,
                f"Residual: the body turns {straight!r} into {bent!r}; their shapes must agree. Give shortcut= a "
                "module that makes the same shape.",
            )
        return straight + bent  # type: ignore[no-any-return]
