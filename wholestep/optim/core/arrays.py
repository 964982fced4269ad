"""An optimizer on NumPy arrays: `optimizer.step(params, grads)` runs the compiled update and writes in place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.step import Step
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.update_counters import AVERAGE, RAW
from wholestep.errors import DTypeError, OptionError, ShapeError, UsageError

if TYPE_CHECKING:
    from wholestep.optim.core.base import Optimizer

Array = np.ndarray[Any, Any]
Arrays = Array | Sequence[Array] | Mapping[str, Array]
PREFIX = "session/"


@runtime_checkable
class Model(Protocol):
    """The methods of a `ws.nn.Module` that this file uses."""

    def parameters(self) -> Mapping[str, Any]: ...
    def state_dict(self) -> dict[str, Array]: ...
    def load_state_dict(self, values: Mapping[str, object], strict: bool = True) -> object: ...


Params = Arrays | Model | Mapping[str, Any]  # the mapping is `model.parameters()`


class ArrayForm:
    """The session behind `optimizer.step`, built for the arrays of the first call."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._values = optimizer.runtime_values()
        self._session: Any = None
        self._types: dict[str, tuple[tuple[int, ...], str]] = {}
        self._trained: list[str] = []
        self._waiting: dict[str, Any] = {}  # a state dict that was loaded before the first step

    def step(self, params: Params, grads: Arrays) -> None:
        """See `Optimizer.step`."""
        if getattr(params, "holds_copies", False):
            raise UsageError(
                "model.state_dict() holds copies: changing them would not change the model. Give the model itself, "
                "optimizer.step(model, grads); for arrays of your own, optimizer.step(dict(arrays), grads)."
            )
        model = getattr(params, "module", params)
        if isinstance(model, Model):
            self._step_of(model, grads)
        else:
            self._step(_as_named_arrays("params", params), _as_named_arrays("grads", grads))

    def _step_of(self, model: Model, grads: Arrays) -> None:
        """Update the parameters of a model; frozen parameters have no gradient."""
        trained = [name for name, owned in model.parameters().items() if not owned.frozen]
        slopes = (
            dict(zip(trained, grads, strict=False))
            if isinstance(grads, list | tuple)
            else _as_named_arrays("grads", grads)
        )
        if isinstance(grads, list | tuple) and len(grads) != len(trained):
            raise UsageError(f"each of {trained} needs one gradient, in this order; received {len(grads)}.")
        values = model.state_dict()
        arrays = {name: values[name] for name in trained}
        self._step(arrays, slopes)
        model.load_state_dict(arrays, strict=False)

    def _step(self, arrays: dict[str, Array], slopes: dict[str, Array]) -> None:
        _check(arrays, slopes)
        if self._session is None:
            self._build(arrays)
        types = {name: (a.shape, a.dtype.name) for name, a in arrays.items()}
        if types != self._types:
            raise ShapeError(
                f"this optimizer updates arrays of {self._types}; received {types}. Use a second optimizer for them."
            )
        for name in self._trained:
            self._give(name, arrays[name])
        self._session.step({f"{name}.grad": slopes[name] for name in self._trained})
        for name in self._trained:
            arrays[name][...] = self._session.get(self._place(name))

    def _place(self, name: str) -> str:
        """The name of the trained state: the parameter, or its raw weights if the parameter is an average."""
        return name + RAW if name + RAW in self._session.state else name

    def _give(self, name: str, array: Array) -> None:
        state = self._session.state
        if not state.updates_of(name + AVERAGE):
            state.set(name, array)  # the average starts as the weight itself
        state.set(self._place(name), array)

    def _build(self, arrays: Mapping[str, Array]) -> None:
        self._types = {name: (a.shape, a.dtype.name) for name, a in arrays.items()}

        def update(g: Graph, **_: Tensor) -> dict[str, Tensor]:
            params = [g.parameter(n, shape, 0.0, dtype) for n, (shape, dtype) in self._types.items()]
            chosen = self._optimizer.trainable(params)
            self._trained = [p.name for p in chosen]
            slopes = [g.input(f"{p.name}.grad", p.shape, p.dtype) for p in chosen]
            self._optimizer.update(g, chosen, slopes)
            return {"updates": g.step + 1.0}

        # Imported at run time and by name: sessions use this package, so they cannot be imported at the top.
        self._session = import_module("wholestep").build_session(Step(update, {}))
        # A scalar without an effect on these arrays (weight decay without a matrix) is not part of the program.
        present = dict(self._session.scalars.items())
        self._values = {name: value for name, value in self._values.items() if name in present}
        for name, value in self._values.items():
            self._session.scalars[name] = value
        if self._waiting:
            self.load_state_dict(self._waiting)

    # -- numbers -----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> float:
        """A runtime scalar."""
        return self._values[name]

    def set(self, name: str, value: float) -> None:
        """Change a runtime scalar from the next step on."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise OptionError(f"{name} must be a number; received {value!r}.") from None
        if not 0.0 <= number < float("inf"):
            raise OptionError(f"{name} must be at least 0 and finite; received {value!r}.")
        self._values[name] = number
        if self._session is not None:
            self._session.scalars[name] = number

    @staticmethod
    def zero(grads: Arrays | None) -> None:
        """Fill gradients with zeros."""
        for array in _as_named_arrays("grads", grads).values() if grads is not None else ():
            array[...] = 0

    # -- saving ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """The state of the optimizer, without the parameters, which belong to the caller."""
        if self._session is None:
            return self._waiting or {PREFIX + name: np.array(value) for name, value in self._values.items()}
        values = self._session.state_dict()
        averages = {n + AVERAGE: values[n] for n in self._types if n + RAW in values}
        return {n: a for n, a in {**values, **averages}.items() if n.removesuffix(RAW) not in self._types}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Restore a `state_dict()`; before the first step, which creates the session, the values are stored."""
        if self._session is None:
            self._values |= {n: float(values[PREFIX + n]) for n in self._values if PREFIX + n in values}
            self._waiting = dict(values)
            return
        parameters = {self._place(n): self._session.get(n) for n in self._trained}
        averages = {n: values[n + AVERAGE] for n in self._trained if n + AVERAGE in values}
        rest = {n: a for n, a in values.items() if n.removesuffix(AVERAGE) not in averages}
        self._session.load_state_dict({**parameters, **averages, **rest})
        self._values |= {n: v for n, v in self._session.scalars.items() if n in self._values}
        self._waiting = {}


