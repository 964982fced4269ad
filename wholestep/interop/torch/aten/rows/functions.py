"""The table of ATen ops that correspond to a function of `ws`, `ws.nn.functional` or `interop.torch.functions`.

A line names the function, the op, and the function's parameters in the order of the op's arguments, each with the
conversion of the argument; None skips an argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch import functions as t
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row
from wholestep.interop.torch.functions.reductions import logsumexp_over
from wholestep.nn import functional as nnf

# -- how an argument of an op becomes one of a function: of the recorder, the argument, and the first converted one ----

Conversion = Callable[[AtenRecorder, Any, Any], Any]


def is_nonzero(r: AtenRecorder, x: Any, _: Any = None) -> Tensor:
    """A condition: x itself if it is one, otherwise x != 0."""
    tensor = r.tensor(x)
    return tensor if tensor.dtype.name == "bool" else tensor != 0


def axes_of(_: AtenRecorder, dims: Any, x: Tensor) -> tuple[int, ...]:
    """Axes counted from the front, in order; torch's None and () are all of them."""
    if x.ndim == 0:
        return ()
    if dims is None or (isinstance(dims, list | tuple) and not dims):
        return tuple(range(x.ndim))
    return tuple(sorted(d % x.ndim for d in ([dims] if isinstance(dims, int) else dims)))


OWN: Conversion = lambda r, x, _: r.tensor(x)  # noqa: E731  a tensor in its own dtype
RESULT: Conversion = lambda r, x, _: r.tensor(x, r.dtype)  # noqa: E731  a tensor in the dtype of the op's result
OPERAND: Conversion = lambda r, x, _: r.operand(x)  # noqa: E731  the same, but numbers stay numbers
EACH: Conversion = lambda r, tensors, _: [r.tensor(x, r.dtype) for x in tensors]  # noqa: E731
NUMBER: Conversion = lambda r, x, _: float(x)  # noqa: E731
AS_IS: Conversion = lambda r, x, _: x  # noqa: E731
CONDITION, AXES = is_nonzero, axes_of


def COMMON(r: AtenRecorder, x: Any, _: Any) -> Any:
    """An operand in the dtype to which torch promotes both for a comparison; booleans are compared as integers."""
    dtype = r.common(*r.node.args[:2])
    return r.operand(x, "int32" if dtype == "bool" else dtype)


def same(
    function: Callable[..., Any],
    *ops: str,
    of_scalars: Callable[[Tensor], Tensor] | None = None,
    **parameters: Conversion | None,
) -> None:
    """Register ops that are recorded by calling a function.

    For an argument that is None or missing the function uses its default, except that missing axes are all axes.
    Results get torch's dtypes; results that only torch's own backward pass reads are None.

    Args:
        of_scalars: what is recorded instead for a tensor without axes, whose axis torch lets be 0 or -1.
    """
    ours = tuple(parameters)

    @row(*ops)
    def record(r: AtenRecorder, *args: Any, **named: Any) -> Any:
        arguments = dict(zip(ours, args)) | _by_parameter(r.node.target._schema, ours, named)
        converted: dict[str, Any] = {}
        first: Any = None
        for name, convert in parameters.items():
            argument = arguments.get(name)
            if convert is not None and (argument is not None or convert is AXES):
                converted[name] = convert(r, argument, first)
                first = converted[name] if first is None else first
        if of_scalars is not None and first.ndim == 0:
            return of_scalars(first)
        return _in_dtypes(r, function(**converted))


def _by_parameter(schema: Any, ours: tuple[str, ...], named: dict[str, Any]) -> dict[str, Any]:
    """Map keyword arguments of an op to our parameters: keyword-only ones by name, others by position."""
    positions = [argument.name for argument in schema.arguments if not argument.kwarg_only]
    translated = {name: ours[i] if i < len(ours) else "" for i, name in enumerate(positions)}
    return {translated.get(name, name): value for name, value in named.items()}


def _in_dtypes(r: AtenRecorder, results: Any) -> Any:
    """Results in torch's dtypes; further results, which the function does not have, are None."""
    if isinstance(r.meta, torch.Tensor):
        return results.astype(r.dtype)
    values = results if isinstance(results, tuple) else (results,)
    typed = [value.astype(r.name_of(meta.dtype)) for value, meta in zip(values, r.meta)]
    return (*typed, *[None] * (len(r.meta) - len(typed)))


# -- one tensor, element by element ------------------------------------------------------------------------------------

# Computed in the dtype of the result: torch promotes integers to floats for these.
_OF_ONE = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tanh asin acos atan asinh acosh atanh erfinv lgamma digamma sqrt "
    "rsqrt erf abs square sinc"
)
_SPECIAL = ("exp2", "expm1", "log1p", "erf", "erfc", "sinc")  # torch.special has these ops under other names
for _name in _OF_ONE.split():
    same(getattr(ws, _name), _name, *([f"special_{_name}"] if _name in _SPECIAL else []), x=RESULT)
