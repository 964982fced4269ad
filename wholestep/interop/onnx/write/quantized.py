"""Rounded values as QuantizeLinear and DequantizeLinear; a weight is stored as int8, with its scales.

`ws.nn.fake_quantize` is one custom_gradient node, whose inputs are the rounded value and x.
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
    x, product = quantized_source(node), node.inputs[0]  # product: (clip(round(x/scale) + zero) - zero)·scale
    (scales, axis), (zero, _) = (_numbers(n, states) for n in (product.inputs[1], product.inputs[0].inputs[1]))
    zeros = np.broadcast_to(zero, scales.shape).astype(np.int8)
    names = [e.constant(scales), e.constant(np.ascontiguousarray(zeros))]
    attributes = {} if axis is None else {"axis": axis}
    if isinstance(x.attrs, at.StateAttrs) and x.attrs.name in states:
        weight = np.asarray(states[x.attrs.name], np.float32)
        along = scales if axis is None else scales.reshape([-1 if d == axis else 1 for d in range(weight.ndim)])
        whole = np.clip(np.rint(weight / along) + zero, LOW, HIGH).astype(np.int8)
        return e.add("DequantizeLinear", [e.constant(whole), *names], attributes)
    rounded = e.add("QuantizeLinear", [value(e, x), *names], attributes)
    return e.add("DequantizeLinear", [rounded, *names], attributes)


def _numbers(node: ir.Node, states: Mapping[str, Array]) -> tuple[Array, int | None]:
    """One number, or a vector and its axis: the value of an expression of states that a product broadcasts."""
    axes = tuple(range(node.type.rank))
    if isinstance(node.attrs, at.ExpandAttrs):
        axes, (node,) = node.attrs.axes, node.inputs
    numbers = _evaluate(node, states).astype(np.float32)
    if numbers.size == 1:
        return numbers.reshape(()), None
    if max(numbers.shape) != numbers.size:
        raise GraphError("QuantizeLinear has one scale, or one for each slice of an axis; give scales of one axis.")
    return numbers.reshape(-1), axes[numbers.shape.index(numbers.size)]


def _evaluate(node: ir.Node, states: Mapping[str, Array]) -> Array:
    """The value of an expression of states, as evaluation computes it."""
    graph = evaluation_graph(ir.IRGraph((ir.Output("value", node),), (), ()))
    if graph.leaves("input"):
        raise GraphError(
            "export_onnx: a scale or zero point of fake_quantize depends on an input; hold it in a buffer."
        )
    needed = {name: states[name] for name in graph.states()}
    return interpret(graph, state=needed).outputs["value"]
