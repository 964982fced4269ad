"""Second forms of states on a GPU: what NumPy would make of the states, whoever changed them."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes  # noqa: F401  # NumPy's bfloat16
import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.fake_gpu import FakeDriver
from wholestep.compiler.plan.kernel import Buffer, Space
from wholestep.options import CompileOptions


def copies(session: ws.Session) -> Iterator[tuple[Buffer, np.ndarray, np.ndarray]]:
    """Each copy, what it holds, and what NumPy makes of its state."""
    program, plan = session._programs.main.program, session.plan
    names = {id: name for name, id in plan.states}
    for buffer in plan.buffers:
        if buffer.space is Space.COPY:
            state = session.get(names[buffer.source])
            expected = np.ascontiguousarray((state.T if buffer.turned else state).astype(buffer.type.dtype.numpy))
            found = np.empty_like(expected)
            program._own.read(program._offsets[buffer.id], found)
            yield buffer, found.view(np.uint8), expected.view(np.uint8)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_copies_are_those_of_numpy_after_a_step_and_after_somebody_else(gpu: FakeDriver | None, precision: str) -> None:
    model = ws.nn.Sequential(ws.nn.Linear(24, 40), ws.nn.Tanh(), ws.nn.Linear(40, 8))
    kinds = {"inputs": ws.Spec(("batch", 24)), "targets": ws.Spec(("batch", 8)), "loss": "mse"}
    options = CompileOptions(verify=False, egraph=False)
    session = ws.build_session(model, **kinds, batch_size=8, device="cuda", precision=precision, options=options)
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(8, 24)).astype(np.float32), "labels": rng.normal(size=(8, 8)).astype(np.float32)}
    session.step(**batch)
    forms = [(buffer.turned, buffer.type.dtype.name) for buffer, _, _ in copies(session)]
    assert forms, "the step reads half forms of its weights"
    for buffer, found, expected in copies(session):
        np.testing.assert_array_equal(found, expected, err_msg=f"after a step, {buffer.turned}")
    session.set("0.weight", rng.normal(size=(40, 24)).astype(np.float32))
    session._programs.main.program._refresh()
    for buffer, found, expected in copies(session):
        np.testing.assert_array_equal(found, expected, err_msg=f"after `set`, {buffer.turned}")
