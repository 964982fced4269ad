"""Dataclasses whose methods are generated when they are first called.

`dataclasses.dataclass` writes six methods as text and has them compiled: half a millisecond a class. A start from the
cache loads some hundred classes, makes instances of half of them, and compares or prints hardly any; with the standard
library's decorator that was half of its time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from inspect import get_annotations
from typing import TYPE_CHECKING, Any

_OMITTED = object()


class _Fields:
    """A descriptor that computes the fields of a class when they are first read: by `fields`, `replace`, or the first
    instance.
    """

    def __init__(self, cls: Any, kinds: dict[str, Any], own: dict[str, Any], frozen: bool, kw_only: bool) -> None:
        """Store the annotations, `kinds`, and the default values of the class's own fields (or MISSING), `own`."""
        self._cls, self._kinds, self._own, self._frozen, self._kw_only = cls, kinds, own, frozen, kw_only

    def __get__(self, instance: object, owner: type) -> dict[str, dataclasses.Field[Any]]:
        """The fields, obtained from `dataclass` on a class with only these annotations, which is fast."""
        cls = self._cls
        inherited = [
            f for b in cls.__mro__[:0:-1] if "__dataclass_fields__" in b.__dict__ for f in dataclasses.fields(b)
        ]
        annotations = {f.name: f.type for f in inherited} | {n: self._kinds[n] for n in self._own}
        values = {f.name: f for f in inherited} | self._own
        defaults = {name: value for name, value in values.items() if value is not dataclasses.MISSING}
        body = {"__annotations__": annotations, "__module__": cls.__module__, "__doc__": "fields", **defaults}
        read: Any = dataclasses.dataclass(init=False, repr=False, eq=False, match_args=False, kw_only=self._kw_only)(
            type(cls.__name__, (), body)
        )
        read.__dataclass_params__.frozen = self._frozen
        type.__setattr__(cls, "__match_args__", tuple(f.name for f in dataclasses.fields(read) if not f.kw_only))
        cls.__dataclass_params__ = read.__dataclass_params__
        cls.__dataclass_fields__ = read.__dataclass_fields__
        return cls.__dataclass_fields__  # type: ignore[no-any-return]


def _initializer(cls: Any) -> tuple[str, dict[str, Any]]:
    # Frames with our module name are recognised as ours, not as the user's line.
    names: dict[str, Any] = {"_set": object.__setattr__, "_OMITTED": _OMITTED, "__name__": cls.__module__}
    parameters, lines = ["self"], [" pass"]
    for field in sorted(dataclasses.fields(cls), key=lambda field: bool(field.kw_only)):
        name, value, default = field.name, field.name, ""
        assert field.init, f"{cls.__name__}.{name}: a field that `__init__` does not take"
        if field.default is not dataclasses.MISSING:
            default, names[f"_default_{name}"] = f"=_default_{name}", field.default
        elif field.default_factory is not dataclasses.MISSING:
            default, names[f"_make_{name}"] = "=_OMITTED", field.default_factory
            value = f"_make_{name}() if {name} is _OMITTED else {name}"
        if field.kw_only and "*" not in parameters:
            parameters.append("*")
        parameters.append(name + default)
        lines.append(f" _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    return f"({', '.join(parameters)}):\n" + "\n".join(lines), names


def _equality(cls: Any) -> tuple[str, dict[str, Any]]:
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    same = f"{_tuple_of('self', names)} == {_tuple_of('other', names)}"
    return f"(self, other):\n return {same} if other.__class__ is self.__class__ else NotImplemented", {}


def _hash(cls: Any) -> tuple[str, dict[str, Any]]:
    hashed = [field.name for field in dataclasses.fields(cls) if (field.compare if field.hash is None else field.hash)]
    return f"(self):\n return hash({_tuple_of('self', hashed)})", {}


def _tuple_of(instance: str, names: list[str]) -> str:
    return "(" + "".join(f"{instance}.{name}, " for name in names) + ")"


def _put(cls: Any, name: str, write: Callable[[Any], tuple[str, dict[str, Any]]]) -> None:
    """Add a method that generates its replacement when it is first called.  Concurrent first calls generate the same
    code.
    """

    def first(self: Any, *args: Any, **named: Any) -> Any:
        text, names = write(cls)
        exec(f"def {name}{text}", names)  # noqa: S102  # as the standard library does
        method = names[name]
        method.__qualname__ = f"{cls.__qualname__}.{name}"
        setattr(cls, name, method)
        return method(self, *args, **named)

    setattr(cls, name, first)


def _repr(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _refuse_to_set(self: object, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, init=True, eq=True, frozen=False, kw_only=False):
        """The standard library's `dataclass`, except that a class has no signature before its first instance.

        >>> @dataclass(frozen=True)
        ... class Point:
        ...     x: int
        ...     y: int = 0
        >>> Point(1)
        Point(x=1, y=0)
        """
        if cls is None:
            return lambda cls: dataclass(cls, init=init, eq=eq, frozen=frozen, kw_only=kw_only)
        members = cls.__dict__
        kinds = get_annotations(cls)
        own_values = {
            n: members.get(n, dataclasses.MISSING) for n, kind in kinds.items() if "ClassVar" not in str(kind)
        }
        for name, value in own_values.items():
            if isinstance(value, dataclasses.Field):
                delattr(cls, name)
                if value.default is not dataclasses.MISSING:
                    setattr(cls, name, value.default)
        cls.__dataclass_fields__ = _Fields(cls, kinds, own_values, frozen, kw_only)
        if init and "__init__" not in members:
            _put(cls, "__init__", _initializer)
        else:
            dataclasses.fields(cls)  # because its first instance will not compute them
        if "__repr__" not in members:
            cls.__repr__ = _repr
        if eq:
            explicit = members.get("__hash__") is not None or ("__hash__" in members and "__eq__" not in members)
            if "__eq__" not in members:
                _put(cls, "__eq__", _equality)
            if frozen and not explicit:
                _put(cls, "__hash__", _hash)
            elif not explicit:
                cls.__hash__ = None
        if frozen:
            cls.__setattr__, cls.__delattr__ = _refuse_to_set, _refuse_to_delete
        return cls
