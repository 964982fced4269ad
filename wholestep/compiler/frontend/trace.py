"""Tracing: nodes are recorded with the user's source line, and errors show that line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NoReturn, TypeVar

from wholestep.compiler.ir.attrs import NONE, Attrs
from wholestep.compiler.ir.graph import Node, SourceLine
from wholestep.errors import OptionError, WholestepError

_MARK = "\n  at "

E = TypeVar("E", bound=WholestepError)

LOSS, METRICS, UPDATE = "(loss)", "(metrics)", "(update)"  # pseudo-layers: nodes that belong to no module
_LAYER: ContextVar[str] = ContextVar("layer", default="")
_LINE: ContextVar[SourceLine | None] = ContextVar("place", default=None)


@contextmanager
def record_for_layer(layer: str) -> Iterator[None]:
    """Nodes recorded inside are attributed to a layer (the path of a module) or to a pseudo-layer such as `(loss)`."""
    token = _LAYER.set(layer)
    try:
        yield
    finally:
        _LAYER.reset(token)


@contextmanager
def record_at_line(line: SourceLine | None) -> Iterator[None]:
    """Nodes recorded inside, and errors, get this source line: that of a network being imported."""
    token = _LINE.set(line)
    try:
        yield
    finally:
        _LINE.reset(token)


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
    return type(error)(f"{error}{user_line().shown}")


def fail(kind: type[WholestepError], text: str) -> NoReturn:
    raise locate(kind(text))


class located:  # noqa: N801  (reads as a phrase: `with located():`)
    """Errors raised inside show the user's line.

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
        raise OptionError(f"invalid description of {kind!r}, which to_config() would not return: {error}.") from None


def record(op: str, inputs: Sequence[Node], attrs: Attrs = NONE, name: str = "") -> Node:
    """Builds a node; type errors are reported at the user's line."""
    try:
        return Node(op, inputs, attrs, name, user_line())
    except WholestepError as error:
        raise locate(error) from None
