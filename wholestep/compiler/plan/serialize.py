"""Plans as bytes: two lines of JSON, a header and a body.

The header names the format and its version, the checksum of the body, and what the plan was made from.  The body is
the plan, field by field under the fields' own names; a field that has its default value is left out.

    DType -> its name    enum -> its value    Dim -> {"dim": [[["batch"], 1], ...]}    bytes -> base64    tuple -> list

Nothing in a file is executed.  What is read is checked: types by the fields' annotations, meaning by `check`.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import hashlib
import json
import types
from collections.abc import Callable
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from wholestep.compiler.ir.types import DTYPES, Dim, DType
from wholestep.compiler.plan.check import check
from wholestep.compiler.plan.kernel import Plan
from wholestep.errors import PlanError

FORMAT, VERSION = "wholestep plan", 1

Decoder = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True)
class Header:
    """What stands before a plan: `graph` is the fingerprint of the graph it was made from, `key` that of the build."""

    format: str
    version: int
    checksum: str
    graph: str
    key: str


def dump(plan: Plan, *, graph: str = "", key: str = "") -> bytes:
    """The bytes of a plan."""
    body = json.dumps(encode(plan), separators=(",", ":"), ensure_ascii=True).encode()
    header = Header(FORMAT, VERSION, hashlib.sha256(body).hexdigest(), graph, key)
    return json.dumps(dataclasses.asdict(header)).encode() + b"\n" + body + b"\n"


def read_header(data: bytes) -> Header:
    """The header of a plan's bytes; PlanError where these are none, damaged, or of another version."""
    first, _, body = data.partition(b"\n")
    try:
        header = Header(**json.loads(first))
    except (ValueError, TypeError):
        raise PlanError("this is not a plan file: its first line is not a plan's header. Build and save it again.") from None
    if header.format != FORMAT or header.version != VERSION:
        raise PlanError(
            f"the plan has format {header.format!r} version {header.version!r}; this Wholestep reads {FORMAT!r} version "
            f"{VERSION}. Build and save it again."
        )
    if hashlib.sha256(body.removesuffix(b"\n")).hexdigest() != header.checksum:
        raise PlanError("the plan is damaged: its checksum does not match its contents. Build and save it again.")
    return header


def load(data: bytes) -> Plan:
    """The plan that `dump` wrote, checked; PlanError where it is damaged or not sound."""
    read_header(data)
    try:
        plan = _decoder(Plan)(json.loads(data.partition(b"\n")[2]))
    except (ValueError, TypeError, KeyError, AttributeError, binascii.Error) as error:
        raise PlanError(f"the plan does not have the form of version {VERSION}: {error!r}. Build and save it again.") from None
    assert isinstance(plan, Plan)
    check(plan)
    return plan


# -- writing -----------------------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """The JSON form of a value that a plan may hold."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, tuple):
        return [encode(v) for v in value]
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Dim):
        return {"dim": [[list(names), c] for names, c in value.terms]}
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if hasattr(value, "item"):  # a NumPy scalar
        return value.item()
    return {f.name: encode(v) for f in _fields(type(value)) if (v := getattr(value, f.name)) != f.default}


@cache
def _fields(cls: type) -> tuple[dataclasses.Field[Any], ...]:
    assert dataclasses.is_dataclass(cls), f"{cls.__name__} has no place in a plan"
    return dataclasses.fields(cls)


# -- reading: one decoder per annotation, made once ----------------------------------------------------------------


@cache
def _decoder(annotation: Any) -> Decoder:
    origin = get_origin(annotation)
    if origin is tuple:
        return _tuple_decoder(get_args(annotation))
    if origin in (types.UnionType, Union):
        return _union_decoder(get_args(annotation))
    if annotation in (int, float, str, bool):
        return _exactly(annotation)
    if annotation is DType:
        return DTYPES.__getitem__
    if annotation is Dim:
        return _dim
    if annotation is bytes:
        return lambda text: base64.b64decode(text, validate=True)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return annotation
    return _dataclass_decoder(annotation)


def _exactly(wanted: type) -> Decoder:
    accepted = (int, float) if wanted is float else (wanted,)

    def decode(value: Any) -> Any:
        if type(value) not in accepted:
            raise TypeError(f"{value!r} stands where {wanted.__name__} was expected")
        return value

    return decode


def _dim(value: Any) -> Dim:
    return Dim(tuple((tuple(_exactly(str)(n) for n in names), _exactly(int)(c)) for names, c in value["dim"]))


def _tuple_decoder(items: tuple[Any, ...]) -> Decoder:
    if len(items) == 2 and items[1] is Ellipsis:
        each = _decoder(items[0])
        return lambda values: tuple([each(v) for v in values])
    decoders = [_decoder(i) for i in items]
    return lambda values: tuple([d(v) for d, v in zip(decoders, values, strict=True)])


def _union_decoder(members: tuple[Any, ...]) -> Decoder:
    """`X | None`, or `int | Dim`: told apart by None and by being a number."""
    optional = type(None) in members
    others = [m for m in members if m is not type(None)]
    if set(others) == {int, Dim}:
        number = _exactly(int)
        some: Decoder = lambda value: _dim(value) if isinstance(value, dict) else number(value)  # noqa: E731
    else:
        assert len(others) == 1, f"a plan's field cannot be one of {others}"
        some = _decoder(others[0])
    return (lambda value: None if value is None else some(value)) if optional else some


def _dataclass_decoder(cls: type) -> Decoder:
    hints = get_type_hints(cls)
    decoders = {f.name: _decoder(hints[f.name]) for f in dataclasses.fields(cls)}
    return lambda value: cls(**{name: decoders[name](v) for name, v in value.items()})
