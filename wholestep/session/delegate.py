"""Methods that a session has from its parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def delegate(part: str, method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """The method of a part as one of its owner's, with its signature and docstring: `part` names the attribute."""

    return delegate_overloaded(part, method)


def delegate_overloaded(part: str, method: F) -> F:
    """The same of a method with several signatures, which say `self: Any`: types are those of the method itself."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return method(getattr(self, part), *args, **kwargs)

    return call  # type: ignore[return-value]
