"""`ws.from_onnx`: a file's network as a module whose parameters are the file's initialisers."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from os import PathLike
from typing import Any

import numpy as np

from wholestep.compiler.frontend.step import Spec
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UnsupportedOpError, UsageError
from wholestep.interop.onnx.read.network import OnnxGraph, OnnxNode
from wholestep.interop.onnx.read.reading import read_network
from wholestep.interop.onnx.read.recording import OnnxRecorder, missing_operators, missing_text
from wholestep.interop.onnx.read.sizes import tensor_of
from wholestep.interop.onnx.read.table import ExportedBatch, row_of
from wholestep.nn.derived import make_subclass
from wholestep.nn.module import trace
from wholestep.nn.module.graph_module import Holding, Recorded, RecordedProgram, network_of
from wholestep.nn.module.module import SEEN, Module
from wholestep.nn.module.parameter import Buffer, Parameter
from wholestep.steps.module import Inputs, forward_graph

# Keys of the metadata in a file of ours; each lists names, one per line: transposed matrices, untrained states, and
# frozen parameters.
BY_COLUMNS, BUFFERS, FROZEN = (f"wholestep.{kind}" for kind in ("by_columns", "buffers", "frozen"))


def from_onnx(source: str | PathLike[str] | bytes, *, constants: Sequence[str] = ()) -> OnnxNetwork:
    """The network of an ONNX file (opset 13 to 28) as a module that trains, predicts and is saved like any other.

    Initialisers of floats are its parameters, under their names; the statistics of `BatchNormalization` are buffers
    that training updates; scalars, sizes, and arrays with infinities stay constants.  Dropout and batch norms
    behave differently in training and evaluation again, as before the export.  Half types are widened to float32.

    Args:
        source: the path of a file, whose external data is in the same folder, or its bytes.
        constants: names, or patterns of names, of initialisers that stay constants.

    Example: `net = ws.from_onnx("net.onnx")`.
    """
    if not isinstance(source, str | PathLike | bytes | bytearray):
        fail(UsageError, f"from_onnx takes the path or the bytes of an ONNX file; received {type(source).__name__}.")
    network = read_network(source)
    missing = missing_operators(network)
    if missing:
        raise UnsupportedOpError(missing_text(missing))
    module: OnnxNetwork = _class_of(network)(network, constants)
    return module


class OnnxNetwork(Module):
    """A network imported from an ONNX file: see `from_onnx`."""

    def __init__(self, network: OnnxGraph, constants: Sequence[str] = ()) -> None:
        kinds, transposed = _kinds(network, constants), _read_transposed(network)
        frozen = set(network.notes.get(FROZEN, "").split("\n"))
        held = {name: array for name, array in network.constants.items() if name in kinds}
        for name, array in held.items():
            kind, options = kinds[name], {} if kinds[name] is Buffer else {"by_columns": name in transposed}
            parameter = kind(array.shape, 0.0, array.dtype.name, **options)
            parameter.optional = True
            parameter.frozen = name in frozen
            setattr(self, name, parameter)
        self.network = replace(network, constants={n: a for n, a in network.constants.items() if n not in held})
        self.load_state_dict(held)

    def record(self, inputs: Sequence[Tensor]) -> Any:
        """Record the network in the graph of the inputs; return the outputs."""
        owned = self.__dict__.get("_owned", {})
        values: dict[str, Any] = {}
        for name, one in owned.items():
            tensor = trace.tensor_now(self, one)
            assert tensor is not None
            values[name] = tensor
        for value, declared in zip(inputs, self.network.inputs, strict=True):
            wrong_kind = declared.dtype is not None and _is_other_integer(value, declared.dtype)
            values[declared.name] = value.astype(declared.dtype) if wrong_kind else value
        recorder = OnnxRecorder(self.network, trace.graph_now(), _other_batch(self.network, inputs))
        outputs = [tensor_of(v) for v in recorder.run(self.network, values)]
        if len(outputs) == 1:
            return outputs[0]
        names = self.network.outputs
        if list(names) == [f"output{i}" for i in range(len(names))]:
            return tuple(outputs)
        return dict(zip(names, outputs))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the network, its graph and all its arrays, as one safetensors file; `ws.load_network` reads it without
        the onnx package.  Sizes that have no name in the ONNX file, and had one value in all calls so far,
        are fixed.
        """
        self._record().save(path)

    def _record(self) -> Recorded:
        """The network as a graph, for the inputs of the last call or those declared in the file."""
        graph, out = forward_graph(self, self.__dict__.get(SEEN) or self._declare_inputs())
        form: Any = "output" if isinstance(out, Tensor) else list(graph.outputs)
        form = {name: name for name in out} if isinstance(out, dict) else form
        program = RecordedProgram(graph.to_ir(), form, "OnnxNetwork", f"from ONNX, opset {self.network.opset}")
        held = {
            name: Holding(p.trained, p.shape, p.dtype.name, frozen=p.frozen, by_columns=p.by_columns)
            for name, p in self.named_arrays().items()
        }
        return network_of(program)(program, held, self.state_dict())

    def _declare_inputs(self) -> Inputs:
        specs = {}
        for one in self.network.inputs:
            if one.shape is None or one.dtype is None or None in one.shape:
                fail(
                    UsageError,
                    f"the file does not say the shape of its input {one.name!r}; call the network on an example first: "
                    "net.predict(x).",
                )
            specs[_identifier(one.name)] = Spec(one.shape, one.dtype)
        return next(iter(specs.values())) if len(specs) == 1 else specs

    def options(self) -> str:
        return f"{', '.join(i.name for i in self.network.inputs)} -> {', '.join(self.network.outputs)}"


