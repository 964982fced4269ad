"""`FunctionModule`: modules whose `forward` is one call of a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wholestep.nn.module.module import Module

if TYPE_CHECKING:
    from wholestep.compiler.frontend.tensor import Tensor


class FunctionModule(Module):
    """A function of one tensor as a module: `class SiLU(FunctionModule, function=silu)`.

    The arguments of `__init__` are further arguments of the function: `__init__` assigns each of them to an attribute
    of its name, and `forward` passes these after x, in the order of the signature; `options` shows them.
    """

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None, **options: Any) -> None:
        if function is not None:
            names = _arguments(cls.__init__)
            forward: Any = _call_of(function, names)
            cls.forward = forward  # type: ignore[method-assign]
            if names and cls.options is Module.options:
                options_of_names: Any = _options_of(names)
                cls.options = options_of_names  # type: ignore[method-assign]
        super().__init_subclass__(**options)

    if TYPE_CHECKING:

        def forward(self, x: Tensor) -> Tensor: ...


def _arguments(constructor: Any) -> tuple[str, ...]:
    """The names of the arguments of an `__init__`, without `self`."""
    code = getattr(getattr(constructor, "__wrapped__", constructor), "__code__", None)
    return () if code is None else code.co_varnames[1 : code.co_argcount]  # `object.__init__` has no code


def _call_of(function: Callable[..., Tensor], arguments: tuple[str, ...]) -> Callable[[Any, Tensor], Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        return function(x, *(getattr(self, name) for name in arguments))

    return forward


def _options_of(arguments: tuple[str, ...]) -> Callable[[Any], str]:
    def options(self: Any) -> str:
        """The arguments that `repr` shows in brackets."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in arguments)

    return options