for _name in ("tan", "sinh", "cosh", "neg", "deg2rad", "rad2deg"):
    same(getattr(t, _name), _name, x=RESULT)
same(t.erfc, "erfc", "special_erfc", x=RESULT)
same(ws.recip, "reciprocal", x=RESULT)
same(ws.stop_gradient, "wholestep.stop_gradient", "detach", x=OWN)
same(
    t.identity, "clone", "alias", "contiguous", "lift_fresh_copy", "lift_fresh", "positive", "conj", "_conj",
    "resolve_conj", "resolve_neg", "conj_physical", "_conj_physical", "view_as_real_copy", "real", "detach_copy", x=OWN,
)  # fmt: skip
same(lambda x: 0.5 * (1.0 + ws.erf(x * math.sqrt(0.5))), "special_ndtr", x=RESULT)
same(lambda x: math.sqrt(2.0) * ws.erfinv(2.0 * x - 1.0), "special_ndtri", x=RESULT)
same(t.logit, "logit", "special_logit", x=RESULT, eps=NUMBER)
same(t.nan_to_num, "nan_to_num", x=OWN, nan=NUMBER, posinf=NUMBER, neginf=NUMBER)
same(t.frac, "frac", x=OWN)
same(ws.isnan, "isnan", x=OWN)
same(lambda x: ws.isinf(x) if x.dtype.is_float else x != x, "isinf", x=OWN)
same(lambda x: ws.isfinite(x) if x.dtype.is_float else x == x, "isfinite", x=OWN)
same(lambda x: x == math.inf, "isposinf", x=OWN)
same(lambda x: x == -math.inf, "isneginf", x=OWN)
same(lambda x: x < 0, "signbit", x=OWN)
same(t.logical_not, "logical_not", x=OWN)
same(ws.bitwise_not, "bitwise_not", x=RESULT)

# -- activations -------------------------------------------------------------------------------------------------------

same(ws.sigmoid, "sigmoid", "special_expit", x=RESULT)
same(ws.silu, "silu", x=OWN)
same(ws.mish, "mish", x=OWN)
same(ws.gelu, "gelu", x=OWN, approximate=AS_IS)
same(ws.hardswish, "hardswish", x=OWN)
same(ws.leaky_relu, "leaky_relu", x=OWN, slope=NUMBER)
same(nnf.logsigmoid, "log_sigmoid", "log_sigmoid_forward", x=OWN)
same(nnf.softplus, "softplus", x=OWN, beta=NUMBER, threshold=NUMBER)
same(nnf.prelu, "prelu", "_prelu_kernel", x=OWN, weight=OWN)
same(nnf.celu, "celu", x=OWN, alpha=NUMBER)
same(nnf.selu, "selu", x=OWN)
same(nnf.hardtanh, "hardtanh", x=OWN, min_val=OPERAND, max_val=OPERAND)
same(lambda x: nnf.hardtanh(x, 0, 6), "relu6", x=OWN)
same(nnf.softshrink, "softshrink", x=OWN, lambd=NUMBER)
same(nnf.hardshrink, "hardshrink", x=OWN, lambd=NUMBER)
same(nnf.threshold, "threshold", x=OWN, threshold=OPERAND, value=OPERAND)
same(lambda x: ws.relu(x) if x.dtype.is_float else ws.maximum(x, 0), "relu", x=OWN)
same(nnf.glu, "glu", x=OWN, axis=AS_IS)

# -- several tensors, element by element -------------------------------------------------------------------------------

same(ws.maximum, "maximum", "fmax", "max.other", x=OPERAND, y=OPERAND)
same(ws.minimum, "minimum", "fmin", "min.other", x=OPERAND, y=OPERAND)
same(ws.atan2, "atan2", y=OPERAND, x=OPERAND)
same(t.hypot, "hypot", x=OPERAND, y=OPERAND)
same(t.heaviside, "heaviside", x=RESULT, values=OPERAND)
same(t.xlogy, "xlogy", "special_xlogy", x=OPERAND, y=OPERAND)
same(t.addcmul, "addcmul", x=RESULT, tensor1=RESULT, tensor2=OPERAND, value=OPERAND)
same(t.addcdiv, "addcdiv", x=RESULT, tensor1=RESULT, tensor2=OPERAND, value=OPERAND)
same(t.clamp_min, "clamp_min", x=RESULT, min=OPERAND)
same(t.clamp_max, "clamp_max", x=RESULT, max=OPERAND)
same(ws.lerp, "lerp", start=RESULT, end=RESULT, weight=OPERAND)
for _function, *_names in (
    (t.eq, "eq"), (t.ne, "ne", "not_equal"), (t.lt, "lt", "less"), (t.le, "le", "less_equal"),
    (t.gt, "gt", "greater"), (t.ge, "ge", "greater_equal"),
):  # fmt: skip
    same(_function, *_names, x=COMMON, y=COMMON)
