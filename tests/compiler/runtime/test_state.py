"""States get their first values, on one thread or several, and zeros without being written."""

from __future__ import annotations

import numpy as np
import pytest

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.initializers import InitialValue, with_zero_row
from wholestep.compiler.ir.types import TensorType, float32
from wholestep.compiler.runtime.state import state as module
from wholestep.compiler.runtime.state.state import State
from wholestep.session.verify import state_samples
from wholestep.session.verify.state_samples import Large


@pytest.mark.parametrize("many", [1, 1 << 30])
def test_every_state_has_its_first_value(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MANY", many)  # threads, or none
    types = {f"w{i}": TensorType((3 + i, 20), float32) for i in range(9)}
    values = {name: np.full((3 + i, 20), i, np.float32) for i, name in enumerate(types)}
    state = State()
    state.add(types, lambda name: None if name == "w4" else values[name])
    for i, name in enumerate(types):
        np.testing.assert_array_equal(state.get(name), 0 if i == 4 else values[name])


KINDS = [
    initializers.normal(0.0, 0.5),
    initializers.uniform(-1.0, 1.0),
    initializers.orthogonal(),
    with_zero_row(initializers.normal(), 2),
]


@pytest.mark.parametrize("shape", [(700, 130), (130, 700), (40, 7), (5, 6, 7), (9,)])
@pytest.mark.parametrize("by_columns", [False, True])
def test_first_values_are_drawn_where_they_are_stored(
    shape: tuple[int, ...], by_columns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(initializers, "PIECE", 1 << 12)  # several pieces, the last one of few rows
    monkeypatch.setattr(state_samples, "ROWS", 1 << 14)
    kinds = KINDS if len(shape) > 1 else KINDS[:2]
    firsts = {f"w{i}": InitialValue(kind, shape, float32, 3, f"w{i}") for i, kind in enumerate(kinds)}
    state = State()
    state.add(dict.fromkeys(firsts, TensorType(shape, float32)), firsts.get, by_columns=firsts if by_columns else ())
    for name, first in firsts.items():
        np.testing.assert_array_equal(state.get(name), first.array())
        state.set(name, first.array() + 1)
        np.testing.assert_array_equal(state.get(name), first.array() + 1)
        if len(shape) == 2:
            parts = [rows for _, rows in Large(state.slot(name)).rows()]
            np.testing.assert_array_equal(np.concatenate(parts), first.array() + 1)
            np.testing.assert_array_equal(
                Large(state.slot(name)).take(np.array([[3], [1]]))[:, 0], state.get(name)[[3, 1]]
            )
        flat = state.slot(name).newest.flat.copy()  # type: ignore[attr-defined]
        assert (flat != 0).sum() == first.array().size, "what pads the last columns is zero"


def test_states_that_are_there_keep_their_numbers() -> None:
    state, type = State(), TensorType((4,), float32)
    state.add({"w": type}, lambda name: np.ones(4, np.float32))
    version = state.version
    state.add({"w": type, "v": type}, lambda name: np.zeros(4, np.float32))
    assert state.get("w").tolist() == [1.0] * 4
    assert state.version > version, "programs look at states again"
