"""Expressions that the fuzzer draws, ten in a graph; `tests/fuzz/cases.py` stores expressions that were wrong once.

One of them with its nine neighbours: `pytest "tests/fuzz/test_graphs.py::test_drawn[17]"`.
"""

from __future__ import annotations

from functools import lru_cache
from random import Random

import pytest

import wholestep as ws
from tests.fuzz import graphs
from tests.fuzz.cases import GRAPHS
from tests.fuzz.expressions import BINARY, UNARY
from tests.support.complete import assert_has_rows
from wholestep.compiler.ir.graph import toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.passes.autodiff.rules import GRADIENTS, Blocked, Refused

COUNT, LONG, TOGETHER, OPERATIONS = 120, 200, 10, 5  # so many of `make test`, and of `make test-all`
SIZES = ({"batch": 5, "time": 3}, {"batch": 1, "time": 2}, {"batch": 17, "time": 1}, {"batch": 2, "time": 7})


def drawn(index: int) -> graphs.Program:
    sizes = SIZES[index // TOGETHER % len(SIZES)]
    return graphs.draw(Random(f"make test {index}"), sizes, OPERATIONS)


@lru_cache(maxsize=2)
def failures(group: int | None) -> dict[str, str]:
    """What is wrong with each expression of a group (None: of those that are kept), all compiled as one if possible."""
    programs = GRAPHS
    if group is not None:
        programs = {f"g{i}": drawn(i) for i in range(group * TOGETHER, (group + 1) * TOGETHER)}
    try:
        return graphs.failures(list(programs.values()), list(programs))
    except Exception:
        return {name: text for name, p in programs.items() if (text := alone(p))}


def alone(program: graphs.Program) -> str:
    try:
        return "; ".join(graphs.failures([program], ["alone"]).values())
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    "index", [*range(COUNT), *(pytest.param(i, marks=pytest.mark.long) for i in range(COUNT, LONG))]
)
def test_drawn(index: int) -> None:
    wrong = failures(index // TOGETHER).get(f"g{index}")
    assert wrong is None, f"{wrong}\n{graphs.text(drawn(index))}"


@pytest.mark.parametrize("name", GRAPHS)
def test_kept(name: str) -> None:
    wrong = failures(None).get(name)
    assert wrong is None, f"{wrong}\n{graphs.text(GRAPHS[name])}"


def test_every_elementwise_op_with_a_gradient_is_drawn() -> None:
    x = ws.Graph().input("x", (3,), "float32")
    drawn = [f(x) for f, _ in UNARY.values()] + [f(x, x * 0.5) for f, _ in BINARY.values()]
    ops = {node.op for node in toposort([value.node for value in drawn])} | {"cast"}  # a dtype is drawn, too
    needed = {op for op in ops_with(Trait.ELEMENTWISE) if not isinstance(GRADIENTS[op], Blocked | Refused)}
    assert_has_rows(ops, needed, "UNARY of tests/ops/unary.py, or UNARY or BINARY of tests/fuzz/expressions.py")
