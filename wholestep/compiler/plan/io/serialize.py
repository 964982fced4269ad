"""Serialization of plans: two lines of JSON, a header and a body.

The header has the format and its version, the checksum of the body, and the keys of the graph and the build.  The body
is the plan, each record as an object with its field names; a field that has its default value is omitted.

    DType -> its name    enum -> its value    Dim -> {"dim": [[["batch"], 1], ...]}    bytes -> base64    tuple -> list

Nothing in a file is executed.  Everything read is validated: types by the fields' annotations, semantics by
`check_file`.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from wholestep.compiler.ir.attrs import Initializer
from wholestep.compiler.ir.types import DTYPES, Dim, DType, Extent, TensorType
from wholestep.compiler.plan.model import kernel as k
from wholestep.compiler.plan.model.bodies import BODIES
from wholestep.compiler.plan.model.kernel import VERSION, Layout, Plan, Schedule, Space
from wholestep.compiler.plan.model.target_formats import FORMATS, Format, format_of
from wholestep.errors import PlanError

FORMAT = "wholestep plan"
# Exceptions that decoding or checking a malformed body may raise; a valid plan raises none of them.
NOT_A_PLAN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)

# The dataclasses that a plan consists of.
RECORDS = (
    *(Initializer, TensorType, Layout, k.Buffer, k.Index, k.Guard, k.Load, k.Instr, k.Store, k.Reduce, k.Level),
    *(k.Operand, *BODIES.values(), k.Kernel, k.Loop, k.HostValue, k.Scalar, k.Bound, k.Least, Plan),
)

Decoder = Callable[[Any], Any]
LARGEST = 1 << 64  # bound of integers in a file: the keys of random numbers have 64 bits


@dataclasses.dataclass(frozen=True)
class Header:
    """The first line of a file: `graph` is the fingerprint of the planned graph, `key` the fingerprint of the build."""

    format: str
    version: int
    checksum: str
    graph: str
    key: str


def dump(plan: Plan, *, graph: str = "", key: str = "") -> bytes:
    """The serialized form of a plan."""
    body = json.dumps(encode(plan), separators=(",", ":"), ensure_ascii=True).encode()
    header = Header(FORMAT, VERSION, hashlib.sha256(body).hexdigest(), graph, key)
    return json.dumps(dataclasses.asdict(header)).encode() + b"\n" + body + b"\n"


def read_header(data: bytes) -> Header:
    """The header of a serialized plan; PlanError if the data is no plan, damaged, or of another version."""
    first, _, body = data.partition(b"\n")
    try:
        header = Header(**json.loads(first))
    except (ValueError, TypeError, RecursionError):
        raise PlanError(
            "this is not a plan file: its first line is not a plan's header. Build and save it again."
        ) from None
    if header.format != FORMAT or header.version != VERSION:
        raise PlanError(
            f"the plan has format {header.format!r} version {header.version!r}; this Wholestep reads {FORMAT!r} "
            f"version {VERSION}. Build and save it again."
        )
    if hashlib.sha256(body.removesuffix(b"\n")).hexdigest() != header.checksum:
        raise PlanError("the plan is damaged: its checksum does not match its contents. Build and save it again.")
    return header


def load(data: bytes, *, own: bool = False) -> Plan:
    """The plan that `dump` wrote; PlanError if it is damaged or not sound.

    Args:
        own: the data comes from the user's cache and is not checked again: only this user can write to the cache, and
            machine code is loaded from it anyway.  The planner checked the plan before storing it.  A digest of the
            planner's sources is part of the cache key, and a checksum detects damage.
    """
    read_header(data)
    try:
        plan = _record(Plan)(json.loads(data.partition(b"\n")[2]))
        if not own:
            from wholestep.compiler.plan.check.soundness import check_file  # a start with a warm cache checks nothing

            check_file(plan)
    except PlanError:
        raise
    except NOT_A_PLAN as error:
        raise PlanError(
            f"the plan does not have the form of version {VERSION}: {error!r}. Build and save it again."
        ) from None
    assert isinstance(plan, Plan)
    return plan


# -- writing -----------------------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """The JSON form of a value in a plan."""
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
    fields = {f.name: (getattr(value, f.name), f.default) for f in dataclasses.fields(value)}
    entries = {name: encode(v) for name, (v, default) in fields.items() if v != default or repr(v) == "-0.0"}
    # A record that is one alternative of a union stores its tag.
    return entries if (tag := getattr(value, "tag", None)) is None else {"kind": tag, **entries}


# -- reading: one row per annotation of a field --------------------------------------------------------------------


def _exactly(expected: type) -> Decoder:
    accepted = (int, float) if expected is float else (expected,)

    def decode(value: Any) -> Any:
        if type(value) not in accepted or (type(value) is int and not -LARGEST < value < LARGEST):
            raise TypeError(f"expected {expected.__name__}; received {value!r}")
        return value

    return decode


def _dim(value: Any) -> Dim:
    dim = Dim(tuple((tuple(_string(n) for n in names), _integer(c)) for names, c in value["dim"]))
    if value.keys() != {"dim"} or Dim.of(dict(dim.terms)) != dim or any(list(n) != sorted(n) for n, _ in dim.terms):
        raise ValueError(f"expected a size in canonical form; received {value!r}")
    return dim


def _extent(value: Any) -> Extent:
    return _dim(value) if type(value) is dict else _integer(value)


def _many(each: Decoder) -> Decoder:
    return lambda values: tuple([each(v) for v in _as_list(values)])


def _each(*decoders: Decoder) -> Decoder:
    return lambda values: tuple([d(v) for d, v in zip(decoders, _as_list(values), strict=True)])


def _as_list(values: Any) -> list[Any]:
    if type(values) is not list:
        raise TypeError(f"expected a list; received {values!r}")
    return values


def _optional(some: Decoder) -> Decoder:
    return lambda value: None if value is None else some(value)


def _record(cls: type, rows: Mapping[str, Decoder] | None = None) -> Decoder:
    """The decoder of a dataclass; the decoders of its fields are looked up when the first one is read."""
    field_decoders: dict[str, Decoder] = {}

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise TypeError(f"expected a {cls.__name__}; received {value!r}")
        if not field_decoders:
            field_decoders.update({f.name: (rows or DECODERS)[str(f.type)] for f in dataclasses.fields(cls)})
        return cls(**{name: field_decoders[name](v) for name, v in value.items()})

    return decode


def _union(classes: Mapping[str, type], rows: Mapping[str, Decoder] | None = None) -> Decoder:
    """The decoder of a tagged union of dataclasses; the tag is "kind"."""
    decoders = {kind: _record(cls, rows) for kind, cls in classes.items()}

    def decode(value: Any) -> Any:
        if type(value) is not dict or value.get("kind") not in decoders:
            raise TypeError(f"expected one of {', '.join(decoders)}; received {value!r}")
        return decoders[value["kind"]]({name: v for name, v in value.items() if name != "kind"})

    return decode


def _schedule(value: Any) -> Schedule:
    """Decode a schedule; its tag is the family of targets that it belongs to."""
    if type(value) is not dict or value.get("kind") not in FORMATS:
        raise TypeError(f"expected a schedule of one of {', '.join(FORMATS)}; received {value!r}")
    schedule: Schedule = _schedule_decoder(value["kind"])(value)
    return schedule


@functools.cache
def _schedule_decoder(family: str) -> Decoder:
    return _union({family: format_of(family).schedule}, rows_of(format_of(family)))


def rows_of(form: Format) -> dict[str, Decoder]:
    """The decoders, by annotation, of the records of every plan and of a family's own records."""
    rows = dict(DECODERS)
    for cls in form.records:
        decode = _record(cls, rows)
        rows[cls.__name__], rows[f"{cls.__name__} | None"] = decode, _optional(decode)
        rows[f"tuple[{cls.__name__}, ...]"] = _many(decode)
    for name, classes in form.unions.items():
        rows[name] = _optional(_union(classes, rows)) if name.endswith("| None") else _union(classes, rows)
    return rows


