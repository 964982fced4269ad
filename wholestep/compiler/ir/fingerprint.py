"""A hash of what a graph computes, as the key of compiled programs: equal graphs compile to equal programs.

The hash covers the structure, ops, attributes (bit by bit), dtypes, shapes, and the names of leaves, outputs and
updates.  It ignores source lines and the display names of nodes.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from wholestep.compiler.ir.attrs import Array, Initializer
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.types import Dim, DType, Extent, TensorType


def fingerprint(graph: IRGraph, *, defaults: bool = True) -> str:
    """The SHA-256 in hexadecimal.  Every field is prefixed by its length, so that the encoding is injective.

    Without `defaults` it ignores the default values of runtime scalars, on which compiled programs do not depend.
    """
    return _digest(graph, defaults).hex()


def _digest(graph: IRGraph, defaults: bool = True) -> bytes:
    number = {node: i for i, node in enumerate(graph.nodes)}
    parts: list[bytes] = []
    for node in graph.nodes:
        parts.append(f"{node.op}{[number[i] for i in node.inputs]}".encode())
        fields = _fields(node.op) if defaults or node.op != "scalar" else _SCALAR
        parts.extend(encode(getattr(node.attrs, field)) for field, encode in fields)
    parts.append(f"inputs{[number[i] for i in graph.inputs]}".encode())
    parts.extend(b"output%d:%b" % (number[o.node], _text(o.name)) for o in graph.outputs)
    parts.extend(b"update%d:%b" % (number[u.node], _text(u.name)) for u in graph.updates)
    return hashlib.sha256(_join(parts)).digest()


def _join(parts: Iterable[bytes]) -> bytes:
    return b"".join(b"%d:%b" % (len(p), p) for p in parts)


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def _float(value: float) -> bytes:
    return struct.pack("<d", value)


def _integer(value: int) -> bytes:
    return b"%d" % value


def _extent(value: Extent) -> bytes:
    if not isinstance(value, Dim):
        return _integer(value)
    return _join(_join([_integer(c), *map(_text, names)]) for names, c in value.terms)


def _shape(value: Iterable[Extent]) -> bytes:
    return _join(map(_extent, value))


def _dtype(value: DType) -> bytes:
    return value.name.encode()


def _type(value: TensorType) -> bytes:
    return _join([_dtype(value.dtype), _shape(value.shape)])


def _array(value: Array) -> bytes:
    native = np.ascontiguousarray(value.value, dtype=value.value.dtype.newbyteorder("="))
    return _join([native.dtype.name.encode(), _shape(value.value.shape), native.tobytes()])


def _initializer(value: Initializer) -> bytes:
    return _join([_text(value.kind), *map(_float, value.args)])


# One encoder per attribute type, keyed by the annotation in attrs.py.
ENCODERS: dict[str, Callable[[Any], bytes]] = {
    "str": _text,
    "float": _float,
    "int": _integer,
    "bool": _integer,
    "Extent": _extent,
    "Shape": _shape,
    "tuple[int, ...]": _shape,
    "DType": _dtype,
    "TensorType": _type,
    "Array": _array,
    "Initializer": _initializer,
    "IRGraph": _digest,
}


_SCALAR = (("name", _text),)  # the fields of a runtime scalar without its default


@functools.cache
def _fields(op: str) -> tuple[tuple[str, Callable[[Any], bytes]], ...]:
    return tuple((f.name, ENCODERS[str(f.type)]) for f in dataclasses.fields(OPS[op].attrs))
