"""Reference semantics of every op: one entry each in `VALUES`, a NumPy function of its attributes and inputs.

Float tensors are computed in float64 whatever their dtype; integers, bools and random bits are exact.  The result of
every op (not only of casts) with a half-precision dtype is rounded to that dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node, leaf_name
from wholestep.compiler.ir.semantics import convolution_values, layer_values
from wholestep.compiler.ir.semantics.error_function import erf, erfc
from wholestep.compiler.ir.semantics.random import uniform
from wholestep.compiler.ir.type_rules.scan import scan_value
from wholestep.compiler.ir.types import DType, Extent, TensorType, TupleType, evaluate, letter_of
from wholestep.errors import GradientError

Array = np.ndarray[Any, Any]
Value = Array | tuple[Array, ...]


class Ranks(Protocol):
    """The process group of an interpreted step, seen from one rank."""

    def exchange(self, kind: str, axis: str, operand: Array) -> Array:
        """The result of a collective along an axis on this rank."""


@dataclass(frozen=True)
class StepValues:
    """The environment of one step of one entry point: the values that leaves read."""

    inputs: Mapping[str, Array]
    state: Mapping[str, Array]
    scalars: Mapping[str, float]
    sizes: Mapping[str, int]
    seed: int
    step: int
    ranks: Ranks | None = None  # the process group of a distributed step
    observe: Callable[[Node, Array], Array] | None = None  # called with every value; returns the value to use

    def shape(self, shape: tuple[Extent, ...]) -> tuple[int, ...]:
        return tuple(evaluate(e, self.sizes) for e in shape)


def interpreter_dtype(dtype: DType) -> np.dtype[Any]:
    """The dtype that the interpreter computes in: float64 for all floats."""
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


def evaluate_graph(graph: IRGraph, run: StepValues) -> dict[Node, Any]:
    """The value of every node."""
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        value = value_of(node, run, [values[i] for i in node.inputs])
        if isinstance(node.result, TupleType):
            values[node] = tuple(_finish_value(node, t, v, run) for t, v in zip(node.result.items, value, strict=True))
        else:
            values[node] = _finish_value(node, node.result, value, run)
    return values


def value_of(node: Node, run: StepValues, inputs: Sequence[Any]) -> Any:
    """The value of a node before it is rounded to the node's dtype, from the values of its inputs."""
    if node.op in layer_values.ROUNDED and node.inputs[0].type.dtype.is_half:
        kind = node.inputs[0].type.dtype
        return layer_values.ROUNDED[node.op](lambda x: round_to(x, kind), node.attrs, *inputs)
    return VALUES[node.op](run, node.attrs, *inputs)


def round_to(value: Any, dtype: DType) -> Array:
    """The value in the interpreter's dtype; a result of a half type is first rounded to that type."""
    out: Array = np.asarray(value, dtype=interpreter_dtype(dtype))
    if not dtype.is_half:
        return out
    with np.errstate(all="ignore"):  # overflow to infinity is intended
        return out.astype(dtype.numpy).astype(np.float64)


def _finish_value(node: Node, type: TensorType, value: Array, run: StepValues) -> Array:
    out = round_to(value, type.dtype)
    assert out.shape == run.shape(type.shape), f"{node} has shape {out.shape} at sizes {dict(run.sizes)}"
    return out if run.observe is None else run.observe(node, out)


# -- one entry per op --------------------------------------------------------------------------------------------

Row = Callable[..., Any]  # (run, attrs, *values of the inputs) -> value


def _collective(kind: str) -> Callable[..., Any]:
    return lambda run, a, x: _collective_value(run, kind, a.axis, x)


def _collective_value(run: StepValues, kind: str, axis: str, x: Array) -> Array:
    """The result of a collective; without a process group, its operand."""
    return x if run.ranks is None else run.ranks.exchange(kind, axis, x)


def _of_inputs(function: Callable[..., Any]) -> Row:
    """An entry that depends on the values of its inputs only."""
    return lambda run, a, *xs: function(*xs)


