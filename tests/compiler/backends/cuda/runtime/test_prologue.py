"""Scalars on the host: plain Python floats, several steps at once, and NumPy give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.support.sessions import mlp
from wholestep.compiler.backends.common.numpy_program import prologue
from wholestep.compiler.backends.gpu.scalar_prologue import Prologue, PrologueOp, _one
from wholestep.compiler.ir.types import boolean, int64
from wholestep.compiler.plan.model.kernel import Plan

PLAIN = ws.CompileOptions(verify=False, egraph=False)


def planned(optimizer: ws.optim.Optimizer, **options: object) -> Plan:
    session = ws.build_session(
        mlp(), optimizer=optimizer, batch_size=8, device="null:cuda/sm_90", options=PLAIN, **options
    )
    return session.plan


@pytest.mark.parametrize(
    "optimizer", [ws.AdamW(lr=1e-3, weight_decay=0.1), ws.Adagrad(lr=0.1), ws.RAdam(lr=1e-3), ws.NAdam(lr=1e-3)]
)
def test_slots_of_one_step_and_of_several_are_the_same(optimizer: ws.optim.Optimizer) -> None:
    assert_the_same(planned(optimizer, clip_norm=1.0), {"batch": 5})


def test_schedules_and_what_metrics_count_are_plain_floats_too() -> None:
    """Whole numbers and truths: a step of a run, and a batch of what validates it."""
    kinds = {"inputs": ws.Spec(("batch", 6)), "targets": ws.Spec(("batch",), "int32"), "loss": "cross_entropy"}
    how = {"metrics": ["accuracy"], "schedule": ws.schedules.cosine(steps=30), "optimizer": ws.AdamW(lr=1e-3)}
    session = ws.build_session(
        ws.nn.Linear(6, 3), **kinds, **how, batch_size=8, device="null:cuda/sm_90", options=PLAIN
    )
    assert_the_same(session.plan, {"batch": 5})
    compiled = session._programs.compiled
    assert compiled is not None
    part, _ = compiled.plan("evaluate.part")
    assert_the_same(part, dict.fromkeys(part.symbols, 5))


def test_what_no_whole_number_holds_is_numpys() -> None:
    cast = PrologueOp("cast", (0,), int64, None)
    assert [_one(cast, [x]) for x in (2.7, -2.7, 2.0**40, 1e30, np.nan)] == [2, -2, 2.0**40, 2.0**63, 0]
    assert [_one(PrologueOp("cast", (0,), boolean, None), [x]) for x in (0.0, -0.5, np.nan)] == [0, 1, 1]


def assert_the_same(plan: Plan, sizes: dict[str, int]) -> None:
    """One step, several at once, and what they mean."""
    found = Prologue(plan)
    assert found._plain
    steps = range(40)
    many = [[float(step) if s.name == "step" else s.default for s in plan.scalars] for step in steps]
    one = [list(found.slots(sizes, scalars)) for scalars in many]
    table = found.table(sizes, np.array(many, np.float64).reshape(len(steps), -1))
    np.testing.assert_array_equal(table, np.array(one).reshape(table.shape))
    with np.errstate(all="ignore"):
        meant = np.array([prologue(plan, sizes, scalars) for scalars in many]).reshape(table.shape)
    np.testing.assert_allclose(table, meant, rtol=1e-7)
    assert plan.slots == 0 or len({tuple(row) for row in one}) >= 1
