"""A step whose products a library makes: half results, biases in the pass that reads them, values made again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import TARGET, emulated_device
from tests.compiler.backends.cuda.emulation.targets import set_costs
from wholestep.compiler.backends.gpu.grids import gemm_library as products
from wholestep.compiler.backends.gpu.grids.gemm_library import product_of
from wholestep.compiler.backends.gpu.kernel_schedule import Form, schedule_of
from wholestep.compiler.plan.check.soundness import check_file
from wholestep.compiler.plan.fusion import partial_column_sums
from wholestep.compiler.plan.model.bodies import Scatter
from wholestep.compiler.plan.model.kernel import Plan, Space

GOLDEN = Path(__file__).parents[4] / "golden" / "cuda_gpt2.json"
KEPT = (Space.STATE, Space.COPY)
ALL = ("float32", "bfloat16", "float16")
PLAIN = replace(TARGET, fusion=replace(TARGET.fusion, plain_products=tuple((name, 1) for name in ALL)))


def small_gpt(device: str, precision: str) -> ws.Session:
    model = ws.models.gpt2(layers=2, width=32, heads=2, vocabulary=72, context=8)
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 8), "int32"), g.input("labels", ("batch", 8), "int32")
    g.set_outputs({"loss": ws.losses.cross_entropy(model(x), labels)})
    options = ws.CompileOptions(verify=False, cache=False, egraph=False)
    return ws.build_session(
        g, optimizer=ws.AdamW(lr=1e-2), batch_size=5, seed=1, device=device, precision=precision, options=options
    )


def batch(rows: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.integers(0, 72, (rows, 8)).astype(np.int32) for name in ("x", "labels")}


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_step_of_plain_products_is_that_of_the_reference(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "least_flops", lambda target: dict.fromkeys(ALL, 1))
    monkeypatch.setattr(partial_column_sums, "LEAST_COLUMNS", 32)
    monkeypatch.setattr(partial_column_sums, "LEAST_ELEMENTS", 1)
    set_costs(monkeypatch, "scatter", sorted_work=1)
    set_costs(monkeypatch, "memory", chunked_loss=5 * 8 * 72 * (4 if precision == "float32" else 2))  # scores in halves
    monkeypatch.setattr(partial_column_sums, "PARTS", 3)  # of which none has as many rows as it has warps
    monkeypatch.setattr(partial_column_sums, "BLOCKS", 3)
    monkeypatch.setattr(partial_column_sums, "LEAST_ALONE", 1)
    with emulated_device("plain", PLAIN):
        ours, reference = small_gpt("plain", precision), small_gpt("reference", precision)
        near = 1e-5 if precision == "float32" else 2e-2
        for seed, rows in enumerate((5, 3, 5)):
            given = batch(rows, seed)
            assert float(ours.step(**given)) == pytest.approx(float(reference.step(**given)), rel=near)
        plan = ours.plan
    assert [k.body.onto for k in plan.kernels if isinstance(k.body, Scatter)] == [True]  # the table's two gradients
    if precision == "bfloat16":
        check_half_plan(plan)


def check_half_plan(plan: Plan) -> None:
    sums = [s for k in plan.kernels for level in k.levels for s in level.sums]
    assert len(sums) == 2 * (4 + 2 + 1 + 1) + 2  # norms, biases before them, of the GELU and of attention
    alone = [k for k in plan.kernels if schedule_of(k).form == Form.SUMS]
    assert [k.axes[-1] for k in alone] == [96, 96]  # what attention's gradient is made of, in one kernel for itself
    assert [schedule_of(k).counters + schedule_of(k).scratch for k in alone] == [0, 0]
    others = [k for k in plan.kernels if any(v.sums for v in k.levels) and k not in alone]
    assert all(len(k.levels) > 1 or k.axes[-1] == 128 for k in others)
    made = [product_of(plan, k, plan.sizes) for k in plan.kernels if schedule_of(k).form == Form.LIBRARY]
    assert [p.adds for p in made if (p.m, p.n) == (72, 32)] == [False, True]  # of the scores, in halves
    gradients = [p for p in made if p.k in (5 * 8, 5 * 4)]  # of weights: sums over the batch
    assert {p.c.dtype.name for p in gradients} == {"float32"}
    assert all(p.c.buffer >= 0 for p in made)  # the library writes every result where it belongs
    named = {plan.buffers[p.bias.buffer].type.shape for p in made if p.bias is not None}
    assert named == {(96,)}  # what attention reads; other biases are added by whoever reads the product
    held = {plan.buffers[p.bias.buffer].space for p in made if p.bias is not None}
    assert held == {Space.COPY}  # written by the update, so that no step rounds it
    wide = [b.type for b in plan.buffers if b.space is Space.ARENA and b.type.dtype.name == "float32"]
    of_tokens = [t for t in wide if t.rank > 1 and not isinstance(t.shape[0], int)]
    assert not [t for t in of_tokens if t.shape[-1] in (72, 96, 128)]  # rounded, or not stored


def test_a_large_plan_has_results_over_operands_and_updates_in_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits become their gradient where they lie; what only states wait for is computed early, and written late."""
    set_costs(monkeypatch, "memory", large_arena=0, update_gain=0)  # however small the arena of several updates is
    with emulated_device("plain", PLAIN):
        plan = small_gpt("plain", "bfloat16").plan
    logits = [b for b in plan.buffers if b.space is Space.ARENA and b.type.shape[-1:] == (72,)]
    assert len(logits) == 2
    assert len({b.offset for b in logits}) == 1
    updates = [k for k in plan.kernels if k.schedule.form == "elements"]
    written = [k for k in updates if all(plan.buffers[s.buffer].space in KEPT for s in k.body.stores())]
    assert len(written) == 1 + 2 * 4  # the positions are a sum over the batch
    assert len({schedule_of(k).launch for k in written}) == 1
    products = [k.id for k in plan.kernels if schedule_of(k).form == Form.PRODUCT]
    assert min(k.id for k in written) > max(products)


