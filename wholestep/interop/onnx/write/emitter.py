"""Builds an ONNX graph: names of values, constants, sizes, and nodes in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.types import Dim, DType, Extent, Shape
from wholestep.errors import GraphError

Array = np.ndarray[Any, Any]
KINDS = {
    "float32": TensorProto.FLOAT,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}


def kind_of(dtype: DType) -> int:
    """ONNX's number of an element type."""
    return int(KINDS[dtype.name])


class OnnxEmitter:
    """The nodes of one graph; the body of a loop has its own emitter, which also sees the names of the outer graph."""

    def __init__(self, opset: int, outer: OnnxEmitter | None = None) -> None:
        self.opset, self.outer = opset, outer
        self.nodes: list[NodeProto] = []
        self.names: dict[ir.Node, str] = {}
        self.results: dict[ir.Node, list[str]] = {}  # names of nodes with several results
        self.functions: set[str] = set() if outer is None else outer.functions
        self.symbols: dict[str, str] = {}  # symbol -> name of its size, an int64 of shape (1,)
        self.sources: dict[str, tuple[str, int]] = {} if outer is None else outer.sources  # symbol -> input, axis
        self._taken: dict[str, int] = {} if outer is None else outer._taken
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self.draws: dict[str, str] = {} if outer is None else outer.draws  # names of random numbers by key
        self.layer = ""

    # -- names -----------------------------------------------------------------------------------------------------

    def fresh(self, stem: str) -> str:
        """A name that no value has yet."""
        count = self._taken.get(stem, 0)
        self._taken[stem] = count + 1
        return f"{stem}_{count}" if count else stem

    def reserve(self, name: str) -> None:
        """Reserve the name of an input, a parameter or an output."""
        self._taken[name] = self._taken.get(name, 0) + 1

    def name_of(self, node: ir.Node) -> str | None:
        """The name of a value that was written in this graph or an outer one."""
        name = self.names.get(node)
        return name if name is not None or self.outer is None else self.outer.name_of(node)

    # -- nodes -----------------------------------------------------------------------------------------------------

    def add(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        outputs: int = 1,
        domain: str = "",
        name: str = "",
    ) -> str:
        """Add a node; return the name of its first result."""
        return self.add_many(op, inputs, attributes, outputs=outputs, domain=domain, name=name)[0]

    def add_many(
        self,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Any] | None = None,
        *,
        outputs: int,
        domain: str = "",
        name: str = "",
    ) -> list[str]:
        stem = f"{self.layer}/{op}" if self.layer else op
        results = [self.fresh(stem) for _ in range(outputs)]
        present = {k: v for k, v in (attributes or {}).items() if v is not None}
        self.nodes.append(helper.make_node(op, list(inputs), results, name or results[0], domain=domain, **present))
        if domain:
            self.functions.add(op)
        return results

    def own(self, function: str, inputs: Sequence[str], attributes: Mapping[str, Any] | None = None) -> str:
        """Call a function that is stored in the model: see functions.py."""
        return self.add(function, inputs, attributes, domain="wholestep")

    def constant(self, value: Array | Sequence[int] | float, dtype: str | None = None) -> str:
        """A Constant node; equal constants share one."""
        array = np.asarray(value, dtype or (None if isinstance(value, np.ndarray) else np.int64))
        key = (str(array.dtype), array.shape, array.tobytes())
        if key not in self._constants:
            stem = self.fresh("constant")
            tensor = numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), stem)
            self.nodes.append(helper.make_node("Constant", [], [stem], stem, value=tensor))
            self._constants[key] = stem
        return self._constants[key]

    def cast(self, name: str, dtype: DType) -> str:
        return self.add("Cast", [name], {"to": kind_of(dtype)})

    # -- sizes -----------------------------------------------------------------------------------------------------

    def extent(self, e: Extent) -> str:
        """A size as an int64 tensor of shape (1,)."""
        if not isinstance(e, Dim):
            return self.constant([int(e)])
        total = ""
        for symbols, factor in e.terms:
            part = "" if factor != 1 or not symbols else self._symbol(symbols[0])
            rest = symbols[1:] if part else symbols
            part = part or self.constant([factor])
            for symbol in rest:
                part = self.add("Mul", [part, self._symbol(symbol)])
            total = self.add("Add", [total, part]) if total else part
        return total

    def _symbol(self, symbol: str) -> str:
        if symbol not in self.symbols:
            if symbol not in self.sources:
                raise GraphError(f"the size {symbol!r} is not the size of an input's axis; give it a fixed number.")
            source, axis = self.sources[symbol]
            self.symbols[symbol] = self.add("Shape", [source], {"start": axis, "end": axis + 1})
        return self.symbols[symbol]

    def shape(self, extents: Shape) -> str:
        """A shape as an int64 tensor; symbolic sizes are computed from inputs."""
        if not any(isinstance(e, Dim) for e in extents):
            return self.constant([int(e) for e in extents])
        return self.add("Concat", [self.extent(e) for e in extents], {"axis": 0})

    def reshape(self, name: str, shape: Shape) -> str:
        """Add a Reshape, with -1 for the single symbolic size."""
        unknown = [e for e in shape if isinstance(e, Dim)]
        if len(unknown) > 1:
            return self.add("Reshape", [name, self.shape(shape)])
        wanted = [-1 if isinstance(e, Dim) else int(e) for e in shape]
        return self.add("Reshape", [name, self.constant(wanted)])