def _input(run: StepValues, a: at.InputAttrs) -> Array:
    return run.inputs[a.name]


def _state(run: StepValues, a: at.StateAttrs) -> Array:
    return run.state[a.name]


def _iota(run: StepValues, a: at.IotaAttrs) -> Array:
    shape = run.shape(a.type.shape)
    broadcastable = [1] * len(shape)
    broadcastable[a.axis] = shape[a.axis]
    return np.broadcast_to(np.arange(shape[a.axis]).reshape(broadcastable), shape)


def _random(run: StepValues, a: at.RandomAttrs) -> Array:
    return uniform(run.seed, a.key, run.step, run.shape(a.type.shape), evaluate(a.first, run.sizes))


def _sigmoid(x: Array) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(run: StepValues, a: at.GeluAttrs, x: Array) -> Any:
    if a.approximate:
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * erfc(-x / math.sqrt(2.0))  # 1 + erf(x / sqrt(2)) without cancellation at negative x


def _cast(run: StepValues, a: at.CastAttrs, x: Array) -> Any:
    if letter_of(x.dtype) != "f" or not a.dtype.is_integer:
        return x.astype(interpreter_dtype(a.dtype))
    # Floats are truncated towards 0 and saturate at the limits of the integer type; NaN becomes 0.
    limits = np.iinfo(a.dtype.numpy)
    inside = np.where((x > limits.min) & (x < limits.max), x, 0.0).astype(a.dtype.numpy)
    return np.where(x >= limits.max, limits.max, np.where(x <= limits.min, limits.min, inside)).astype(a.dtype.numpy)


def _sum(run: StepValues, a: at.SumAttrs, x: Array) -> Any:
    return x.sum(axis=a.axes, dtype=x.dtype)


def _max(run: StepValues, a: at.MaxAttrs, x: Array) -> Any:
    lowest = -math.inf if letter_of(x.dtype) == "f" else np.iinfo(x.dtype).min
    return x.max(axis=a.axes, initial=lowest)


def _expand(run: StepValues, a: at.ExpandAttrs, x: Array) -> Array:
    shape = run.shape(a.shape)
    broadcastable = [1] * len(shape)
    for axis, length in zip(a.axes, x.shape, strict=True):
        broadcastable[axis] = length
    return np.broadcast_to(x.reshape(broadcastable), shape)


def _slice(run: StepValues, a: at.SliceAttrs, x: Array) -> Array:
    return x[tuple(map(slice, run.shape(a.starts), run.shape(a.stops), a.steps))]


def _pad(run: StepValues, a: at.PadAttrs, x: Array) -> Array:
    out = np.full([lo + n + hi for lo, n, hi in zip(a.low, x.shape, a.high, strict=True)], a.value, x.dtype)
    out[tuple(slice(lo, lo + n) for lo, n in zip(a.low, x.shape, strict=True))] = x
    return out


def _clamp_index(index: Array, size: int) -> Array:
    return np.clip(index.astype(np.int64), 0, size - 1)


def _gather(run: StepValues, a: at.GatherAttrs, data: Array, index: Array) -> Array:
    return np.take(data, _clamp_index(index, data.shape[a.axis]), axis=a.axis)


def _scatter_add(run: StepValues, a: at.ScatterAddAttrs, updates: Array, index: Array) -> Array:
    size = evaluate(a.size, run.sizes)
    before, after = updates.shape[: a.axis], updates.shape[a.axis + index.ndim :]
    out = np.zeros((*before, size, *after), updates.dtype)
    rows = updates.reshape(*before, index.size, *after)
    np.add.at(np.moveaxis(out, a.axis, 0), _clamp_index(index.reshape(-1), size), np.moveaxis(rows, a.axis, 0))
    return out


def _write_rows(run: StepValues, a: at.Attrs, x: Array, rows: Array, start: Array) -> Array:
    positions = int(start) + np.arange(len(rows))
    inside = (positions >= 0) & (positions < len(x))
    out = x.copy()
    out[positions[inside]] = rows[inside]
    return out


