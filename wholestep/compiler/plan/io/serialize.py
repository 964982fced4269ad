"""Plans as bytes: two lines of JSON, a header and a body.

The header names the format and its version, the checksum of the body, and what the plan was made from.  The body is
the plan, field by field under the fields' own names; a field that has its default value is left out.

    DType -> its name    enum -> its value    Dim -> {"dim": [[["batch"], 1], ...]}    bytes -> base64    tuple -> list

Nothing in a file is executed.  What is read is checked: types by the fields' annotations, meaning by `check`.
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
from wholestep.compiler.plan.check.soundness import check, check_file
from wholestep.compiler.plan.model import kernel as k
from wholestep.compiler.plan.model.bodies import BODIES
from wholestep.compiler.plan.model.kernel import VERSION, Layout, Plan, Schedule, Space
from wholestep.compiler.plan.model.target_formats import FORMATS, Format, format_of
from wholestep.errors import PlanError

FORMAT = "wholestep plan"
# What reading and judging a body that is no plan may end in; a plan of ours ends in none of them.
NOT_A_PLAN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError, RecursionError)

# The dataclasses that a plan is made of.
RECORDS = (
    *(Initializer, TensorType, Layout, k.Buffer, k.Index, k.Guard, k.Load, k.Instr, k.Store, k.Reduce, k.Level),
    *(k.Operand, *BODIES.values(), k.Kernel, k.Loop, k.HostValue, k.Scalar, k.Bound, k.Least, Plan),
)

Decoder = Callable[[Any], Any]
LARGEST = 1 << 64  # of an integer: the keys of random numbers have 64 bits


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
    """The plan that `dump` wrote, checked; PlanError where it is damaged or not sound.

    Args:
        own: it comes from a place where only this user writes, and where machine code is loaded as it is: the user's
            cache.  Then it is held against what we could have got wrong, not against what someone could have written.
    """
    read_header(data)
    try:
        plan = _record(Plan)(json.loads(data.partition(b"\n")[2]))
        (check if own else check_file)(plan)
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
    fields = {f.name: (getattr(value, f.name), f.default) for f in dataclasses.fields(value)}
    told = {name: encode(v) for name, (v, default) in fields.items() if v != default or repr(v) == "-0.0"}
    # A field that may hold one of several records says which.
    return told if (tag := getattr(value, "tag", None)) is None else {"kind": tag, **told}


# -- reading: one row per annotation of a field --------------------------------------------------------------------


def _exactly(wanted: type) -> Decoder:
    accepted = (int, float) if wanted is float else (wanted,)

    def decode(value: Any) -> Any:
        if type(value) not in accepted or (type(value) is int and not -LARGEST < value < LARGEST):
            raise TypeError(f"{value!r} stands where {wanted.__name__} was expected")
        return value

    return decode


def _dim(value: Any) -> Dim:
    dim = Dim(tuple((tuple(_string(n) for n in names), _integer(c)) for names, c in value["dim"]))
    if value.keys() != {"dim"} or Dim.of(dict(dim.terms)) != dim or any(list(n) != sorted(n) for n, _ in dim.terms):
        raise ValueError(f"{value!r} is not how a size is written")
    return dim


def _extent(value: Any) -> Extent:
    return _dim(value) if type(value) is dict else _integer(value)


def _many(each: Decoder) -> Decoder:
    return lambda values: tuple([each(v) for v in _as_list(values)])


def _each(*decoders: Decoder) -> Decoder:
    return lambda values: tuple([d(v) for d, v in zip(decoders, _as_list(values), strict=True)])


def _as_list(values: Any) -> list[Any]:
    if type(values) is not list:
        raise TypeError(f"{values!r} stands where a list was expected")
    return values


def _optional(some: Decoder) -> Decoder:
    return lambda value: None if value is None else some(value)


def _record(cls: type, rows: Mapping[str, Decoder] | None = None) -> Decoder:
    """A dataclass; the rows of its fields are found when the first one is read."""
    found: dict[str, Decoder] = {}

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise TypeError(f"{value!r} stands where a {cls.__name__} was expected")
        if not found:
            found.update({f.name: (rows or DECODERS)[str(f.type)] for f in dataclasses.fields(cls)})
        return cls(**{name: found[name](v) for name, v in value.items()})

    return decode


def _union(classes: Mapping[str, type], rows: Mapping[str, Decoder] | None = None) -> Decoder:
    """One of several dataclasses, told apart by "kind"."""
    decoders = {kind: _record(cls, rows) for kind, cls in classes.items()}

    def decode(value: Any) -> Any:
        if type(value) is not dict or value.get("kind") not in decoders:
            raise TypeError(f"{value!r} stands where one of {', '.join(decoders)} was expected")
        return decoders[value["kind"]]({name: v for name, v in value.items() if name != "kind"})

    return decode


def _schedule(value: Any) -> Schedule:
    """A schedule says which family of targets it is for."""
    if type(value) is not dict or value.get("kind") not in FORMATS:
        raise TypeError(f"{value!r} stands where a schedule of one of {', '.join(FORMATS)} was expected")
    found: Schedule = _schedule_decoder(value["kind"])(value)
    return found


@functools.cache
def _schedule_decoder(family: str) -> Decoder:
    return _union({family: format_of(family).schedule}, rows_of(format_of(family)))


def rows_of(form: Format) -> dict[str, Decoder]:
    """The rows for a family's own records, and those of every plan."""
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
