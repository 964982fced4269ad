"""Sums over the pixels of each channel: many chunks are added by groups of blocks, few channels share a warp."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import TARGET
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.compiler.backends.cuda.kernels.test_graphs import ORDERS, STEP, run, together
from wholestep.compiler.backends.gpu.kernel_schedule import JOINED_CHUNKS, schedule_of
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.kernel import Kernel, Plan
from wholestep.options import CompileOptions
from wholestep.steps.evaluate import predict_graph
from wholestep.steps.states import first_values
from wholestep.steps.train import train_graph

PIXELS = 60
CHANNELS = {1: (1, 1), 2: (2, 1), 5: (8, 1), 24: (4, 8), 64: (8, 8), 96: (16, 8), 144: (32, 8), 150: (32, 1)}


def planned(channels: int, capacity: int) -> Plan:
    """The sums, the sums of squares and the maxima of each channel."""
    g = ws.Graph()
    x = g.input("x", ("batch", PIXELS, channels))
    rows = x.reshape((-1, channels))
    loss = g.parameter("unused", (1,)).sum()  # not part of a prediction
    g.set_outputs({"loss": loss, "sum": rows.sum(0), "squares": (rows * rows).sum(0), "max": (-rows).max(0)})
    return Compiler(CompileOptions(egraph=False)).plan(predict_graph(g), {"batch": capacity}, TARGET)[0]


def split_sum(plan: Plan) -> Kernel:
    return next(k for k in plan.kernels if schedule_of(k).form == "columns" and schedule_of(k).chunks > 1)


@pytest.mark.parametrize("channels", CHANNELS)
def test_sums_of_channels_depend_on_neither_capacity_nor_order(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    set_costs(monkeypatch, "reductions", part_rows=1)
    wide, narrow = planned(channels, 40), planned(channels, 33)
    schedule = schedule_of(split_sum(wide))
    assert (schedule.width, schedule.vector) == CHANNELS[channels]
    rng = np.random.default_rng(0)
    for batch in (33, 5):
        x = rng.standard_normal((batch, PIXELS, channels)).astype(np.float32)
        found = [run(e, {"x": x}, {}, {"batch": batch}, 0, o) for e in together([wide, narrow]) for o in ORDERS[:2]]
        rows = x.reshape(-1, channels).astype(np.float64)
        want = {"sum": rows.sum(0), "squares": (rows * rows).sum(0), "max": (-rows).max(0)}
        for name, value in want.items():
            np.testing.assert_allclose(found[0][name], value, rtol=1e-5, atol=1e-4)
            for other in found[1:]:
                np.testing.assert_array_equal(found[0][name], other[name])


def test_chunks_are_added_in_groups() -> None:
    schedule = schedule_of(split_sum(planned(144, 400)))
    groups = -(-schedule.chunks // JOINED_CHUNKS)
    assert groups > 1
    assert schedule.counters == schedule.blocks * (1 + groups)
    assert schedule.scratch >= (schedule.chunks + groups) * schedule.blocks * schedule.width * schedule.vector * 4


# (elements of a row, rows of a sample) -> threads of a row, elements per thread.
SHORT_ROWS = {
    (2, 60): (1, 1), (3, 60): (1, 1), (8, 60): (1, 8), (10, 60): (1, 1), (16, 60): (1, 8), (21, 60): (1, 1),
    (16, 300): (2, 8), (12, 300): (4, 4), (40, 300): (8, 8), (96, 300): (16, 8), (200, 300): (32, 8),
}  # fmt: skip


@pytest.mark.parametrize(("classes", "pixels"), SHORT_ROWS)
def test_short_rows_share_a_warp(classes: int, pixels: int) -> None:
    """Softmax, arg max and a gradient over the classes of each pixel; the last warp has rows that do not exist."""
    g = ws.Graph()
    x, labels = g.input("x", ("batch", pixels, classes)), g.input("labels", ("batch", pixels), "int32")
    scores = x * g.parameter("scale", (classes,))
    g.set_outputs({"loss": ws.losses.cross_entropy(scores, labels), "best": scores.argmax(-1)})
    graph = train_graph(g, ws.SGD(lr=0.1))
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(graph, {"batch": 5}, TARGET)
    schedules = [schedule_of(k) for k in plan.kernels]
    assert SHORT_ROWS[classes, pixels] in [(s.width, s.vector) for s in schedules if s.form == "rows"]
    rng, sizes = np.random.default_rng(0), {"batch": 3}
    inputs = {
        "x": rng.standard_normal((3, pixels, classes)).astype(np.float32),
        "labels": rng.integers(0, classes, (3, pixels)).astype(np.int32),
    }
    state = {name: first_values(plan, seed=0)(name) for name, _ in plan.states}
    state["scale"] = rng.standard_normal(classes).astype(np.float32)
    meant = strip_stop_gradients(expand_gradients(inline_calls(graph)))
    want = interpret(meant, inputs=inputs, state=state, sizes=sizes, step=STEP)
    (emulated,) = together([plan])
    found = [run(emulated, inputs, state, sizes, 0, orders) for orders in ORDERS[:2]]
    for name, value in {**want.outputs, **want.state}.items():
        np.testing.assert_allclose(found[0][name], value, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize("channels", [3, 8, 20])
def test_a_thread_adds_a_short_column(channels: int) -> None:
    """Sums and maxima over blocks of 2 x 3 pixels, with an epilogue."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 4, 2, 5, 3, channels)), g.input("y", ("batch", 4, 5, channels))
    loss = g.parameter("unused", (1,)).sum()
    g.set_outputs({"loss": loss, "sum": x.sum((2, 4)) * y, "max": ws.tanh(x.max(4).max(2)) + y})
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(predict_graph(g), {"batch": 7}, TARGET)
    schedules = [schedule_of(k) for k in plan.kernels if k.kind.value == "columns"]
    assert schedules
    assert all(s.form == "elements" for s in schedules)
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.standard_normal((5, 4, 2, 5, 3, channels)).astype(np.float32),
        "y": rng.standard_normal((5, 4, 5, channels)).astype(np.float32),
    }
    (emulated,) = together([plan])
    found = run(emulated, inputs, {}, {"batch": 5}, 0, ORDERS[1])
    exact, scale = inputs["x"].astype(np.float64), inputs["y"].astype(np.float64)
    np.testing.assert_allclose(found["sum"], exact.sum((2, 4)) * scale, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found["max"], np.tanh(exact.max((2, 4))) + scale, rtol=1e-5, atol=1e-5)
