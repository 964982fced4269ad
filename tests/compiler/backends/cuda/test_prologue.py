"""Scalars on the host: plain Python floats, several steps at once, and NumPy give the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
from sessions import mlp

import wholestep as ws
from wholestep.compiler.backends.cuda.prologue import Prologue
from wholestep.compiler.backends.host import prologue
from wholestep.compiler.plan.kernel import Plan

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
    plan = planned(optimizer, clip_norm=1.0)
    found = Prologue(plan)
    steps = range(40)
    many = [[float(step) if s.name == "step" else s.default for s in plan.scalars] for step in steps]
    one = [list(found.slots({"batch": 5}, scalars)) for scalars in many]
    table = found.table({"batch": 5}, many)
    np.testing.assert_array_equal(table, np.array(one).reshape(table.shape))
    with np.errstate(all="ignore"):
        meant = np.array([prologue(plan, {"batch": 5}, scalars) for scalars in many]).reshape(table.shape)
    np.testing.assert_allclose(table, meant, rtol=1e-7)
    assert plan.slots == 0 or len({tuple(row) for row in one}) >= 1