def _matmul(run: StepValues, a: at.MatmulAttrs, x: Array, y: Array) -> Array:
    return (np.swapaxes(x, -1, -2) if a.transpose_a else x) @ (np.swapaxes(y, -1, -2) if a.transpose_b else y)


def _gradient(run: StepValues, a: at.Attrs, *xs: Array) -> Array:
    raise GradientError("a graph with gradient nodes cannot be evaluated: expand gradients first (passes/autodiff).")


def _call(run: StepValues, a: at.CallAttrs, *xs: Array) -> Value:
    names = map(leaf_name, a.graph.inputs)
    values = evaluate_graph(a.graph, replace(run, inputs=dict(zip(names, xs, strict=True))))
    return tuple(values[o.node] for o in a.graph.outputs)


def _scan(run: StepValues, a: at.ScanAttrs, *xs: Array) -> Value:
    names = [leaf_name(i) for i in a.graph.inputs]

    def step(graph: IRGraph, values: Sequence[Array]) -> Sequence[Array]:
        values_of_nodes = evaluate_graph(graph, replace(run, inputs=dict(zip(names, values, strict=True))))
        return [np.asarray(values_of_nodes[o.node]) for o in graph.outputs]

    return scan_value(step, evaluate(a.length, run.sizes), a, xs)


def _log_softmax(x: Array, axis: int) -> Array:
    shifted = x - x.max(axis=axis, keepdims=True, initial=-math.inf)
    out: Array = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return out


def _logsumexp(x: Array, axis: int) -> Array:
    largest = x.max(axis=axis, keepdims=True, initial=-math.inf)
    out: Array = (largest + np.log(np.exp(x - largest).sum(axis=axis, keepdims=True))).squeeze(axis)
    return out


def _cross_entropy(logits: Array, labels: Array) -> Array:
    index = _clamp_index(labels, logits.shape[-1])[..., None]
    return -np.take_along_axis(_log_softmax(logits, -1), index, axis=-1)[..., 0]


def _dropout(run: StepValues, a: at.DropoutAttrs, x: Array, rate: Array) -> Array:
    uniforms = uniform(run.seed, a.key, run.step, x.shape, evaluate(a.first, run.sizes))
    return np.where(uniforms >= rate, x / (1.0 - rate), 0.0)


