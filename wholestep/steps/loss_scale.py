"""Loss scaling: gradients that float16 would lose are multiplied before the backward pass and divided after it.

"Mixed precision training", Micikevicius et al. 2018.  The scale is a state of the step: a step whose gradients are not
finite changes nothing but the scale, which it lowers, and a counter; after enough finite ones in a row it grows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wholestep.compiler.frontend.functions.primitives import maximum, minimum, where
from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.gradient_transforms import count_nonfinite

SCALE, GOOD, SKIPPED = "loss_scale.scale", "loss_scale.good_steps", "nonfinite.skipped"
LOSS_SCALE = "loss_scale"  # the output: the scale after the step
REFUSED = "loss_scale.nonfinite"  # in a step function, the output with the number of non-finite elements
SMALLEST, LARGEST = 2.0**-16, 2.0**64  # the range of the scale


_RANGES = {
    "init": (SMALLEST, LARGEST, "a number from 2**-16 to 2**64"),
    "growth": (1.0, LARGEST, "a number of at least 1"),
    "backoff": (SMALLEST, 1.0, "a number of at most 1, above 0"),
    "interval": (1.0, 2.0**53, "an integer of at least 1"),
}


@dataclass(frozen=True)
class LossScale:
    """The options of loss scaling for `precision="float16"`.  All four are runtime scalars, `loss_scale.growth` and so
    on.

    Args:
        init: the scale of the first step.
        growth: the scale is multiplied by it after `interval` steps in a row with finite gradients.
        backoff: the scale is multiplied by it where a gradient is not finite; that step changes nothing else.
        interval: the number of steps.

    Example: `ws.fit(model, data, loss="mse", precision="float16", loss_scale=ws.LossScale(init=1024.0))`.

    In a step of your own::

        scale = ws.LossScale()
        grads = scale.gradients(g, loss, params)
        scale.update(g, optimizer, params, grads)
    """

    init: float = 65536.0
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000

    def __post_init__(self) -> None:
        for name, (low, high, expected) in _RANGES.items():
            value = getattr(self, name)
            number = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
            if not number or (name == "interval" and value != int(value)):
                fail(OptionError, f"LossScale: {name} must be {expected}; received {value!r}.")

    # -- in a step -----------------------------------------------------------------------------------------------

    def now(self, graph: Graph) -> Tensor:
        """The scale of the current step, a float32 scalar."""
        state = _state(graph, SCALE, 0.0, "float32")  # 0 before the first step
        return where(state > 0.0, state, self._scalar(graph, "init").astype("float32"))

    def gradients(self, graph: Graph, loss: Tensor, params: Any) -> Any:
        """`ws.gradients` of the scaled loss, divided by the scale, so that float16 gradients do not underflow."""
        scale = self.now(graph)
        scaled = gradients(scale_loss(loss, scale), params)
        if isinstance(scaled, Mapping):
            return dict(zip(scaled, unscale_gradients(list(scaled.values()), scale), strict=True))
        return unscale_gradients(scaled, scale)

    def update(self, graph: Graph, optimizer: Optimizer, params: Any, grads: Any) -> Tensor:
        """Update the parameters if all gradients are finite; then update the scale.

        Returns the number of elements that are not finite: 0 in a step that is not skipped.
        """
        if not isinstance(optimizer, Optimizer):
            fail(UsageError, f"LossScale.update takes an optimizer such as ws.Adam(lr=1e-3); received {optimizer!r}.")
        slopes = list(grads.values()) if isinstance(grads, Mapping) else [grads] if isinstance(grads, Tensor) else grads
        bad = count_nonfinite(slopes)
        fine, before = bad == 0.0, set(graph.updates)
        safe = [where(fine, g, 0.0) for g in slopes]
        optimizer.update(graph, params, dict(zip(grads, safe, strict=True)) if isinstance(grads, Mapping) else safe)
        for name, new in graph.updates.items():
            if name not in before:
                state = graph.states[name]
                graph.advance(state, lambda _, new=new, state=state: where(fine, new, state))  # type: ignore[misc]
        for state, value in self.advanced(graph, fine):
            graph.update(state, value)
        skipped = _state(graph, SKIPPED, 0, "int64")
        graph.update(skipped, where(fine, skipped, skipped + 1))
        graph.keep(bad, REFUSED)
        return bad

    def advanced(self, graph: Graph, fine: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The next values of the scale's states: a larger scale after enough finite steps, a smaller one after a
        non-finite step.
        """
        scale, good = self.now(graph), _state(graph, GOOD, 0, "int64")
        counted = good + 1
        growth, backoff = (self._scalar(graph, name).astype("float32") for name in ("growth", "backoff"))
        grows = counted.astype("float64") >= self._scalar(graph, "interval")
        larger, smaller = minimum(scale * growth, LARGEST), maximum(scale * backoff, SMALLEST)
        return [
            (_state(graph, SCALE, 0.0, "float32"), where(fine, where(grows, larger, scale), smaller)),
            (good, where(fine & ~grows, counted, 0)),
        ]

    def _scalar(self, graph: Graph, name: str) -> Tensor:
        full = f"{LOSS_SCALE}.{name}"
        scalar = graph.scalars.get(full)
        return graph.scalar(full, float(getattr(self, name))) if scalar is None else scalar


def _state(graph: Graph, name: str, init: float, dtype: str) -> Tensor:
    """A scalar state of the step, outside of all scopes."""
    state = graph.states.get(name)
    if state is not None:
        return state
    with graph.at_scope(()):
        return graph.state(name, (), init, dtype)


def scale_loss(loss: Tensor, scale: Tensor | None) -> Tensor:
    return loss if scale is None else loss * scale.astype(loss.dtype)


def unscale_gradients(grads: Sequence[Tensor], scale: Tensor | None) -> list[Tensor]:
    return list(grads) if scale is None else [g * (1.0 / scale).astype(g.dtype) for g in grads]
