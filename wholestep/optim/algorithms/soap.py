"""SOAP: Adam in the eigenbasis of Shampoo's preconditioner."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import numpy as np

from wholestep.compiler.frontend.control.scan import scan
from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.functions.creation import eye
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.optim.algorithms.adam import ALIASES, BETAS, BETAS_TRIED
from wholestep.optim.core.base import Optimizer, Scalars
from wholestep.optim.core.options import EPS_TRIED, Number, number, numbers, whole, with_aliases

SHIFT = 1e-4  # fraction of the mean eigenvalue that is added: directions without a gradient stay unchanged
LEAST = 1e-30


@with_aliases(**ALIASES)
@dataclass(frozen=True)
class SOAP(Optimizer):
    """SOAP (arXiv:2409.11321), for matrices g (outputs, the rest); bases of one side where the other is too long:

        m ← β₁·m + (1 - β₁)·g        v ← β₂·v + (1 - β₂)·(Uᵀ·g·V)²
        w ← (1 - lr·weight_decay)·(w - lr·√(1 - β₂ᵗ)/(1 - β₁ᵗ)·U·((Uᵀ·m·V)/(√v + eps))·Vᵀ)
        L ← shampoo_beta·L + (1 - shampoo_beta)·g·gᵀ        U ← QR(L·U), and V likewise of gᵀ·g

    It departs from the authors' code: U and V start as the identity instead of after a first eigendecomposition, every
    update improves them (theirs every tenth by default), and their columns are not sorted, which the iteration does by
    itself.  QR is Gram-Schmidt, twice, one column after the other, so that a side of n costs about 5·n³ operations in
    each update.  Vectors are updated as by Adam.

    Args:
        lr: the learning rate.
        betas: (β₁, β₂), the memory of the two averages.
        shampoo_beta: the memory of L; part of the step, and equal to β₂ in the paper.
        eps: keeps the quotient finite.
        weight_decay: decoupled, by default on parameters with two or more axes.
        max_size: sides longer than this have no basis.

    Example: `ws.SOAP(lr=3e-3)`.
    """

    lr: Number = number(3e-3)
    betas: tuple[Number, Number] = numbers((0.95, 0.95), BETAS, below=1.0, trial=BETAS_TRIED)
    shampoo_beta: Number = number(0.95, below=1.0, trial=0.7)
    eps: Number = number(1e-8, trial=EPS_TRIED)
    weight_decay: Number = number(0.01, optional=True, trial=0.1)
    max_size: int = whole(128)

    slot: ClassVar[str] = "soap"

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        beta1, beta2 = s["beta1"], s["beta2"]
        rates = self.by_update(graph, params, lambda t: s["lr"] * (1.0 - beta2**t).sqrt() / (1.0 - beta1**t))
        new = []
        for w, g, rate in zip(params, grads, rates, strict=True):
            m, v = self.state(graph, w, "m"), self.state(graph, w, "v")
            new_m = beta1 * m + (1.0 - beta1) * g
            bases = self._bases(graph, s, w, g)
            turned = _rotate(g, bases)
            new_v = beta2 * v + (1.0 - beta2) * turned * turned
            graph.update(m, new_m)
            graph.update(v, new_v)
            step = _rotate(_rotate(new_m, bases) / (new_v.sqrt() + s["eps"]), bases, back=True)
            moved = w - rate * step
            decays = "weight_decay" in s and self.decays(w)
            new.append(moved * (1.0 - s["lr"] * s["weight_decay"]) if decays else moved)
        return new

    def _bases(self, graph: Graph, s: Scalars, w: Tensor, g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The bases of this update; also records the update of both, for the next one."""
        if w.ndim < 2:
            return None, None
        matrix = g.reshape((w.shape[0], -1))
        left = self._basis(graph, s, w, "left", matrix)
        return left, self._basis(graph, s, w, "right", matrix.T)

    def _basis(self, graph: Graph, s: Scalars, w: Tensor, side: str, matrix: Tensor) -> Tensor | None:
        n = int(matrix.shape[0])
        if n > self.max_size or n == 1:
            return None
        products = self.state(graph, w, side, (n, n))
        basis = graph.state(f"{w.name}.{self.slot}.{side}_basis", (n, n), np.eye(n), dtype=w.dtype)
        new = s["shampoo_beta"] * products + (1.0 - s["shampoo_beta"]) * (matrix @ matrix.T)
        graph.update(products, new)
        size = fn.maximum((new * eye(n, dtype=w.dtype)).sum() / float(n), LEAST)
        graph.update(basis, orthonormalize((new / size) @ basis + SHIFT * basis))
        return basis


def _rotate(x: Tensor, bases: tuple[Tensor | None, Tensor | None], *, back: bool = False) -> Tensor:
    """Uᵀ·x·V, or U·x·Vᵀ; without the bases that are None."""
    left, right = bases
    if left is None and right is None:
        return x
    out = x.reshape((x.shape[0], prod(int(n) for n in x.shape[1:])))
    if left is not None:
        out = (left if back else left.T) @ out
    if right is not None:
        out = out @ (right.T if back else right)
    return out.reshape(x.shape)


def orthonormalize(a: Tensor) -> Tensor:
    """The Q of a square matrix's QR decomposition whose R has a positive diagonal, by Gram-Schmidt, twice."""
    n = int(a.shape[0])

    def add_column(rows: Tensor, pair: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[()]]:
        column, place = pair
        for _ in range(2):
            column = column - (rows @ column) @ rows
        unit = column / fn.maximum((column * column).sum().sqrt(), LEAST)
        return rows + place.reshape((n, 1)) * unit.reshape((1, n)), ()

    rows, _ = scan(add_column, eye(n, dtype=a.dtype) * 0.0, (a.T, eye(n, dtype=a.dtype)))
    basis: Tensor = rows.T
    return basis
