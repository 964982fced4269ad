"""Attention on a GPU: our emulated kernels against the interpreter; which calls use cuDNN, and why others do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.attention_graphs import Shape, attention
from tests.compiler.backends.cuda.emulation.emulated import TARGET, Emulated
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.models import MODELS, UNCHECKED, session_of
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.compiler.backends.cuda.kernels.test_graphs import ORDERS, STEP, run, together
from tests.compiler.ir.random_graphs import example_values
from tests.support.oracles import assert_close
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import bfloat16, float64
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.check.soundness import check
from wholestep.compiler.plan.model.bodies import Call
from wholestep.errors import PlanError
from wholestep.options import CompileOptions

Array = np.ndarray[Any, Any]
CAPACITY = {"batch": 2, "time": 37}
HEADS: Shape = ("batch", 2)


def graphs() -> dict[str, IRGraph]:
    own: Shape = (*HEADS, "time", 6)
    return {
        "causal": attention(own, own, own, causal=True),
        "keys of another length": attention((*HEADS, 5, 33), (*HEADS, "time", 33), (*HEADS, "time", 12)),
        "more queries than keys": attention((*HEADS, "time", 4), (*HEADS, 18, 4), (*HEADS, 18, 4), causal=True),
        "shared keys and a mask": attention(
            ("batch", 4, "time", 5), (*HEADS, "time", 5), (*HEADS, "time", 5), mask=("time", "time"), causal=True
        ),
        "wide heads": attention((2, 33, 100), (2, 20, 100), (2, 20, 70)),
        "float64": attention((2, 20, 9), (2, 20, 9), (2, 20, 9), causal=True, dtype=float64),
    }


def beside_the_interpreter(name: str, graph: IRGraph, emulated: Emulated, sizes: dict[str, int]) -> dict[str, Array]:
    """What a plan gives, which is what is meant, in several orders of threads and blocks."""
    inputs, _ = example_values(graph, sizes, np.random.default_rng(0))
    want = interpret(graph, inputs=inputs, state={}, sizes=sizes, seed=0, step=STEP).outputs
    made = [run(emulated, inputs, {}, sizes, 0, orders) for orders in ORDERS]
    for key, value in want.items():
        try:
            assert_close(made[0][key], value, made[0][key].dtype.name, scale=3.0)
            for other in made[1:]:
                np.testing.assert_array_equal(made[0][key], other[key], err_msg="bits depend on an order")
        except AssertionError as error:
            raise AssertionError(f"{key} of {name} at {sizes}: {error}") from None
    return made[0]


def test_kernels_beside_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles that are not full, one row, several heads a key; no bit depends on the rows that a thread has."""
    found = graphs()
    compiler = Compiler(CompileOptions(egraph=False))
    plans = [compiler.plan(graph, CAPACITY, TARGET)[0] for graph in found.values()]
    for own in (2, 4):
        set_costs(monkeypatch, "attention", rows_per_group=((0, own),))
        plans.append(compiler.plan(found["causal"], CAPACITY, TARGET)[0])
    *emulated, with_two_rows, with_four = together(plans)
    for (name, graph), one in zip(found.items(), emulated, strict=True):
        forms = [k.schedule.form for k in one.plan.kernels if isinstance(k.body, Call)]
        assert forms == ["attention"] * 2, name
        for capacity in (CAPACITY, {"batch": 1, "time": 1}):
            sizes = {s: capacity[s] for s in graph.symbols}
            made = beside_the_interpreter(name, graph, one, sizes)
            if name == "causal":
                for other in (with_two_rows, with_four):
                    for key, value in beside_the_interpreter(name, graph, other, sizes).items():
                        np.testing.assert_array_equal(made[key], value)


def test_attention_in_half_precision_is_cudnns(monkeypatch: pytest.MonkeyPatch, gpu: FakeDriver | None) -> None:
    """Packed queries, keys and values are read and written in place; the same bits twice; a smaller batch."""
    set_costs(monkeypatch, "library", attention_flops=0)
    options = ws.CompileOptions(verify=True, cache=False, egraph=False)
    ours, again = (session_of("gpt", "cuda", precision="bfloat16", options=options) for _ in range(2))
    other = session_of("gpt", "reference", precision="bfloat16")
    calls = [k for k in ours.plan.kernels if isinstance(k.body, Call)]
    assert {k.schedule.form for k in calls} == {"cudnn"}
    packed = [{o.load.buffer for o in (*k.body.operands, *k.body.results) if o.name in names}
              for k in calls for names in (("q", "k", "v"), ("dq", "dk", "dv"))]  # fmt: skip
    assert all(len(buffers) <= 1 for buffers in packed), "nothing is transposed"
    assert ours.plan.arena_bytes > max(k.schedule.workspace for k in calls) > 0
    text = str(ours.report())
    assert "x attention backward by cuDNN, with a deterministic algorithm" in text
    assert "note: checked against the interpreter" in text
    for rows in (3, 2, 3):
        batch = MODELS["gpt"][1](rows)
        losses = [float(s.step(**batch)) for s in (ours, again, other)]
        assert losses[0] == losses[1] == pytest.approx(losses[2], rel=1e-2)
    for name in other.state.names:
        np.testing.assert_array_equal(ours.get(name), again.get(name))
    if gpu is not None:  # what the library has filled, in two pieces, one kernel fills: others are launched slowly
        assert (gpu.filling, gpu.filled) == (gpu.asked, 0)
        assert gpu.asked > 0


