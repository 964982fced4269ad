"""The node cases of the onnx package: which of them are about what this library does, and what becomes of each."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

import wholestep as ws
from wholestep.compiler.frontend.layers.composites import evaluation_graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.errors import WholestepError
from wholestep.interop.onnx.read.network import OnnxGraph
from wholestep.interop.onnx.read.reading import DTYPES, WIDENED, dtype_name, model_as_network
from wholestep.interop.onnx.read.recording import OnnxRecorder
from wholestep.interop.onnx.read.sizes import tensor_of
from wholestep.interop.onnx.read.table import row_of

# Why cases are not judged.  By operator:
OPERATORS = {
    "quantised numbers": (
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "QLinearConv", "QLinearMatMul"),
        *("ConvInteger", "MatMulInteger"),
    ),
    "control flow that depends on data": ("If", "Loop"),
    "shapes that depend on data": ("NonZero", "Compress", "Unique", "NonMaxSuppression"),
    "sequences and optionals as inputs or outputs": (
        *("SequenceMap", "Optional", "OptionalHasElement", "OptionalGetElement"),
    ),
    "random numbers, which are drawn otherwise": (
        *("Bernoulli", "RandomUniform", "RandomUniformLike", "RandomNormal", "RandomNormalLike", "Multinomial"),
    ),
    "files of images, and text": (
        *("ImageDecoder", "TfIdfVectorizer", "StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch"),
    ),
    "bits taken for other numbers": ("BitCast",),
}
OTHER_DOMAINS = "operators of previews and of classical learning"
OTHER_DTYPES = "element types that nothing here computes with"
OLD = "opsets before 13, where the operator was another"
HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
RANDOM = "random numbers, which are drawn otherwise"
OLD_CASES = ("test_scan_sum", "test_dropout_default_old", "test_dropout_random_old")


def all_cases() -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases

        return list(collect_testcases(None))


def out_of_scope(case: Any) -> str | None:
    """Why a case is not judged; None where it is."""
    graph = case.model.graph
    operators = {node.op_type for node in graph.node}
    if any(node.domain not in ("", "ai.onnx") for node in graph.node):
        return OTHER_DOMAINS
    for reason, names in OPERATORS.items():
        if operators.intersection(names):
            return reason
    kinds = {value.type.WhichOneof("value") for value in (*graph.input, *graph.output)}
    if kinds - {"tensor_type"}:
        return "sequences and optionals as inputs or outputs"
    types = {v.type.tensor_type.elem_type for v in (*graph.input, *graph.output)}
    types |= {a.i for n in graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to"}
    if any(dtype_name(t) not in DTYPES for t in types if t):
        return OTHER_DTYPES
    if case.name.startswith("test_training_dropout") and "zero_ratio" not in case.name:
        return RANDOM
    return OLD if case.name in OLD_CASES else None


def judged(case: Any) -> str:
    """ "" where a case gives what it should, else what went wrong."""
    inputs, expected = case.data_sets[0]
    try:
        network = model_as_network(case.model)
        arrays = {info.name: _array(v) for info, v in zip(network.inputs, inputs)}
        found = _outputs(network, arrays)
    except WholestepError as error:
        return f"{type(error).__name__}: {error}"
    for position, (got, value) in enumerate(zip(found, expected)):
        wanted = _array(value)
        half = case.model.graph.output[position].type.tensor_type.elem_type in HALF
        if got.shape != wanted.shape:
            return f"output {position} has the shape {got.shape}, not {wanted.shape}"
        near = {"rtol": 2e-2, "atol": 2e-2} if half else {"rtol": max(case.rtol, 1e-3), "atol": max(case.atol, 1e-5)}
        if not np.allclose(got.astype(np.float64), wanted.astype(np.float64), equal_nan=True, **near):
            return f"output {position} differs"
    return ""


def _array(value: Any) -> np.ndarray:
    array = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else np.asarray(value)
    return array.astype(WIDENED.get(array.dtype.name, array.dtype.name))


def _outputs(network: OnnxGraph, arrays: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Sizes and options are known, as they are in files; the rest is given to a graph that is interpreted."""
    graph, static = ws.Graph(), set(_static_names(network))
    values: dict[str, Any] = {name: a for name, a in arrays.items() if name in static}
    for name, a in arrays.items():
        if name not in static:
            values[name] = graph.input(name, a.shape, a.dtype.name)
    found = [tensor_of(v) for v in OnnxRecorder(network, graph).run(network, values)]
    graph.set_outputs({f"output {i}": Tensor(t.node, graph) for i, t in enumerate(found)})
    whole = expand_gradients(evaluation_graph(graph.to_ir(updates=False)))
    feeds = {name: arrays[name] for name in graph.inputs}
    return list(interpret(whole, inputs=feeds).outputs.values())


def _static_names(network: OnnxGraph) -> Iterator[str]:
    """Inputs that rows want to know, and what they are computed from."""
    wanted: set[str] = set()
    for call in reversed(network.calls):
        row = row_of(call.domain, call.op)
        if row is not None:
            wanted |= {given for name, given in zip(row.inputs, call.inputs) if name in row.static}
        if wanted.intersection(call.outputs) and call.op not in ("Shape", "Size"):
            wanted |= set(call.inputs)
    yield from wanted
