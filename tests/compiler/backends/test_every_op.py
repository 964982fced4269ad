"""Every backend says every op that a plan may hold, and every target prices it: who adds an op is told where."""

from __future__ import annotations

import pytest

from benchmarks.calibrate import UNARY
from tests.compiler.backends.cpu.test_math import FUNCTIONS
from tests.support.complete import assert_equal_rows, assert_has_rows
from wholestep.compiler.backends.cpu.render import language as cpu
from wholestep.compiler.backends.cpu.target import PORTABLE
from wholestep.compiler.backends.cpu.target import TARGETS as CPUS
from wholestep.compiler.backends.cuda.target import TARGETS as GPUS
from wholestep.compiler.backends.gpu.render import language as cuda
from wholestep.compiler.backends.reference.target import TARGETS as REFERENCES
from wholestep.compiler.ir.attrs import NONE
from wholestep.compiler.ir.ops import OPS, Family, Trait, ops_with
from wholestep.compiler.ir.types import TensorType, float32
from wholestep.compiler.target import Target
from wholestep.errors import DTypeError

ELEMENTWISE = {name for name, op in OPS.items() if op.family is Family.POINTWISE} - {"cast"}  # it has its own text
EVERY = {**CPUS, **GPUS, **REFERENCES}


def of_floats(name: str) -> bool:
    """Does the op take floats, and nothing but floats?"""
    try:
        OPS[name].infer((TensorType((), float32),) * (OPS[name].arity or 0), NONE)
    except DTypeError:
        return False
    return True


def kept(target: Target) -> set[str]:
    """Composites that a target computes element by element, under their names."""
    return {name for name in target.composites if name in ops_with(Trait.ELEMENTWISE)}


SHARED = " (or shared_ops of wholestep/compiler/backends/common/cstyle/language.py)"
LANGUAGES = {
    "cpu": (cpu.OPS, kept(PORTABLE), f"OPS of wholestep/compiler/backends/cpu/render/language.py{SHARED}"),
    "host": (cpu.HOST, kept(PORTABLE) | {"ratio"}, "HOST of wholestep/compiler/backends/cpu/render/language.py"),
    **{
        name: (cuda.OPS, kept(gpu), f"OPS of wholestep/compiler/backends/gpu/render/language.py{SHARED}")
        for name, gpu in GPUS.items()
    },
}
# Functions of native/math.h that are an instruction or few: no polynomials.
CHEAP = {"abs", "sign", "floor", "maximum", "minimum", "sqrt", "mod"}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_has_a_row_for_every_op(language: str) -> None:
    table, more, where = LANGUAGES[language]
    assert_equal_rows(table, ELEMENTWISE | more, where)


def test_a_function_has_the_trait_that_gives_it_a_price() -> None:
    functions = {name for name in cpu.OPS if of_floats(name) and cpu.OPS[name](float32, ("x", "y")).startswith("ws_")}
    where = "Trait.TRANSCENDENTAL in _TRAITS of wholestep/compiler/ir/ops.py (or CHEAP of this test)"
    assert_has_rows(ops_with(Trait.TRANSCENDENTAL), functions - CHEAP, where)


@pytest.mark.parametrize("target", EVERY.values(), ids=str)
def test_a_function_has_its_price(target: Target) -> None:
    where = f"weights of the cost table of {target} (costs.json or costs/sm_*.json in its folder of compiler/backends/)"
    assert_has_rows(target.costs.weights, ops_with(Trait.TRANSCENDENTAL), where)


def test_a_price_is_measured() -> None:
    """A table that is measured anew has the rows that it had."""
    priced = {op for target in EVERY.values() for op in target.costs.weights}
    assert_has_rows(UNARY, priced, "UNARY of benchmarks/calibrate.py")


def test_a_function_has_its_error_in_ulps() -> None:
    functions = ops_with(Trait.TRANSCENDENTAL) - {"pow"}  # "pow" has two arguments and a separate test
    assert_has_rows(FUNCTIONS, functions, "FUNCTIONS of tests/compiler/backends/cpu/test_math.py")
