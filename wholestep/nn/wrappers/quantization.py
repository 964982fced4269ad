"""Quantization to int8: layers that compute with rounded inputs and weights, after training or straight through it.

Inputs have one scale and zero point per layer, from a range that an observer holds in two buffers; weights are
symmetric, with a scale per output channel or per tensor, computed from the weights themselves.  In a session everything
stays float32; `ws.export_onnx` writes QuantizeLinear and DequantizeLinear with int8 weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from wholestep.compiler.frontend.control.custom_gradient import custom_gradient
from wholestep.compiler.frontend.functions.elementwise import clip, round
from wholestep.compiler.frontend.functions.primitives import maximum, minimum, stop_gradient, where
from wholestep.compiler.frontend.layers.composites import by_mode
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, common_graph
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.nn.derived import make_subclass
from wholestep.nn.layers.convolution import AnyConv, AnyConvTranspose
from wholestep.nn.layers.linear import Linear
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import Buffer
from wholestep.nn.module.trace import watch_modules

Array = np.ndarray[Any, Any]
LOW, HIGH = -128, 127  # the range of quantized inputs; weights are symmetric, -127 to 127
LEAST = 1e-12  # the smallest scale, for weights or inputs that are all 0
OBSERVERS = ("average", "extremes", "fixed")
FAKE_QUANTIZE = "ws.nn.fake_quantize"  # the name of the recorded node, which the ONNX writer reads


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor | float = 0.0) -> Tensor:
    """The value that int8 would represent; the gradient passes straight through where x is inside of the range:

        q = clip(round(x/scale) + zero_point, -128, 127)        y = scale·(q - zero_point)

    Args:
        scale: a number, or one per slice, of a shape that broadcasts with x.
        zero_point: the integer that represents 0.

    Example: `y = ws.nn.fake_quantize(x, scale=x.abs().max() / 127.0)`.
    """
    zero = zero_point if isinstance(zero_point, Tensor) else as_tensor(float(zero_point)).astype(x.dtype)
    return _fake_quantize(x, stop_gradient(scale), stop_gradient(zero))


def _round_to_int8(x: Tensor, scale: Tensor, zero: Tensor) -> tuple[Tensor, Any]:
    place = round(x / scale) + zero

    def gradient(upstream: Tensor) -> tuple[Tensor | None, ...]:
        inside = (place >= float(LOW)) & (place <= float(HIGH))
        return where(inside, upstream, 0.0), None, None

    # the ONNX writer reads scale and zero point of this product
    return (clip(place, float(LOW), float(HIGH)) - zero) * scale, gradient


_round_to_int8.__name__ = FAKE_QUANTIZE
_fake_quantize = custom_gradient(_round_to_int8)


def quantize(
    model: Module,
    calibration: object = None,
    *,
    targets: str | Sequence[str] = "*",
    per_channel: bool = True,
    observer: str = "average",
    momentum: float = 0.01,
) -> Module:
    """Let the linear layers and convolutions of a model compute with int8 values: after training, or before it.

    The model itself is changed, and returned.  With `calibration` the ranges of all inputs are those of these rows, and
    the model can be evaluated and exported at once (post-training quantization).  Training steps follow the ranges with
    the observer and round in the forward pass, so that the weights adapt (quantization-aware training): fit the model
    as before.  `ws.export_onnx` then writes int8 weights, QuantizeLinear and DequantizeLinear.

    Args:
        calibration: rows of data, an array or a tuple of one for each input; a few hundred are enough.
        targets: which layers, as patterns of their paths or their last parts, `["fc1", "encoder.*"]`.
        per_channel: a scale for each output channel of a weight, instead of one.
        observer: of training steps: "average", a running average of the lowest and the highest input of a batch, or
            "extremes", the lowest and the highest of all, or "fixed", the ranges of `calibration`.  Only with fixed
            ranges can a step be divided: several workers, `accumulate=`, `per_row=`.
        momentum: the share of a batch in the average.

    Example: `ws.nn.quantize(model, x[:500])`, then `ws.export_onnx(model, "int8.onnx", example=x[:1])`.
    """
    if observer not in OBSERVERS:
        expected = ", ".join(map(repr, OBSERVERS))
        fail(OptionError, f"quantize: observer must be one of {expected}; received {observer!r}.")
    if not 0.0 < momentum <= 1.0:
        fail(OptionError, f"quantize: momentum must be above 0 and at most 1; received {momentum!r}.")
    if observer == "fixed" and calibration is None:
        fail(OptionError, "quantize: observer='fixed' takes the ranges of calibration=; give rows of data.")
    layers = _layers(model, (targets,) if isinstance(targets, str) else tuple(targets))
    ranges = None if calibration is None else _measure(model, layers, calibration)
    share = {"average": momentum, "extremes": 0.0, "fixed": None}[observer]
    for layer in layers.values():
        dtype = layer.named_arrays()["weight"].dtype
        object.__setattr__(layer, "__class__", _quantized_class(type(layer), per_channel, share))
        layer.input_low, layer.input_high = Buffer((), 0.0, dtype), Buffer((), 0.0, dtype)
    if ranges is not None:
        model.load_state_dict(ranges, strict=False)
    return model


def _layers(model: Module, patterns: Sequence[str]) -> dict[str, Any]:
    """The layers that can be quantized by path, each once."""
    plain: dict[str, Any] = {}
    for path, part in model.named_modules():
        fits = isinstance(part, Linear | AnyConv) and not isinstance(part, AnyConvTranspose)
        if fits and part not in plain.values() and not getattr(part, "is_quantized", False):
            plain[path] = part
    chosen = {
        path: part
        for path, part in plain.items()
        if any(fnmatchcase(path, p) or fnmatchcase(path.rpartition(".")[2], p) for p in patterns)
    }
    if not chosen:
        there = ", ".join(path or "the model itself" for path in plain)
        fail(
            OptionError,
            f"quantize: no linear layer or convolution that is not quantized yet matches "
            f"{', '.join(map(repr, patterns))}; there are: {there or 'none'}.",
        )
    return chosen


def _quantized_class(kind: type[Module], per_channel: bool, share: float | None) -> type[Module]:
    """A subclass of a layer that rounds its input and its weight; `share` as for `_observe`."""

    def forward(self: Any, x: Tensor, *more: Any, **named: Any) -> Any:
        weight = self.weight
        others = tuple(range(1 if per_channel else 0, weight.ndim))
        scale = maximum(stop_gradient(weight).abs().max(others, keepdims=True) / 127.0, LEAST)
        low, high = _observe(self, x, share)
        step = maximum((high - low) / float(HIGH - LOW), LEAST)
        zero = round(float(LOW) - low / step)
        self.__dict__["weight"] = fake_quantize(weight, scale)
        try:
            return kind.forward(self, fake_quantize(x, step, zero), *more, **named)
        finally:
            del self.__dict__["weight"]

    body = {"forward": forward, "is_quantized": True}
    return make_subclass(kind, body, _quantized_class, kind, per_channel, share)


def _observe(layer: Any, x: Tensor, share: float | None) -> tuple[Tensor, Tensor]:
    """The range of the input, which contains 0; a training step moves it towards the range of the batch first.

    It moves by a share of the way to the batch's; 0: to the extremes of both, None: not at all.
    """
    low, high, fixed = layer.input_low, layer.input_high, stop_gradient(x)
    if share is None:
        return low, high
    new_low, new_high = minimum(fixed.min(), 0.0), maximum(fixed.max(), 0.0)
    if share:
        now = where(high > low, share, 1.0).astype(low.dtype)  # the first batch sets the range
        new_low, new_high = low + now * (new_low - low), high + now * (new_high - high)
    else:
        new_low, new_high = minimum(low, new_low), maximum(high, new_high)
    graph = common_graph(low, high)
    assert graph is not None, "buffers belong to a graph"
    graph.advance(low, lambda _: new_low)
    graph.advance(high, lambda _: new_high)
    return by_mode(new_low, low), by_mode(new_high, high)


# -- calibration -----------------------------------------------------------------------------------------------------


class _Ranges(Module):
    """Computes the lowest and the highest input of some layers of a model for each row."""

    def __init__(self, model: Module, layers: Mapping[str, Module]) -> None:
        self.model = model
        self.paths = {id(layer): path for path, layer in layers.items()}

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        seen: dict[str, Tensor] = {}

        def watch(_: str, module: Module, arguments: Any, __: object) -> None:
            path = self.paths.get(id(module))
            if path is not None:
                rows = arguments[0].reshape((arguments[0].shape[0], -1))
                low, high = rows.min(1), rows.max(1)
                name = path or "model"
                seen[f"{name}.low"] = minimum(seen[f"{name}.low"], low) if f"{name}.low" in seen else low
                seen[f"{name}.high"] = maximum(seen[f"{name}.high"], high) if f"{name}.high" in seen else high

        with watch_modules(watch):
            self.model(*inputs)
        return seen


def _measure(model: Module, layers: Mapping[str, Module], calibration: Any) -> dict[str, Array]:
    """The values of the buffers for the ranges of inputs over some rows."""
    inputs = calibration if isinstance(calibration, tuple) else (calibration,)
    seen = _Ranges(model, layers).predict(*inputs)
    ranges = {}
    for path in layers:
        name, before = path or "model", f"{path}." if path else ""
        if f"{name}.low" not in seen:
            fail(OptionError, f"quantize: the model does not call {path!r}; leave it out of targets=.")
        ranges[f"{before}input_low"] = np.minimum(seen[f"{name}.low"].min(), 0.0).astype(np.float32)
        ranges[f"{before}input_high"] = np.maximum(seen[f"{name}.high"].max(), 0.0).astype(np.float32)
    return ranges
