"""Tracing: nodes are recorded with the user's source line, and errors show that line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, TypeVar

from wholestep.compiler.ir.attrs import NONE, Attrs
from wholestep.compiler.ir.graph import Node, SourceLine
from wholestep.errors import OptionError, UsageError, WholestepError
from wholestep.lazy import interop

_MARK = "\n  at "

E = TypeVar("E", bound=WholestepError)
T = TypeVar("T")

LOSS, METRICS, UPDATE = "(loss)", "(metrics)", "(update)"  # pseudo-layers: nodes that belong to no module
_LAYER: ContextVar[str] = ContextVar("layer", default="")
_LINE: ContextVar[SourceLine | None] = ContextVar("place", default=None)


@contextmanager
def bind_value(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Inside the context, a context variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def record_for_layer(layer: str) -> AbstractContextManager[None]:
    """Nodes recorded inside are attributed to a layer (the path of a module) or to a pseudo-layer such as `(loss)`."""
    return bind_value(_LAYER, layer)


def record_at_line(line: SourceLine | None) -> AbstractContextManager[None]:
    """Nodes and errors inside get this source line, such as a line of a network that is being imported."""
    return bind_value(_LINE, line)


def layer_path(inner: str) -> str:
    """The path of a layer relative to the layer that is being recorded."""
    outer = _LAYER.get()
    return inner if not outer or outer.startswith("(") else f"{outer}.{inner}" if inner else outer


def user_line() -> SourceLine:
    """The line being executed in the nearest frame outside the package."""
    line = _LINE.get()
    if line is not None:
        return line
    frame = sys._getframe(1)
    # By module rather than by file, because the generated constructor of a dataclass has no file.
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "wholestep":
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno, _LAYER.get())


def locate(error: E) -> E:
    """The same error with the user's line appended, unless it already has one."""
    if _MARK in str(error):
        return error
    return type(error)(f"{error}{user_line().error_note}")


def fail(kind: type[WholestepError], text: str) -> NoReturn:
    raise locate(kind(text))


class located:  # noqa: N801  (reads as a phrase: `with located():`)
    """Context manager: errors raised inside show the user's line.

    A class, because @contextmanager would add a frame of `contextlib` between this one and the user's.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, WholestepError):
            raise locate(error) from None


@contextmanager
def report_config_errors(kind: object) -> Iterator[None]:
    """Converts any exception while a `to_config()` description is read into an OptionError."""
    try:
        yield
    except WholestepError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise OptionError(f"this is not a configuration of {kind!r} as to_config() returns it: {error}.") from None


def record(op: str, inputs: Sequence[Node], attrs: Attrs = NONE, name: str = "") -> Node:
    """Builds a node; type errors are reported at the user's line."""
    try:
        return Node(op, inputs, attrs, name, user_line())
    except WholestepError as error:
        raise locate(error) from None


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
