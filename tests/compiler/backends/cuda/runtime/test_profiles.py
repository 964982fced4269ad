"""Profiles on a GPU: how often a kernel runs, which launch its times are of, and what is said of it all."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.models import MODELS, UNCHECKED, session_of
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.compiler.backends.cuda.runtime.test_shards import X, Y
from tests.compiler.backends.cuda.runtime.test_shards import session_of as shards_of
from tests.support.sessions import data, mlp
from wholestep.compiler.backends.gpu.grids import gemm_library
from wholestep.session.inspect import profile as profiles
from wholestep.session.inspect.profile import Profile

UNCACHED = replace(UNCHECKED, cache=False)  # plans by other rules than the target's


@pytest.fixture(scope="module", autouse=True)
def everywhere(gpu: FakeDriver | None) -> None:
    """Every test here trains on it."""


def check_work(session: ws.Session, found: Profile, times: list[int]) -> None:
    """A step at capacity does what the plans say, so many times."""
    for timed in found.kernels:
        kernel = next(k for k in session.plans[timed.program].kernels if k.id == timed.kernel)
        assert (timed.flops, timed.bytes) == tuple(times[timed.program] * work for work in (kernel.flops, kernel.bytes))


def check_in_turn(found: Profile) -> None:
    """Nothing begins before what ran before it has ended."""
    assert all(before.end <= after.begin + 1e-9 for (_, before), (_, after) in pairwise(found.timeline))


def test_a_scatter_that_sorts_before_runs_once_in_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is two launches: there are too few indices for sums of slices."""
    set_costs(monkeypatch, "scatter", scanned_work=1, shared_bytes=1)
    session = session_of("gpt", "cuda", options=UNCACHED)
    sorting = [k.id for k in session.plan.kernels if k.schedule.form == "scatter sorted"]
    assert sorting
    found = session.profile(**MODELS["gpt"][1](3), steps=2)
    events = [e for _, e in found.timeline if e.kernel == sorting[0]]
    assert len(events) == 2 * 2
    check_work(session, found, [1])
    timed = next(k for k in found.kernels if k.kernel == sorting[0])
    assert timed.seconds == pytest.approx(sum(e.seconds for e in events) / 2), "both of them are its time"


@pytest.mark.parametrize("shards", [None, 2])
def test_all_steps_are_launches_of_one_graph(
    shards: int | None, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is built before the first of them that counts, though launches of a short step have a graph for each turn."""
    if gpu is None:
        pytest.skip("asks the driver that is none")
    built, one_step = list[int](), profiles._one_step

    def counting(*given: Any) -> Any:
        built.append(gpu.graphs)
        return one_step(*given)

    monkeypatch.setattr(profiles, "_one_step", counting)
    session = shards_of() if shards is None else shards_of(shards=shards)
    before = gpu.graphs
    found = session.profile(x=X[:8], labels=Y[:8], steps=6)
    assert built == [before + 1] * 6
    assert gpu.graphs == before + 1
    check_in_turn(found)
    check_work(session, found, [1])


def test_times_are_those_of_the_graph_that_was_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library is told the sizes, so that a smaller micro-batch has a graph of its own."""
    monkeypatch.setattr(gemm_library, "least_flops", lambda target: {"float32": 1})
    session = ws.build_session(
        mlp(), optimizer=ws.SGD(lr=0.1), batch_size=8, accumulate=3, device="cuda", options=UNCACHED
    )
    assert any(k.schedule.form == "library" for k in session.plan.kernels)
    found = session.profile(**data(21), steps=2)
    check_in_turn(found)
    ran = [(program, event.kernel) for program, event in found.timeline]
    parts, updates = session.plans
    assert all(ran.count((0, k.id)) % (2 * 3) == 0 < ran.count((0, k.id)) for k in parts.kernels), "8, 8 and 5 rows"
    assert {ran.count((1, k.id)) for k in updates.kernels} == {2}
    assert sum(k.seconds for k in found.kernels) <= found.step_seconds
    check_work(session, session.profile(**data(24), steps=1), [3, 1])


def test_nothing_is_said_of_threads_and_barriers(tmp_path: Path) -> None:
    session = ws.build_session(mlp(), optimizer=ws.SGD(lr=0.1), batch_size=8, device="cuda", options=UNCHECKED)
    found = session.profile(**data(8), steps=2)
    *_, total, prices = str(found).splitlines()
    assert total.startswith("2 steps on 1 GPU; the median step took ")
    assert total.endswith(" us")
    assert " us on 1 GPU; measured " in prices
    session.trace(tmp_path / "trace.json", found)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert [e["args"]["name"] for e in events if e["name"] == "thread_name"] == ["Python", "GPU 0"]
    build = next(e for e in events if e["name"] == "profiled_build")
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert len(kernels) == 2 * len(session.plan.kernels)
    assert all(e["ts"] >= build["ts"] + build["dur"] for e in kernels)
    assert all(a["ts"] + a["dur"] <= b["ts"] + 1e-3 for a, b in pairwise(kernels))


def test_the_time_of_a_step_by_layer() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(6, 16), ws.nn.ReLU(), ws.nn.Linear(16, 3))
    session = ws.build_session(
        model,
        inputs=ws.Spec(("batch", 6)),
        targets=ws.Spec(("batch",), "int32"),
        loss="cross_entropy",
        optimizer=ws.SGD(lr=0.1),
        batch_size=8,
        device="cuda",
        options=UNCHECKED,
    )
    found = session.profile(x=np.ones((8, 6), np.float32), labels=np.zeros(8, np.int32), steps=2)
    layers = found.by_layer()
    assert [row.layer for row in layers] == ["0", "1", "2", "(loss)"]
    assert layers.seconds == pytest.approx(sum(k.seconds for k in found.kernels))
    assert layers["0"].forward > 0
    assert layers["0"].update > 0
