"""What the host does for a step: few calls of the driver, and inputs that are the caller's again when it returns."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.models import UNCHECKED
from wholestep.compiler.backends.cuda import host_copies, program
from wholestep.errors import InputError


def build(device: str) -> ws.Session:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 700)), g.input("labels", ("batch",), "int32")
    w = g.parameter("w", (700, 3))
    g.set_outputs({"loss": ws.losses.cross_entropy(x @ w, labels)})
    given = {"batch_size": 8, "options": UNCHECKED, "seed": 1, "threads": 2}
    return ws.build_session(g, optimizer=ws.Adam(lr=0.1), device=device, **given)


@pytest.mark.parametrize("fetches", [True, False])
def test_a_step_is_few_calls_and_its_inputs_may_change_when_it_returns(
    fetches: bool, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs are copied by several threads, and to the GPU at once, but for a smaller batch that leaves a gap."""
    monkeypatch.setattr(program, "FEW_LAUNCHES", 64 if fetches else 0)
    monkeypatch.setattr(host_copies, "LARGE", 8000)
    monkeypatch.setattr(host_copies, "PART", 4 * 333)
    ours, other = build("cuda"), build("reference")
    rng, calls = np.random.default_rng(0), []
    results, expected = [], []
    for rows in (8, 8, 3, 8, 7):
        x, labels = rng.standard_normal((rows, 700), np.float32), rng.integers(0, 3, rows).astype(np.int32)
        expected.append(float(other.step(x=x, labels=labels)))
        ours.wait()
        results.append(ours.step(x=x, labels=labels))
        calls.append(0 if gpu is None else len(gpu.queues[ours._programs.main.program._gpu.stream]))
        x[:], labels[:] = np.nan, 10**6  # which nobody may see
    assert [float(r) for r in results] == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(ours.get("w"), other.get("w"), rtol=1e-4, atol=1e-6)
    # The graph and an event; else also the inputs, in one copy or two, and the loss.
    assert gpu is None or calls == ([2] * 5 if fetches else [4, 4, 5, 4, 4])
    with pytest.raises(InputError, match="'labels' holds indices from 0 to 2; received -1 at position 1"):
        ours.step(x=np.ones((8, 700), np.float32), labels=np.array([0, -1, 0, 0, 0, 0, 0, 0], np.int32))
