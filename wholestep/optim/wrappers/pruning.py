"""Pruned: a wrapper whose weights are zero where their masks are, by magnitude, element by element or row by row.

The masks are states of the step, so that checkpoints contain them and a masked weight is exactly 0 after every update.
They are computed between steps, in NumPy, after the few updates that the schedule names (`ws.callbacks.Pruning`): the
threshold needs a sort, which costs more than a small step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.frontend.update_counters import RAW
from wholestep.errors import OptionError, UsageError
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.options import number, whole
from wholestep.optim.wrappers.weight_averaging import EMA, SWA, Wrapper

if TYPE_CHECKING:
    from wholestep.session import Session

Array = np.ndarray[Any, Any]
AXES = {"elements": None, "rows": 0, "columns": 1}  # unit -> the axis whose slices are pruned as a whole
SCOPES = ("global", "layer")


@dataclass(frozen=True)
class Pruned(Wrapper):
    """Magnitude pruning with a schedule (arXiv:1710.01878); after t updates the share s(t) of the weights is zero:

        s(t) = amount·(1 - (1 - (t - start)/(end - start))³), 0 before `start`, `amount` from `end` on
        g ← mask·g, then the optimizer's update, then w ← mask·w

    The smallest weights are pruned; rows and columns are compared by the root of their mean square.  New masks are
    computed after every `every` updates of an epoch and at its end: `ws.fit` does that; in a loop of your own call
    `rule.update_masks(session)`.

    Args:
        optimizer: the optimizer of the weights; only `EMA` and `SWA` may wrap this one.
        amount: the final share of zeros.
        start: the updates before the first mask.
        end: the updates after which the share is `amount`; up to `start`: at once.
        every: the updates between two masks, counted in an epoch.
        per: "elements"; "rows", slices along the first axis (units, output channels); or "columns", slices along the
            second (inputs, input channels).
        scope: "global" compares the weights of all layers; "layer" prunes the same share of each.
        match: name patterns of the pruned parameters; by default all parameters with two or more axes.

    Example: `ws.optim.Pruned(ws.AdamW(lr=1e-3), amount=0.9, end=1000)`.
    """

    amount: float = number(0.5, below=1.0, structural=True)
    start: int = whole(0, 0)
    end: int = whole(0, 0)
    every: int = whole(100)
    per: str = "elements"
    scope: str = "global"
    match: str | tuple[str, ...] = ()
    name: str = field(default="pruned", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for option, allowed in (("per", tuple(AXES)), ("scope", SCOPES)):
            if getattr(self, option) not in allowed:
                expected = ", ".join(map(repr, allowed))
                fail(OptionError, f"Pruned: {option} must be one of {expected}; received {getattr(self, option)!r}.")
        object.__setattr__(self, "match", (self.match,) if isinstance(self.match, str) else tuple(self.match))

    def structure(self) -> tuple[object, ...]:
        return (*super().structure(), self.per, self.match)

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        self._check_match(params)
        masks = [self._mask(graph, w) if self._prunes(w) else None for w in params]
        slopes = [g if m is None else fn.where(m, g, 0.0) for g, m in zip(grads, masks, strict=True)]
        new = self.optimizer.apply(graph, params, slopes)
        return [
            value if m is None or value is w else fn.where(m, value, 0.0)
            for w, value, m in zip(params, new, masks, strict=True)
        ]

    def _mask(self, graph: Graph, w: Tensor) -> Tensor:
        axis = AXES[self.per]
        shape = w.shape if axis is None else [n if i == axis else 1 for i, n in enumerate(w.shape)]
        return graph.state(w.name + self._mask_suffix, shape, 1.0, dtype="bool")

    @property
    def _mask_suffix(self) -> str:
        """The end of the names of this rule's masks; in a group, the rule has the group's name too."""
        return f".{self.name.replace('.', '_')}.mask"

    def _prunes(self, w: Tensor) -> bool:
        return any(fnmatchcase(w.name, p) for p in self.match) if self.match else w.ndim >= 2

    def _check_match(self, params: Sequence[Tensor]) -> None:
        names = [w.name for w in params]
        for pattern in self.match:
            if not any(fnmatchcase(name, pattern) for name in names):
                fail(OptionError, f"Pruned: match={pattern!r} matches none of the parameters {names}.")
        for w in params:
            if self._prunes(w) and w.ndim <= (AXES[self.per] or 0):
                fail(OptionError, f"Pruned: {w.name!r} has {w.ndim} axes and no {self.per}; leave it out of match=.")

    # -- masks -----------------------------------------------------------------------------------------------------

    def share_at(self, updates: int) -> float:
        """The share of zeros that the schedule requires after a number of updates.

        Example: `ws.optim.Pruned(ws.SGD(), amount=0.8, end=10).share_at(5)` is 0.7.
        """
        if updates < self.start:
            return 0.0
        left = 1.0 - min(1.0, (updates - self.start) / max(1, self.end - self.start)) if self.end > self.start else 0.0
        return float(self.amount * (1.0 - left**3))

    def update_masks(self, session: Session) -> float:
        """Compute the masks for the session's number of updates and zero what they prune; return the share of zeros.

        Example: `rule.update_masks(session)` after a `session.step(...)`.
        """
        state, end = session.state, self._mask_suffix
        weights = {name.removesuffix(end): name for name in state.names if name.endswith(end)}
        if not weights:
            raise UsageError("this session has no masks: build it with this rule as optimizer=, or within EMA or SWA.")
        for name in weights:
            if state.is_divided(name) or state.is_divided(weights[name]):
                raise UsageError(
                    f"Pruned compares whole weights, and {name!r} is sharded; leave out shard= and split=."
                )
        arrays = {name: state.get(name + RAW if name + RAW in state else name) for name in weights}
        masks = self.masks_of(arrays, self.share_at(session.updates_made))
        for name, mask in masks.items():
            state.set(weights[name], mask)
            for stored in (name, name + RAW):
                if stored in state:
                    state.set(stored, np.where(mask, state.get(stored), 0))
        zeros = sum(a.size - np.count_nonzero(np.broadcast_to(masks[n], a.shape)) for n, a in arrays.items())
        return float(zeros / sum(a.size for a in arrays.values()))

    def masks_of(self, arrays: Mapping[str, Array], share: float) -> dict[str, Array]:
        """The masks that prune a share of some weights: True where a weight stays.

        Example: `ws.optim.Pruned(ws.SGD(), per="rows").masks_of({"w": w}, 0.5)`.
        """
        axis = AXES[self.per]
        scores = {name: _magnitudes(a, axis) for name, a in arrays.items()}
        groups = [list(scores)] if self.scope == "global" else [[name] for name in scores]
        masks: dict[str, Array] = {}
        for names in groups:
            flat = np.concatenate([scores[name].ravel() for name in names])
            stays = np.ones(len(flat), bool)
            stays[np.argsort(flat, kind="stable")[: round(share * len(flat))]] = False  # of equals the first ones
            ends = np.cumsum([scores[name].size for name in names])[:-1]
            masks |= {n: m.reshape(scores[n].shape) for n, m in zip(names, np.split(stays, ends), strict=True)}
        return masks


def _magnitudes(array: Array, axis: int | None) -> Array:
    """|w|, or the root of the mean square of each slice, with axes of size 1 kept."""
    if axis is None:
        return np.abs(array)
    others = tuple(d for d in range(array.ndim) if d != axis)
    return np.asarray(np.sqrt((array.astype(np.float64) ** 2).mean(others, keepdims=True)))


def pruning_rules(rule: Optimizer | None) -> Iterator[Pruned]:
    """The `Pruned` of an optimizer, of its groups, and of what it wraps."""
    if rule is None:
        return
    if isinstance(rule, Pruned):
        yield rule
    if isinstance(rule, Wrapper):
        for inner in pruning_rules(rule.optimizer):
            if not isinstance(rule, EMA | SWA):
                fail(
                    OptionError,
                    f"{type(rule).__name__} wraps Pruned and could move pruned weights away from 0; write "
                    f"ws.optim.Pruned(ws.optim.{type(rule).__name__}(...)).",
                )
            yield inner
    for group in rule.groups:
        if group.optimizer is not None:
            yield from pruning_rules(group.member(rule)[0])
