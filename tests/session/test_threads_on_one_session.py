"""Threads that share a session are serialised: each gets the results of its own inputs."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.backends.cpu.runtime.scratch import CpuScratch
from wholestep.compiler.plan.model.kernel import Plan

THREADS, STEPS, ROWS = 4, 300, 64


def built() -> ws.Session:
    """The loss of a batch is its own mean, its output the batch plus one."""
    g = ws.Graph()
    x, w = g.input("x", ("batch", 4)), g.parameter("w", (4,), init=1.0)
    g.set_outputs({"loss": (x * w).mean(), "y": x + w})
    return ws.build_session(g, optimizer=ws.SGD(lr=0.0), batch_size=ROWS)


@pytest.fixture(scope="module")
def session() -> ws.Session:
    return built()


def batch(value: int, rows: int = ROWS) -> np.ndarray:
    return np.full((rows, 4), value, np.float32)


def test_every_loss_and_output_is_of_its_own_batch(session: ws.Session) -> None:
    wrong: list[object] = []
    together = threading.Barrier(THREADS)

    def train(me: int) -> None:
        together.wait()
        for i in range(STEPS):
            value, rows = me * STEPS + i, 1 + (me + i) % ROWS
            result = session.step(x=batch(value, rows))
            y = result["y"]
            if result.loss != value or y.shape != (rows, 4) or not (y == value + 1).all():
                wrong.append((value, result.loss))

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(train, i) for i in range(THREADS)]:
            done.result()
    assert wrong == []


def test_runs_steps_and_evaluations_side_by_side(session: ws.Session) -> None:
    wrong: list[object] = []

    def run(_: int) -> None:
        data = np.repeat(np.arange(40, dtype=np.float32), 8)[:, None] * np.ones((1, 4), np.float32)
        for _ in range(5):
            losses = session.run(x=data, shuffle=False, batch_size=8)
            wrong.extend(losses[losses != np.arange(40)])

    def step(me: int) -> None:
        wrong.extend(i for i in range(STEPS) if session.step(x=batch(i, 1 + me)).loss != i)

    def look(_: int) -> None:
        wrong.extend(i for i in range(STEPS) if not (session.predict(x=batch(i, 3)) == i + 1).all())
        wrong.extend(i for i in range(STEPS) if session.evaluate_all({"x": batch(i, 3 * ROWS)})["loss"] != i)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(work, i) for i, work in enumerate((run, step, step, look))]:
            done.result()
    assert wrong == []


def test_memory_that_programs_share_moves_while_no_thread_makes_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    session, has_turn, reserve = built(), list[bool](), CpuScratch.reserve

    def watched(scratch: CpuScratch, plan: Plan, threads: int) -> None:
        if scratch is session._programs.place.scratch:  # new plans are checked in separate memory
            has_turn.append(not session._programs.turns._tokens)
        reserve(scratch, plan, threads)

    monkeypatch.setattr(CpuScratch, "reserve", watched)
    session.predict(x=batch(1))
    session.evaluate(x=batch(1))
    session.evaluate_all({"x": batch(1, 3 * ROWS)})
    session.gradient_stats(x=batch(1, 2 * ROWS))
    session.set_optimizer(ws.Adam(lr=0.0))
    session.set_schedule(ws.schedules.cosine(lr=0.1, steps=10))
    assert len(has_turn) >= 6
    assert all(has_turn)


def test_a_child_of_a_fork_does_not_wait_for_the_parents_threads(session: ws.Session) -> None:
    session.step(x=batch(1))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with session._programs.turns:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        threading.Timer(60.0, os._exit, [1]).start()  # should it wait
        os._exit(int(session.step(x=batch(3)).loss != 3))
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
