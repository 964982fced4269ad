"""Recursive-descent parser for the text of a graph (format: printer.py).  Nothing is evaluated as Python."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from wholestep.compiler.ir.attrs import Array, Attrs, Initializer
from wholestep.compiler.ir.graph import IRGraph, Node, Output, SourceLine, Update
from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.ir.types import DTYPES, Dim, DType, Extent, TensorType, TupleType, Type
from wholestep.errors import GraphError, WholestepError

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<place>@\s[A-Za-z0-9_./-]+:\d+)
    | (?P<bits>bits:[0-9a-f]{16})
    | (?P<number>-?(?:inf|nan)(?![A-Za-z0-9_])|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)
    | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
    | (?P<reference>%\d+)
    | (?P<mark>[{}()\[\]=,:+*@])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)


def parse_graph(text: str) -> IRGraph:
    """The graph that `print_graph` wrote.  Every node is constructed anew, so its type is inferred and compared."""
    reader = _TokenReader(text)
    graph = _read_graph(reader)
    if reader.kind != "end":
        raise reader.error(f"expected the end of the text, received {reader.token!r}")
    return graph


class _TokenReader:
    """Tokenizer with one token of lookahead."""

    def __init__(self, text: str) -> None:
        self.text, self.position = text, 0
        self.advance()

    def advance(self) -> None:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match.lastgroup is None:
            raise self.error("invalid token in a graph's text")
        self.kind, self.token = match.lastgroup, match[match.lastgroup]
        self.start, self.position = match.start(match.lastgroup), match.end()

    def error(self, what: str) -> GraphError:
        line = self.text.count("\n", 0, self.position) + 1
        near = self.text[self.position : self.position + 30].split("\n")[0]
        return GraphError(f"line {line} of the graph's text: {what}; the text continues with {near!r}.")

    def take(self, kind: str) -> str:
        """Consume the next token, which must be of this kind."""
        if self.kind != kind:
            raise self.error(f"expected a {kind}, received {self.token!r}")
        token = self.token
        self.advance()
        return token

    def skip(self, token: str) -> bool:
        """Consume the next token if it is this word or mark; returns whether it was."""
        if self.token != token or not token:
            return False
        self.advance()
        return True

    def expect(self, token: str) -> None:
        if not self.skip(token):
            raise self.error(f"expected {token!r}, received {self.token!r}")

    def list_of(self, read: Callable[[_TokenReader], Any], opening: str, closing: str) -> list[Any]:
        self.expect(opening)
        items: list[Any] = []
        while not self.skip(closing):
            if items:
                self.expect(",")
            items.append(read(self))
        return items


def _read_graph(r: _TokenReader) -> IRGraph:
    r.expect("graph")
    r.expect("{")
    nodes: dict[str, Node] = {}
    inputs: list[str] = []
    outputs: list[Output] = []
    updates: list[Update] = []
    if r.skip("inputs"):
        inputs.append(r.take("reference"))
        while r.skip(","):
            inputs.append(r.take("reference"))
    while r.kind == "reference":
        name = r.take("reference")
        r.expect("=")
        nodes[name] = _read_node(r, nodes)
    while r.skip("output"):
        outputs.append(Output(*_read_root(r, nodes)))
    while r.skip("update"):
        updates.append(Update(*_read_root(r, nodes)))
    declared = tuple(_lookup(r, nodes, name) for name in inputs)
    r.expect("}")
    return IRGraph(tuple(outputs), tuple(updates), declared)


def _read_root(r: _TokenReader, nodes: dict[str, Node]) -> tuple[str, Node]:
    name = _read_string(r)
    r.expect("=")
    return name, _lookup(r, nodes, r.take("reference"))


def _lookup(r: _TokenReader, nodes: dict[str, Node], reference: str) -> Node:
    if reference not in nodes:
        raise r.error(f"{reference} is read before it is defined")
    return nodes[reference]


def _read_node(r: _TokenReader, nodes: dict[str, Node]) -> Node:
    op = r.take("word")
    if op not in OPS:
        raise r.error(f"there is no op named {op!r}")
    inputs = r.list_of(lambda r: _lookup(r, nodes, r.take("reference")), "(", ")")
    attrs = _read_attrs(r, OPS[op].attrs)
    r.expect(":")
    declared = _read_result(r)
    name = _read_string(r) if r.kind == "string" else ""
    line = _read_place(r)
    try:
        node = Node(op, inputs, attrs, name, line)
    except (WholestepError, AssertionError) as error:
        raise r.error(str(error)) from error
    if node.result != declared:
        raise r.error(f"{op} is declared as {declared}, but the type inferred from its inputs is {node.result}")
    return node


# Fields that were added later: printed only if they are set, so that older texts still parse.
UNSAID = frozenset({"divided", "parts", "per_worker", "split", "whole"})


def _read_attrs(r: _TokenReader, kind: type[Attrs]) -> Attrs:
    fields = dataclasses.fields(kind)
    values: dict[str, Any] = {}
    comma = False  # was a comma consumed whose field has not been read yet?
    for i, field in enumerate(fields):
        if field.name in UNSAID:
            comma = comma or r.skip(",")
            if not comma or r.token != field.name:
                continue
        else:
            r.expect("," if i else "{")
        comma = False
        r.expect(field.name)
        r.expect("=")
        values[field.name] = READERS[str(field.type)](r)
    if fields:
        r.expect("}")
    return kind(**values)


def _read_place(r: _TokenReader) -> SourceLine | None:
    if r.kind == "place":
        file, _, line = r.take("place")[1:].strip().rpartition(":")
        return SourceLine(file, int(line))
    if not r.skip("@"):
        return None
    file = _read_string(r)
    r.expect(":")
    return SourceLine(file, _read_integer(r))


def _read_string(r: _TokenReader) -> str:
    try:
        return str(json.loads(r.take("string"), strict=False))
    except json.JSONDecodeError as error:
        raise r.error(f"invalid JSON string ({error.msg})") from None


def _read_word(r: _TokenReader) -> str:
    return _read_string(r) if r.kind == "string" else r.take("word")


def _read_integer(r: _TokenReader) -> int:
    token = r.take("number")
    if not token.lstrip("-").isdigit():
        raise r.error(f"expected an integer, received {token!r}")
    return int(token)


def _read_float(r: _TokenReader) -> float:
    if r.kind == "bits":
        value: float = struct.unpack("<d", bytes.fromhex(r.take("bits")[5:]))[0]
        return value
    return float(r.take("number"))


def _read_bool(r: _TokenReader) -> bool:
    word = r.take("word")
    if word not in ("true", "false"):
        raise r.error(f"expected true or false, received {word!r}")
    return word == "true"


def _read_extent(r: _TokenReader) -> Extent:
    total = _read_term(r)
    while r.skip("+"):
        total = total + _read_term(r)
    return total


def _read_term(r: _TokenReader) -> Extent:
    out = _read_factor(r)
    while r.skip("*"):
        out = out * _read_factor(r)
    return out


def _read_factor(r: _TokenReader) -> Extent:
    return _read_integer(r) if r.kind == "number" else Dim.symbol(_read_word(r))


def _read_shape(r: _TokenReader) -> tuple[Extent, ...]:
    return tuple(r.list_of(_read_extent, "[", "]"))


def _read_integers(r: _TokenReader) -> tuple[int, ...]:
    return tuple(r.list_of(_read_integer, "[", "]"))


def _read_dtype(r: _TokenReader) -> DType:
    name = r.take("word")
    if name not in DTYPES:
        raise r.error(f"{name!r} is not a dtype")
    return DTYPES[name]


def _read_type(r: _TokenReader) -> TensorType:
    dtype = _read_dtype(r)
    return TensorType(_read_shape(r), dtype)


def _read_result(r: _TokenReader) -> Type:
    return TupleType(tuple(r.list_of(_read_type, "(", ")"))) if r.token == "(" else _read_type(r)


def _read_array(r: _TokenReader) -> Array:
    dtype, shape = _read_dtype(r), _read_integers(r)
    try:
        if r.skip("base64"):
            flat = np.frombuffer(base64.b64decode(_read_string(r), validate=True), dtype.numpy)
        else:
            flat = np.array(r.list_of(_read_element, "[", "]"), dtype.numpy)
        return Array(flat.reshape(shape))
    except (ValueError, OverflowError) as error:
        raise r.error(f"invalid array of {dtype}{list(shape)} ({error})") from error


def _read_element(r: _TokenReader) -> float | int | bool:
    if r.kind == "word":
        return _read_bool(r)
    return _read_integer(r) if r.token.lstrip("-").isdigit() else _read_float(r)


def _read_initializer(r: _TokenReader) -> Initializer:
    kind = _read_word(r)
    return Initializer(kind, tuple(r.list_of(_read_float, "(", ")")))


# One reader per attribute type, keyed by the annotation in attrs.py.
READERS: dict[str, Callable[[_TokenReader], Any]] = {
    "str": _read_string,
    "float": _read_float,
    "int": _read_integer,
    "bool": _read_bool,
    "Extent": _read_extent,
    "Shape": _read_shape,
    "tuple[int, ...]": _read_integers,
    "DType": _read_dtype,
    "TensorType": _read_type,
    "Array": _read_array,
    "Initializer": _read_initializer,
    "IRGraph": _read_graph,
}
