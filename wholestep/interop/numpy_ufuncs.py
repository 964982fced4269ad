"""NumPy's elementwise functions (ufuncs) on tensors: each is mapped to one of our operators or functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.trace import locate
from wholestep.errors import UsageError

if TYPE_CHECKING:
    from wholestep.compiler.frontend.tensor import Tensor

# NumPy's name -> the method for a tensor as left operand, the method for a tensor as right operand
OPERATORS = {
    "add": ("__add__", "__radd__"),
    "subtract": ("__sub__", "__rsub__"),
    "multiply": ("__mul__", "__rmul__"),
    "divide": ("__truediv__", "__rtruediv__"),
    "remainder": ("__mod__", "__rmod__"),
    "power": ("__pow__", "__rpow__"),
    "matmul": ("__matmul__", "__rmatmul__"),
    "less": ("__lt__", "__gt__"),
    "less_equal": ("__le__", "__ge__"),
    "greater": ("__gt__", "__lt__"),
    "greater_equal": ("__ge__", "__le__"),
    "equal": ("__eq__", "__eq__"),
    "not_equal": ("__ne__", "__ne__"),
    "bitwise_and": ("__and__", "__and__"),
    "bitwise_or": ("__or__", "__or__"),
    "bitwise_xor": ("__xor__", "__xor__"),
    "left_shift": ("__lshift__", "__rlshift__"),
    "right_shift": ("__rshift__", "__rrshift__"),
    "floor_divide": ("__floordiv__", "__rfloordiv__"),
}
FUNCTIONS = frozenset({
    "absolute", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh",
    "ceil", "cos", "cosh", "deg2rad", "exp", "exp2", "expm1", "floor", "hypot", "isfinite", "isinf",
    "isnan", "log", "log10", "log1p", "log2", "logaddexp", "logical_and", "logical_not", "logical_or",
    "logical_xor", "maximum", "minimum", "negative", "positive", "rad2deg", "reciprocal", "sign", "sin", "sinh",
    "sqrt", "square", "tan", "tanh", "trunc",
})  # fmt: skip


def apply_ufunc(function: Any, method: str, inputs: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    """The result of a NumPy function that has tensors among its inputs."""
    from wholestep.compiler.frontend.tensor import Tensor
    from wholestep.interop import names

    name: str = function.__name__
    if method == "__call__" and not options and name in OPERATORS:
        left, right = OPERATORS[name]
        first, second = inputs
        out: Tensor = getattr(first, left)(second) if isinstance(first, Tensor) else getattr(second, right)(first)
        return out
    if method == "__call__" and not options and name in FUNCTIONS:
        result: Tensor = names.resolve_path(f"ws.{name}")(*inputs)
        return result
    text = names.suggestion("ws", name) or "functions of tensors are in ws"
    raise locate(UsageError(f"np.{name} was called on a tensor of a program, which has no value yet: {text}."))
