"""Gradient accumulation on arrays: gradients of micro-batches are summed in buffers until an update is due.

For loops written by hand.  Inside a compiled step, `ws.build_session(..., accumulate=k)` does the same without them
and is exact where micro-batches differ in size.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import AccumulatorFull, NoGradients, OptionError, ShapeMismatch

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class AccumulationConfig:
    """The configuration of gradient accumulation: micro-batches per update, averaging and clipping.

    Args:
        accumulation_steps: micro-batches of an update.
        normalize: divide the sum by the number of micro-batches that are really in it.
        max_grad_norm: clip the (normalised) gradients by their global norm; None does not.

    Example: `ws.AccumulationConfig.new(8).with_max_grad_norm(1.0)`.
    """

    accumulation_steps: int = 4
    normalize: bool = True
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        steps, norm = self.accumulation_steps, self.max_grad_norm
        if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
            fail(OptionError, f"accumulation_steps={steps!r}: expected an integer of at least 1.")
        if norm is not None and not (isinstance(norm, int | float) and 0 < norm < math.inf):
            fail(OptionError, f"max_grad_norm={norm!r}: expected a number above 0, or None to leave gradients alone.")

    @classmethod
    def new(cls, steps: int) -> AccumulationConfig:
        """A configuration with `steps` micro-batches per update; fewer than 1 become 1, with a warning."""
        if steps < 1:
            warnings.warn(
                f"AccumulationConfig.new({steps}): an update takes at least 1 micro-batch; 1 is used.", stacklevel=2
            )
        return cls(max(steps, 1))

    def with_normalize(self, normalize: bool) -> AccumulationConfig:
        """The configuration with or without averaging."""
        return replace(self, normalize=normalize)

    def with_max_grad_norm(self, norm: float) -> AccumulationConfig:
        """The configuration with clipping by the global norm."""
        return replace(self, max_grad_norm=norm)

    def effective_batch_size(self, micro_batch_size: int) -> int:
        """The number of rows per update."""
        return micro_batch_size * self.accumulation_steps


class GradientBuffer:
    """The sum of one parameter's gradients: `data` (float64, flat), `shape`, `accumulated_count`."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = tuple(shape)
        self.data: Array = np.zeros(math.prod(self.shape))
        self.accumulated_count = 0

    def accumulate(self, gradient: object) -> None:
        """Add the gradient of a micro-batch."""
        self.data += self.check(gradient)
        self.accumulated_count += 1

    def check(self, gradient: object, name: str = "") -> Array:
        """The gradient as a flat array; `ShapeMismatch` if its size differs from the buffer's."""
        values: Array = np.asarray(gradient, np.float64)
        if values.size != self.data.size:
            raise ShapeMismatch(name, self.shape, values.shape)
        return values.reshape(-1)

    def get(self, normalize: bool) -> Array:
        """A copy of the sum, or of the mean over the accumulated micro-batches."""
        return self.data / self.accumulated_count if normalize and self.accumulated_count else self.data.copy()

    def l2_norm(self) -> float:
        """The L2 norm of the sum."""
        return float(np.sqrt(np.sum(self.data * self.data)))

    def reset(self) -> None:
        """Forget everything."""
        self.data[:] = 0.0
        self.accumulated_count = 0


@dataclass(frozen=True)
class AccumulationStats:
    """The state of a `GradientAccumulator`."""

    total_micro_batches: int
    total_updates: int
    accumulation_steps: int
    registered_params: int
    total_param_elements: int

    def effective_batch_multiplier(self) -> int:
        """The number of micro-batches per update."""
        return self.accumulation_steps


class GradientAccumulator:
    """Gradient buffers of all parameters.

    Example::

        accumulator = ws.GradientAccumulator(ws.AccumulationConfig.new(4))
        accumulator.register("w", (3, 4))
        if accumulator.step({"w": dw}):
            gradients = accumulator.get_gradients()
            accumulator.reset()
    """

    def __init__(self, config: AccumulationConfig | None = None) -> None:
        self.config = config or AccumulationConfig()
        self.buffers: dict[str, GradientBuffer] = {}
        self._micro_batches = 0
        self._updates = 0

    def register(self, name: str, shape: tuple[int, ...]) -> None:
        """Create a buffer; an existing one keeps its shape and contents."""
        if name not in self.buffers:
            self.buffers[name] = GradientBuffer(shape)

    def accumulate(self, name: str, gradient: object) -> None:
        """Add one parameter's gradient of a micro-batch."""
        self._check(name, gradient)
        self.buffers[name].accumulate(gradient)

    def _check(self, name: str, gradient: object) -> None:
        if name not in self.buffers:
            registered = ", ".join(map(repr, self.buffers)) or "none"
            raise NoGradients(
                f"there is no parameter {name!r}; registered parameters: {registered}. Call register({name!r}, shape)."
            )
        if self.buffers[name].accumulated_count >= self.config.accumulation_steps:
            raise AccumulatorFull(self.config.accumulation_steps)
        self.buffers[name].check(gradient, name)

    def should_update(self) -> bool:
        """Has any parameter received all micro-batches of an update?"""
        return any(b.accumulated_count >= self.config.accumulation_steps for b in self.buffers.values())

    def get_gradients(self) -> dict[str, Array]:
        """The gradients of the update as flat arrays: averaged if configured, then clipped by their global norm."""
        if not any(b.accumulated_count for b in self.buffers.values()):
            raise NoGradients("there are no gradients yet: register parameters and accumulate a micro-batch first.")
        gradients = {name: b.get(self.config.normalize) for name, b in self.buffers.items()}
        limit = self.config.max_grad_norm
        norm = math.sqrt(sum(float(np.sum(g * g)) for g in gradients.values()))
        if limit is None or norm <= limit:
            return gradients
        return {name: g * (limit / norm) for name, g in gradients.items()}

    def reset(self) -> None:
        """Set all buffers to zero; counts as an update."""
        for buffer in self.buffers.values():
            buffer.reset()
        self._updates += 1

    def step(self, gradients: Mapping[str, object]) -> bool:
        """Add a whole micro-batch; True when an update is due.  If one gradient is rejected, none is added."""
        for name, gradient in gradients.items():
            self._check(name, gradient)
        for name, gradient in gradients.items():
            self.buffers[name].accumulate(gradient)
        self._micro_batches += 1
        return self.should_update()

    def stats(self) -> AccumulationStats:
        """The current counts."""
        return AccumulationStats(
            total_micro_batches=self._micro_batches,
            total_updates=self._updates,
            accumulation_steps=self.config.accumulation_steps,
            registered_params=len(self.buffers),
            total_param_elements=sum(b.data.size for b in self.buffers.values()),
        )
