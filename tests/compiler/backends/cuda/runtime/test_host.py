"""What the host does for a step: few calls of the driver, and inputs that are the caller's again when it returns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import CUresult, FakeDriver
from tests.compiler.backends.cuda.emulation.models import UNCHECKED
from tests.compiler.backends.cuda.emulation.targets import set_costs
from wholestep.compiler.backends.cuda.driver import driver, host_copies, staging_ring
from wholestep.compiler.backends.gpu import scalar_prologue
from wholestep.compiler.backends.gpu.cost_model import RunCosts
from wholestep.errors import InputError

NO_COMPILER = ws.CompileOptions(verify=False, egraph=False, compiler="no-such-compiler")
SLOTS = RunCosts().staging_slots
Batch = dict[str, np.ndarray[Any, Any]]


def build(device: str, options: ws.CompileOptions = UNCHECKED, **more: Any) -> ws.Session:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 700)), g.input("labels", ("batch",), "int32")
    w = g.parameter("w", (700, 3))
    g.set_outputs({"loss": ws.losses.cross_entropy(x @ w, labels)})
    given = {"batch_size": 8, "options": options, "seed": 1, "threads": 2}
    return ws.build_session(g, optimizer=ws.Adam(lr=0.1), device=device, **given, **more)


def batches(*rows: int) -> Iterator[Batch]:
    rng = np.random.default_rng(0)
    for count in rows:
        x, labels = rng.standard_normal((count, 700), np.float32), rng.integers(0, 3, count).astype(np.int32)
        yield {"x": x, "labels": labels}


@pytest.mark.parametrize("options", [UNCHECKED, NO_COMPILER], ids=["copies in C", "copies in Python"])
@pytest.mark.parametrize("fetches", [True, False])
def test_a_step_is_few_calls_and_its_inputs_may_change_when_it_returns(
    fetches: bool, options: ws.CompileOptions, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs are copied by several threads, and to the GPU at once, but for a smaller batch that leaves a gap."""
    set_costs(monkeypatch, "run", branched_launches=64 if fetches else 0)
    monkeypatch.setattr(host_copies, "LARGE", 8000)
    monkeypatch.setattr(host_copies, "PART", 4 * 333)
    ours, other = build("cuda", options), build("reference")
    results, expected, calls = [], [], []
    for batch in batches(8, 8, 3, 8, 7):
        expected.append(float(other.step(**batch)))
        ours.wait()
        results.append(ours.step(**batch))
        calls.append(0 if gpu is None else len(gpu.queues[ours._programs.main.program._gpu.stream]))
        batch["x"][:], batch["labels"][:] = np.nan, 10**6  # which nobody may see
    assert [float(r) for r in results] == pytest.approx(expected, rel=1e-5)
    np.testing.assert_allclose(ours.get("w"), other.get("w"), rtol=1e-4, atol=1e-6)
    # The graph and an event; else also the inputs, in one copy or two, and the loss.
    assert gpu is None or calls == ([2] * 5 if fetches else [4, 4, 5, 4, 4])
    with pytest.raises(InputError, match="'labels' holds indices from 0 to 2; received -1 at position 1"):
        ours.step(x=np.ones((8, 700), np.float32), labels=np.array([0, -1, 0, 0, 0, 0, 0, 0], np.int32))


def test_what_steps_of_epochs_are_told_is_made_for_many_at_once(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schedule and a smaller last batch; steps that are a launch each; then a scalar changes."""
    set_costs(monkeypatch, "run", graph_launches=1)
    made, table = list[int](), scalar_prologue.PrologueScalars.table

    def counted(self: scalar_prologue.PrologueScalars, sizes: Mapping[str, int], steps: Sequence[int]) -> Any:
        made.append(len(steps))
        return table(self, sizes, steps)

    monkeypatch.setattr(scalar_prologue.PrologueScalars, "table", counted)
    (data,) = batches(8 * 30 + 3)
    ours, other = (build(device, schedule=ws.schedules.Cosine(0.1, 70)) for device in ("cuda", "reference"))
    for beta in (0.9, 0.8):
        for session in (ours, other):
            session.optimizer.betas = beta, 0.999
        losses = [np.asarray(session.run(data, epochs=2)) for session in (ours, other)]
        np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours.get("w"), other.get("w"), rtol=1e-3, atol=1e-5)
    assert sum(made) >= 4 * 31
    assert len(made) <= 4 * 5, "and not for each of 124 steps"


class Waits:
    """How often the host has waited for events."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, wait = 0, driver.CudaEvent.wait

        def counted(event: driver.CudaEvent) -> None:
            self.count += 1
            wait(event)

        monkeypatch.setattr(driver.CudaEvent, "wait", counted)

    def since(self, before: int) -> int:
        return self.count - before


@pytest.mark.parametrize("keeps", [False, True], ids=["results are dropped", "results are held"])
def test_only_turns_that_may_be_under_way_are_waited_for(
    keeps: bool, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a wait for everything no step waits before all turns are used up, and then one step of four does."""
    set_costs(monkeypatch, "run", branched_launches=0)
    ours, other, waits = build("cuda"), build("reference"), Waits(monkeypatch)
    results, expected, seen = [], [], []
    for number, batch in enumerate(batches(*[8] * 3 * SLOTS)):
        if number == SLOTS // 2:
            ours.wait()
        before = waits.count
        result = ours.step(**batch)
        seen.append(waits.since(before))
        results += [result] * keeps
        expected.append(float(other.step(**batch)))
    # 16 turns, of which all before the 8th are done; so those that the 24th and later ones have are not known to be.
    asked = SLOTS + SLOTS // 2
    assert seen == [int(n >= asked and (n - asked) % (SLOTS // staging_ring.WAITED) == 0) for n in range(len(seen))]
    assert [float(r) for r in results] == pytest.approx(expected[: len(results)], rel=1e-4)
    np.testing.assert_allclose(ours.get("w"), other.get("w"), rtol=1e-3, atol=1e-5)
    ours.wait()
    before = waits.count
    for batch in batches(*[8] * 2 * SLOTS):  # whoever has read a result knows that all before it are done
        expected.append(float(other.step(**batch)))
        assert float(ours.step(**batch)) == pytest.approx(expected[-1], rel=1e-3)
    assert waits.since(before) == 2 * SLOTS


@pytest.mark.parametrize("fetches", [True, False])
def test_a_launch_that_is_refused_is_nobodys_to_wait_for(
    fetches: bool, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turn that it had says nothing about the launches around it."""
    if gpu is None:
        pytest.skip("a real driver refuses nothing")
    set_costs(monkeypatch, "run", branched_launches=64 if fetches else 0)
    refused, launch = list[int](), gpu.cuGraphLaunch

    def refusing(graph: int, stream: Any) -> tuple[CUresult]:
        if refused:
            refused.pop()
            return (CUresult.CUDA_ERROR_LAUNCH_FAILED,)
        return launch(graph, stream)

    monkeypatch.setattr(gpu, "cuGraphLaunch", refusing)
    ours, other = build("cuda"), build("reference")
    for number, batch in enumerate(batches(*[8] * 40)):
        if number in (3, 18):
            refused.append(1)
            with pytest.raises(ws.errors.DeviceError, match="cuGraphLaunch"):
                ours.step(**batch)
        ours.step(**batch)
        other.step(**batch)
    np.testing.assert_allclose(ours.get("w"), other.get("w"), rtol=1e-3, atol=1e-5)
