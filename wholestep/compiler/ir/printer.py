"""The textual form of a graph, one line per node; parser.py reads it back.

    graph {
      inputs %0
      %0 = input() {name="x", type=float32[batch, 4]} : float32[batch, 4]
      %1 = parameter() {name="w", type=float32[4, 2], init=zeros(), by_columns=false} : float32[4, 2]
      %2 = matmul(%0, %1) {transpose_a=false, transpose_b=false, accumulate=float32} : float32[batch, 2]  "y" @ m.py:12
      output "y" = %2
      update "w" = %1
    }

Numbers are printed exactly, strings as JSON, and a parsed graph has the fingerprint of the original.  The parser never
evaluates the text as Python.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from wholestep.compiler.ir.attrs import Array, Initializer
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.parser import UNSAID, parse_graph
from wholestep.compiler.ir.types import Dim, Extent, TensorType, TupleType, Type

__all__ = ["PRINTERS", "parse_graph", "print_graph"]

_SHORT = 16  # elements; arrays up to this size are printed as numbers, larger ones as base64
_NAN = struct.pack("<d", math.nan)
_WORD = re.compile(r"(?!(?:inf|nan)$)[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"[A-Za-z0-9_./-]+")


def print_graph(graph: IRGraph) -> str:
    """The text of a graph; `parse_graph` reads it back."""
    return "\n".join(_graph_lines(graph)) + "\n"


def _graph_lines(graph: IRGraph) -> list[str]:
    number = {node: f"%{i}" for i, node in enumerate(graph.nodes)}
    lines = ["inputs " + ", ".join(number[i] for i in graph.inputs)] if graph.inputs else []
    lines += [f"{number[n]} = {_node_text(n, [number[i] for i in n.inputs])}" for n in graph.nodes]
    lines += [f"output {json.dumps(o.name)} = {number[o.node]}" for o in graph.outputs]
    lines += [f"update {json.dumps(u.name)} = {number[u.node]}" for u in graph.updates]
    return ["graph {", *(f"  {line}" for text in lines for line in text.split("\n")), "}"]


def _node_text(node: Node, inputs: Iterable[str]) -> str:
    fields = [f for f in dataclasses.fields(node.attrs) if f.name not in UNSAID or getattr(node.attrs, f.name)]
    attributes = ", ".join(f"{f.name}={PRINTERS[str(f.type)](getattr(node.attrs, f.name))}" for f in fields)
    text = (
        f"{node.op}({', '.join(inputs)})" + (f" {{{attributes}}}" if fields else "") + f" : {_result_text(node.result)}"
    )
    text += f"  {json.dumps(node.name)}" if node.name else ""
    return text + (f" @ {_path_text(node.line.file)}:{node.line.line}" if node.line else "")


def _result_text(result: Type) -> str:
    if isinstance(result, TupleType):
        return "(" + ", ".join(map(_type_text, result.items)) + ")"
    return _type_text(result)


def _path_text(file: str) -> str:
    return file if _PATH.fullmatch(file) else json.dumps(file)


def _word_text(word: str) -> str:
    return word if _WORD.fullmatch(word) else json.dumps(word)


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


def _float_text(value: float) -> str:
    bits = struct.pack("<d", value)
    return f"bits:{bits.hex()}" if math.isnan(value) and bits != _NAN else repr(float(value))


def _extent_text(extent: Extent) -> str:
    if not isinstance(extent, Dim):
        return str(int(extent))
    return "+".join("*".join([str(c)] * (c != 1 or not names) + [*map(_word_text, names)]) for names, c in extent.terms)


def _shape_text(shape: Iterable[Extent]) -> str:
    return "[" + ", ".join(map(_extent_text, shape)) + "]"


def _type_text(type: TensorType) -> str:
    return f"{type.dtype}{_shape_text(type.shape)}"


def _array_text(array: Array) -> str:
    value = np.ascontiguousarray(array.value, dtype=array.value.dtype.newbyteorder("=")).reshape(array.value.shape)
    head = f"{value.dtype.name}{_shape_text(value.shape)}"
    if value.size > _SHORT or np.isnan(value).any():  # base64 preserves the payload of a NaN
        return f"{head} base64 {json.dumps(base64.b64encode(value.tobytes()).decode())}"
    return f"{head} [{', '.join(json.dumps(x) if abs(x) < math.inf else repr(x) for x in value.reshape(-1).tolist())}]"


def _initializer_text(init: Initializer) -> str:
    return f"{_word_text(init.kind)}({', '.join(map(_float_text, init.args))})"


def _body_text(graph: IRGraph) -> str:
    return "\n".join(_graph_lines(graph))


# One printer per attribute type, keyed by the annotation in attrs.py.
PRINTERS: dict[str, Callable[[Any], str]] = {
    "str": json.dumps,
    "float": _float_text,
    "int": _extent_text,
    "bool": _bool_text,
    "Extent": _extent_text,
    "Shape": _shape_text,
    "tuple[int, ...]": _shape_text,
    "DType": str,
    "TensorType": _type_text,
    "Array": _array_text,
    "Initializer": _initializer_text,
    "IRGraph": _body_text,
}
