"""Reads ONNX files into plain data; damaged files and unsupported versions are errors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.errors import CheckpointError, DTypeError, UsageError
from wholestep.interop.onnx.read.network import Array, OnnxFunction, OnnxGraph, OnnxInput, OnnxNode, Reference
from wholestep.interop.onnx.read.table import STANDARD

if TYPE_CHECKING:
    import onnx

OLDEST, NEWEST = 13, 28  # supported opsets; tests cover all operators up to 23
WIDENED = {"float16": "float32", "bfloat16": "float32"}  # half types in a file are computed in float32
DTYPES = frozenset({"float32", "float64", "int32", "int64", "uint8", "bool"})
FEW = 6  # most significant digits of a number that a person wrote
LARGEST = 2**40  # bytes of one array; a larger one means that the file is damaged


def need_onnx() -> Any:
    """Import the onnx package, or raise an error that says what to install."""
    try:
        import onnx
    except ImportError:
        raise UsageError(
            'reading and writing ONNX needs the onnx package: pip install "wholestep[onnx]" (or pip install onnx).'
        ) from None
    return onnx


def read_network(source: str | PathLike[str] | bytes) -> OnnxGraph:
    """Read the graph of a file, or of its bytes."""
    onnx = need_onnx()
    what, folder = (
        ("these bytes", None) if isinstance(source, bytes | bytearray) else (str(source), Path(source).parent)
    )
    try:
        data = bytes(source) if isinstance(source, bytes | bytearray) else Path(source).read_bytes()
        model = onnx.ModelProto.FromString(data)
    except FileNotFoundError:
        raise CheckpointError(f"there is no file {what}.") from None
    except OSError as error:
        raise CheckpointError(f"{what} cannot be read: {error}.") from None
    except Exception as error:
        raise CheckpointError(f"{what} is not a complete ONNX file: {error}. Nothing was imported.") from error
    return model_as_network(model, what, folder)


def model_as_network(model: onnx.ModelProto, what: str = "the model", folder: Path | None = None) -> OnnxGraph:
    """Convert a ModelProto to plain data."""
    reader = _ProtobufReader(folder, what)
    try:
        return reader.model(model)
    except (CheckpointError, UsageError, DTypeError):
        raise
    except Exception as error:
        raise CheckpointError(f"{what} is not a valid ONNX file: {error}. Nothing was imported.") from error


class _ProtobufReader:
    def __init__(self, folder: Path | None, what: str) -> None:
        self.folder, self.what = folder, what

    def model(self, model: Any) -> OnnxGraph:
        if not model.HasField("graph") or not model.graph.output:
            raise CheckpointError(f"{self.what} is not a complete ONNX file: it has no graph with outputs.")
        opset = self.opset(model.opset_import)
        functions = {(f.domain, f.name): self.function(f) for f in model.functions}
        network = self.graph(model.graph, opset, functions)
        self._check_names(network)
        notes = {p.key: p.value for p in model.metadata_props}
        return replace(network, ours=model.producer_name == "wholestep", notes=notes)

    def opset(self, imports: Any) -> int:
        versions = [o.version for o in imports if o.domain in STANDARD]
        opset = versions[0] if versions else 0
        if versions and not OLDEST <= opset <= NEWEST:
            raise UsageError(
                f"{self.what} is of ONNX opset {opset}; {OLDEST} to {NEWEST} are read. Convert it: "
                "onnx.version_converter.convert_version(model, 20)."
            )
        return opset or NEWEST

    def graph(self, graph: Any, opset: int, functions: Mapping[Any, Any]) -> OnnxGraph:
        constants = {t.name: self.array(t) for t in graph.initializer}
        if graph.sparse_initializer:
            raise UsageError(f"{self.what} has sparse initialisers, which are not supported; make them dense.")
        inputs = tuple(self.input(i) for i in graph.input if i.name not in constants)
        calls = tuple(self.call(n, opset, functions) for n in graph.node)
        return OnnxGraph(inputs, tuple(o.name for o in graph.output), calls, constants, opset, functions)

    def function(self, f: Any) -> OnnxFunction:
        opset = self.opset(f.opset_import)
        defaults = {a.name: self.attribute(a, opset, {}) for a in f.attribute_proto}
        calls = tuple(self.call(n, opset, {}) for n in f.node)
        names = (*f.attribute, *defaults)
        return OnnxFunction(tuple(f.input), tuple(f.output), names, defaults, calls, opset)

    def call(self, n: Any, opset: int, functions: Mapping[Any, Any]) -> OnnxNode:
        attributes = {a.name: self.attribute(a, opset, functions) for a in n.attribute}
        domain = "" if n.domain in STANDARD else n.domain
        return OnnxNode(n.op_type, domain, n.name, tuple(n.input), tuple(n.output), attributes)

    def attribute(self, a: Any, opset: int, functions: Mapping[Any, Any]) -> Any:
        if a.ref_attr_name:
            return Reference(a.ref_attr_name)
        kinds = need_onnx().AttributeProto
        if a.type == kinds.GRAPH:
            return self.graph(a.g, opset, functions)
        if a.type == kinds.TENSOR:
            return self.array(a.t)
        if a.type == kinds.STRING:
            return a.s.decode("utf-8", "replace")
        if a.type == kinds.STRINGS:
            return [s.decode("utf-8", "replace") for s in a.strings]
        simple = {kinds.INT: "i", kinds.FLOAT: "f", kinds.INTS: "ints", kinds.FLOATS: "floats"}
        if a.type not in simple:
            kind = kinds.AttributeType.Name(a.type)
            raise UsageError(f"the attribute {a.name!r} of {self.what} is of kind {kind}, which is not read.")
        value = getattr(a, simple[a.type])
        if a.type in (kinds.FLOAT, kinds.FLOATS):  # undo the rounding to float32: 1e-5 instead of 9.99999974e-06
            return _shortest_decimal(value) if a.type == kinds.FLOAT else [_shortest_decimal(v) for v in value]
        return list(value) if a.type == kinds.INTS else value

    def input(self, value: Any) -> OnnxInput:
        kind = value.type.WhichOneof("value")
        if kind not in (None, "tensor_type"):
            raise UsageError(f"the input {value.name!r} of {self.what} is a {kind}; only tensors are supported.")
        tensor = value.type.tensor_type
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(_extent(d) for d in tensor.shape.dim)
        return OnnxInput(value.name, self.dtype(tensor.elem_type, value.name) if tensor.elem_type else None, shape)

    def dtype(self, kind: int, name: str) -> str:
        name_of_dtype = dtype_name(kind)
        if name_of_dtype not in DTYPES:
            raise DTypeError(
                f"{name!r} of {self.what} is of {name_of_dtype}; supported: {', '.join(sorted(DTYPES | set(WIDENED)))}."
            )
        return name_of_dtype

    def array(self, t: Any) -> Array:
        from onnx import TensorProto, numpy_helper

        dtype = self.dtype(t.data_type, t.name)
        count = math.prod(t.dims)
        if any(d < 0 for d in t.dims) or count * 8 > LARGEST:
            raise CheckpointError(f"{t.name!r} of {self.what} has the invalid shape {tuple(t.dims)}.")
        if t.data_location == TensorProto.EXTERNAL:
            raw = self._external(t, count)
        else:
            raw = np.array(numpy_helper.to_array(t))
        if raw.size != count:
            raise CheckpointError(f"{t.name!r} of {self.what} has {raw.size} of the {count} elements of its shape.")
        array = raw.reshape(tuple(t.dims)).astype(dtype)
        array.flags.writeable = False
        return array

    def _external(self, t: Any, count: int) -> Array:
        """The values of an array that is stored in a second file in the same folder."""
        from onnx import helper

        entries = {e.key: e.value for e in t.external_data}
        place = entries.get("location", "")
        if self.folder is None:
            raise CheckpointError(f"{t.name!r} is stored in another file, {place!r}: give the path of the ONNX file.")
        path = (self.folder / place).resolve()
        if not place or not path.is_relative_to(self.folder.resolve()):
            raise CheckpointError(
                f"{t.name!r} of {self.what} is stored at {place!r}, outside of the file's own folder."
            )
        kind = helper.tensor_dtype_to_np_dtype(t.data_type)
        size, start = count * kind.itemsize, int(entries.get("offset", 0))
        length = int(entries.get("length", size))
        try:
            whole = path.stat().st_size
        except OSError:
            raise CheckpointError(
                f"{t.name!r} of {self.what} is stored in {path}, and there is no such file."
            ) from None
        if length != size or start < 0 or start + size > whole:
            raise CheckpointError(
                f"{t.name!r} of {self.what} takes {size} bytes; {path.name} has {whole}, of which {length} from "
                f"{start} on are given to it. The file is cut off, or belongs to another network."
            )
        return np.fromfile(path, kind, count, offset=start)

    def _check_names(self, network: OnnxGraph) -> None:
        """Check that every name is defined before it is read."""
        defined = {"", *(i.name for i in network.inputs), *network.constants}
        for call in network.calls:
            for name in call.inputs:
                if name not in defined:
                    raise CheckpointError(f"{self.what}: {call.description} reads {name!r}, which no node computes.")
            defined.update(call.outputs)
        for name in network.outputs:
            if name not in defined:
                raise CheckpointError(f"{self.what}: no node computes the output {name!r}.")


def dtype_name(kind: int) -> str:
    """The name of the dtype for ONNX's element type number, after widening."""
    from onnx import TensorProto, helper

    if kind == TensorProto.STRING:
        return "string"
    try:
        name = np.dtype(helper.tensor_dtype_to_np_dtype(kind)).name
    except KeyError:
        raise DTypeError(f"{kind} is not an element type of ONNX.") from None
    return WIDENED.get(name, name)


def _shortest_decimal(value: float) -> float:
    """The shortest decimal number that rounds to this float32, if it has few digits."""
    short = str(np.float32(value))
    digits = sum(c.isdigit() for c in short.partition("e")[0].lstrip("-0."))
    return float(short) if digits <= FEW else float(np.float32(value))


def _extent(d: Any) -> int | str | None:
    if d.HasField("dim_value"):
        return int(d.dim_value)
    return str(d.dim_param) if d.dim_param else None
