"""A step by hand: forward, backward, clip, apply; and looking at gradients and activations."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import OptionError, UsageError
from wholestep.session.knobs import Tunable
from wholestep.session.source import FORWARD
from wholestep.steps.by_hand import MAX_NORM, NORM, PREFIX, UPSTREAM

if TYPE_CHECKING:
    from wholestep.callbacks.observers import Observer

VANISHING, EXPLODING = 1e-7, 1e5


@dataclass(frozen=True)
class Stats:
    """Smallest, largest and mean element, and the norm; `verdict` says where something is wrong."""

    name: str
    min: float
    max: float
    mean: float
    norm: float

    @staticmethod
    def of(name: str, array: AnyArray) -> Stats:
        wide = array.astype(np.float64)
        with np.errstate(all="ignore"):  # of infinities
            norm = float(np.sqrt((wide**2).sum()))
            return Stats(name, float(wide.min()), float(wide.max()), float(wide.mean()), norm)

    @property
    def is_finite(self) -> bool:
        """Is every element?"""
        return bool(np.isfinite([self.min, self.max]).all())

    @property
    def verdict(self) -> str:
        """ "vanishing", "exploding" or ""."""
        largest = max(abs(self.min), abs(self.max))
        if not self.is_finite or largest >= EXPLODING:
            return "exploding"
        return "vanishing" if largest <= VANISHING else ""


def table(heading: str, rows: list[Stats]) -> str:
    """The statistics as lines of text."""
    width = max([len(heading), *(len(r.name) for r in rows)])
    head = f"{heading.ljust(width)}  {'min':>11}  {'max':>11}  {'mean':>11}  {'norm':>11}"
    body = [
        f"{r.name.ljust(width)}  {r.min:11.4g}  {r.max:11.4g}  {r.mean:11.4g}  {r.norm:11.4g}  {r.verdict}"
        for r in rows
    ]
    return "\n".join(line.rstrip() for line in (head, *body))


class Staged(Tunable):
    """The part of a session that makes a step in parts, over the same state as `step`."""

    _given: Mapping[str, object] | None = None  # the inputs of the last `forward`
    _gradients: dict[str, AnyArray] | None = None  # what `backward` or `gradient_stats` left
    _observer: Observer | None = None

    def forward(self, given: Mapping[str, object] | None = None, /, **inputs: object) -> Any:
        """The outputs other than the loss, under the meaning of training but for dropout; remembered for `backward`.

        Example: `out = session.forward(x=xb)`.
        """
        named = {**(given or {}), **inputs}
        averages = self._source is not None and self._source.averaged
        entry = self._entry(FORWARD if averages else "predict")
        outputs = entry({i.name: named[i.name] for i in entry.inputs.all if i.name in named}).outputs
        self._given = named
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def backward(self, grad_output: object) -> None:
        """The gradients of Σ output·grad_output for the inputs of the last `forward`; kept until the next.

        Example: `session.backward(2 * (out - target) / out.size)`.
        """
        if self._given is None:
            raise UsageError("backward needs the inputs of a forward pass: call session.forward(...) first.")
        entry = self._entry("backward")
        known = {i.name for i in entry.inputs.all}
        self._gradients = entry({**{n: a for n, a in self._given.items() if n in known}, UPSTREAM: grad_output}).outputs

    def clip_gradients(self, max_norm: float) -> float:
        """Shorten all kept gradients together to a global norm; returns the norm before."""
        if not max_norm > 0:
            raise OptionError(f"clip_gradients: max_norm is above 0; received {max_norm!r}.")
        gradients = self._need_gradients()
        entry = self._entry("clip")
        self._scalars[MAX_NORM] = float(max_norm)
        outputs = entry(gradients).outputs
        norm = float(outputs.pop(NORM))
        self._gradients = outputs
        return norm

    def apply_gradients(self, lr: float) -> None:
        """Update the parameters along the kept gradients by the session's optimizer, with this learning rate."""
        gradients = self._need_gradients()
        entry = self._entry("apply")
        self.optimizer.lr = lr
        if self.state.turn is not self._turn:
            self._take_turn()
        entry({i.name: gradients[i.name] for i in entry.inputs.all})
        self.state.step += 1
        self.state.version += 1  # programs that keep a second layout of a parameter look here

    def _need_gradients(self) -> dict[str, AnyArray]:
        if not self._gradients:
            raise UsageError("there are no gradients yet: call session.backward(grad_output) first.")
        return self._gradients

    # -- looking -------------------------------------------------------------------------------------------------

    def gradient_stats(self, given: Mapping[str, object] | None = None, /, **inputs: object) -> dict[str, Stats]:
        """Statistics of every parameter's gradient: of the loss on these inputs, or what `backward` left.

        Example: `session.gradient_stats(x=xb, labels=yb)["w1"].norm`.
        """
        named = {**(given or {}), **inputs}
        if named:
            self._gradients = self._entry_with_room("gradients", named)(named).outputs
        found = {name.removeprefix(PREFIX): array for name, array in self._need_gradients().items()}
        return {name: Stats.of(name, array) for name, array in found.items()}

    def print_gradient_stats(self, given: Mapping[str, object] | None = None, /, **inputs: object) -> None:
        """Print `gradient_stats` as a table."""
        sys.stdout.write(table("gradient of", list(self.gradient_stats(given, **inputs).values())) + "\n")

    def set_observer(self, observer: Observer | None) -> None:
        """Show the activations of every layer before each step from now on; None ends it.  The step is unchanged.

        `run`, `ws.Trainer` and `ws.fit` show them too; where the observer has a number `every`, of every so many steps,
        and those between run natively, many at a time.
        """
        if observer is not None and not hasattr(observer, "on_activations"):
            raise UsageError(f"an observer has on_activations(step, stats), as ws.ConsoleObserver; got {observer!r}.")
        self._observer = observer

    def activation_stats(self, given: Mapping[str, object] | None = None, /, **inputs: object) -> dict[str, Stats]:
        """Statistics of every layer's output, in the order in which they are computed.

        Example: `session.activation_stats(x=xb)["0"].max`.
        """
        named = {**(given or {}), **inputs}
        entry = self._entry_with_room("observe", named)
        known = {i.name for i in entry.inputs.all}
        outputs = entry({n: a for n, a in named.items() if n in known}).outputs
        return {name: Stats.of(name, a) for name, a in outputs.items()}

    def _observe(self, inputs: Mapping[str, object]) -> None:
        assert self._observer is not None
        self._observer.on_activations(self.state.step, self.activation_stats(inputs))
