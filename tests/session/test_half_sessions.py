"""Sessions in half precision on the CPU: the same bits for any threads, copies of weights that follow their weights."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.compiler.plan.model.kernel import Plan, Space

GOLDEN = Path(__file__).parents[1] / "golden" / "half_plan.json"
Array = np.ndarray[Any, Any]
BATCH, TIME, VOCABULARY = 6, 16, 17


def graph() -> ws.Graph:
    g = ws.Graph()
    x, labels = (g.input(name, ("batch", TIME), "int32") for name in ("x", "labels"))
    model = ws.models.gpt2(layers=1, width=48, heads=3, vocabulary=VOCABULARY, context=TIME)
    logits = model(x)
    g.set_outputs({"loss": ws.losses.cross_entropy(logits, labels), "logits": logits})
    return g


@functools.cache
def batch() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.integers(0, VOCABULARY, (BATCH, TIME)).astype(np.int32) for name in ("x", "labels")}


def session(**more: Any) -> ws.Session:
    options = {"optimizer": ws.AdamW(lr=1e-2), "batch_size": BATCH, "seed": 0, "precision": "bfloat16"}
    return ws.build_session(graph(), **{**options, **more})


@functools.cache
def trained(threads: int) -> tuple[list[float], dict[str, bytes]]:
    s = session(threads=threads)
    losses = [float(s.step(**batch()).loss) for _ in range(4)]
    return losses, {name: s.get(name).tobytes() for name in s.state.names}


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_same_bits_for_any_number_of_threads(threads: int) -> None:
    assert trained(threads) == trained(1)
    assert trained(1)[0][-1] < trained(1)[0][0]  # it trained


def test_whole_steps_are_close_to_float32() -> None:
    s = session(threads=1, precision="float32")
    whole = [float(s.step(**batch()).loss) for _ in range(4)]
    np.testing.assert_allclose(trained(1)[0], whole, rtol=2**-7)


def test_weights_that_are_set_are_seen_by_products() -> None:
    """A program keeps half copies of weights; whoever else changes these, they are written anew."""
    fresh, late = session(threads=1), session(threads=1)
    first = float(late.step(**batch()).loss)  # its copies are written
    fresh.set("h.0.mlp.c_fc.weight", 3 * fresh.get("h.0.mlp.c_fc.weight"))
    for name in fresh.state.names:
        late.set(name, fresh.get(name))
    assert float(late.step(**batch()).loss) == float(fresh.step(**batch()).loss) != first


def test_micro_batches_add_up_to_the_batch() -> None:
    whole, parts = session(threads=1), session(threads=1, accumulate=3, batch_size=BATCH // 3)
    for _ in range(3):
        expected = float(whole.step(**batch()).loss)
        assert float(parts.step(**batch()).loss) == pytest.approx(expected, rel=2**-7)
    for name in whole.state.names:
        if name.endswith("weight"):
            np.testing.assert_allclose(parts.get(name), whole.get(name), atol=0.04, err_msg=name)  # 3 steps of 0.01


def planned(device: str, precision: str) -> Plan:
    plan: Plan = session(device=f"null:{device}", precision=precision).plan
    return plan


def test_the_report_says_whether_products_are_half() -> None:
    notes = {
        (device, precision): planned(device, precision).notes
        for device, precision in (
            ("cpu/avx512bf16", "bfloat16"),
            ("cpu/avx2", "bfloat16"),
            ("cpu/avx512bf16", "float16"),
        )
    }
    assert notes["cpu/avx512bf16", "bfloat16"] == (
        "products of bfloat16 are computed in bfloat16, and accumulate in float32",
    )
    stored = "has no products of {0}: operands are stored in {0}, computed in float32"
    assert stored.format("bfloat16") in notes["cpu/avx2", "bfloat16"][0]
    assert stored.format("float16") in notes["cpu/avx512bf16", "float16"][0]
    assert planned("cpu/avx512bf16", "float32").notes == ()


def test_plans_are_the_golden_ones(request: pytest.FixtureRequest) -> None:
    """Numbers of kernels, bytes and regions, and the bytes of states and of their half copies."""
    found = {}
    for precision in ("float32", "bfloat16"):
        plan = planned("cpu/avx512bf16", precision)
        names = ("arena_bytes", "copy_bytes", "work_bytes", "regions", "bytes_moved", "flops")
        states = sum(b.bytes for b in plan.buffers if b.space is Space.STATE)
        numbers = {"kernels": len(plan.kernels), "state_bytes": states}
        found[precision] = {**numbers, **{name: getattr(plan, name) for name in names}}
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(json.dumps(found, indent=2) + "\n")
    assert found == json.loads(GOLDEN.read_text()), "the plans have changed: --update-golden, and read the diff"
    assert found["float32"]["state_bytes"] == found["bfloat16"]["state_bytes"]  # weights and moments stay float32
