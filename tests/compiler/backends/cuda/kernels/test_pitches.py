"""Rows of a library's products that begin where it can read 16 bytes at a time, whatever their length."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.targets import set_costs
from wholestep.compiler.backends.gpu.cost_model import GemmCosts
from wholestep.compiler.backends.gpu.grids import gemm_library
from wholestep.compiler.backends.gpu.grids.gemm_library import Product, product_of
from wholestep.compiler.backends.gpu.kernel_schedule import Form, schedule_of
from wholestep.compiler.ir.types import bfloat16
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.kernel import Plan, Space


def build(device: str, width: int, classes: int, batch: int, precision: str = "bfloat16") -> ws.Session:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", width)), g.input("labels", ("batch",), "int32")
    hidden = ws.tanh(x @ g.parameter("w1", (width, width)))
    scores = hidden @ g.parameter("w2", (classes, width)).T
    g.set_outputs({"loss": ws.losses.cross_entropy(scores, labels), "largest": scores.max(axis=1)})
    given = {"batch_size": batch, "precision": precision, "seed": 1}
    options = ws.CompileOptions(verify=device == "cuda", cache=False, egraph=False)
    return ws.build_session(g, optimizer=ws.SGD(lr=0.5), device=device, options=options, **given)


def library(plan: Plan) -> list[Product]:
    return [product_of(plan, k, plan.sizes) for k in plan.kernels if schedule_of(k).form == Form.LIBRARY]


def steps(found: list[Product]) -> set[int]:
    """From a row or a column of half numbers to the next, in elements."""
    halves = [m for p in found for m in (p.a, p.b, p.c) if m.dtype == bfloat16]
    return {max(m.row, m.column) for m in halves}


def test_scores_of_an_odd_number_of_classes_have_aligned_rows() -> None:
    plan = build("null:cuda/sm_90", 64, 5003, 128).plan
    assert "are padded to multiples of 128 bytes: 5003 to 5056 elements" in str(plan.notes)
    assert len(library(plan)) == 3, "scores, and both of their gradients"
    assert steps(library(plan)) == {64, 5056}
    wide = [b for b in plan.buffers if b.space is Space.ARENA and 5056 in b.type.shape]
    assert len(wide) == 2
    assert len({b.offset for b in wide}) == 1, "the gradient of scores lies where they were"
    assert plan.arena_bytes < 1.2 * wide[0].bytes + GemmCosts().library_workspace + 4 * 64 * 5003
    assert load(dump(plan)) == plan, "a file of it is sound"
    assert steps(library(build("null:cuda/sm_90", 64, 5008, 128).plan)) == {64, 5008}
    other = build("null:cuda/sm_90", 64, 5003, 128, "float32").plan
    assert not [b for b in other.buffers if 5056 in b.type.shape], "float32 is left as it is"


def test_steps_with_such_rows_are_the_references(gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """At capacity and below; the plan is checked against the interpreter besides."""
    classes = 19
    set_costs(monkeypatch, "gemm", padded_columns=1)
    monkeypatch.setattr(gemm_library, "least_flops", lambda target: {"bfloat16": 1})
    ours, other = build("cuda", 24, classes, 6), build("reference", 24, classes, 6)
    assert steps(library(ours.plan)) == {24, 64}
    assert [b for b in ours.plan.buffers if b.space is Space.ARENA and b.type.shape[-1:] == (64,)]
    assert "checked against the interpreter" in str(ours.report())
    rng = np.random.default_rng(0)
    for rows in (6, 4, 6):
        x, labels = rng.standard_normal((rows, 24), np.float32), rng.integers(0, classes, rows).astype(np.int32)
        results = [session.step(x=x, labels=labels) for session in (ours, other)]
        assert float(results[0]) == pytest.approx(float(results[1]), rel=1e-2)
        np.testing.assert_allclose(results[0]["largest"], results[1]["largest"], rtol=2e-2, atol=1e-2)
    for name in ("w1", "w2"):
        np.testing.assert_allclose(ours.get(name), other.get(name), rtol=2e-2, atol=2e-3)