def _as_named_arrays(what: str, arrays: Any) -> dict[str, Array]:
    if isinstance(arrays, np.ndarray):
        return {"param0": arrays}
    if isinstance(arrays, Mapping):
        return dict(arrays)
    if isinstance(arrays, list | tuple):
        return {f"param{i}": a for i, a in enumerate(arrays)}
    raise UsageError(f"{what} must be an array, a list or a dict of arrays; received {type(arrays).__name__}.")


def _check(arrays: Mapping[str, Array], slopes: Mapping[str, Array]) -> None:
    """Raise UsageError, DTypeError or ShapeError before anything is written."""
    if arrays.keys() != slopes.keys():
        raise UsageError(f"each parameter needs one gradient; received {list(arrays)} and {list(slopes)}.")
    for name, array in arrays.items():
        slope = slopes[name]
        if not isinstance(array, np.ndarray) or array.dtype.name not in ("float32", "float64"):
            kind = array.dtype if isinstance(array, np.ndarray) else f"{type(array).__name__}: {array!r}"
            raise DTypeError(
                f"{name} must be an array of float32 or float64, changed in place; received {kind}. The numbers of a "
                "model change by optimizer.step(model, grads)."
            )
        if not array.flags.writeable:
            raise UsageError(f"{name} is changed in place, but the array is read-only; pass a copy: array.copy().")
        if np.shape(slope) != array.shape or np.asarray(slope).dtype != array.dtype:
            got = f"{np.asarray(slope).dtype} of shape {np.shape(slope)}"
            raise ShapeError(f"the gradient of {name} must be {array.dtype} of shape {array.shape}; received {got}.")
