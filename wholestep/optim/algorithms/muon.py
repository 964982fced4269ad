"""Muon and NorMuon: momentum whose singular values are equalized."""

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
from wholestep.optim.algorithms.adam import BETAS_TRIED
from wholestep.optim.core.base import Optimizer, Scalars
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, whole, with_aliases

# Polar Express (arXiv:2505.16932): the best odd polynomial of degree 5 for what the last one left of [0.001, 1], made
# safe by a factor of 1.01; further iterations use the last row.
POLAR_EXPRESS = (
    *((a / 1.01, b / 1.01**3, c / 1.01**5) for a, b, c in (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
        (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
        (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    )),
    (1.875, -1.25, 0.375),
)  # fmt: skip
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
        polar_express: in place of `ns_coefficients`, those of arXiv:2505.16932, other ones in every iteration: the
            singular values come closer to 1 in as many iterations.
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
    polar_express: bool = False

    slot: ClassVar[str] = "muon"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.adjust_lr_fn not in ADJUST:
            fail(OptionError, f"Muon: adjust_lr_fn must be one of {', '.join(ADJUST)}; received {self.adjust_lr_fn!r}.")

    def hyperparameters(self) -> dict[str, Number]:
        numbers_used = super().hyperparameters()
        return {k: v for k, v in numbers_used.items() if not (self.polar_express and k.startswith("ns_"))}

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
            new.append(self.shrunk(s, w) - rate * self._direction(graph, s, w, u))
        return new

    def _direction(self, graph: Graph, s: Scalars, w: Tensor, u: Tensor) -> Tensor:
        """The step of a matrix before its learning rate."""
        return self._orthogonalize(s, u)

    def _orthogonalize(self, s: Scalars, u: Tensor) -> Tensor:
        """Newton-Schulz iteration on the side where x·xᵀ is smaller."""
        tall = int(u.shape[0]) > int(u.shape[1])
        x = u.T if tall else u
        size = (x * x).sum().sqrt()
        x = x / fn.maximum(1.01 * size if self.polar_express else size, s["eps"])
        for i in range(self.ns_steps):
            a, b, c = self._coefficients(s, i)
            gram = x @ x.T
            x = a * x + (b * gram + c * (gram @ gram)) @ x
        return x.T if tall else x

    def _coefficients(self, s: Scalars, iteration: int) -> tuple[Tensor, ...] | tuple[float, ...]:
        if self.polar_express:
            return POLAR_EXPRESS[min(iteration, len(POLAR_EXPRESS) - 1)]
        return s["ns_a"], s["ns_b"], s["ns_c"]

    def _adjust(self, outputs: int, inputs: int) -> float:
        if self.adjust_lr_fn == "original":
            return sqrt(max(1.0, outputs / inputs))
        return 0.2 * sqrt(max(outputs, inputs)) if self.adjust_lr_fn == "match_rms_adamw" else 1.0


@with_aliases(learning_rate="lr")
@dataclass(frozen=True)
class NorMuon(Muon):
    """NorMuon (arXiv:2510.05491): Muon whose rows (outputs) are divided by the root of their second moment; x as there:

        v ← beta2·v + (1 - beta2)·mean x² of each row        y = x / (√v + 1e-10)
        w ← (1 - lr·weight_decay)·w - lr·adjust(w)·‖x‖/‖y‖·y

    Args:
        beta2: the memory of v.

    Other arguments are those of `ws.Muon`.

    Example: `ws.NorMuon(lr=0.02, groups=[ws.Group(ndim=(0, 1), name="rest", optimizer=ws.AdamW())])`.
    """

    beta2: Number = number(0.95, below=1.0, trial=BETAS_TRIED[1])

    slot: ClassVar[str] = "normuon"

    def _direction(self, graph: Graph, s: Scalars, w: Tensor, u: Tensor) -> Tensor:
        x = self._orthogonalize(s, u)
        v = self.state(graph, w, "v", (int(w.shape[0]), 1))
        new_v = s["beta2"] * v + (1.0 - s["beta2"]) * (x * x).mean(1, keepdims=True)
        graph.update(v, new_v)
        y = x / (new_v.sqrt() + 1e-10)
        return y * ((x * x).sum().sqrt() / ((y * y).sum().sqrt() + 1e-10))


def _need_matrix(w: Tensor) -> None:
    if w.ndim != 2:
        fail(
            ShapeError,
            f"Muon updates matrices; {w.name!r} has {w.ndim} axes. Give such parameters to another optimizer: "
            'groups=[ws.Group(ndim=(0, 1), name="rest", optimizer=ws.AdamW())].',
        )
