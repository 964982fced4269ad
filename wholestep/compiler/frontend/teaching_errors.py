"""Errors that teach: operations that need a concrete value, which a traced tensor does not have."""

from __future__ import annotations

from typing import Any, NoReturn

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.lazy import interop


class TracedValue:
    """Base of tensors: every operation that would read a concrete value raises an error with the alternative."""

    __slots__ = ()

    def _no_value(self, what: str, instead: str) -> NoReturn:
        fail(UsageError, f"{what} of {self!r}: a tensor has no value while the program is recorded. {instead}")

    def __bool__(self) -> NoReturn:
        self._no_value("the truth value", "Choose element by element with ws.where(condition, a, b).")

    def __float__(self) -> NoReturn:
        self._no_value("float()", "Return it as an output and read it after a step: float(session.step(...).loss).")

    def __int__(self) -> NoReturn:
        self._no_value("int()", "Return it as an output and read it after a step.")

    def __iter__(self) -> NoReturn:
        self._no_value("iteration", "Index it, x[i], or compute on all elements at once.")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        self._no_value(
            "a NumPy array", "Return it as an output, or keep(name) it and read session.get(name) after a step."
        )

    @classmethod
    def __torch_function__(cls, function: Any, *_: object) -> NoReturn:
        """The hook that torch calls when one of its functions gets an object of this class."""
        name = getattr(function, "__name__", function)
        suggestion = interop.suggest_torch_function(function)
        fail(UsageError, f"torch's {name} was called on a tensor of a program: {suggestion}.")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        fail(
            UsageError,
            f"x[...] = value of {self!r}: tensors are never changed in place. Choose element by element with "
            "ws.where(condition, value, x), replace rows with ws.write_rows(x, rows, start).",
        )

    def __getattr__(self, attribute: str) -> Any:
        """Functions of `ws` as methods, or an error that translates another library's name."""
        return interop.foreign_attribute("a tensor", self, attribute)
