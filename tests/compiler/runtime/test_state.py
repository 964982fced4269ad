"""States get their first values, on one thread or several, and zeros without being written."""

from __future__ import annotations

import numpy as np
import pytest

from wholestep.compiler.ir.types import TensorType, float32
from wholestep.compiler.runtime import state as module
from wholestep.compiler.runtime.state import State


@pytest.mark.parametrize("many", [1, 1 << 30])
def test_every_state_has_its_first_value(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MANY", many)  # threads, or none
    types = {f"w{i}": TensorType((3 + i, 20), float32) for i in range(9)}
    values = {name: np.full((3 + i, 20), i, np.float32) for i, name in enumerate(types)}
    state = State()
    state.add(types, lambda name: None if name == "w4" else values[name])
    for i, name in enumerate(types):
        np.testing.assert_array_equal(state.get(name), 0 if i == 4 else values[name])


def test_states_that_are_there_keep_their_numbers() -> None:
    state, type = State(), TensorType((4,), float32)
    state.add({"w": type}, lambda name: np.ones(4, np.float32))
    version = state.version
    state.add({"w": type, "v": type}, lambda name: np.zeros(4, np.float32))
    assert state.get("w").tolist() == [1.0] * 4
    assert state.version > version, "programs look at states again"
