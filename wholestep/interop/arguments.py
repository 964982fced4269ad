"""Wrappers that let functions and layers accept the argument names of other libraries (`keywords.py`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping
from functools import wraps
from types import FunctionType, ModuleType
from typing import Any, NoReturn, TypeVar

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


# In modules of these packages, the functions in `__all__` are wrapped; layers (`Module`) are wrapped in every module.
_WITH_PUBLIC_FUNCTIONS = (
    "wholestep.compiler.frontend.", "wholestep.nn.functional", "wholestep.nn.loss_modules",
    "wholestep.interop.torch.functions.",
)  # fmt: skip
# In other modules, only these functions and classes are wrapped.
_ADAPTED: dict[str, tuple[str, ...]] = {
    "wholestep.compiler.frontend.functions.reductions": ("sum", "mean", "max", "min", "argmax"),
    "wholestep.nn.module.methods": ("evaluate",),
    "wholestep.callbacks.checkpoint": ("ModelCheckpoint",),
    "wholestep.callbacks.loggers": ("CSVLogger", "TensorBoardLogger"),
    "wholestep.callbacks.stopping": ("EarlyStopping",),
    "wholestep.data.files": ("read_csv", "read_frame"),
    "wholestep.data.tables.encoder": ("Encoder",),
    "wholestep.data.loader": ("DataLoader",),
}


def adapt(module: ModuleType) -> None:
    """Wrap the public functions and the layers of a module: they also accept the names of `keywords.py`.

    The post-import hook of `lazy.py` calls it before any other module can import a name of this one.
    """
    values, home = vars(module), module.__name__
    names = _ADAPTED.get(home) or (values.get("__all__", ()) if home.startswith(_WITH_PUBLIC_FUNCTIONS) else ())
    public = {values[name] for name in names}
    wrapped = {f: accept_foreign_arguments(f) for f in public if isinstance(f, FunctionType) and f.__module__ == home}
    values.update({name: wrapped[values[name]] for name in names if values[name] in wrapped})  # aliases stay aliases
    layer = getattr(sys.modules.get("wholestep.nn.module.module"), "Module", ())
    for value in dict.fromkeys(value for value in values.values() if isinstance(value, type)):
        if value.__module__ == home and (value in public or (value is not layer and issubclass(value, layer))):
            _adapt_constructor(value)


def _adapt_constructor(cls: Any) -> None:
    if "__init__" in vars(cls):
        cls.__init__ = accept_foreign_arguments(cls.__init__)
    elif cls.__init__ is object.__init__:
        cls.__init__ = _init_without_arguments


def accept_foreign_arguments(function: F) -> F:
    """Wrap a function so that it also accepts its arguments under the names of `keywords.py`.

    Nothing is looked up unless an argument is not the function's own.
    """
    code = function.__code__
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if code.co_flags & 0x08:  # the function has **options, which accept every name
        return function
    own_names, needed = frozenset(parameters), code.co_argcount - len(function.__defaults__ or ())
    most = code.co_argcount if not code.co_flags & 0x04 else sys.maxsize  # the function has *args
    name, of_class = function.__name__, function.__name__ == "__init__"

    @wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        if of_class and "trainable" in named and "trainable" not in own_names and hasattr(args[0], "freeze"):
            trainable = named.pop("trainable")
            wrapper(*args, **named)
            args[0].trainable = trainable
            return None
        if named and not named.keys() <= own_names:
            kinds = [kind.__name__ for kind in type(args[0]).__mro__] if of_class else [name]
            named = translate_arguments(kinds, [n for n in parameters if n != "self"], named)
        if len(args) > most:
            words = [n for n in parameters[:most] if n != "self"]
            received = len(args) - most + len(words)
            fail(UsageError, f"{name} takes {', '.join(words)} by position; received {received}. Name the others.")
        if len(args) + len(named) < needed:
            _refuse_few(type(args[0]).__name__ if of_class else name, parameters[:needed], args, named)
        if of_class and named:
            _check_names(type(args[0]).__name__, parameters, needed, len(args), named)
        return function(*args, **named)

    return wrapper  # type: ignore[return-value]


def _inplace(self: object, *inplace: bool) -> None:
    """Accept torch's `ReLU(True)`: `inplace` is ignored, since the memory planner decides what is overwritten."""
    if inplace not in ((), (True,), (False,)):
        fail(UsageError, f"{type(self).__name__}() takes nothing; received {', '.join(map(repr, inplace))}.")


