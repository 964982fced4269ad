"""Copies of modules whose weights are not initialized yet: with the same initial weights, or with independent ones."""

from __future__ import annotations

import copy
from contextvars import ContextVar
from typing import TYPE_CHECKING

from wholestep.compiler.frontend.trace import bind_value

if TYPE_CHECKING:
    from wholestep.nn.module.module import Module

_is_equal: ContextVar[bool] = ContextVar("_is_equal", default=True)


def prepare_copy(module: Module) -> None:
    """Before a module is copied or pickled: original and copy get the same initial weights, unless independent."""
    if _is_equal.get():
        from wholestep.steps.states import pin_origins

        pin_origins(module)


def independent_copies(module: Module, count: int) -> list[Module]:
    """Independent copies of a module without values: the weights of each are drawn by its own name in the network."""
    with bind_value(_is_equal, False):
        return [copy.deepcopy(module) for _ in range(count)]
