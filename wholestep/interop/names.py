"""Lookup of other libraries' names: a name with the same meaning is resolved, any other raises an error with advice."""

from __future__ import annotations

import sys
from functools import cache, reduce
from importlib import import_module
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.trace import locate
from wholestep.errors import HabitError, HabitImportError

if TYPE_CHECKING:
    from wholestep.interop.name_tables import NameTable


@cache
def all_tables() -> tuple[NameTable, ...]:
    """All tables, in the order in which they are searched."""
    from wholestep.interop.keras import names as keras
    from wholestep.interop.name_tables import GRAPHS, SESSIONS, TRAINERS
    from wholestep.interop.torch.names import functions, methods, modules

    return (
        functions.TORCH, modules.NN, modules.FUNCTIONAL, modules.INIT, modules.OPTIM, modules.SCHEDULERS, keras.KERAS,
        keras.KERAS_LAYERS, methods.TENSORS, methods.MODULES, methods.PARAMETERS, methods.RESULTS, methods.LOSS_VALUES,
        keras.LOSSES, keras.METRICS, keras.CALLBACKS, modules.DATA, modules.UTILS, modules.NN_UTILS, GRAPHS, SESSIONS,
        TRAINERS,
    )  # fmt: skip


@cache
def _tables_of(place: str) -> tuple[NameTable, ...]:
    return tuple(table for table in all_tables() if table.ours == place)


def path_of(place: str, name: str) -> str | None:
    """The path from `ws` of our object with the same meaning as another library's name."""
    return next((t.same[name] for t in _tables_of(place) if name in t.same), None)


def suggestion(place: str, name: str) -> str | None:
    """What to write for another library's name, as a sentence without its full stop."""
    return next((text for t in _tables_of(place) if (text := t.answer(name)) is not None), None)


def resolve_path(path: str) -> Any:
    """The object for a path in the tables, such as `ws.nn.Linear` or `wholestep.compiler.ir.types:boolean`."""
    if ":" in path:
        home, _, attribute = path.partition(":")
        return reduce(getattr, attribute.split("."), import_module(home))
    value: Any = import_module("wholestep")
    for part in path.split(".")[1:]:
        value = getattr(value, part)
    return value


def resolve_missing(package: str, name: str) -> Any:
    """Resolve a name that a package does not export: return an object with the same meaning, or raise an error."""
    place = "ws" + package.removeprefix("wholestep")
    path = None if name.startswith("_") else path_of(place, name)
    if path is not None:
        return resolve_path(path)
    text = None if name.startswith("_") else suggestion(place, name)
    home = None if name.startswith("_") else _home(package, name)
    if text is None and home is None and not name.startswith("_"):
        text = _answer_elsewhere(name)
    if text is None:
        hint = f". It is {home}.{name}" if home else _close(package, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}{hint}")
    sentence = f"there is no `{place}.{name}`: {text}."
    # `from wholestep.nn import X` would replace an AttributeError with an ImportError without our text.
    raise locate(HabitImportError(sentence) if _imports(sys._getframe(2)) else HabitError(sentence))


def _answer_elsewhere(name: str) -> str | None:
    """The answer for names that users look for in several packages: helpers, callbacks, transforms."""
    return next((text for place in ("ws.utils", "ws.callbacks", "ws.data") if (text := suggestion(place, name))), None)


def _imports(frame: Any) -> bool:
    """Is the frame executing a `from ... import`?"""
    from opcode import opmap

    return bool(frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"])


_FOLDERS = ("nn", "losses", "optim", "nn.functional", "schedules", "metrics", "data", "callbacks")


def _home(package: str, name: str) -> str | None:
    """The package of Wholestep that exports the name."""
    places = (*(f"ws.{folder}" for folder in _FOLDERS), "ws")
    others = (place for place in places if place != "ws" + package.removeprefix("wholestep"))
    return next((place for place in others if name in resolve_path(place).__all__), None)


def _close(package: str, name: str) -> str:
    """The most similar name in this package."""
    from difflib import get_close_matches

    close = get_close_matches(name, getattr(sys.modules[package], "__all__", ()), 1, 0.75)
    return f". Did you mean {close[0]!r}?" if close else ""


def foreign_attribute(place: str, owner: object, name: str, what: str = "") -> Any:
    """Another library's method with the same meaning as a missing attribute, or an error that says what to write."""
    path = None if name.startswith("_") else path_of(place, name)
    if path is not None:
        value = resolve_path(path)
        return MethodType(value, owner) if isinstance(value, FunctionType) else value
    text = None if name.startswith("_") else suggestion(place, name)
    if text is None and place == "a tensor" and not name.startswith("_"):
        text = suggestion("ws", name)  # most methods of torch's tensors are functions as well
    if text is None:
        raise AttributeError(f"{what or place} has no attribute {name!r}")
    raise locate(HabitError(f"{place} has no `{name}`: {text}."))


# -- objects of other libraries ----------------------------------------------------------------------------------------

LIBRARIES = {"torch": "torch", "torchvision": "torch", "keras": "Keras", "tensorflow": "Keras", "flax": "Flax"}


def library_of(value: object) -> str:
    """The library that defines an object, a class or a function; "" if it is none of the supported ones."""
    home = getattr(value, "__module__", None) if isinstance(value, type) or hasattr(value, "__name__") else None
    home = home or type(value).__module__
    return LIBRARIES.get(str(home).partition(".")[0], "")


def suggest_replacement(value: object, place: str) -> str:
    """A hint such as `That is torch's Linear: write ws.nn.Linear(...).`; "" if the object is from no known library."""
    library = library_of(value)
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    if not library:
        return ""
    path = path_of(place, name)
    here = path or (f"{place}.{name}" if name in getattr(resolve_path(place), "__all__", ()) else None)
    text = f"write {here}(...)" if here else suggestion(place, name)
    return f"That is {library}'s {name}" + (f": {text}." if text else "; layers and functions are those of ws.")


def suggest_torch_function(function: Any) -> str:
    """What to write for a function of torch that was called on our tensor."""
    name = str(getattr(function, "__name__", function))
    for place in ("ws", "ws.nn.functional"):
        if path_of(place, name) or name in getattr(resolve_path(place), "__all__", ()):
            return f"write {place}.{name}(...)"
        text = suggestion(place, name)
        if text is not None:
            return text
    return "functions of tensors are in ws and ws.nn.functional"


# -- modules that exist in other libraries only -----------------------------------------------------------------------


class Namespace:
    """An object such as `ws.utils`: not a module, but it resolves the names that users look for there."""

    __all__: tuple[str, ...] = ()

    def __init__(self, place: str, purpose: str) -> None:
        self._place, self._purpose = place, purpose

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{self._place} has no attribute {name!r}")
        path = path_of(self._place, name)
        if path is not None:
            return resolve_path(path)
        text = suggestion(self._place, name) or self._purpose
        raise locate(HabitError(f"there is no `{self._place}.{name}`: {text}."))

    def __repr__(self) -> str:
        return f"<{self._place}: {self._purpose}>"


UTILS = Namespace("ws.utils", "batches are ws.DataLoader, files and splits in ws.data, checkpoints ws.save_checkpoint")
NN_UTILS = Namespace("ws.nn.utils", "gradients are clipped by ws.fit(..., clip_norm=1.0); layers are in ws.nn")
RNN_UTILS = Namespace(
    "ws.nn.utils", NN_UTILS._purpose
)  # the names of torch.nn.utils.rnn are also found in torch.nn.utils