_inplace.__name__ = "__init__"
_init_without_arguments = accept_foreign_arguments(_inplace)


def translate_arguments(kinds: list[str], parameters: list[str], named: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under our names; an unsupported argument is an error that says what to write."""
    from wholestep.interop.keywords import EVERYWHERE, KEYWORDS
    from wholestep.interop.name_tables import Only, Say

    function = kinds[0]  # the function, or the class before its base classes
    rows = dict(EVERYWHERE)
    for kind in reversed(kinds):
        rows.update(KEYWORDS.get(kind, {}))
    out: dict[str, Any] = {}
    for name, value in named.items():
        row = name if name in parameters else rows.get(name)
        if isinstance(row, tuple):  # several names: the first one that the function has
            row = next((word for word in row if word in parameters), None)
        if isinstance(row, Only):
            if not _is_one_of(value, row.values):
                fail(UsageError, f"{function}: {name}={value!r} is not supported: {row.text}.")
            continue
        if isinstance(row, Say):
            fail(UsageError, f"{function} has no argument {name!r}: {row.text}.")
        if row is None or row not in parameters:
            _refuse(function, name, parameters)
        if row in out or (row in named and row != name):
            fail(UsageError, f"{function}: {name}= is another name of {row}=, and both were given.")
        out[row] = value
    return out


def drop_foreign_arguments(function: str, own: Container[str], named: Mapping[str, Any]) -> dict[str, Any]:
    """Drop arguments that have no effect here; raise an error if a dropped argument would have had an effect."""
    from wholestep.interop.keywords import KEYWORDS
    from wholestep.interop.name_tables import Say

    rows = KEYWORDS[function]
    theirs = {name: value for name, value in named.items() if name in rows and name not in own}
    for name, value in theirs.items():
        row = rows[name]
        text = row.text if isinstance(row, Say) or not _is_one_of(value, row.values) else None  # type: ignore[union-attr]
        if text is not None:
            fail(UsageError, f"{function}: {name}={value!r} is not supported: {text}.")
    return {name: value for name, value in named.items() if name not in theirs}


def _refuse_few(function: str, needed: tuple[str, ...], args: tuple[Any, ...], named: Mapping[str, Any]) -> NoReturn:
    words = [word for word in needed if word != "self"]
    received = len(args) + len(named) - (len(needed) - len(words))
    fail(UsageError, f"{function} needs {len(words)} arguments, {function}({', '.join(words)}); received {received}.")


def _check_names(kind: str, names: tuple[str, ...], needed: int, count: int, named: Mapping[str, Any]) -> None:
    """Raise UsageError for a missing or repeated argument, as Python's error would name `__init__` of a base class."""
    if missing := [name for name in names[count:needed] if name not in named]:
        fail(UsageError, f"{kind} lacks {missing[0]}: write {kind}({', '.join(names[1:needed])}).")
    if twice := [name for name in names[1:count] if name in named]:
        fail(UsageError, f"{kind}: {twice[0]} was given by position and by name; give it once.")


def _is_one_of(value: object, allowed: tuple[object, ...]) -> bool:
    from wholestep.interop.name_tables import EVERY

    return any(a is EVERY or a is value or (type(a) is type(value) and a == value) for a in allowed)


def _refuse(function: str, name: str, parameters: list[str]) -> NoReturn:
    from difflib import get_close_matches  # imported here because it is only needed after a mistake

    close = get_close_matches(name, parameters, 1)
    hint = f" Did you mean {close[0]}=?" if close else ""
    listed = f"It has: {', '.join(parameters)}." if parameters else "It takes none."
    fail(UsageError, f"{function} has no argument {name!r}.{hint} {listed}")
