"""Recording: making nodes that know the user's own line, and errors that show it."""

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

LOSS, METRICS, UPDATE = "(loss)", "(metrics)", "(update)"  # what is recorded for no layer
_LAYER: ContextVar[str] = ContextVar("layer", default="")
_PLACE: ContextVar[SourceLine | None] = ContextVar("place", default=None)


@contextmanager
def record_for_layer(layer: str) -> Iterator[None]:
    """Nodes recorded inside belong to a layer, the path of a module, or to what else a step consists of."""
    token = _LAYER.set(layer)
    try:
        yield
    finally:
        _LAYER.reset(token)


@contextmanager
def record_at_line(place: SourceLine | None) -> Iterator[None]:
    """Nodes recorded inside, and errors, have the line of another program: that of a network being imported."""
    token = _PLACE.set(place)
    try:
        yield
    finally:
        _PLACE.reset(token)


def layer_path(inner: str) -> str:
    """The path of a layer below what is being recorded now."""
    outer = _LAYER.get()
    return inner if not outer or outer.startswith("(") else f"{outer}.{inner}" if inner else outer


def user_line() -> SourceLine:
    """The line being executed in the nearest frame outside the package."""
    place = _PLACE.get()
    if place is not None:
        return place
    frame = sys._getframe(1)
    # By module and not by file: the constructor that a dataclass generates has no file.
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "wholestep":
        frame = frame.f_back
    return SourceLine(frame.f_code.co_filename, frame.f_lineno, _LAYER.get())


def locate(error: E) -> E:
    """The same error with the user's line as its last line; an error that has one is left alone."""
    if _MARK in str(error):
        return error
    return type(error)(f"{error}{user_line().shown}")


def fail(kind: type[WholestepError], text: str) -> NoReturn:
    raise locate(kind(text))


class located:  # noqa: N801  (reads as a phrase: `with located():`)
    """Errors raised inside show the user's line.

    A class, since a generator would put a frame of `contextlib` between us and the user.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, WholestepError):
            raise locate(error) from None


@contextmanager
def report_config_errors(kind: object) -> Iterator[None]:
    """What is wrong inside a description that `to_config` gave is an error of ours, whatever it broke."""
    try:
        yield
    except WholestepError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise OptionError(f"the description of {kind!r} is not one that to_config() gave: {error}.") from None


def record(op: str, inputs: Sequence[Node], attrs: Attrs = NONE, name: str = "") -> Node:
    """Make a node; what its type rule refuses is an error at the user's line."""
    try:
        return Node(op, inputs, attrs, name, user_line())
    except WholestepError as error:
        raise locate(error) from None
