"""Rounded values as QuantizeLinear and DequantizeLinear; a weight is stored as int8, with its scales.

`ws.nn.fake_quantize` is one custom_gradient node, whose inputs are the rounded value, x, the scale and the zero point.
Scales and zero points are functions of states, so that their numbers are computed at export.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wholestep.compiler.frontend.layers.composites import evaluation_graph
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.errors import GraphError
from wholestep.interop.onnx.write.emitter import OnnxEmitter
from wholestep.interop.onnx.write.values import value
from wholestep.nn.wrappers.quantization import FAKE_QUANTIZE, HIGH, LOW

Array = np.ndarray[Any, Any]


def is_quantized(node: ir.Node) -> bool:
    """Is it the node of a `ws.nn.fake_quantize`?"""
    return node.op == "custom_gradient" and node.name == FAKE_QUANTIZE


def quantized_source(node: ir.Node) -> ir.Node:
    """The value that a `fake_quantize` rounds."""
    return node.inputs[attrs_of(node, at.CustomGradientAttrs).results]


def quantize_dequantize(e: OnnxEmitter, node: ir.Node, states: Mapping[str, Array]) -> str:
    """Write a `fake_quantize`: DequantizeLinear of int8 numbers for a weight, of QuantizeLinear for other values."""
    x, scale_node, zero_node = node.inputs[attrs_of(node, at.CustomGradientAttrs).results :][:3]
    scale, zero = (_number(n, states) for n in (scale_node, zero_node))
    axis = None
    if scale.size > 1:
        axis = max(range(scale.ndim), key=lambda d: scale.shape[d]) + x.type.rank - scale.ndim
        if max(scale.shape) != scale.size:
            raise GraphError("QuantizeLinear has one scale, or one for each slice of an axis; give scales of one axis.")
    scales = scale.astype(np.float32).reshape(() if axis is None else (-1,))
    zeros = np.broadcast_to(zero, scale.shape).reshape(scales.shape).astype(np.int8)
    names = [e.constant(scales), e.constant(np.ascontiguousarray(zeros))]
    attributes = {} if axis is None else {"axis": axis}
    if isinstance(x.attrs, at.StateAttrs) and x.attrs.name in states:
        weight = np.asarray(states[x.attrs.name], np.float32)
        whole = np.clip(np.rint(weight / scale.astype(np.float32)) + zero, LOW, HIGH).astype(np.int8)
        return e.add("DequantizeLinear", [e.constant(whole), *names], attributes)
    rounded = e.add("QuantizeLinear", [value(e, x), *names], attributes)
    return e.add("DequantizeLinear", [rounded, *names], attributes)


def _number(node: ir.Node, states: Mapping[str, Array]) -> Array:
    """The value of an expression of states, as evaluation computes it."""
    graph = evaluation_graph(ir.IRGraph((ir.Output("value", node),), (), ()))
    if graph.leaves("input"):
        raise GraphError(
            "export_onnx: a scale or zero point of fake_quantize depends on an input; hold it in a buffer."
        )
    needed = {name: states[name] for name in graph.states()}
    return interpret(graph, state=needed).outputs["value"]