def _other_batch(network: OnnxGraph, inputs: Sequence[Tensor]) -> ExportedBatch | None:
    """The batch size of the inputs if it differs from that fixed in the file; None if they are equal."""
    for declared, value in zip(network.inputs, inputs):
        fixed = declared.shape[0] if declared.shape else None
        if isinstance(fixed, int) and value.ndim and value.shape[0] != fixed:
            return ExportedBatch(fixed, value.shape[0])
    return None


def _class_of(network: OnnxGraph) -> type[OnnxNetwork]:
    """A class whose `forward` takes the file's inputs by name."""
    names = [_identifier(i.name) for i in network.inputs]
    if len(set(names)) < len(names):
        names = [f"input{i}" for i in range(len(names))]
    return _class_taking(tuple(names))


def _class_taking(names: tuple[str, ...]) -> type[OnnxNetwork]:
    kinds = inspect.Parameter
    signature = inspect.Signature([kinds(name, kinds.POSITIONAL_OR_KEYWORD) for name in ("self", *names)])

    def forward(self: OnnxNetwork, *inputs: Tensor, **named: Tensor) -> Any:
        bound = signature.bind(self, *inputs, **named)
        return self.record(list(bound.arguments.values())[1:])

    forward.__signature__ = signature  # type: ignore[attr-defined]
    return make_subclass(OnnxNetwork, {"forward": forward}, _class_taking, names)


def _identifier(name: str) -> str:
    """A name in the file as a Python identifier: `input.1` becomes `input_1`."""
    plain = "".join(c if c.isalnum() or c == "_" else "_" for c in name)
    return plain if plain.isidentifier() and not keyword.iskeyword(plain) and plain != "self" else f"input_{plain}"


def _is_other_integer(x: Tensor, wanted: str) -> bool:
    return x.dtype.is_integer and x.dtype.name != wanted and wanted in ("int32", "int64", "uint8")


def _kinds(network: OnnxGraph, constants: Sequence[str]) -> dict[str, type[Parameter]]:
    """Decide what each float initializer becomes, parameter or buffer; the others stay constants."""
    for pattern in constants:
        if not any(fnmatchcase(name, pattern) for name in network.constants):
            listed = ", ".join(network.constants) or "there are none"
            raise UsageError(f"constants={pattern!r} matches none of the initialisers: {listed}.")
    statistics: set[str] = set(network.notes.get(BUFFERS, "").split("\n"))
    options: set[str] = set()
    read: set[str] = set()
    for call in _all_calls(network):
        read.update(call.inputs)
        if call.op == "BatchNormalization" and not call.domain:
            statistics.update(call.inputs[3:5])
        row = row_of(call.domain, call.op)
        if row is not None:
            names = [*row.inputs[: len(call.inputs)]]
            options.update(operand for name, operand in zip(names, call.inputs) if name in row.static | row.raw)
    kinds: dict[str, type[Parameter]] = {}
    for name, array in network.constants.items():
        fixed = any(fnmatchcase(name, pattern) for pattern in constants)
        if array.dtype.kind != "f" or fixed or name not in read | set(network.outputs):
            continue
        if name in statistics:
            kinds[name] = Buffer
        elif array.ndim and array.size and name not in options and np.isfinite(array).all():
            kinds[name] = Parameter
    return kinds


def _read_transposed(network: OnnxGraph) -> set[str]:
    """The matrices that are read only as `x @ w.T`, which are stored transposed."""
    if network.ours:
        return set(network.notes.get(BY_COLUMNS, "").split("\n"))
    products: set[str] = set()
    transposed: set[str] = set()
    other: set[str] = set()
    calls = _all_calls(network)
    for call in calls:
        if call.op == "MatMul":
            products.update(call.inputs[1:])
    for call in calls:
        swaps = call.op == "Transpose" and list(call.attributes.get("perm", [1, 0])) == [1, 0]
        for position, name in enumerate(call.inputs):
            gemm = call.op == "Gemm" and position == 1 and call.attributes.get("transB", 0)
            (transposed if gemm or (swaps and call.outputs[0] in products) else other).add(name)
    return {name for name in transposed - other if name in network.constants and network.constants[name].ndim == 2}


def _all_calls(network: OnnxGraph) -> list[OnnxNode]:
    """All nodes that are needed, including nodes in subgraphs."""
    calls = []
    for call in network.live():
        calls.append(call)
        for value in call.attributes.values():
            if isinstance(value, OnnxGraph):
                calls.extend(_all_calls(value))
    return calls
