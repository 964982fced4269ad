"""Arithmetic of sizes: nodes computed from shapes, as arrays whose elements may be symbolic dimensions.

A file says `Reshape(x, Concat(Shape(x)[:1], [-1]))`.  While a network is recorded `Shape` is an array, of objects where
a dimension has no number yet, and the nodes behind it are computed here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from wholestep.compiler.frontend.functions.primitives import stack
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.ir.types import Dim, divide, product
from wholestep.errors import ShapeError, UsageError
from wholestep.interop.onnx.read.network import Array, OnnxNode

SMALL = 4096  # elements; larger arrays are not sizes, and are folded by the tensor rows
LIMIT = 2**32  # bytes of one value, with its batch counted as one row; a larger one means a damaged or hostile file


def need_room(shape: Sequence[Any], itemsize: int = 8) -> None:
    """Refuse to compute a value of more than `LIMIT` bytes; symbolic sizes count as 1."""
    size = math.prod(max(int(e), 0) for e in shape if not isinstance(e, Dim)) * itemsize
    if size > LIMIT:
        raise ShapeError(
            f"a value of shape ({', '.join(map(str, shape))}) takes {size:,} bytes; a value of an imported network has "
            f"at most {LIMIT:,}. The file is damaged, or not meant for this."
        )


def compute_sizes(call: OnnxNode, inputs: Sequence[Any], opset: int) -> Sequence[Any] | None:
    """The results of a node that computes sizes; None for any other node."""
    if call.domain or not inputs:
        return None
    if inputs[0] is None and call.op in ("Shape", "Size"):
        raise UsageError("its input is missing; the file is incomplete.")
    if call.op in ("Shape", "Size"):
        return _shape(call, inputs[0])
    rule = RULES.get(call.op)
    if rule is None or not all(v is None or _is_size(v) for v in inputs):
        return None
    sizes = rule(call.attributes, *inputs)
    return None if sizes is None else [_as_integers(sizes)]


def extents(value: Array, what: str = "a shape") -> list[Any]:
    """The elements of an array of sizes: ints and Dims."""
    return [e if isinstance(e, Dim) else int(e) for e in np.asarray(value).reshape(-1)]


def array_of(values: Sequence[Any]) -> Array:
    """An array of sizes: int64, or objects if one is symbolic."""
    out = np.empty(len(values), object)
    out[:] = list(values)
    settled: Array = _as_integers(out)
    return settled


def _is_size(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.size <= SMALL and (value.dtype == object or value.dtype.kind in "ib")


def _as_integers(value: Any) -> Array:
    array = np.asarray(value)
    if array.dtype == object and not any(isinstance(e, Dim) for e in array.reshape(-1)):
        return array.astype(np.int64)
    return array


def _shape(call: OnnxNode, x: Any) -> Sequence[Any]:
    shape = list(x.shape)
    if call.op == "Size":
        return [_as_integers(np.array(product(shape), object))]
    return [array_of(shape[call.attributes.get("start", 0) : call.attributes.get("end")])]


def _objects(x: Array) -> Array:
    return x.astype(object)


def _binary(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    def rule(_: Any, x: Array, y: Array) -> Any:
        if x.dtype != object and y.dtype != object:
            with np.errstate(all="ignore"):
                return function(x, y).astype(np.result_type(x, y))
        return function(_objects(x), _objects(y))

    return rule


def _quotient(a: Any, b: Any) -> Any:
    if isinstance(a, Dim) or isinstance(b, Dim):
        quotient = divide(a, b)
        if quotient is None:
            raise ShapeError(f"{a} / {b} is not an integer for every size; give the dimension a fixed number.")
        return quotient
    if b == 0:
        raise ShapeError(f"{a} / {b}: a size is divided by 0; the file is damaged.")
    return math.trunc(a / b) if abs(a) < 2**52 else a // b


def _divide(_: Any, x: Array, y: Array) -> Any:
    pairs = np.broadcast(_objects(x), _objects(y))
    out = np.empty(pairs.shape, object)
    out.reshape(-1)[:] = [_quotient(a, b) for a, b in pairs]
    settled = _as_integers(out)
    return (
        settled if settled.dtype == object else settled.astype(np.result_type(x, y) if x.dtype != object else np.int64)
    )


def _compare(op: str) -> Callable[..., Any]:
    plain = {"Equal": np.equal, "Less": np.less, "Greater": np.greater}[op]

    def decide(a: Any, b: Any) -> bool:
        if isinstance(a, Dim) or isinstance(b, Dim):
            if op == "Equal" or a == b:
                return bool(a == b) if op == "Equal" else False
            if isinstance(b, int) and b <= 0:  # a size is at least 1
                return op == "Greater"
            if isinstance(a, int) and a <= 0:
                return op == "Less"
            raise ShapeError(f"{op} of {a} and {b} depends on a size; give the dimension a fixed number.")
        return bool(plain(a, b))

    def rule(_: Any, x: Array, y: Array) -> Any:
        if x.dtype != object and y.dtype != object:
            return plain(x, y)
        pairs = np.broadcast(_objects(x), _objects(y))
        return np.array([decide(a, b) for a, b in pairs], bool).reshape(pairs.shape)

    return rule


def _gather(a: Any, x: Array, index: Array) -> Any:
    if x.ndim == 0:
        raise ShapeError("Gather needs an array; received a single number.")
    axis = a.get("axis", 0)
    if index.size and not -x.shape[axis] <= index.min() <= index.max() < x.shape[axis]:
        raise ShapeError(f"Gather: the index {index} is outside of {x.shape[axis]} sizes.")
    return np.take(x, index, axis=axis)


def _slice(a: Any, x: Array, starts: Array, ends: Array, axes: Array | None = None, steps: Array | None = None) -> Any:
    if any(v is not None and v.dtype == object for v in (starts, ends, axes, steps)):
        return None
    key: list[Any] = [slice(None)] * x.ndim
    places = range(starts.size) if axes is None else axes.reshape(-1)
    strides = np.ones(starts.size, int) if steps is None else steps.reshape(-1)
    for d, s, e, k in zip(places, starts.reshape(-1), ends.reshape(-1), strides):
        n = x.shape[int(d)]
        last = None if k < 0 and e < -n else int(e)
        key[int(d)] = slice(int(s), last, int(k))
    return x[tuple(key)]


def _cast(a: Any, x: Array) -> Any:
    from wholestep.interop.onnx.read.reading import dtype_name

    kind = dtype_name(a["to"])
    if x.dtype == object:
        return x if kind in ("int32", "int64") else None
    return x.astype(kind) if kind in ("int32", "int64", "bool") else None


def _reshape(a: Any, x: Array, shape: Array) -> Any:
    if shape.dtype == object:
        return None
    wanted = [x.shape[i] if e == 0 and not a.get("allowzero", 0) else int(e) for i, e in enumerate(shape.reshape(-1))]
    return x.reshape(wanted)


def _expand(a: Any, x: Array, shape: Array) -> Any:
    if shape.dtype == object or math.prod(int(e) for e in shape.reshape(-1)) > SMALL:
        return None
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, tuple(int(e) for e in shape.reshape(-1))))


def _unsqueeze(a: Any, x: Array, axes: Array | None = None) -> Any:
    new_axes = [int(d) for d in (axes.reshape(-1) if axes is not None else a["axes"])]
    return np.expand_dims(x, tuple(new_axes))


def _squeeze(a: Any, x: Array, axes: Array | None = None) -> Any:
    chosen = a.get("axes") if axes is None else [int(d) for d in axes.reshape(-1)]
    return np.squeeze(x, None if chosen is None else tuple(chosen))


def _range(a: Any, start: Array, limit: Array, delta: Array) -> Any:
    values = [v.reshape(-1)[0] for v in (start, limit, delta)]
    if any(isinstance(v, Dim) for v in values) or start.dtype.kind not in "i" or values[2] == 0:
        return None
    return np.arange(*values, dtype=start.dtype) if abs(int(values[1]) - int(values[0])) <= SMALL else None


def _reduce_prod(a: Any, x: Array, axes: Array | None = None) -> Any:
    if x.dtype != object or x.ndim != 1:
        return None
    out = np.array(product(list(x)), object)
    return out.reshape(1) if a.get("keepdims", 1) else out


def _where(a: Any, condition: Array, x: Array, y: Array) -> Any:
    return np.where(condition, x, y) if condition.dtype == bool else None


def _concat(a: Any, *xs: Array) -> Any:
    mixed = any(x.dtype == object for x in xs)
    return np.concatenate([_objects(x) for x in xs] if mixed else xs, axis=a["axis"])


RULES: dict[str, Callable[..., Any]] = {
    "Identity": lambda a, x: x,
    "Add": _binary(lambda x, y: x + y),
    "Sub": _binary(lambda x, y: x - y),
    "Mul": _binary(lambda x, y: x * y),
    "Div": _divide,
    "Equal": _compare("Equal"),
    "Less": _compare("Less"),
    "Greater": _compare("Greater"),
    "Gather": _gather,
    "Slice": _slice,
    "Concat": _concat,
    "Cast": _cast,
    "Reshape": _reshape,
    "Expand": _expand,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Range": _range,
    "ReduceProd": _reduce_prod,
    "Where": _where,
}


def tensor_of(value: Any) -> Tensor:
    """A value as a tensor; symbolic sizes get their value when a step runs."""
    if isinstance(value, Tensor):
        return value
    if value.dtype != object:
        return as_tensor(value if value.ndim else value[()])
    parts = [_size(e) for e in value.reshape(-1)]
    return parts[0].reshape(value.shape) if value.size == 1 else stack(parts).reshape(value.shape)


def _size(extent: Any) -> Tensor:
    return as_tensor(extent).astype("int64") if isinstance(extent, Dim) else as_tensor(np.int64(extent))


def number(value: Array) -> Any:
    """The single element of an array."""
    return np.asarray(value).reshape(-1)[0].item()
