"""Functions of one float: a row each, from which the tables of the tests are generated.

The tables that read it: CASES of tests/compiler/ir/test_interpret.py, GOOD and BAD of
tests/compiler/ir/test_types_of_ops.py, UNARY of tests/compiler/passes/test_autodiff.py and of
tests/fuzz/expressions.py, POINTWISE of tests/ops/table.py, and the makers of tests/compiler/ir/random_graphs.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.nn.functional as F

import wholestep as ws


class Domain(Enum):
    """The arguments that a function is tried on."""

    REALS = "all numbers; the result is at most max(1, |x|)"
    BELOW_TWO = "numbers below 2, since the result grows exponentially"
    POSITIVE = "numbers above 0"


def same(x: Any) -> Any:
    return x


@dataclass(frozen=True)
class Unary:
    """A function of one float."""

    theirs: Callable[[torch.Tensor], torch.Tensor]
    domain: Domain = Domain.REALS
    within: Callable[[Any], Any] = same  # of any number, ours or torch's, an argument that the function accepts
    curved: bool = True  # does the gradient depend on the argument, so that there is a second one?
    slope: bool = True  # False: the function jumps, and its gradient is 0
    ours: Callable[[Any], Any] | None = None  # if it is not the function of `ws` with the op's name

    def function(self, name: str) -> Callable[[Any], Any]:
        return self.ours or getattr(ws, name)


GROWS = {"domain": Domain.BELOW_TWO, "within": lambda x: -x * x}
UNARY = {
    "exp": Unary(torch.exp, **GROWS),
    "exp2": Unary(torch.exp2, **GROWS),
    "expm1": Unary(torch.expm1, Domain.BELOW_TWO, lambda x: x.tanh()),
    "log": Unary(torch.log, Domain.POSITIVE, lambda x: 1.0 + x * x),
    "log2": Unary(torch.log2, Domain.POSITIVE, lambda x: 1.0 + x * x),
    "log1p": Unary(torch.log1p, Domain.POSITIVE, lambda x: x * x),
    "sqrt": Unary(torch.sqrt, Domain.POSITIVE, lambda x: 0.5 + x * x),
    "recip": Unary(torch.reciprocal, Domain.POSITIVE, lambda x: 1.0 + x * x),
    "sin": Unary(torch.sin),
    "cos": Unary(torch.cos),
    "erf": Unary(torch.erf),
    "atan": Unary(torch.atan),
    "floor": Unary(torch.floor, slope=False),
    "relu": Unary(torch.relu, curved=False),
    "sigmoid": Unary(torch.sigmoid),
    "tanh": Unary(torch.tanh),
    "silu": Unary(F.silu),
    "softplus": Unary(F.softplus),
}
# They accept integers too; their types and values have separate rows.
SIGNED = {
    "neg": Unary(torch.neg, curved=False, ours=lambda x: -x),
    "abs": Unary(torch.abs, curved=False),
}


def names(domain: Domain) -> list[str]:
    """The functions on a domain that have a gradient."""
    return [name for name, row in (UNARY | SIGNED).items() if row.domain is domain and row.slope]
