"""Pointwise kernels over one space: merged if and only if that saves a pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.support.sessions import assert_same_bits
from wholestep.compiler.plan.fusion.reachability import Reach


def update_plan(optimizer: ws.Optimizer, shape: tuple[int, ...] = (8, 48)) -> Any:
    @ws.step
    def step(g: ws.Graph) -> ws.Tensor:
        w = g.parameter("w", shape)
        optimizer.update(g, w, g.input("d", shape))
        return g.step + 1.0

    return ws.compile_training_graph(step)[0]


@pytest.mark.parametrize(
    ("optimizer", "buffers"),
    [
        (ws.SGD(momentum=0.9), 5),
        (ws.Adam(), 7),
        (ws.AMSGrad(), 9),
        (ws.Lion(weight_decay=0.1), 5),
        (ws.RMSprop(centered=True, momentum=0.9), 9),
        (ws.Adagrad(), 5),
        (ws.optim.EMA(ws.Adam()), 9),
    ],
)
def test_an_update_is_one_pass_over_its_buffers(optimizer: ws.Optimizer, buffers: int) -> None:
    plan = update_plan(optimizer)
    (kernel,) = [k for k in plan.kernels if k.bytes > 8]
    assert kernel.bytes == buffers * 8 * 48 * 4  # each state read and written once, the gradient read
    assert plan.arena_bytes == 0


def swap_step(g: ws.Graph) -> ws.Tensor:
    """a and b change places, and a third state reads one of them turned: nobody may see a new value."""
    a, b, c = (
        g.state(n, (16, 16), init=np.arange(256.0).reshape(16, 16) * k) for n, k in (("a", 1), ("b", 2), ("c", 3))
    )
    g.update(a, b * 2.0)
    g.update(b, a + 1.0)
    g.update(c, a.T + b + c)
    return (a * b).sum()


def test_every_read_sees_the_value_at_the_start_of_the_step() -> None:
    a, b, c = (np.arange(256.0, dtype=np.float32).reshape(16, 16) * k for k in (1, 2, 3))
    session = ws.build_session(ws.step(swap_step))
    for _ in range(2):
        session.step()
        a, b, c = b * 2, a + 1, a.T + b + c
    for name, value in (("a", a), ("b", b), ("c", c)):
        np.testing.assert_array_equal(session.get(name), value)


def test_a_third_kernel_between_two_keeps_them_apart() -> None:
    """n is normalised by its own sum: what makes it cannot share a loop with what divides it."""

    @ws.step
    def step(g: ws.Graph) -> ws.Tensor:
        w, d = g.parameter("w", (64,), init=np.arange(64.0)), g.input("d", (64,))
        n = w * d + 1.0
        g.update(w, n / n.sum())
        return n.max()

    session = ws.build_session(step)
    d = np.linspace(0.0, 1.0, 64, dtype=np.float32)
    session.step(d=d)
    n = np.arange(64.0) * d + 1.0
    np.testing.assert_allclose(session.get("w"), n / n.sum(), rtol=1e-6)


@pytest.mark.parametrize("shape", [(8, 48), (37, 21), (1000,)])
def test_bits_depend_on_neither_threads_nor_merging(shape: tuple[int, ...]) -> None:
    def trained(threads: int, fuse: bool) -> dict[str, Any]:
        @ws.step
        def step(g: ws.Graph) -> ws.Tensor:
            w = g.parameter("w", shape, init=0.5)
            ws.optim.EMA(ws.AdamW(lr=0.1)).update(g, w, g.input("d", shape))
            return g.step + 1.0

        session = ws.build_session(step, threads=threads, options=ws.CompileOptions(fuse=fuse))
        for seed in range(3):
            session.step(d=np.random.default_rng(seed).normal(size=shape).astype(np.float32))
        return session.state_dict()

    first = trained(1, True)
    assert_same_bits(first, trained(2, True))
    assert_same_bits(first, trained(1, False))


def test_absorbing_keeps_what_must_run_before() -> None:
    reach = Reach[str]()
    for item in "abcd":
        reach.add(item)
    reach.link("b", ["a"])
    reach.link("c", ["a"])
    reach.link("d", ["c"])
    reach.absorb("b", "a")  # one item now: c and d come after it
    assert reach.depends("c", "b")
    assert reach.depends("d", "b")
    assert not reach.depends("b", "a")
    reach.add("e")
    reach.link("b", ["e"])
    assert reach.depends("d", "e")


def test_a_state_is_overwritten_in_the_pass_that_also_sums() -> None:
    """LAMB's moments: the row sums of the step need no second look at an element, so nothing is copied."""
    plan = update_plan(ws.LAMB(weight_decay=0.1), (8, 48))
    whole = [k.bytes // (8 * 48 * 4) for k in plan.kernels if k.bytes >= 8 * 48 * 4]
    assert sorted(whole) == [1, 3, 7]  # ‖w‖; the step: w, d, m, v read, m, v and r written; w moved
    session = ws.build_session(ws.step(normalised))
    session.step()
    w = np.arange(1.0, 65.0).reshape(4, 16)
    np.testing.assert_allclose(session.get("w"), w / (2 * w).sum(-1, keepdims=True) + w, rtol=1e-6)


def normalised(g: ws.Graph) -> ws.Tensor:
    """An update that looks at each element again after the sum of its row."""
    w = g.parameter("w", (4, 16), init=np.arange(1.0, 65.0).reshape(4, 16))
    g.update(w, w / (2.0 * w).sum(-1, keepdims=True) + w)
    return g.step + 1.0
