"""Records a network node by node: tensor operators as ops of the graph, constants and sizes computed immediately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.errors import UnsupportedOpError, UsageError, WholestepError
from wholestep.interop.onnx.read import sizes
from wholestep.interop.onnx.read.network import Array, OnnxFunction, OnnxGraph, OnnxNode, Reference
from wholestep.interop.onnx.read.sizes import tensor_of
from wholestep.interop.onnx.read.table import IGNORED, ExportedBatch, Items, NodeContext, OnnxRow, row_of

Value = Tensor | Array  # constants are arrays; arrays of sizes may contain Dims


class OnnxRecorder:
    """Records the nodes of a network in a graph."""

    def __init__(self, network: OnnxGraph, graph: Graph | None, batch: ExportedBatch | None = None) -> None:
        self.network, self.graph, self.batch = network, graph, batch

    def run(self, network: OnnxGraph, arguments: Mapping[str, Value]) -> list[Value]:
        """The outputs of a network for given inputs and initializers, and values of the outer graph."""
        values: dict[str, Any] = {"": None, **network.constants, **arguments}
        for call in network.live():
            results = self.call(call, values, network.opset)
            values.update(zip(call.outputs, results))
        for name in network.outputs:
            if values.get(name) is None:
                raise UsageError(f"the output {name!r} has no value.")
        return [values[name] for name in network.outputs]

    def call(self, call: OnnxNode, values: Mapping[str, Any], opset: int) -> Sequence[Any]:
        """The results of one node."""
        try:
            inputs = [values[name] for name in call.inputs]
            row = row_of(call.domain, call.op)
            if call.op == "If" and not call.domain:
                return self.branch(call, inputs, values)
            computed = sizes.compute_sizes(call, inputs, opset)
            if computed is not None:
                return computed
            return self.function(call, inputs) if row is None else self.row(row, call, inputs, values, opset)
        except WholestepError as error:
            if _AT in str(error):
                raise
            raise type(error)(f"{_AT} {call.description}: {error}") from None
        except Exception as error:
            raise UsageError(f"{_AT} {call.description}: it could not be recorded: {error!r}.") from error

    def branch(self, call: OnnxNode, inputs: Sequence[Any], values: Mapping[str, Any]) -> Sequence[Any]:
        """The results of an `If` whose condition is constant: the results of one branch."""
        if not isinstance(inputs[0], np.ndarray):
            raise UsageError(
                "the condition of If depends on data, which is not supported. Export the branch that you need, or "
                "write it as Where."
            )
        chosen = call.attributes["then_branch" if inputs[0].reshape(-1)[0] else "else_branch"]
        return self.run(chosen, {name: v for name, v in values.items() if v is not None})

    def function(self, call: OnnxNode, inputs: Sequence[Any]) -> Sequence[Any]:
        """The results of a model-local function, which is recorded at its call."""
        function = self.network.functions.get((call.domain, call.op))
        if function is None:
            raise UnsupportedOpError(missing_text({(call.domain, call.op): [call]}))
        values: dict[str, Any] = {"": None, **dict.fromkeys(function.inputs), **dict(zip(function.inputs, inputs))}
        chosen = {**function.defaults, **call.attributes}
        for inner in function.calls:
            results = self.call(_with_attributes(inner, chosen), values, function.opset)
            values.update(zip(inner.outputs, results))
        return [values[name] for name in function.outputs]

    def row(
        self, row: OnnxRow, call: OnnxNode, inputs: Sequence[Any], values: Mapping[str, Any], opset: int
    ) -> Sequence[Any]:
        ignored = IGNORED - row.attributes
        unknown = call.attributes.keys() - row.attributes - ignored
        if unknown:
            raise UsageError(f"its attribute {min(unknown)!r} is not supported; known: {sorted(row.attributes)}.")
        missing = [name for name in row.needed if name not in call.attributes]
        if missing:
            raise UsageError(f"its attribute {missing[0]!r} is missing; the file is incomplete.")
        operands = [self._argument(row, i, value) for i, value in enumerate(inputs)]
        if len([v for v in operands[: row.required] if v is not None]) < row.required:
            raise UsageError(f"it needs {row.required} inputs; received {len(operands)}.")
        if not row.variadic and len(operands) > len(row.inputs):
            raise UsageError(f"it takes at most {len(row.inputs)} inputs; received {len(operands)}.")
        options = {name: value for name, value in call.attributes.items() if name not in ignored}
        if row.takes_node:
            read = max((i + 1 for i, name in enumerate(call.outputs) if name), default=0)
            options["node"] = NodeContext(
                call.op, call.name, opset, read, self.batch, self.network.ours, self.graph, self._inner(values)
            )
        results = row.function(*operands, **options)
        several = isinstance(results, tuple | list) and not isinstance(results, Items)
        for result in results if several else (results,):
            # arrays of the file and results of their size are not limited
            as_large = any(
                isinstance(v, Tensor) and isinstance(result, Tensor) and v.shape == result.shape for v in operands
            )
            if isinstance(result, Tensor) and not as_large:
                sizes.need_room(result.shape, np.dtype(result.dtype.numpy).itemsize)
        return [self.constant_or_tensor(v) for v in (results if several else (results,))]

    def _argument(self, row: OnnxRow, position: int, value: Any) -> Any:
        name = row.inputs[position] if position < len(row.inputs) else ""
        if value is None or (name in row.raw) or (not name and "rest" in row.raw):
            return value
        if name in row.static:
            if not isinstance(value, np.ndarray):
                raise UsageError(
                    f"its input {name!r} depends on data; sizes and options must be known when a network is recorded. "
                    "Make it an initialiser, or compute it from shapes."
                )
            return value
        if isinstance(value, Items):
            raise UsageError(f"its input {name!r} is a sequence; a tensor was expected.")
        return tensor_of(value)

    def _inner(self, values: Mapping[str, Any]) -> Any:
        def run(network: OnnxGraph, arguments: Sequence[Any]) -> list[Any]:
            inside = dict(zip((i.name for i in network.inputs), arguments))
            return self.run(network, {**{k: v for k, v in values.items() if v is not None}, **inside})

        return run

    def constant_or_tensor(self, value: Any) -> Any:
        """A tensor computed from constants alone becomes an array."""
        if not isinstance(value, Tensor) or value.graph is not None:
            return np.asarray(value) if isinstance(value, int | float | bool | np.generic) else value
        graph = ir.IRGraph((ir.Output("value", value.node),))
        # files from `ws.export_onnx` may be folded, as their network was before the export
        if graph.symbols or self.network.ours:
            return value
        if any(t.elements > MOST for n in graph.nodes for t in n.results):  # type: ignore[operator]
            return value
        array = interpret(graph).outputs["value"].astype(value.dtype.numpy)
        array.flags.writeable = False
        return array


_AT = "ONNX"


def _with_attributes(call: OnnxNode, chosen: Mapping[str, Any]) -> OnnxNode:
    """A node of a function with the attributes that were passed to the function."""
    attributes = {
        name: chosen[value.name] if isinstance(value, Reference) else value
        for name, value in call.attributes.items()
        if not isinstance(value, Reference) or value.name in chosen
    }
    return OnnxNode(call.op, call.domain, call.name, call.inputs, call.outputs, attributes)


WITHOUT_ROW = {("", "If"), ("", "Shape"), ("", "Size")}  # recorded by OnnxRecorder itself or by sizes.py
MOST = 2**24  # elements of a constant that is computed during recording; larger ones are computed in the step
REFUSED = {
    "Loop": "it runs as often as data says; a loop over the slices of a sequence is Scan",
    "NonZero": "the shape of its result depends on data",
    "Compress": "the shape of its result depends on data",
    "Unique": "the shape of its result depends on data",
    "NonMaxSuppression": "the shape of its result depends on data",
}


def missing_text(missing: Mapping[tuple[str, str], Sequence[OnnxNode]]) -> str:
    """The error text for all operators without a row."""
    parts = []
    for (domain, op), calls in missing.items():
        operator = f"{domain}.{op}" if domain else op
        more = f" and {len(calls) - 1} more" if len(calls) > 1 else ""
        why = f": {REFUSED[op]}" if op in REFUSED and not domain else ""
        parts.append(f"{operator} ({calls[0].description}{more}{why})")
    (domain, op) = next(iter(missing))
    where = f', domain="{domain}"' if domain else ""
    return (
        f"the file uses operators that are not imported: {'; '.join(parts)}. Say how each is recorded: "
        f'@ws.onnx_op("{op}"{where}) over a function of its inputs and attributes.'
    )


def missing_operators(network: OnnxGraph) -> dict[tuple[str, str], list[OnnxNode]]:
    """The nodes that the outputs need and that have no row, by operator."""
    missing: dict[tuple[str, str], list[OnnxNode]] = {}

    def look(calls: Sequence[OnnxNode]) -> None:
        for call in calls:
            key = (call.domain, call.op)
            function: OnnxFunction | None = network.functions.get(key)
            if row_of(*key) is None and key not in WITHOUT_ROW:
                if function is None:
                    missing.setdefault(key, []).append(call)
                else:
                    look(function.calls)
            for value in call.attributes.values():
                if isinstance(value, OnnxGraph) and key != ("", "If"):
                    look(value.live())

    look(network.live())
    return missing
