"""Linear, embedding, dropout and reshaping layers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.functions.primitives import sqrt, stop_gradient
from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.compiler.frontend.layers.composites import dropout as drop
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError
from wholestep.nn.module.function_module import FunctionModule
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import parameter, weight

if TYPE_CHECKING:
    from wholestep.nn.module.regularizers import Regularizer


def positive(kind: str, **sizes: int) -> None:
    """Raise OptionError unless the sizes are integers of at least 1."""
    for what, value in sizes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            fail(OptionError, f"{kind}: {what} must be an integer of at least 1; received {value!r}.")


def regularize(module: Module, weight: Regularizer, activity: Regularizer) -> None:
    """Set the regularizers of a module from the arguments of its constructor."""
    for option, regularizer in (("weight_regularizer", weight), ("activity_regularizer", activity)):
        if regularizer is not None:
            from wholestep.nn.module.regularizers import as_regularizer  # imported here because few layers have one

            setattr(module, option, as_regularizer(type(module).__name__, option, regularizer))


class Linear(Module):
    """The linear map x · weightᵀ + bias; weight (outputs, inputs) and bias start uniform in ±1/√inputs as in PyTorch.

    Args:
        init: the initializer of the weight, unless as above.
        split: of workers that divide layers, `ws.Workers(model=2)`: "columns", each has some of the outputs, or "rows",
            each has some of the inputs.  Columns, an activation, rows: one sum over workers in each direction.
        weight_regularizer, activity_regularizer: terms added to the loss for the weight, and for the output of the
            layer (a mean over rows): `ws.nn.L2(1e-4)`, `ws.nn.L1(1e-4)`, or a function of a tensor that gives a number.

    Example: `ws.nn.Linear(784, 128)`.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        bias: bool = True,
        dtype: object = "float32",
        init: object = None,
        *,
        split: str | None = None,
        weight_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
    ) -> None:
        positive("Linear", inputs=inputs, outputs=outputs)
        regularize(self, weight_regularizer, activity_regularizer)
        bound = 1.0 / math.sqrt(inputs)
        self.inputs, self.outputs = inputs, outputs
        start = initializers.uniform(-bound, bound)
        self.weight = weight((outputs, inputs), start if init is None else init, dtype, by_columns=True)
        self.bias = parameter((outputs,), start, dtype) if bias else None
        self.split = split or None
        if split:
            from wholestep.nn.wrappers.tensor_parallel import split_linear  # imported here because few layers are split

            split_linear(self, split)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 0 or x.shape[-1] != self.inputs:
            fail(
                ShapeError,
                f"Linear({self.inputs}, {self.outputs}) takes {self.inputs} features on the last axis; received "
                f"{shape_text(x.shape)}." + (" Flatten it first: ws.nn.Flatten()." if x.ndim > 2 else ""),
            )
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias

    def options(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        return f"{self.inputs}, {self.outputs}" + ("" if self.bias is not None else ", bias=False") + split


class CosineLinear(Module):
    """The cosine of x and each row of the weight (outputs, inputs): scores between -1 and 1, for the "arcface" loss.

    Example: `ws.nn.CosineLinear(128, 10)`.
    """

    weight: Tensor

    def __init__(self, inputs: int, outputs: int, dtype: object = "float32") -> None:
        positive("CosineLinear", inputs=inputs, outputs=outputs)
        bound = 1.0 / math.sqrt(inputs)
        self.inputs, self.outputs = inputs, outputs
        self.weight = weight((outputs, inputs), initializers.uniform(-bound, bound), dtype, by_columns=True)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 0 or x.shape[-1] != self.inputs:
            received = f"features on the last axis; received {shape_text(x.shape)}."
            fail(ShapeError, f"CosineLinear({self.options()}) takes {self.inputs} {received}")
        return _unit(x) @ _unit(self.weight).T

    def options(self) -> str:
        return f"{self.inputs}, {self.outputs}"


def _unit(x: Tensor) -> Tensor:
    return x / sqrt((x * x).sum(-1, keepdims=True) + 1e-12)  # a zero vector has the cosine 0


class Embedding(Module):
    """A table of vectors: row i of the weight (entries, width) for each index i; normal with std 1 as in PyTorch unless
    `init` is given.

    Args:
        padding: the index of padding: its row starts as zeros and is not trained.
        weight_regularizer, activity_regularizer: as for `Linear`.

    Example: `ws.nn.Embedding(50257, 768)`.
    """

    weight: Tensor

    def __init__(
        self,
        entries: int,
        width: int,
        init: object = None,
        dtype: object = "float32",
        padding: int | None = None,
        *,
        weight_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
    ) -> None:
        positive("Embedding", entries=entries, width=width)
        regularize(self, weight_regularizer, activity_regularizer)
        if padding is not None and (not isinstance(padding, int) or not -entries <= padding < entries):
            fail(OptionError, f"Embedding: padding must be an index from 0 to {entries - 1}; received {padding!r}.")
        self.entries, self.width, self.padding = entries, width, padding if padding is None else padding % entries
        start = initializers.normal() if init is None else initializers.as_initializer(init)
        self.weight = weight((entries, width), start, dtype)
        if self.padding is not None:
            owned = self.named_arrays()["weight"]
            owned.init = initializers.with_zero_row(owned.init, self.padding)

    def forward(self, indices: Tensor) -> Tensor:
        if indices.dtype.is_float:
            fail(DTypeError, f"Embedding looks up integers; received {indices!r}. Give the input dtype='int32'.")
        rows = self.weight[indices]
        if self.padding is None:
            return rows
        return where((indices != self.padding).reshape((*indices.shape, 1)), rows, stop_gradient(rows))

    def options(self) -> str:
        return f"{self.entries}, {self.width}" + ("" if self.padding is None else f", padding={self.padding}")


class Dropout(FunctionModule, function=drop):
    """In training, sets each element to 0 with probability p and divides the others by 1 - p (Srivastava et al., 2014).

    Example: `ws.nn.Dropout(0.1)`.
    """

    def __init__(self, p: float | Switchable = 0.5) -> None:
        value = p.value if isinstance(p, Switchable) else p
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            fail(OptionError, f"Dropout: p must be a probability, between 0 and 1; received {value!r}.")
        self.p = p

    def options(self) -> str:
        return f"{self.p}"


class _DropSlices(Module):
    """Dropout of entire slices: one random decision for each index of the first `leading_axes` axes."""

    leading_axes: int

    def __init__(self, p: float | Switchable = 0.5) -> None:
        value = p.value if isinstance(p, Switchable) else p
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            fail(OptionError, f"{type(self).__name__}: p must be a probability, between 0 and 1; received {value!r}.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim <= self.leading_axes:
            axes = "(N, C, ...)" if self.leading_axes == 2 else "(N, ...)"
            fail(ShapeError, f"{type(self).__name__} drops slices of {axes}; received {shape_text(x.shape)}.")
        if not isinstance(self.p, Switchable) and self.p == 0:
            return x
        ones = as_tensor(1.0).astype(x.dtype).expand(*x.shape[: self.leading_axes], *[1] * (x.ndim - self.leading_axes))
        return x * drop(Tensor(ones.node, x.graph), self.p)

    def options(self) -> str:
        return f"{self.p}"


class Dropout1d(_DropSlices):
    """In training, sets whole channels of (N, C, L) to 0 with probability p and divides the others by 1 - p
    (arXiv:1411.4280).

    Example: `ws.nn.Dropout1d(0.2)`.
    """

    leading_axes = 2


class Dropout2d(_DropSlices):
    """`Dropout1d` for images (N, C, H, W).  Example: `ws.nn.Dropout2d(0.2)`."""

    leading_axes = 2


class Dropout3d(_DropSlices):
    """`Dropout1d` for volumes (N, C, D, H, W).  Example: `ws.nn.Dropout3d(0.2)`."""

    leading_axes = 2


class DropPath(_DropSlices):
    """In training, sets whole examples to 0 with probability p, which skips a residual branch (stochastic depth,
    arXiv:1603.09382).

    Example: `x + ws.nn.DropPath(0.1)(branch)`.
    """

    leading_axes = 1


class Flatten(Module):
    """Merges all axes after the first one.  Example: `ws.nn.Flatten()`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape((x.shape[0], -1))
