"""Every backend says every op that a plan may hold, and every target prices it: who adds an op is told where."""

from __future__ import annotations

import pytest

from tests.compiler.backends.cpu.test_math import FUNCTIONS
from wholestep.compiler.backends.cpu.render import language as cpu
from wholestep.compiler.backends.cpu.target import PORTABLE
from wholestep.compiler.backends.cpu.target import TARGETS as CPUS
from wholestep.compiler.backends.cuda.target import TARGETS as GPUS
from wholestep.compiler.backends.gpu.render import language as cuda
from wholestep.compiler.backends.reference.target import TARGETS as REFERENCES
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.target import Target

ELEMENTWISE = {name for name, op in OPS.items() if op.family is Family.POINTWISE} - {"cast"}  # it has its own text
EVERY = {**CPUS, **GPUS, **REFERENCES}


def kept(target: Target) -> set[str]:
    """Composites that a target computes element by element, under their names."""
    return {name for name in target.composites if name in ops_with(Trait.ELEMENTWISE)}


@pytest.mark.parametrize(
    ("table", "more"),
    [
        (cpu.OPS, kept(PORTABLE)),
        (cpu.HOST, kept(PORTABLE) | {"ratio"}),
        *((cuda.OPS, kept(gpu)) for gpu in GPUS.values()),
    ],
    ids=["cpu", "host", *GPUS],
)
def test_a_language_has_a_row_for_every_op(table: dict[str, object], more: set[str]) -> None:
    assert set(table) == ELEMENTWISE | more


@pytest.mark.parametrize("target", EVERY.values(), ids=str)
def test_a_function_has_its_price(target: Target) -> None:
    assert ops_with(Trait.TRANSCENDENTAL) <= target.costs.weights.keys()


def test_a_function_has_its_error_in_ulps() -> None:
    assert ops_with(Trait.TRANSCENDENTAL) <= FUNCTIONS.keys() | {"pow"}  # of two arguments: it has a test of its own
