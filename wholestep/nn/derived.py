"""Copies of modules without values, and classes created at run time, which `pickle` and `copy` recreate."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.trace import bind_value
from wholestep.records import dataclass

if TYPE_CHECKING:
    from wholestep.nn.module.module import Module


@dataclass(frozen=True)
class Recipe:
    """`factory(*arguments)` recreates a class; arguments that are such classes are recipes themselves."""

    factory: Callable[..., type]
    arguments: tuple[Any, ...]


def make_subclass(
    kind: type, body: Mapping[str, Any], factory: Callable[..., type], *arguments: Any, name: str | None = None
) -> type[Any]:
    """A subclass of `kind` that `factory(*arguments)` creates, so that its instances can be pickled.

    The factory is a function of a module, the arguments are classes and plain values.
    """
    members = {
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
        "__reduce_ex__": _reduce,
        "_recipe": Recipe(factory, arguments),
    }
    return type(name or kind.__name__, (kind,), {**members, **body})


def _reduce(self: Any, _: Any) -> tuple[Any, ...]:
    return _empty, (_recipe_of(type(self)),), self.__getstate__()


def _recipe_of(kind: Any) -> Any:
    recipe = vars(kind).get("_recipe") if isinstance(kind, type) else None
    return kind if recipe is None else Recipe(recipe.factory, tuple(map(_recipe_of, recipe.arguments)))


def _class_of(recipe: Any) -> Any:
    return recipe.factory(*map(_class_of, recipe.arguments)) if isinstance(recipe, Recipe) else recipe


def _empty(recipe: Any) -> Any:
    kind = _class_of(recipe)
    return kind.__new__(kind)


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
