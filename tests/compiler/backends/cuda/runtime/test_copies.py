"""Second forms of states on a GPU: what NumPy would make of the states, whoever changed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes  # noqa: F401  # NumPy's bfloat16
import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from wholestep.compiler.backends.cuda.runtime.simulated_ranks import GpuRanksProgram
from wholestep.compiler.plan.model.kernel import Buffer, Space
from wholestep.options import CompileOptions

BIAS = "h.0.attn.c_attn.bias"
LARGE = np.linspace(-3, 3, 96, dtype=np.float32)  # a product that reads an old form of it is far off


def copies(session: ws.Session) -> Iterator[tuple[Buffer, np.ndarray, np.ndarray]]:
    """Each copy, what it holds, and what NumPy makes of its state."""
    program, plan = session._programs.main.program, session.plan
    names = {id: name for name, id in plan.states}
    for buffer in plan.buffers:
        if buffer.space is Space.COPY:
            state = session.get(names[buffer.source])
            expected = np.ascontiguousarray((state.T if buffer.transposed else state).astype(buffer.type.dtype.numpy))
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
    forms = [(buffer.transposed, buffer.type.dtype.name) for buffer, _, _ in copies(session)]
    assert forms, "the step reads half forms of its weights"
    for buffer, found, expected in copies(session):
        np.testing.assert_array_equal(found, expected, err_msg=f"after a step, {buffer.transposed}")
    session.set("0.weight", rng.normal(size=(40, 24)).astype(np.float32))
    session._programs.main.program._refresh()
    for buffer, found, expected in copies(session):
        np.testing.assert_array_equal(found, expected, err_msg=f"after `set`, {buffer.transposed}")


# -- biases that a product adds ------------------------------------------------------------------------------------


def gpt() -> ws.nn.Module:
    return ws.models.gpt2(layers=1, width=32, heads=2, vocabulary=72, context=8)


def session_of(model: ws.nn.Module, device: str, **told: Any) -> ws.Session:
    tokens = ws.Spec(("batch", 8), "int32")
    common = {"inputs": tokens, "targets": tokens, "loss": "cross_entropy", "batch_size": 4, "precision": "bfloat16"}
    options = CompileOptions(verify=False, egraph=False)
    return ws.build_session(
        model, **common, **told, optimizer=ws.AdamW(lr=1e-2), seed=1, device=device, options=options
    )


def tokens(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 72, (rows, 8)).astype(np.int32) for name in ("x", "labels")}


def hold(session: ws.Session, when: str) -> None:
    """All second forms are what NumPy makes of the states, one of the bias among them."""
    rows = [buffer for buffer, _, _ in copies(session) if buffer.type.rank == 1]
    assert [(b.name, b.type.dtype.name) for b in rows] == [(BIAS, "bfloat16")]
    for buffer, found, expected in copies(session):
        np.testing.assert_array_equal(found, expected, err_msg=f"{when}, {buffer.name}")


def test_the_half_form_of_a_bias_follows_its_state(gpu: FakeDriver | None) -> None:
    """Whoever changes it: the update, `set`, a saved state, another session over the same numbers."""
    model = gpt()
    session, other = session_of(model, "cuda"), session_of(model, "cuda")
    session.step(**tokens(4, 0))
    hold(session, "after a step")
    saved = session.state_dict()
    session.set(BIAS, LARGE)
    session.step(**tokens(3, 1))
    hold(session, "after `set` and a step")
    assert abs(session.get(BIAS) - LARGE).max() < 0.1  # it was updated
    session.load_state_dict(saved)
    session._programs.main.program._refresh()
    hold(session, "after a saved state came back")
    other.step(**tokens(4, 2))
    hold(other, "of another session")
    session.step(**tokens(4, 3))
    hold(session, "after another session's step and one of its own")
    kernels = [k for k in session.plan.kernels if set(k.origin) == {"cast"}]
    assert not kernels, "nobody rounds the bias in a step"


@pytest.mark.parametrize("frozen", [(), ("*.c_attn.*",)], ids=str)
def test_programs_without_an_update_read_the_half_form_of_a_bias(
    gpu: FakeDriver | None, frozen: tuple[str, ...]
) -> None:
    ours, other = (session_of(gpt().freeze(*frozen), device) for device in ("cuda", "reference"))
    for seed, told in enumerate(({}, {BIAS: LARGE}, {BIAS: -LARGE})):
        losses, scores = [], []
        for session in (ours, other):
            for name, value in told.items():
                session.set(name, value)
            session.step(**tokens(4, seed))
            losses.append(float(session.evaluate(**tokens(3, 7)).loss))
            scores.append(np.asarray(session.predict(x=tokens(2, 8)["x"])))
        np.testing.assert_allclose(*losses, rtol=1e-2)
        np.testing.assert_allclose(*scores, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("told", [{"accumulate": 2}, {"shards": 2, "shard": "optimizer"}], ids=str)
def test_micro_batches_and_ranks_have_half_forms_of_biases(gpu: FakeDriver | None, told: dict[str, Any]) -> None:
    found = []
    for device in ("cuda", "cpu"):
        session = session_of(gpt(), device, **told)
        assert "shards" not in told or device == "cpu" or isinstance(session._programs.main.program, GpuRanksProgram)
        for seed in range(2):
            session.step(**tokens(4 * told.get("accumulate", 1), seed))
            session.set(BIAS, LARGE)
        found.append([float(session.step(**tokens(4, 5)).loss), session.get(BIAS)])
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-2)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=3e-2)
