"""A clipped step: gradients are stored once, their squares never, and the update that follows walks memory in order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.ownership import violations
from tests.compiler.step_graphs import clipped_step
from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.layout.stored_layout import PANELS
from wholestep.compiler.backends.cpu.render.source import render
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Plan, Space

ROWS, WIDTHS = 40, (48, 64, 32)


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(clipped_step(*WIDTHS), {"batch": ROWS})


def gradients(plan: Plan) -> dict[tuple[object, ...], int]:
    """The buffers of weights' shapes in the arena."""
    shapes = {b.type.shape for b in plan.buffers if b.space is Space.STATE and b.type.rank == 2}
    found = [b for b in plan.buffers if b.space is Space.ARENA and b.type.shape in shapes]
    assert len({b.type.shape for b in found}) == len(found), "one for each weight"
    assert {b.layout for b in found} == {PANELS}
    return {b.type.shape: b.id for b in found}


def writers(plan: Plan, buffer: int) -> list[Kernel]:
    return [k for k in plan.kernels if any(s.load.buffer == buffer for level in k.levels for s in level.stores)]


def readers(plan: Plan, buffer: int) -> list[Kernel]:
    return [
        k for k in plan.kernels if any(i.load and i.load.buffer == buffer for level in k.levels for i in level.body)
    ]


def test_squares_are_not_stored(plan: Plan) -> None:
    found = gradients(plan)
    assert len(found) == len(WIDTHS) - 1
    for (rows, columns), buffer in found.items():
        assert isinstance(rows, int)
        assert isinstance(columns, int)
        (product,), (total, update) = writers(plan, buffer), readers(plan, buffer)
        assert (product.kind, total.kind, update.kind) == (Kind.DOT, Kind.COLUMNS, Kind.NEST)
        stored = rows * columns * 4
        bias = (
            2 * columns * 4 if len(product.levels) > 1 else 0
        )  # its gradient and that one's squares, where it is here
        assert product.bytes == ROWS * (rows + columns) * 4 + stored + bias
        assert total.bytes == stored + columns * 4


def test_threads_own_what_they_write(plan: Plan) -> None:
    for threads in (2, 3):
        assert violations(plan, {"batch": ROWS}, threads) == []


def test_an_update_turns_the_second_layout_in_blocks() -> None:
    source = render(make_plan(clipped_step(48, 64, 32, 10), {"batch": ROWS}))
    kernels = [text for text in source.split("static void") if "ws_sqrt" in text or "ws_turn_16x16" in text]
    assert any("ws_turn_16x16" in text and "gemm" not in text for text in kernels)


@pytest.mark.parametrize("widths", [(48, 64, 32, 10), (20, 37, 25, 6)])
def test_a_limit_that_is_not_reached_changes_no_bit(widths: tuple[int, ...]) -> None:
    """The second layouts are right: every step multiplies with what the step before has written."""
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(ROWS, widths[0])).astype(np.float32), rng.integers(0, widths[-1], ROWS).astype(np.int32)
    found = []
    for clip_norm, threads in ((None, 2), (1e6, 2), (1e6, 1)):
        layers = [ws.nn.Linear(m, n) for m, n in pairwise(widths)]
        model = ws.nn.Sequential(*(part for layer in layers for part in (layer, ws.nn.Tanh())))
        session = ws.build_session(
            model,
            inputs=ws.Spec(("batch", widths[0])),
            targets={"labels": ws.Spec(("batch",), "int32")},
            loss="cross_entropy",
            optimizer=ws.Adam(lr=0.01),
            batch_size=ROWS,
            seed=0,
            clip_norm=clip_norm,
            threads=threads,
        )
        losses = [float(session.step({"x": x[:rows], "labels": y[:rows]})["loss"]) for rows in (ROWS, 19, ROWS)]
        found.append((losses, session.get("0.weight")))
    assert found[0][0] == found[1][0] == found[2][0]
    assert all(np.array_equal(weights, found[0][1]) for _, weights in found)