class Attending(ws.nn.Module):
    """Attention over a product and its bias, with or without something between them."""

    def __init__(self, width: int, between: Callable[[ws.Tensor], ws.Tensor]) -> None:
        super().__init__()
        self.width, self.between = width, between
        self.qkv, self.out = ws.nn.Linear(width, 3 * width, bias=False), ws.nn.Linear(width, 8)
        self.bias = ws.nn.Parameter((3 * width,), init=0.1)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        made, w = self.between(self.qkv(x)) + self.bias, self.width
        q, k, v = (made[..., i * w : (i + 1) * w].reshape(-1, 8, 2, w // 2).permute(0, 2, 1, 3) for i in range(3))
        return self.out(ws.attention(q, k, v).permute(0, 2, 1, 3).reshape(-1, 8, w))


def attending(device: str, model: Attending, capacity: int = 6, precision: str = "float32") -> ws.Session:
    """A session that has made three steps."""
    about = {"inputs": ws.Spec(("batch", 8, model.width)), "targets": ws.Spec(("batch", 8, 8)), "loss": "mse"}
    how = {"optimizer": ws.SGD(lr=0.1, momentum=0.9), "seed": 1, "precision": precision}
    options = ws.CompileOptions(verify=False, cache=False, egraph=False)
    session = ws.build_session(model, **about, **how, batch_size=capacity, device=device, options=options)
    rng = np.random.default_rng(0)
    for rows in (6, 1, 5):
        shapes = {"x": (rows, 8, model.width), "labels": (rows, 8, 8)}
        session.step(**{name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()})
    return session


def test_a_sum_stays_with_a_pass_that_reads_what_it_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partial_column_sums, "LEAST_COLUMNS", 32)
    monkeypatch.setattr(partial_column_sums, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(partial_column_sums, "LEAST_ALONE", 1)
    with emulated_device("plain", PLAIN):
        ours, other = (attending(device, Attending(32, ws.tanh)) for device in ("plain", "reference"))
    np.testing.assert_allclose(ours.get("bias"), other.get("bias"), rtol=1e-5)
    sums = [schedule_of(k) for k in ours.plan.kernels if any(v.sums for v in k.levels) and k.axes[-1] == 96]
    assert [(s.form, s.blocks) for s in sums] == [(Form.ROWS, partial_column_sums.PARTS)]


class Showing(Attending):
    """Its bias is a part of what it gives, too."""

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return super().forward(x) + self.bias[:8]


def test_a_bias_is_read_in_both_forms() -> None:
    with emulated_device("plain", PLAIN):
        ours, other = (attending(d, Showing(32, lambda x: x), precision="bfloat16") for d in ("plain", "reference"))
    np.testing.assert_allclose(ours.get("bias"), other.get("bias"), atol=2e-3)
    plan = ours.plan
    bias = [b.id for b in plan.buffers if b.name == "bias" and b.space in KEPT]
    assert [plan.buffers[b].type.dtype.name for b in bias] == ["float32", "bfloat16"]
    readers = {b: [k for k in plan.kernels if b in {load.buffer for load, _ in k.body.reads()}] for b in bias}
    writers = [k for k in plan.kernels if {load.buffer for load in k.body.stores()} >= set(bias)]
    assert all(readers.values())
    assert len(writers) == 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_bits_of_a_sum_for_itself_do_not_depend_on_the_capacity(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 288 columns, which are packs for one warp and a part of another; of 48, 8 and 40 rows for 2 x 8 warps."""
    monkeypatch.setattr(partial_column_sums, "LEAST_ELEMENTS", 1)
    monkeypatch.setattr(partial_column_sums, "LEAST_ALONE", 1)
    monkeypatch.setattr(partial_column_sums, "BLOCKS", 5)
    with emulated_device("plain", PLAIN):
        ours = [attending("plain", Attending(96, lambda x: x), capacity, precision) for capacity in (6, 9)]
        other = attending("reference", Attending(96, lambda x: x), 6, precision)
    for session in ours:
        alone = [schedule_of(k) for k in session.plan.kernels if any(v.sums for v in k.levels)]
        assert [(s.form, s.blocks, s.vector) for s in alone] == [(Form.SUMS, 4, 8)]
    biases = [session.get("bias") - np.float32(0.1) for session in (*ours, other)]
    np.testing.assert_array_equal(biases[0].view(np.uint8), biases[1].view(np.uint8))
    away = np.linalg.norm(biases[0] - biases[2]) / np.linalg.norm(biases[2])
    assert away < (1e-5 if precision == "float32" else 0.05)


def test_integers_of_gpt2_are_known(request: pytest.FixtureRequest) -> None:
    """Two layers of GPT-2 124M in bfloat16 with AdamW: kernels, launches, bytes; fewer are better."""
    found = {}
    for sequences in (4, 16):
        g = ws.Graph()
        x, labels = g.input("x", ("batch", 1024), "int32"), g.input("labels", ("batch", 1024), "int32")
        model = ws.models.gpt2(layers=2, vocabulary=50304)
        g.set_outputs({"loss": ws.losses.cross_entropy(model(x), labels)})
        options = ws.CompileOptions(verify=False, cache=False, egraph=False)
        where = {"device": "null:cuda/sm_90", "precision": "bfloat16", "options": options}
        session = ws.build_session(g, optimizer=ws.AdamW(lr=1e-4), batch_size=sequences, seed=1, **where)
        plan = session.plan
        check_file(plan)  # the half forms of biases are sound
        passes = [k for k in plan.kernels if schedule_of(k).form not in (Form.LIBRARY, Form.GRAPH)]
        found[f"{sequences} x 1024"] = {
            "kernels": len(plan.kernels),
            "launches": plan.regions,
            "bytes of passes": sum(k.bytes for k in passes),
            "peak bytes": session.peak_bytes,
        }
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(json.dumps(found, indent=2) + "\n")
    assert found == json.loads(GOLDEN.read_text()), "if that is intended: --update-golden"
