"""Rows and extents of a library's products that are multiples of 16 bytes, whatever the tensors' are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.targets import change_targets, set_costs
from wholestep.compiler.backends.cuda.runtime import device
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.cost_model import GemmCosts
from wholestep.compiler.backends.gpu.grids.gemm_library import Product, product_of
from wholestep.compiler.backends.gpu.kernel_schedule import Form, schedule_of
from wholestep.compiler.backends.gpu.target import GpuTarget
from wholestep.compiler.ir.types import bfloat16
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.kernel import Plan, Space

HALVES = ("bfloat16", "float16")


def compute_all_products(patch: pytest.MonkeyPatch, dtypes: Sequence[str] = HALVES) -> None:
    """Of these operand dtypes, however small they are: by the library."""
    least = tuple((name, 1) for name in dtypes)

    def change(target: GpuTarget) -> GpuTarget:
        return replace(target, fusion=replace(target.fusion, plain_products=least))

    change_targets(patch, change)
    patch.setattr(device, "target_of", lambda capability: change(TARGETS["cuda/sm_90"]))


def build(
    device: str, width: int, classes: int, batch: int, precision: str = "bfloat16", inputs: int = 0
) -> ws.Session:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", inputs or width)), g.input("labels", ("batch",), "int32")
    hidden = ws.tanh(x @ g.parameter("w1", (width, inputs or width)).T)
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
    assert "are padded to multiples of 16 bytes: 5003 to 5056 elements" in str(plan.notes)
    found = library(plan)
    assert {(p.m, p.n, p.k) for p in found} == {(128, 5008, 64), (128, 64, 5008), (5008, 64, 128)}
    assert steps(found) == {64, 5056}
    wide = [b for b in plan.buffers if b.space is Space.ARENA and 5056 in b.type.shape]
    assert len(wide) == 2
    assert len({b.offset for b in wide}) == 1, "the gradient of scores lies where they were"
    assert plan.arena_bytes < 1.2 * wide[0].bytes + GemmCosts().library_workspace + 4 * 64 * 5003
    assert load(dump(plan)) == plan, "a file of it is sound"
    losses = [schedule_of(k) for k in plan.kernels if schedule_of(k).form == Form.ROWS and k.axes[-1] == 5003]
    assert {s.vector for s in losses} == {8}, "rows with padding are read 16 bytes at a time"
    assert not [k for k in plan.kernels if k.origin == ("zero padding",)], "the loss writes its padding"
    assert steps(library(build("null:cuda/sm_90", 64, 5008, 128).plan)) == {64, 5008}
    other = build("null:cuda/sm_90", 64, 5003, 128, "float32").plan
    assert not [b for b in other.buffers if 5056 in b.type.shape], "exact float32 is left as it is"


@pytest.mark.parametrize("precision", [*HALVES, "tf32"])
@pytest.mark.parametrize(("classes", "inputs", "width"), [(19, 24, 24), (5, 13, 24), (1003, 9, 17), (2, 8, 1)])
def test_steps_with_such_rows_are_the_references(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch, classes: int, inputs: int, width: int, precision: str
) -> None:
    """At capacity and below; inputs and states that cannot be padded are copied."""
    compute_all_products(monkeypatch, ("float32",) if precision == "tf32" else HALVES)
    set_costs(monkeypatch, "gemm", copied_uses=1)
    ours = build("cuda", width, classes, 6, precision, inputs)
    other = build("reference", width, classes, 6, "float32" if precision == "tf32" else precision, inputs)
    found = library(ours.plan)
    assert not [p for p in found if p.n % 8 or (p.m if p.a.row == 1 else p.k) % 8], "contiguous axes are aligned"
    assert "checked against the interpreter" in str(ours.report())
    rng = np.random.default_rng(0)
    for rows in (6, 4, 6):
        x, labels = rng.standard_normal((rows, inputs), np.float32), rng.integers(0, classes, rows).astype(np.int32)
        results = [session.step(x=x, labels=labels) for session in (ours, other)]
        assert float(results[0]) == pytest.approx(float(results[1]), rel=1e-2)
        np.testing.assert_allclose(results[0]["largest"], results[1]["largest"], rtol=2e-2, atol=1e-2)
    for name in ("w1", "w2"):
        np.testing.assert_allclose(ours.get(name), other.get(name), rtol=2e-2, atol=2e-3)
    ours.set("w1", other.get("w1"))  # the copy that products read is made again, with its padding
    x, labels = rng.standard_normal((5, inputs), np.float32), rng.integers(0, classes, 5).astype(np.int32)
    assert float(ours.step(x=x, labels=labels)) == pytest.approx(float(other.step(x=x, labels=labels)), rel=1e-2)


@pytest.mark.parametrize(("batch", "heads"), [(67, 3), (2, 5)])
def test_products_of_two_batch_axes_are_few_calls(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch, batch: int, heads: int
) -> None:
    """One call for each index of the shorter axis; heads are strided views of packed rows."""
    compute_all_products(monkeypatch)
    width = heads * 8

    def build_heads(device: str) -> ws.Session:
        g = ws.Graph()
        x = g.input("x", ("batch", 7, 2 * width)) * g.parameter("gain", (2 * width,), init=0.5)
        q, v = (x[..., i * width : (i + 1) * width].reshape(-1, 7, heads, 8).permute(0, 2, 1, 3) for i in range(2))
        made = ws.tanh(q @ v.permute(0, 1, 3, 2)) @ v
        g.set_outputs({"loss": (made * made).mean()})
        options = ws.CompileOptions(verify=False, cache=False, egraph=False)
        how = {"batch_size": batch, "precision": "bfloat16", "seed": 1, "options": options}
        return ws.build_session(g, optimizer=ws.SGD(lr=0.5), device=device, **how)

    ours, other = build_heads("cuda"), build_heads("reference")
    assert {(p.outer, p.batch) for p in library(ours.plan)} == {(min(batch, heads), max(batch, heads))}
    for rows in (batch, 1):
        x = np.random.default_rng(rows).standard_normal((rows, 7, 2 * width), np.float32)
        assert float(ours.step(x=x)) == pytest.approx(float(other.step(x=x)), rel=1e-2)
    np.testing.assert_allclose(ours.get("gain"), other.get("gain"), rtol=2e-2, atol=2e-3)


def test_an_output_is_copied_behind_its_product(gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_all_products(monkeypatch)
    set_costs(monkeypatch, "gemm", copied_uses=1)

    def build_scores(device: str) -> ws.Session:
        g = ws.Graph()
        scores = g.input("x", ("batch", 16)) @ g.parameter("w", (11, 16)).T
        g.set_outputs({"loss": (scores * scores).mean(), "scores": scores})
        options = ws.CompileOptions(verify=False, cache=False, egraph=False)
        how = {"batch_size": 6, "precision": "bfloat16", "seed": 1, "options": options}
        return ws.build_session(g, optimizer=ws.SGD(lr=0.5), device=device, **how)

    ours, other = build_scores("cuda"), build_scores("reference")
    assert {p.n for p in library(ours.plan)} == {16}
    x = np.random.default_rng(0).standard_normal((5, 16), np.float32)
    results = [session.step(x=x)["scores"] for session in (ours, other)]
    np.testing.assert_allclose(*results, rtol=2e-2, atol=2e-2)