for _function, *_names in (
    (ws.bitwise_and, "bitwise_and", "__and__"), (ws.bitwise_or, "bitwise_or", "__or__"),
    (ws.bitwise_xor, "bitwise_xor", "__xor__"), (ws.left_shift, "bitwise_left_shift", "__lshift__"),
    (ws.right_shift, "bitwise_right_shift", "__rshift__"),
):  # fmt: skip
    same(_function, *_names, x=RESULT, y=OPERAND)
same(t.logical_and, "logical_and", x=OWN, y=OWN)
same(t.logical_or, "logical_or", x=OWN, y=OWN)
same(ws.logical_xor, "logical_xor", x=CONDITION, y=CONDITION)
same(ws.where, "where", condition=CONDITION, x=OPERAND, y=OPERAND)
same(ws.masked_fill, "masked_fill", x=RESULT, mask=CONDITION, value=OPERAND)

# -- reductions --------------------------------------------------------------------------------------------------------

same(t.sum, "sum", x=RESULT, axis=AXES, keepdims=AS_IS)
same(t.mean, "mean", x=RESULT, axis=AXES, keepdims=AS_IS)
same(t.amax, "amax", x=OWN, axis=AXES, keepdims=AS_IS)
same(t.amin, "amin", x=OWN, axis=AXES, keepdims=AS_IS)
same(t.max, "max.default", x=OWN)
same(t.min, "min.default", x=OWN)
same(ws.any, "any", x=OWN, axis=AXES, keepdims=AS_IS)
same(ws.all, "all", x=OWN, axis=AXES, keepdims=AS_IS)
same(ws.count_nonzero, "count_nonzero", x=OWN, axis=AXES)
same(ws.prod, "prod", x=RESULT, axis=AXES, keepdims=AS_IS)
same(ws.norm, "norm", "linalg_vector_norm", x=RESULT, p=NUMBER, axis=AXES, keepdims=AS_IS)
same(logsumexp_over, "logsumexp", "special_logsumexp", x=RESULT, axes=AXES, keepdims=AS_IS)
same(t.dist, "dist", x=RESULT, y=RESULT, p=NUMBER)
same(t.cdist, "cdist", "_cdist_forward", x=OWN, y=OWN, p=NUMBER)

# -- along an axis -----------------------------------------------------------------------------------------------------


def _itself(x: Tensor) -> Tensor:
    return x


same(ws.cumsum, "cumsum", of_scalars=_itself, x=RESULT, axis=AS_IS)
same(ws.cumprod, "cumprod", of_scalars=_itself, x=RESULT, axis=AS_IS)
same(ws.logcumsumexp, "logcumsumexp", x=OWN, axis=AS_IS)
same(ws.cummax, "cummax", x=OWN, axis=AS_IS)
same(ws.cummin, "cummin", x=OWN, axis=AS_IS)
same(ws.log_softmax, "log_softmax", "_log_softmax", of_scalars=ws.zeros_like, x=RESULT, axis=AS_IS)
same(ws.index_add, "index_add", x=RESULT, axis=AS_IS, index=OWN, source=RESULT, alpha=OPERAND)
same(ws.index_copy, "index_copy", x=RESULT, axis=AS_IS, index=OWN, source=RESULT)

# -- shapes ------------------------------------------------------------------------------------------------------------

same(ws.permute, "permute", "permute_copy", of_scalars=_itself, x=OWN, order=AS_IS)
same(ws.movedim, "movedim", "moveaxis", x=OWN, source=AS_IS, destination=AS_IS)
same(ws.unbind, "unbind", "unbind_copy", x=OWN, axis=AS_IS)
same(t.select, "select", "select_copy", x=OWN, axis=AS_IS, index=AS_IS)
same(ws.stack, "stack", tensors=EACH, axis=AS_IS)
same(ws.windows_along, "unfold", "unfold_copy", x=OWN, axis=AS_IS, size=AS_IS, step=AS_IS)
same(ws.tril, "tril", x=OWN, diagonal=AS_IS)
same(ws.triu, "triu", x=OWN, diagonal=AS_IS)

# -- products and norms ------------------------------------------------------------------------------------------------

same(t.outer, "outer", "ger", x=RESULT, vec2=RESULT)
same(nnf.linear, "linear", x=OWN, weight=OWN, bias=OWN)
same(nnf.layer_norm, "layer_norm", "native_layer_norm", x=OWN, normalized_shape=AS_IS, weight=OWN, bias=OWN, eps=AS_IS)
same(nnf.rms_norm, "rms_norm", "_fused_rms_norm", x=OWN, normalized_shape=AS_IS, weight=OWN, eps=AS_IS)
same(ws.group_norm, "group_norm", x=OWN, groups=AS_IS, weight=OWN, bias=OWN, eps=AS_IS)
same(
    ws.group_norm, "native_group_norm", x=OWN, weight=OWN, bias=OWN, rows=None, channels=None, pixels=None,
    groups=AS_IS, eps=AS_IS,
)  # fmt: skip
