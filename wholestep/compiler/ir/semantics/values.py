"""The reference meaning of every op: one row each, a NumPy function of its attributes and inputs.

Float tensors are computed in float64 whatever their dtype; integers, bools and random bits are exact.  A value of a
half type is rounded to it where it arises: at casts, and at any other op whose result is of that type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.semantics import convolution_values, layer_values
from wholestep.compiler.ir.semantics.random import uniform
from wholestep.compiler.ir.type_rules.scan import scan_value
from wholestep.compiler.ir.types import DType, Extent, TensorType, TupleType, evaluate, letter_of
from wholestep.errors import GradientError

Array = np.ndarray[Any, Any]
Value = Array | tuple[Array, ...]


class Ranks(Protocol):
    """Ranks that are interpreted side by side, seen from one of them."""

    def exchange(self, kind: str, axis: str, given: Array) -> Array:
        """What this rank has after a collective along an axis."""


@dataclass(frozen=True)
class StepValues:
    """What the leaves read: one step of one entry point."""

    inputs: Mapping[str, Array]
    state: Mapping[str, Array]
    scalars: Mapping[str, float]
    sizes: Mapping[str, int]
    seed: int
    step: int
    ranks: Ranks | None = None  # the others, where several make a step together
    observe: Callable[[Node, Array], Array] | None = None  # sees every value as it is computed; what it returns counts

    def shape(self, shape: tuple[Extent, ...]) -> tuple[int, ...]:
        return tuple(evaluate(e, self.sizes) for e in shape)


def interpreter_dtype(dtype: DType) -> np.dtype[Any]:
    """The dtype the interpreter computes in."""
    return np.dtype(np.float64) if dtype.is_float else dtype.numpy


def evaluate_graph(graph: IRGraph, run: StepValues) -> dict[Node, Any]:
    """The value of every node."""
    values: dict[Node, Any] = {}
    for node in graph.nodes:
        value = value_of(node, run, [values[i] for i in node.inputs])
        if isinstance(node.result, TupleType):
            values[node] = tuple(_settle(node, t, v, run) for t, v in zip(node.result.items, value, strict=True))
        else:
            values[node] = _settle(node, node.result, value, run)
    return values


def value_of(node: Node, run: StepValues, given: Sequence[Any]) -> Any:
    """What a node computes of the values of its inputs, before its own rounding."""
    if node.op in layer_values.ROUNDED and node.inputs[0].type.dtype.is_half:
        kind = node.inputs[0].type.dtype
        return layer_values.ROUNDED[node.op](lambda x: round_to(x, kind), node.attrs, *given)
    return VALUES[node.op](run, node.attrs, *given)


def round_to(value: Any, dtype: DType) -> Array:
    """The value in the dtype that the interpreter computes in; of a half type, the nearest number that it holds."""
    out: Array = np.asarray(value, dtype=interpreter_dtype(dtype))
    if not dtype.is_half:
        return out
    with np.errstate(all="ignore"):  # what is too large becomes infinite
        return out.astype(dtype.numpy).astype(np.float64)


def _settle(node: Node, type: TensorType, value: Array, run: StepValues) -> Array:
    out = round_to(value, type.dtype)
    assert out.shape == run.shape(type.shape), f"{node} gave shape {out.shape} at sizes {dict(run.sizes)}"
    return out if run.observe is None else run.observe(node, out)


# -- one row per op ----------------------------------------------------------------------------------------------

Row = Callable[..., Any]  # (run, attrs, *values of the inputs) -> value


def _collective(kind: str) -> Callable[..., Any]:
    return lambda run, a, x: _collective_value(run, kind, a.axis, x)


def _collective_value(run: StepValues, kind: str, axis: str, x: Array) -> Array:
    """Alone, a rank has what it gave."""
    return x if run.ranks is None else run.ranks.exchange(kind, axis, x)


def _plain(function: Callable[..., Any]) -> Row:
    """A row that needs nothing but its inputs."""
    return lambda run, a, *xs: function(*xs)


def _input(run: StepValues, a: at.InputAttrs) -> Array:
    return run.inputs[a.name]


def _state(run: StepValues, a: at.StateAttrs) -> Array:
    return run.state[a.name]


def _iota(run: StepValues, a: at.IotaAttrs) -> Array:
    shape = run.shape(a.type.shape)
    along = [1] * len(shape)
    along[a.axis] = shape[a.axis]
    return np.broadcast_to(np.arange(shape[a.axis]).reshape(along), shape)


def _random(run: StepValues, a: at.RandomAttrs) -> Array:
    return uniform(run.seed, a.key, run.step, run.shape(a.type.shape), evaluate(a.first, run.sizes))


_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _sigmoid(x: Array) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _gelu(run: StepValues, a: at.GeluAttrs, x: Array) -> Any:
    if a.approximate:
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * _erfc(-x / math.sqrt(2.0))  # 1 + erf(x), without its cancellation


def _cast(run: StepValues, a: at.CastAttrs, x: Array) -> Any:
    if letter_of(x.dtype) != "f" or not a.dtype.is_integer:
        return x.astype(interpreter_dtype(a.dtype))
    # A float is cut off towards 0; what the integers do not hold becomes the nearest that they do, and NaN 0.
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
    placed = [1] * len(shape)
    for axis, length in zip(a.axes, x.shape, strict=True):
        placed[axis] = length
    return np.broadcast_to(x.reshape(placed), shape)


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
    places = int(start) + np.arange(len(rows))
    inside = (places >= 0) & (places < len(x))
    out = x.copy()
    out[places[inside]] = rows[inside]
    return out


def _matmul(run: StepValues, a: at.MatmulAttrs, x: Array, y: Array) -> Array:
    return (np.swapaxes(x, -1, -2) if a.transpose_a else x) @ (np.swapaxes(y, -1, -2) if a.transpose_b else y)


def _gradient(run: StepValues, a: at.Attrs, *xs: Array) -> Array:
    raise GradientError("a graph with a gradient node has no values yet: expand gradients first (passes/autodiff).")


def _call(run: StepValues, a: at.CallAttrs, *xs: Array) -> Value:
    names = (i.attrs.name for i in a.graph.inputs)  # type: ignore[attr-defined]
    values = evaluate_graph(a.graph, replace(run, inputs=dict(zip(names, xs, strict=True))))
    return tuple(values[o.node] for o in a.graph.outputs)


def _scan(run: StepValues, a: at.ScanAttrs, *xs: Array) -> Value:
    names = [i.attrs.name for i in a.graph.inputs]  # type: ignore[attr-defined]

    def step(graph: IRGraph, values: Sequence[Array]) -> Sequence[Array]:
        found = evaluate_graph(graph, replace(run, inputs=dict(zip(names, values, strict=True))))
        return [np.asarray(found[o.node]) for o in graph.outputs]

    return scan_value(step, evaluate(a.length, run.sizes), a, xs)


def _log_softmax(x: Array, axis: int) -> Array:
    shifted = x - x.max(axis=axis, keepdims=True, initial=-math.inf)
    out: Array = shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return out


def _logsumexp(x: Array, axis: int) -> Array:
    top = x.max(axis=axis, keepdims=True, initial=-math.inf)
    out: Array = (top + np.log(np.exp(x - top).sum(axis=axis, keepdims=True))).squeeze(axis)
    return out


def _cross_entropy(logits: Array, labels: Array) -> Array:
    index = _clamp_index(labels, logits.shape[-1])[..., None]
    return -np.take_along_axis(_log_softmax(logits, -1), index, axis=-1)[..., 0]


def _dropout(run: StepValues, a: at.DropoutAttrs, x: Array, rate: Array) -> Array:
    draw = uniform(run.seed, a.key, run.step, x.shape, evaluate(a.first, run.sizes))
    return np.where(draw >= rate, x / (1.0 - rate), 0.0)


VALUES: dict[str, Row] = {
    "input": _input,
    "parameter": _state,
    "state": _state,
    "constant": lambda run, a: a.array.value,
    "scalar": lambda run, a: run.scalars.get(a.name, a.default),
    "size": lambda run, a: evaluate(a.extent, run.sizes),
    "iota": _iota,
    "random": _random,
    "exp": _plain(np.exp),
    "exp2": _plain(np.exp2),
    "expm1": _plain(np.expm1),
    "log": _plain(np.log),
    "log2": _plain(np.log2),
    "log1p": _plain(np.log1p),
    "sin": _plain(np.sin),
    "cos": _plain(np.cos),
    "sqrt": _plain(np.sqrt),
    "recip": _plain(lambda x: 1.0 / x),
    "erf": _plain(_erf),
    "floor": _plain(np.floor),
    "atan": _plain(np.arctan),
    "neg": _plain(np.negative),
    "abs": _plain(np.abs),
    "sign": _plain(np.sign),
    "add": _plain(np.add),
    "sub": _plain(np.subtract),
    "mul": _plain(np.multiply),
    "maximum": _plain(np.maximum),
    "minimum": _plain(np.minimum),
    "mod": _plain(np.mod),
    "floor_divide": _plain(np.floor_divide),
    "bitwise_and": _plain(np.bitwise_and),
    "bitwise_or": _plain(np.bitwise_or),
    "bitwise_xor": _plain(np.bitwise_xor),
    "left_shift": _plain(np.left_shift),
    "right_shift": _plain(np.right_shift),
    "div": _plain(np.divide),
    "pow": _plain(np.power),
    "less": _plain(np.less),
    "less_equal": _plain(np.less_equal),
    "equal": _plain(np.equal),
    "not_equal": _plain(np.not_equal),
    "logical_and": _plain(np.logical_and),
    "logical_or": _plain(np.logical_or),
    "logical_not": _plain(np.logical_not),
    "where": _plain(np.where),
    "cast": _cast,
    "sum": _sum,
    "max": _max,
    "argmax": lambda run, a, x: x.argmax(axis=a.axis),  # the first of equal ones
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
    "ratio": _plain(np.divide),
    "stop_gradient": _plain(lambda x: x),
    "by_mode": _plain(lambda training, evaluating: training),
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
    "relu": _plain(lambda x: np.maximum(x, 0.0)),
    "sigmoid": _plain(_sigmoid),
    "tanh": _plain(np.tanh),
    "silu": _plain(lambda x: x * _sigmoid(x)),
    "softplus": _plain(lambda x: np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))),
    "gelu": _gelu,
    "bce_with_logits": _plain(lambda x, y: np.maximum(x, 0.0) - x * y + np.log1p(np.exp(-np.abs(x)))),
    "softmax": lambda run, a, x: np.exp(_log_softmax(x, a.axis)),
    "log_softmax": lambda run, a, x: _log_softmax(x, a.axis),
    "logsumexp": lambda run, a, x: _logsumexp(x, a.axis),
    "cross_entropy": _plain(_cross_entropy),
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
