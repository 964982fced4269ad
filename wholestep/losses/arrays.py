"""Losses on arrays: the same expression as inside a step, compiled once per kind of arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from inspect import signature
from typing import Any

import numpy as np

from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.masked_arrays import refuse_mask
from wholestep.compiler.ir.types import letter_of, shape_text
from wholestep.errors import DTypeError, OptionError, ShapeError
from wholestep.lazy import interop
from wholestep.losses.table import Loss, LossFunction, get

Array = np.ndarray[Any, Any]
_WITHOUT_ROWS = ("class_weight", "pos_weight")  # arrays whose first axis is not the batch


def value_and_grad(
    loss: str | Mapping[str, Any] | LossFunction, prediction: object, target: object, **options: Any
) -> tuple[float, Array]:
    """The value of a loss on arrays, and its gradient with respect to the prediction.

    Args:
        loss: a function of this module (or of your own), a `Loss`, its description, or a name.
        prediction: an array of floats; float64 arrays and lists are computed in float64.
        target: the target; floats are cast to the prediction's dtype.
        options: options of the loss; `sample_weight=` and other arrays may be arrays or lists, like the target.

    Example: `ws.losses.value_and_grad("mse", [0.8, 0.3, 0.5], [1.0, 0.0, 0.5])[0]`.
    """
    program, arrays = _program(loss, prediction, target, options)
    result = _session(program).step(arrays)
    if "grad" not in result.outputs:
        shape = shape_text(np.shape(result["loss"]))
        fail(ShapeError, f"value_and_grad: the loss must be one number; received shape {shape}. Use reduction='mean'.")
    return result.loss, result["grad"]


class LossValue(float):
    """The loss of arrays: a float that also stores the program and its arguments, for gradients."""

    program: LossProgram
    arrays: Mapping[str, Array]
    prediction: Any  # the argument as the caller passed it

    def item(self) -> float:
        """The value as a plain float."""
        return float(self)

    def __getattr__(self, name: str) -> Any:
        return interop.foreign_attribute("a loss of arrays", self, name)


def loss_of_arrays(loss: LossFunction, args: tuple[Any, ...], named: Mapping[str, Any]) -> LossValue | Array:
    """A loss called on arrays instead of tensors; with `reduction="none"` an array."""
    values = signature(loss).bind(*args, **named).arguments
    (_, prediction), (_, target), *options = values.items()
    program, arrays = _program(loss, prediction, target, dict(options))
    result = _session(program).step(arrays)
    if "grad" not in result.outputs:
        return np.asarray(result["loss"])
    value = LossValue(result.loss)
    value.program, value.arrays, value.prediction = program, arrays, prediction
    return value


def _program(
    loss: str | Mapping[str, Any] | LossFunction, prediction: object, target: object, options: dict[str, Any]
) -> tuple[LossProgram, dict[str, Array]]:
    for value in (prediction, target, *options.values()):
        refuse_mask(value, "value_and_grad")
    p = np.asarray(prediction)
    if p.dtype not in (np.float32, np.float64):
        fail(
            DTypeError,
            f"value_and_grad: the prediction is float32 or float64; received {p.dtype}. Cast it: p.astype('float32').",
        )
    chosen = get(loss)
    if isinstance(chosen, Loss):
        options, chosen = {**chosen.options, **options}, chosen.function
    arrays = {"prediction": p, "target": np.asarray(target)}
    arrays |= {name: np.asarray(v) for name, v in options.items() if isinstance(v, np.ndarray | list)}
    arrays = {name: a.astype(p.dtype) if letter_of(a.dtype) == "f" else a for name, a in arrays.items()}
    plain = tuple(sorted((k, v) for k, v in options.items() if k not in arrays))
    program = LossProgram(chosen, plain, _signature(arrays), _capacity(p))
    _need_hash(program)
    return program, arrays


@dataclass(frozen=True)
class LossProgram:
    """The key of a compiled loss: function, options, input types, capacity."""

    loss: LossFunction
    options: tuple[tuple[str, Any], ...]
    inputs: tuple[tuple[str, tuple[int | str, ...], str], ...]  # name, shape, dtype
    capacity: int | None

    def record(self, prediction: Tensor, graph: Graph, prefix: str = "") -> Tensor:
        """The loss of a prediction in a graph; its other arrays are inputs, named after `prefix`."""
        others = [row for row in self.inputs if row[0] != "prediction"]
        inputs = {name: graph.input(f"{prefix}{name}", shape, dtype) for name, shape, dtype in others}
        return self.loss(prediction, inputs.pop("target"), **inputs, **dict(self.options))


def _capacity(prediction: Array) -> int | None:
    """The number of rows, rounded up to a power of two so that few programs are compiled; None without a batch axis."""
    return None if prediction.ndim < 2 else 1 << max(len(prediction) - 1, 0).bit_length()


def _signature(arrays: Mapping[str, Array]) -> tuple[tuple[str, tuple[int | str, ...], str], ...]:
    p = arrays["prediction"]
    shapes: dict[str, tuple[int | str, ...]] = {name: a.shape for name, a in arrays.items()}
    for name, a in arrays.items():
        if p.ndim >= 2 and name not in _WITHOUT_ROWS and a.shape[:1] == p.shape[:1]:
            shapes[name] = ("batch", *a.shape[1:])
    return tuple((name, shapes[name], str(a.dtype)) for name, a in arrays.items())


def _need_hash(program: LossProgram) -> None:
    try:
        hash(program)
    except TypeError as error:
        fail(
            OptionError, f"value_and_grad: options are numbers, words or arrays; received {program.options} ({error})."
        )


@lru_cache(maxsize=64)
def _session(program: LossProgram) -> Any:
    g = Graph()
    prediction = g.input(*program.inputs[0])
    loss = program.record(prediction, g)
    if loss.shape == ():
        (grad,) = gradients(loss, [prediction])
        g.set_outputs({"loss": loss, "grad": grad})
    else:
        g.set_outputs({"loss": loss})
    # Imported at run time and by name: sessions use this package, so they cannot be imported at the top.
    return import_module("wholestep").build_inference_session(g, batch_size=program.capacity)