_integer, _string, _float = _exactly(int), _exactly(str), _exactly(float)

DECODERS: dict[str, Decoder] = {
    "int": _integer,
    "str": _string,
    "float": _float,
    "bool": _exactly(bool),
    "int | None": _optional(_integer),
    "DType": DTYPES.__getitem__,
    "DType | None": _optional(DTYPES.__getitem__),
    "Extent": _extent,
    "Shape": _many(_extent),
    "tuple[int, ...]": _many(_integer),
    "tuple[tuple[int, int, int], ...]": _many(_each(_integer, _integer, _integer)),
    "tuple[float, ...]": _many(_float),
    "tuple[str, ...]": _many(_string),
    "tuple[tuple[int, Extent], ...]": _many(_each(_integer, _extent)),
    "tuple[tuple[str, int], ...]": _many(_each(_string, _integer)),
    "tuple[tuple[str, float], ...]": _many(_each(_string, _float)),
    "tuple[tuple[str, Extent], ...]": _many(_each(_string, _extent)),
    "tuple[tuple[int, bytes], ...]": _many(_each(_integer, lambda text: base64.b64decode(text, validate=True))),
    "tuple[tuple[int, int | None], ...]": _many(_each(_integer, _optional(_integer))),
    "Space": Space,
    "Schedule": _schedule,
    "Body": _union({kind.value: cls for kind, cls in BODIES.items()}),
    **{cls.__name__: _record(cls) for cls in RECORDS},
    **{f"tuple[{cls.__name__}, ...]": _many(_record(cls)) for cls in RECORDS},
    **{f"{cls.__name__} | None": _optional(_record(cls)) for cls in RECORDS},
}