def test_shared_keys_and_a_memory_are_cudnns_too(monkeypatch: pytest.MonkeyPatch, gpu: FakeDriver | None) -> None:
    set_costs(monkeypatch, "library", attention_flops=0)

    def trained(device: str) -> tuple[list[float], list[str]]:
        g = ws.Graph()
        x, memory = g.input("x", ("batch", 9, 32)), g.input("memory", ("batch", 5, 32))
        own = ws.nn.MultiHeadAttention(32, 4, kv_heads=2, causal=True, rotary=True)
        other = ws.nn.MultiHeadAttention(32, 2)
        mixed = own(x)
        with g.scope("other"):
            g.set_outputs({"loss": (other(mixed, memory) ** 2).mean()})
        options = ws.CompileOptions(verify=False, cache=False, egraph=False)
        given = {"device": device, "precision": "float16", "options": options, "seed": 3}
        session = ws.build_session(g, optimizer=ws.SGD(lr=0.5), batch_size=4, **given)
        rng = np.random.default_rng(0)
        rows = {name: rng.standard_normal((4, n, 32), dtype=np.float32) for name, n in (("x", 9), ("memory", 5))}
        forms = [k.schedule.form for k in session.plan.kernels if isinstance(k.body, Call)] if device == "cuda" else []
        return [float(session.step(**{n: v[:count] for n, v in rows.items()})) for count in (4, 3, 4)], forms

    (ours, forms), (expected, _) = trained("cuda"), trained("reference")
    assert sorted(forms) == ["attention mma", *["cudnn"] * 3], "the library has no gradient of shared keys"
    assert ours == pytest.approx(expected, rel=5e-3)


def test_a_report_says_who_computes_attention_and_why() -> None:
    def notes(precision: str, width: int, heads: int, mask: bool = False, rows: int = 16) -> list[str]:
        g = ws.Graph()
        x = g.input("x", ("batch", 256, width))
        added = g.input("added", (256, 256)) if mask else None
        g.set_outputs({"loss": ws.nn.MultiHeadAttention(width, heads)(x, mask=added).mean()})
        given = {"device": "null:cuda/sm_90", "precision": precision, "options": UNCHECKED}
        session = ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=rows, **given)
        return [note for note in session.plan.notes if "attention" in note]

    assert notes("bfloat16", 256, 4)[0] == "1 x attention by cuDNN, with a deterministic algorithm"
    for why, *given in (
        ("cuDNN does not support float32", "float32", 256, 4),
        ("cuDNN needs a head width that is a multiple of 8 and at most 128, not 4 and 4", "bfloat16", 256, 64),
        ("it has a mask", "bfloat16", 256, 4, True),
        ("it has fewer than 16 million operations", "bfloat16", 8, 1, False, 2),
    ):
        assert notes(*given)[0] == f"1 x attention by our flash attention kernel: {why}"  # type: ignore[arg-type]
    assert notes("float32", 384, 2) == [], "heads of 192 columns are products and rows"


@pytest.mark.parametrize(
    ("heads", "tokens", "width", "asked"),  # bytes that cuDNN 9.19 asked for backward on an H200
    [
        ((4, 12), 1024, 64, 100_860_160),
        ((16, 4), 128, 32, 2_130_176),
        ((16, 4), 64, 32, 1_065_216),
        ((2, 4), 333, 64, 2_370_208),
        ((2, 8), 512, 128, 8_421_632),
        ((2, 8), 1000, 40, 33_618_688),
        ((2, 8), 512, 96, 8_421_632),
    ],
)
def test_the_workspace_in_a_plan_is_what_the_library_asks_for(
    heads: tuple[int, int], tokens: int, width: int, asked: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_costs(monkeypatch, "library", attention_flops=0)
    shape: Shape = (*heads, tokens, width)
    graph = attention(shape, shape, shape, causal=True, dtype=bfloat16)
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(graph, {}, TARGET)
    (found,) = [k.schedule for k in plan.kernels if isinstance(k.body, Call) and k.body.routine == "attention_grad"]
    assert found.form == "cudnn"
    assert asked <= found.workspace <= max(2 * asked, asked + (3 << 20))


def test_a_call_that_nobody_planned_is_refused() -> None:
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(graphs()["shared keys and a mask"], CAPACITY, TARGET)
    check(plan)
    at = next(k.id for k in plan.kernels if isinstance(k.body, Call) and k.body.routine == "attention_grad")
    call = plan.kernels[at].body
    assert isinstance(call, Call)
    turned = replace(call.operands[0], axes=call.operands[0].axes[::-1])
    for other, text in (
        (replace(call, routine="anything"), "must name a known routine; received 'anything'"),
        (replace(call, operands=call.operands[1:]), "must have the operands q, k, v, mask, lse, gradient, out"),
        (replace(call, results=call.results * 2), "must have distinct results of its routine"),
        (replace(call, operands=(turned, *call.operands[1:])), "must index 'q' by its declared axes"),
        (replace(call, numbers=(("scale", float("inf")),)), "must have a finite scale"),
        (replace(call, dtype=float64), "cannot read 'q' in its type and layout"),
    ):
        kernels = (*plan.kernels[:at], replace(plan.kernels[at], body=other), *plan.kernels[at + 1 :])
        with pytest.raises(PlanError, match=rf"the call of kernel {at} {text}"):
            check(replace(plan, kernels=kernels))
