"""The arrays of a module: parameters, which are trained, and buffers, which are not; and parameters by name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.graph import current_graph
from wholestep.compiler.frontend.precision import half_parameter_error
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail, located
from wholestep.compiler.ir.types import DType, TensorType, as_dtype, as_shape, shape_text, symbols_of
from wholestep.compiler.runtime.state.slot import Slot
from wholestep.errors import DTypeError, ShapeError, UsageError
from wholestep.lazy import interop

if TYPE_CHECKING:
    from wholestep.nn.module.module import Module
    from wholestep.nn.wrappers.tensor_parallel import Splitting


def _numbers(value: Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The values of an array, or of a tensor that was computed from constants alone."""
    if isinstance(value, np.ndarray):
        return value
    if value.graph is not None:
        fail(UsageError, "a parameter starts with numbers; received a tensor of a graph, which has none yet.")
    from wholestep.compiler.ir.graph import IRGraph, Output
    from wholestep.compiler.ir.semantics.interpret import interpret

    return interpret(IRGraph((Output("value", value.node),))).outputs["value"]


class Parameter:
    """A trained array of a module, defined by its shape and its initializer.

    Assign it to an attribute in `__init__`; inside `forward` the attribute is the tensor.  The same object under two
    names is one array: that is how weights are tied.

    Args:
        shape: its sizes; or the numbers it starts with, an array or a tensor of numbers such as `ws.ones(3)`.
        init: a number, an array or an initialiser of `ws.init`; Kaiming-uniform for two or more axes when None, else 0.
        outputs_first: the weight is (outputs, inputs, ...), as the layers of `ws.nn` have it (`x @ w.T`), rather than
            (inputs, outputs) for `x @ w`: what initialisers count as fans depends on it.
        by_columns: products read it transposed, `x @ w.T`, and it is stored so; what you see of it does not change.
        requires_grad: False freezes it: it is not trained.

    Example: `self.scale = ws.nn.Parameter((width,), init=1.0)`.
    """

    trained = True
    frozen = False  # see Module.freeze
    optional = False  # is it left unchanged, without an error, if the loss does not depend on it?
    splitting: Splitting | None = None  # how it is divided in tensor parallelism: see wrappers/tensor_parallel.py
    # number and name in the original network, for a copy from before the initialization
    origin: tuple[int, str] | None = None
    slot: Slot | None = None  # storage of its values, once they are needed; all sessions of the model share it

    def __init__(
        self,
        shape: object,
        init: object = None,
        dtype: object = "float32",
        *,
        outputs_first: bool = False,
        by_columns: bool = False,
        requires_grad: bool = True,
    ) -> None:
        if interop.library_of(shape) == "torch":
            shape = np.asarray(shape.detach().cpu())  # type: ignore[attr-defined]
        if isinstance(shape, Tensor | np.ndarray):
            values = _numbers(shape)
            shape, init = values.shape, values if init is None else init
        with located():
            self.type = TensorType(as_shape(shape), as_dtype(dtype))
        if symbols_of(self.type.shape):
            fail(ShapeError, f"a {self._kind} has a fixed size; received the shape {shape_text(self.type.shape)}.")
        if self.trained and self.type.dtype.is_half:
            fail(DTypeError, half_parameter_error(f"a parameter of {self.type} was asked for"))
        if self.trained and not self.type.dtype.is_float:
            fail(DTypeError, f"a parameter has a float dtype; received {self.type}. Use ws.nn.Buffer for the rest.")
        chosen = initializers.default(self.type.shape) if init is None else initializers.as_initializer(init)
        initializers.check_fits(chosen, self.shape, self._kind)
        self.init = initializers.outputs_first(chosen, self.shape) if outputs_first else chosen
        self.by_columns, self.frozen = by_columns, not requires_grad
        # created anew by every recording of a step: the step stores the values
        self.adopts = current_graph() is not None

    @property
    def _kind(self) -> str:
        return type(self).__name__.lower()

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(e) for e in self.type.shape)

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def requires_grad(self) -> bool:
        """Is the parameter trained?  Assigning it freezes it for sessions that are built later."""
        return self.trained and not self.frozen

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.frozen = not value

    trainable = requires_grad  # Keras' word

    def requires_grad_(self, requires_grad: bool = True) -> Parameter:
        """Set `requires_grad`, as in PyTorch."""
        self.requires_grad = requires_grad
        return self

    @property
    def data(self) -> Parameter:
        """The parameter itself, so that `layer.weight.data.normal_(0.0, 0.02)` sets its initializer."""
        return self

    @data.setter
    def data(self, value: object) -> None:
        from wholestep.nn.init import copy_

        copy_(self, value)

    def numel(self) -> int:
        """The number of elements."""
        return self.elements

    def size(self, axis: int | None = None) -> tuple[int, ...] | int:
        """The shape, or the size of one axis."""
        return self.shape if axis is None else self.shape[axis]

    def dim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def _refuse_to_compute(self, *_: object) -> NoReturn:
        fail(
            UsageError,
            f"{self!r} has no value to compute with here: it is a tensor inside forward, where a step is recorded. Its "
            "numbers are an array: model.state_dict()[name].",
        )

    __getitem__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _refuse_to_compute
    __matmul__ = __rmatmul__ = __pow__ = __neg__ = __array__ = _refuse_to_compute

    def __getattr__(self, name: str) -> Any:
        return interop.foreign_attribute("a parameter", self, name)

    def astype(self, dtype: DType) -> None:
        """Change the float dtype of the parameter."""
        self.type = TensorType(self.type.shape, dtype)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.type})"


class Buffer(Parameter):
    """An array of a module that keeps its value between steps and is not trained, such as a running mean.

    Example: `self.running_mean = ws.nn.Buffer((channels,), init=0.0)`.
    """

    trained = False

    def __init__(self, shape: object, init: object = 0.0, dtype: object = "float32") -> None:
        super().__init__(shape, init, dtype)


def parameter(shape: object, init: object = None, dtype: object = "float32") -> Any:
    """A `Parameter` for an attribute annotated with the type that `forward` sees: `weight: Tensor`."""
    return Parameter(shape, init, dtype)


def weight(shape: object, init: object, dtype: object = "float32", *, by_columns: bool = False) -> Any:
    """A `parameter` whose first axis is the outputs, as for the weights of all layers in `ws.nn`."""
    return Parameter(shape, init, dtype, outputs_first=True, by_columns=by_columns)


def buffer(shape: object, init: object = 0.0, dtype: object = "float32") -> Any:
    """A `Buffer` for an attribute annotated with the type that `forward` sees."""
    return Buffer(shape, init, dtype)


class ParametersOf(dict[str, Parameter]):
    """The parameters of a module by name; an optimizer that gets them updates the module."""

    def __init__(self, module: Module, values: Mapping[str, Parameter]) -> None:
        super().__init__({ParameterName(name, owned): owned for name, owned in values.items()})
        self.module = module


class ParameterName(str):
    """The name of a parameter as a string with the parameter's attributes, because PyTorch programs iterate over
    parameters: `sum(p.numel() for p in model.parameters())`, `for p in model.parameters(): p.requires_grad = False`.
    """

    owned: Parameter

    def __new__(cls, name: str, owned: Parameter) -> ParameterName:
        instance = super().__new__(cls, name)
        object.__setattr__(instance, "owned", owned)
        return instance

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"the name of a parameter has no attribute {name!r}")
        return getattr(self.owned, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self.owned, name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return str, (str(self),)
