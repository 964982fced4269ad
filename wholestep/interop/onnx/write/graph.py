"""Writes a graph as ONNX nodes in topological order; batch norms and biased products become one operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.build import attrs_of
from wholestep.errors import GraphError
from wholestep.interop.onnx.write import layers, loops
from wholestep.interop.onnx.write.emitter import OnnxEmitter
from wholestep.interop.onnx.write.layers import ADJOINTS
from wholestep.interop.onnx.write.quantized import Array, is_quantized, quantize_dequantize, quantized_source
from wholestep.interop.onnx.write.values import LAZY, ROWS, value

ALL_ROWS = {**ROWS, **layers.LAYERS, **ADJOINTS}
WITH_BIAS = {"conv2d": layers.conv2d, "conv2d_grad_input": layers.conv_transpose, "matmul": layers.gemm}


@dataclass
class OnnxWriter:
    """Writes graphs; `updates` describes how the running statistics of batch norms are updated."""

    updates: Mapping[str, ir.Node] = field(default_factory=dict)
    readers: dict[ir.Node, list[ir.Node]] = field(default_factory=dict)
    states: Mapping[str, Array] = field(default_factory=dict)

    def write(self, e: OnnxEmitter, graph: ir.IRGraph) -> None:
        """Write the nodes that the outputs need."""
        order = self._order([o.node for o in graph.outputs])
        for node in order:
            for i in self.needs(node):
                self.readers.setdefault(i, []).append(node)
        for node in order:
            if e.name_of(node) is None and node not in e.results and node.op not in (*LAZY, "custom_gradient"):
                e.layer = node.line.layer if node.line is not None and node.line.layer[:1] not in ("", "(") else ""
                self._write_node(e, node)

    def needs(self, node: ir.Node) -> Sequence[ir.Node]:
        """The values that must be written before a node."""
        if node.op == "by_mode":
            return node.inputs[1:]
        if node.op == "add" and (norm := layers.match_batch_norm(node)) is not None:
            return norm.inputs
        if node.op == "dropout":
            return node.inputs[:1]
        if is_quantized(node):
            return [quantized_source(node)]
        if node.op == "custom_gradient":
            return node.inputs[: attrs_of(node, at.CustomGradientAttrs).results]
        return node.inputs

    def _order(self, roots: Sequence[ir.Node]) -> list[ir.Node]:
        """The nodes in topological order."""
        done: dict[ir.Node, None] = {}
        for root in roots:
            stack = [(root, 0)]
            while stack:
                node, position = stack.pop()
                if node in done:
                    continue
                needed = self.needs(node)
                if position < len(needed):
                    stack.append((node, position + 1))
                    if needed[position] not in done:
                        stack.append((needed[position], 0))
                else:
                    done[node] = None
        return list(done)

    def _write_node(self, e: OnnxEmitter, node: ir.Node) -> None:
        if node.op in WITH_BIAS and self._bias_behind(node) is not None:
            return  # it is written together with its bias
        if node.op == "scan":
            items = [r for r in self.readers.get(node, []) if r.op == "item"]
            carries = attrs_of(node, at.ScanAttrs).carries
            numbers = {attrs_of(i, at.ItemAttrs).index: i for i in items}
            trails = {
                n
                for n, i in numbers.items()
                if n < carries and not all(loops.is_last(r, i) for r in self.readers.get(i, [node]))
            }
            loops.scan(e, node, trails, self.write)
            return
        e.names[node] = self._value(e, node)

    def _value(self, e: OnnxEmitter, node: ir.Node) -> str:
        if node.op == "stop_gradient":
            return value(e, node.inputs[0])
        if node.op == "by_mode":
            return value(e, node.inputs[1])
        if node.op == "item":
            return self._item(e, node)
        if node.op == "slice" and node.inputs[0].op == "item" and node.inputs[0].inputs[0].op == "scan":
            trail = node.inputs[0]
            scan, index = trail.inputs[0], attrs_of(trail, at.ItemAttrs).index
            readers = self.readers.get(trail, [])
            if index < attrs_of(scan, at.ScanAttrs).carries and all(loops.is_last(r, trail) for r in readers):
                return e.reshape(e.results[scan][index], node.type.shape)
        if node.op == "add" and (norm := layers.match_batch_norm(node)) is not None:
            return self._norm(e, norm)
        if node.op == "add":
            for product, other in (node.inputs, reversed(node.inputs)):
                bias = self._bias_of(node, product, other)
                if bias is not None:
                    return WITH_BIAS[product.op](e, product, bias)
        row = ALL_ROWS.get(node.op)
        if row is None:
            raise GraphError(
                f"{node.op} cannot be exported to ONNX; supported: {', '.join(sorted(ALL_ROWS))}."
                f"{'' if node.line is None else node.line.error_note}"
            )
        return row(e, node)

    def _item(self, e: OnnxEmitter, node: ir.Node) -> str:
        (source,), index = node.inputs, attrs_of(node, at.ItemAttrs).index
        if is_quantized(source):
            return quantize_dequantize(e, source, self.states)
        return value(e, source.inputs[index]) if source.op == "custom_gradient" else e.results[source][index]

    def _norm(self, e: OnnxEmitter, norm: layers.BatchNorm) -> str:
        mean = norm.inputs[3]
        momentum = layers.momentum_of(self.updates.get(attrs_of(mean, at.StateAttrs).name))
        attributes = {"epsilon": norm.eps, "momentum": momentum}
        return e.add("BatchNormalization", [value(e, i) for i in norm.inputs], attributes)

    def _bias_behind(self, product: ir.Node) -> ir.Node | None:
        """The bias that is added to a product, if nothing else reads the product."""
        readers = self.readers.get(product, [])
        if len(readers) != 1 or readers[0].op != "add":
            return None
        (reader,) = readers
        other = reader.inputs[1] if reader.inputs[0] is product else reader.inputs[0]
        return self._bias_of(reader, product, other)

    def _bias_of(self, node: ir.Node, product: ir.Node, other: ir.Node) -> ir.Node | None:
        if product.op not in WITH_BIAS or other.op != "expand" or len(self.readers.get(product, [])) != 1:
            return None
        if product.op == "matmul" and (product.type.rank != 2 or product.type.dtype != product.inputs[0].type.dtype):
            return None
        if attrs_of(other, at.ExpandAttrs).axes != (1,):
            return None
        bias = other.inputs[0]
        while bias.op == "reshape":
            bias = bias.inputs[0]
        return bias if bias.type.shape == (node.type.shape[1],) and bias.is_state else None
