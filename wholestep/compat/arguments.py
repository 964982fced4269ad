"""Arguments under their names in other libraries: functions and layers take them, and are written without them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping
from functools import wraps
from typing import Any, NoReturn, TypeVar

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def takes_their_words(function: F) -> F:
    """A function that also takes its arguments under the names of `tables/keywords.py`.

    Nothing is looked up unless an argument is not the function's own.
    """
    code = function.__code__
    known = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if code.co_flags & 0x08:  # it has **options: every name is its own
        return function
    own, needed = frozenset(known), code.co_argcount - len(function.__defaults__ or ())
    most = code.co_argcount if not code.co_flags & 0x04 else sys.maxsize  # it has *args
    name, of_class = function.__name__, function.__name__ == "__init__"

    @wraps(function)
    def called(*args: Any, **named: Any) -> Any:
        if of_class and "trainable" in named and "trainable" not in own and hasattr(args[0], "freeze"):
            trainable = named.pop("trainable")
            called(*args, **named)
            args[0].trainable = trainable
            return None
        if named and not named.keys() <= own:
            kinds = [kind.__name__ for kind in type(args[0]).__mro__] if of_class else [name]
            named = translate_arguments(kinds, [n for n in known if n != "self"], named)
        if len(args) > most:
            words = [n for n in known[:most] if n != "self"]
            received = len(args) - most + len(words)
            fail(UsageError, f"{name} takes {', '.join(words)} by position; received {received}. Name the others.")
        if len(args) + len(named) < needed:
            _refuse_few(type(args[0]).__name__ if of_class else name, known[:needed], args, named)
        return function(*args, **named)

    return called  # type: ignore[return-value]


def take_their_words(module: dict[str, Any], names: list[str]) -> None:
    """Let the public functions of a module do so: `take_their_words(globals(), __all__)` at its end."""
    taking = {function: takes_their_words(function) for function in {module[name] for name in names}}
    module.update({name: taking[module[name]] for name in names})  # two names of one function stay one


def translate_arguments(kinds: list[str], known: list[str], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under our names; one that cannot be taken is an error that says what to write."""
    from wholestep.compat.rows import Only, Say
    from wholestep.compat.tables.keywords import EVERYWHERE, KEYWORDS

    function = kinds[0]  # or a class, before those that it is derived from
    rows = dict(EVERYWHERE)
    for kind in reversed(kinds):
        rows.update(KEYWORDS.get(kind, {}))
    out: dict[str, Any] = {}
    for name, value in named.items():
        row = name if name in known else rows.get(name)
        if isinstance(row, tuple):  # the first of several words that the function has
            row = next((word for word in row if word in known), None)
        if isinstance(row, Only):
            if not _is_one_of(value, row.values):
                fail(UsageError, f"{function}: {name}={value!r} is not taken: {row.text}.")
            continue
        if isinstance(row, Say):
            fail(UsageError, f"{function} has no argument {name!r}: {row.text}.")
        if row is None or row not in known:
            _refuse(function, name, known)
        if row in out or (row in named and row != name):
            fail(UsageError, f"{function}: {name}= is another name of {row}=, and both were given.")
        out[row] = value
    return out


def without_their_words(function: str, own: Container[str], named: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments without those of another library's function; one that would change something is answered."""
    from wholestep.compat.rows import Say
    from wholestep.compat.tables.keywords import KEYWORDS

    rows = KEYWORDS[function]
    theirs = {name: value for name, value in named.items() if name in rows and name not in own}
    for name, value in theirs.items():
        row = rows[name]
        text = row.text if isinstance(row, Say) or not _is_one_of(value, row.values) else None  # type: ignore[union-attr]
        if text is not None:
            fail(UsageError, f"{function}: {name}={value!r} is not taken: {text}.")
    return {name: value for name, value in named.items() if name not in theirs}


def _refuse_few(function: str, needed: tuple[str, ...], args: tuple[Any, ...], named: Mapping[str, Any]) -> NoReturn:
    words = [word for word in needed if word != "self"]
    given = len(args) + len(named) - (len(needed) - len(words))
    fail(UsageError, f"{function} needs {len(words)} arguments, {function}({', '.join(words)}); received {given}.")


def _is_one_of(value: object, allowed: tuple[object, ...]) -> bool:
    from wholestep.compat.rows import EVERY

    return any(a is EVERY or a is value or (type(a) is type(value) and a == value) for a in allowed)


def _refuse(function: str, name: str, known: list[str]) -> NoReturn:
    from difflib import get_close_matches  # a program without mistakes needs none

    close = get_close_matches(name, known, 1)
    hint = f" Did you mean {close[0]}=?" if close else ""
    listed = f"It has: {', '.join(known)}." if known else "It takes none."
    fail(UsageError, f"{function} has no argument {name!r}.{hint} {listed}")