VALUES: dict[str, Row] = {
    "input": _input,
    "parameter": _state,
    "state": _state,
    "constant": lambda run, a: a.array.value,
    "scalar": lambda run, a: run.scalars.get(a.name, a.default),
    "size": lambda run, a: evaluate(a.extent, run.sizes),
    "iota": _iota,
    "random": _random,
    "exp": _of_inputs(np.exp),
    "exp2": _of_inputs(np.exp2),
    "expm1": _of_inputs(np.expm1),
    "log": _of_inputs(np.log),
    "log2": _of_inputs(np.log2),
    "log1p": _of_inputs(np.log1p),
    "sin": _of_inputs(np.sin),
    "cos": _of_inputs(np.cos),
    "sqrt": _of_inputs(np.sqrt),
    "recip": _of_inputs(lambda x: 1.0 / x),
    "erf": _of_inputs(erf),
    "floor": _of_inputs(np.floor),
    "atan": _of_inputs(np.arctan),
    "neg": _of_inputs(np.negative),
    "abs": _of_inputs(np.abs),
    "sign": _of_inputs(np.sign),
    "add": _of_inputs(np.add),
    "sub": _of_inputs(np.subtract),
    "mul": _of_inputs(np.multiply),
    "maximum": _of_inputs(np.maximum),
    "minimum": _of_inputs(np.minimum),
    "mod": _of_inputs(np.mod),
    "floor_divide": _of_inputs(np.floor_divide),
    "bitwise_and": _of_inputs(np.bitwise_and),
    "bitwise_or": _of_inputs(np.bitwise_or),
    "bitwise_xor": _of_inputs(np.bitwise_xor),
    "left_shift": _of_inputs(np.left_shift),
    "right_shift": _of_inputs(np.right_shift),
    "div": _of_inputs(np.divide),
    "pow": _of_inputs(np.power),
    "less": _of_inputs(np.less),
    "less_equal": _of_inputs(np.less_equal),
    "equal": _of_inputs(np.equal),
    "not_equal": _of_inputs(np.not_equal),
    "logical_and": _of_inputs(np.logical_and),
    "logical_or": _of_inputs(np.logical_or),
    "logical_not": _of_inputs(np.logical_not),
    "where": _of_inputs(np.where),
    "cast": _cast,
    "sum": _sum,
    "max": _max,
    "argmax": lambda run, a, x: x.argmax(axis=a.axis),  # the first maximum if several are equal
    "reshape": lambda run, a, x: x.reshape(run.shape(a.shape)),
    "permute": lambda run, a, x: x.transpose(a.order),
    "expand": _expand,
    "slice": _slice,
    "pad": _pad,
    "concat": lambda run, a, *xs: np.concatenate(xs, axis=a.axis),
    "gather": _gather,
    "scatter_add": _scatter_add,
    "write_rows": _write_rows,
    "matmul": _matmul,
    "conv2d": convolution_values.conv2d,
    "conv2d_grad_input": convolution_values.conv2d_grad_input,
    "conv2d_grad_weight": convolution_values.conv2d_grad_weight,
    "max_pool2d": convolution_values.max_pool2d,
    "max_pool2d_index": convolution_values.max_pool2d_index,
    "max_pool2d_grad": convolution_values.max_pool2d_grad,
    "max_pool2d_pick": convolution_values.max_pool2d_pick,
    "pooled_grad_weight": convolution_values.grad_weight_through_pool,
    "pooled_grad_input": convolution_values.grad_input_through_pool,
    "ratio": _of_inputs(np.divide),
    "stop_gradient": _of_inputs(lambda x: x),
    "by_mode": _of_inputs(lambda training, evaluating: training),
    "gradient": _gradient,
    "item": lambda run, a, xs: xs[a.index],
    "call": _call,
    "custom_gradient": lambda run, a, *xs: xs[: a.results],
    "scan": _scan,
    "all_reduce": _collective("all_reduce"),
    "reduce_scatter": _collective("reduce_scatter"),
    "all_gather": _collective("all_gather"),
    "broadcast": _collective("broadcast"),
    "exchange": lambda run, a, *xs: tuple(_collective_value(run, a.kind, a.axis, x) for x in xs),
    "relu": _of_inputs(lambda x: np.maximum(x, 0.0)),
    "sigmoid": _of_inputs(_sigmoid),
    "tanh": _of_inputs(np.tanh),
    "silu": _of_inputs(lambda x: x * _sigmoid(x)),
    "softplus": _of_inputs(lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))),
    "gelu": _gelu,
    "bce_with_logits": _of_inputs(lambda x, y: np.maximum(x, 0.0) - x * y + np.log1p(np.exp(-np.abs(x)))),
    "softmax": lambda run, a, x: np.exp(_log_softmax(x, a.axis)),
    "log_softmax": lambda run, a, x: _log_softmax(x, a.axis),
    "logsumexp": lambda run, a, x: _logsumexp(x, a.axis),
    "cross_entropy": _of_inputs(_cross_entropy),
    "layer_norm": layer_values.layer_norm,
    "layer_norm_grad": layer_values.layer_norm_grad,
    "rms_norm": layer_values.rms_norm,
    "rms_norm_grad": layer_values.rms_norm_grad,
    "group_norm": layer_values.group_norm,
    "group_norm_grad": layer_values.group_norm_grad,
    "batch_norm": layer_values.batch_norm,
    "batch_norm_grad": layer_values.batch_norm_grad,
    "dropout": _dropout,
    "attention": layer_values.attention,
    "attention_lse": layer_values.attention_lse,
    "attention_grad": layer_values.attention_grad,
}
