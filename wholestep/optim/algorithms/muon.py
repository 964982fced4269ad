"""Muon: momentum whose singular values are equalized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, ShapeError
from wholestep.optim.core.base import Optimizer, Scalars
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, whole, with_aliases

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ADJUST = ("original", "match_rms_adamw", "none")


@with_aliases(learning_rate="lr")
@dataclass(frozen=True)
class Muon(Optimizer):
    """Muon (Jordan et al., 2024), for matrices; the singular values of the momentum are pushed towards 1:

        b ← momentum·b + (1 - momentum)·g        u = (1 - momentum)·g + momentum·b (nesterov), else b
        x = u/‖u‖, then ns_steps times:  G = x·xᵀ,  x ← a·x + (b·G + c·G·G)·x
        w ← (1 - lr·weight_decay)·w - lr·adjust(w)·x

    It departs from torch's in one thing: the iteration runs in the parameter's own dtype, not in bfloat16.  `adjust`
    takes a weight as torch stores it, (outputs, inputs).  Parameters that are not matrices, and by its authors' advice
    embeddings and the last layer, are better left to AdamW: give them a group with an optimizer of its own.

    Args:
        lr: the learning rate.
        weight_decay: decoupled, for every parameter, since all are matrices.
        momentum: the memory of b.
        nesterov: look ahead along b.
        ns_coefficients: (a, b, c) of the Newton-Schulz iteration.
        eps: the smallest norm that is divided by.
        ns_steps: the number of iterations; part of the program.
        adjust_lr_fn: "original", √max(1, outputs/inputs); "match_rms_adamw", 0.2·√max(outputs, inputs); or "none".

    Example: `ws.Muon(lr=0.02, groups=[ws.Group(ndim=(0, 1), name="rest", optimizer=ws.AdamW())])`.
    """

    lr: Number = number(1e-3)
    weight_decay: Number = number(0.1, optional=True, trial=0.1)
    momentum: Number = number(0.95, below=1.0, trial=0.6)
    nesterov: bool = True
    ns_coefficients: tuple[Number, Number, Number] = numbers(
        COEFFICIENTS, ("ns_a", "ns_b", "ns_c"), low=float("-inf"), trial=COEFFICIENTS
    )
    eps: Number = number(1e-7, trial=EPS_TRIED)
    ns_steps: int = whole(5)
    adjust_lr_fn: str = "original"

    slot: ClassVar[str] = "muon"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adjust_lr_fn not in ADJUST:
            fail(OptionError, f"Muon: adjust_lr_fn must be one of {', '.join(ADJUST)}; received {self.adjust_lr_fn!r}.")

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        new = []
        for w, g in zip(params, grads, strict=True):
            _need_matrix(w)
            velocity = self.state(graph, w, "velocity")
            moved = s["momentum"] * velocity + (1.0 - s["momentum"]) * g
            graph.update(velocity, moved)
            u = (1.0 - s["momentum"]) * g + s["momentum"] * moved if self.nesterov else moved
            rate = s["lr"] * self._adjust(int(w.shape[0]), int(w.shape[1]))
            new.append(self.shrunk(s, w) - rate * self._orthogonalize(s, u))
        return new

    def _orthogonalize(self, s: Scalars, u: Tensor) -> Tensor:
        """Newton-Schulz iteration on the side where x·xᵀ is smaller."""
        tall = int(u.shape[0]) > int(u.shape[1])
        x = u.T if tall else u
        x = x / fn.maximum((x * x).sum().sqrt(), s["eps"])
        for _ in range(self.ns_steps):
            gram = x @ x.T
            x = s["ns_a"] * x + (s["ns_b"] * gram + s["ns_c"] * (gram @ gram)) @ x
        return x.T if tall else x

    def _adjust(self, outputs: int, inputs: int) -> float:
        if self.adjust_lr_fn == "original":
            return sqrt(max(1.0, outputs / inputs))
        return 0.2 * sqrt(max(outputs, inputs)) if self.adjust_lr_fn == "match_rms_adamw" else 1.0


def _need_matrix(w: Tensor) -> None:
    if w.ndim != 2:
        fail(
            ShapeError,
            f"Muon updates matrices; {w.name!r} has {w.ndim} axes. Give such parameters to another optimizer: "
            'groups=[ws.Group(ndim=(0, 1), name="rest", optimizer=ws.AdamW())].',
        )
