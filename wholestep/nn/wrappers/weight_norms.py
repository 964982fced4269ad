"""Weights computed from other parameters: weight norm and spectral norm, under the names of `torch.nn.utils`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from wholestep.compiler.frontend.functions.primitives import sqrt, stop_gradient
from wholestep.compiler.frontend.layers.composites import by_mode
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.nn.derived import make_subclass
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import Buffer, Parameter

Layer = TypeVar("Layer", bound=Module)


def weight_norm(layer: Layer, name: str = "weight", axis: int = 0) -> Layer:
    """Reparametrize a layer's weight as length times direction, g · v / |v| (arXiv:1602.07868): `weight_g`, `weight_v`.

    The layer itself is changed, and returned.  Its weights are initialized now, unless they were before; g starts as
    their norm.

    Args:
        axis: norms are of the slices along it; by default the axis of the outputs.

    Example: `ws.nn.weight_norm(ws.nn.Conv1d(8, 8, 3))`.
    """
    owned, array = _take_parameter(layer, name, "weight_norm")
    if not -array.ndim <= axis < array.ndim:
        fail(OptionError, f"weight_norm: axis {axis} does not exist in {name!r} of shape {array.shape}.")
    others = tuple(d for d in range(array.ndim) if d != axis % array.ndim)
    lengths = np.sqrt((array.astype(np.float64) ** 2).sum(others, keepdims=True))
    _compute(layer, name, _length_times_direction, others)
    setattr(layer, f"{name}_g", Parameter(lengths.shape, 1.0, owned.dtype))
    setattr(layer, f"{name}_v", owned)
    layer.load_state_dict({f"{name}_g": lengths}, strict=False)
    return layer


def spectral_norm(layer: Layer, name: str = "weight", iterations: int = 1, eps: float = 1e-12) -> Layer:
    """Divide a layer's weight by its largest singular value (arXiv:1802.05957): `weight_orig`, and a buffer `weight_u`,
    which each training step improves by power iteration.

    The layer itself is changed, and returned.

    Example: `ws.nn.spectral_norm(ws.nn.Linear(8, 1))`.
    """
    owned, array = _take_parameter(layer, name, "spectral_norm")
    if not isinstance(iterations, int) or iterations < 1:
        fail(OptionError, f"spectral_norm: iterations must be an integer of at least 1; received {iterations!r}.")
    rows = array.reshape(len(array), -1)
    u = _unit_array(np.random.default_rng(0).normal(size=len(rows)))
    for _ in range(15):  # as torch does, so that the first step has an estimate
        u = _unit_array(rows @ _unit_array(rows.T @ u))
    _compute(layer, name, _over_largest_singular_value, iterations, eps)
    setattr(layer, f"{name}_orig", owned)
    setattr(layer, f"{name}_u", Buffer(u.shape, 0.0, owned.dtype))
    layer.load_state_dict({f"{name}_u": u}, strict=False)
    return layer


def _length_times_direction(module: Any, name: str, others: tuple[int, ...]) -> Tensor:
    v, g = getattr(module, f"{name}_v"), getattr(module, f"{name}_g")
    out: Tensor = v * (g / sqrt((v * v).sum(others, keepdims=True)))
    return out


def _over_largest_singular_value(module: Any, name: str, iterations: int, eps: float) -> Tensor:
    whole = getattr(module, f"{name}_orig")
    matrix = whole.reshape((whole.shape[0], -1))
    u, fixed = getattr(module, f"{name}_u"), stop_gradient(matrix)
    left, right = u, _unit(fixed.T @ u, eps)
    for i in range(iterations):
        right = _unit(fixed.T @ left, eps) if i else right
        left = _unit(fixed @ right, eps)
    matrix.graph.advance(u, lambda now: left)
    out: Tensor = whole / (by_mode(left, u) * (matrix @ right)).sum()
    return out


def _unit(x: Tensor, eps: float) -> Tensor:
    return x / (sqrt((x * x).sum()) + eps)


def _unit_array(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.asarray(x / np.linalg.norm(x))


def _take_parameter(layer: Module, name: str, what: str) -> tuple[Parameter, np.ndarray[Any, Any]]:
    """Remove a parameter that will be computed from now on; return it and its values."""
    owned = layer.__dict__.get("_owned", {}).get(name) if isinstance(layer, Module) else None
    if owned is None or len(owned.shape) < 2:
        fail(
            OptionError,
            f"{what} takes a layer with a {name!r} of two or more axes, such as ws.nn.Linear or ws.nn.Conv2d; received "
            f"{layer!r}. For a whole model: model.apply(lambda m: ... if isinstance(m, ws.nn.Conv2d) else None).",
        )
    return owned, layer.state_dict()[name]


def _compute(layer: Module, name: str, rule: Callable[..., Tensor], *settings: Any) -> None:
    """Let `layer.forward` read a computed tensor in place of the parameter."""
    layer.__dict__["_owned"].pop(name)
    object.__setattr__(layer, "__class__", _computing_class(type(layer), name, rule, settings))


def _computing_class(kind: type[Module], name: str, rule: Callable[..., Tensor], settings: Any) -> type[Module]:
    """A subclass of a layer whose weight is `rule(layer, name, *settings)`."""

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        self.__dict__[name] = rule(self, name, *settings)
        try:
            return kind.forward(self, *inputs, **named)
        finally:
            del self.__dict__[name]

    unused = (*kind.unused_names, f"{name}_v")  # torch also stores the right singular vector of a spectral norm
    body = {"forward": forward, "unused_names": unused}
    return make_subclass(kind, body, _computing_class, kind, name, rule, settings)
