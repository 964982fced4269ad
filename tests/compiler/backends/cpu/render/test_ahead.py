"""Prefetches and transposed blocks: their positions in the source, and that they change no bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.targets import cpu_with
from wholestep.compiler.plan.model.bodies import Dot


def network(width: int, **options: Any) -> ws.Session:
    """Two layers, the second of which needs the transpose of its weight."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 16)), g.input("y", ("batch", width))
    hidden = ws.gelu(x @ g.parameter("w0", (16, width)) + g.parameter("b0", (width,)), approximate="tanh")
    g.set_outputs([ws.losses.mse_loss(hidden @ g.parameter("w1", (width, width)), y)])
    return ws.build_session(g, optimizer=ws.Adam(), batch_size=24, seed=3, **options)


def batch(width: int, rows: int = 24) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {"x": rng.random((rows, 16), dtype=np.float32), "y": rng.random((rows, width), dtype=np.float32)}


def test_only_steps_that_exceed_the_caches_fetch_ahead() -> None:
    assert "ws_ahead ahead[]" in network(560).source
    assert "ws_ahead ahead[]" not in network(64).source


def test_an_update_in_place_is_fetched_once() -> None:
    source = network(560).source
    update = next(text for text in source.split("\nstatic void ") if "ws_turn_16x16" in text)
    entries = next(line for line in update.splitlines() if "ws_ahead ahead[]" in line)
    places = [entry.split(" + ")[0] for entry in entries.split("{{")[-1].split("}, {")]
    assert len(places) == len(set(places)) == 4  # the weight, both moments, the weight's transpose


@pytest.mark.parametrize("rows", [24, 17])
def test_fetching_ahead_changes_no_bit(rows: int) -> None:
    given = batch(176, rows)
    results = []
    for large, threads in ((0, 1), (0, 2), (1 << 40, 2)):
        with cpu_with(caches=large) as device:
            session = network(176, threads=threads, device=device, options=ws.CompileOptions(egraph=False))
        assert ("ws_ahead ahead[]" in session.source) == (large == 0)
        losses = [float(session.step(**given)) for _ in range(3)]
        results.append((losses, session.get("w0").tobytes(), session.get("w1").tobytes()))
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("width", [176, 64, 40])
def test_an_update_keeps_the_transpose_true(width: int) -> None:
    """Setting a weight to what it is rewrites its transpose element by element: the next step must not notice."""
    given, kept, rewritten = batch(width), network(width), network(width)
    assert ("ws_turn_16x16(x" in kept.source) == (width % 16 == 0)
    for _ in range(2):
        rewritten.set("w1", rewritten.get("w1"))
        assert float(kept.step(**given)) == float(rewritten.step(**given))
    for name in ("w0", "b0", "w1"):
        assert np.array_equal(kept.get(name), rewritten.get(name))


def test_what_lies_between_two_products_is_in_panels() -> None:
    """gelu's derivative: one product's epilogue writes it, another's reads it, both by blocks."""
    plan = network(64).plan
    products = [k for k in plan.kernels if isinstance(k.body, Dot)]
    written = {s.load.buffer for k in products for s in k.levels[0].stores}
    operands = {load.buffer for k in products for load in (k.body.a, k.body.b)}
    read = {i.load.buffer for k in products for i in k.levels[0].body if i.load is not None}
    between = [plan.buffers[b] for b in sorted((written & read) - operands)]
    assert "arena" in {b.space.value for b in between}
    assert {b.layout.name for b in between} == {"panels"}


def heads(**options: Any) -> ws.Session:
    """Causal attention over two sequences' heads, between two projections."""
    g = ws.Graph()
    x = g.input("x", ("batch", 20, 16))
    q, k, v = (
        (x @ g.parameter(f"w{name}", (16, 32))).reshape(x.shape[0], 20, 2, 16).permute(0, 2, 1, 3) for name in "qkv"
    )
    out = ws.attention(q, k, v, causal=True).permute(0, 2, 1, 3).reshape(x.shape[0], 20, 32)
    g.set_outputs([ws.losses.mse_loss(out @ g.parameter("w", (32, 16)), x)])
    return ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=24, seed=3, **options)


@pytest.mark.parametrize("rows", [24, 9])
def test_the_next_head_is_fetched_ahead_and_changes_no_bit(rows: int) -> None:
    given = np.random.default_rng(0).random((rows, 20, 16), dtype=np.float32)
    results = []
    for large, threads in ((0, 1), (0, 2), (1 << 40, 2)):
        with cpu_with(caches=large) as device:
            session = heads(threads=threads, device=device, options=ws.CompileOptions(egraph=False))
        calls = [text for text in session.source.split("\nstatic void ") if "ws_call_attention" in text]
        assert len(calls) == 2
        assert [".ahead = ahead" in text for text in calls] == [large == 0] * 2
        losses = [float(session.step(x=given)) for _ in range(3)]
        results.append((losses, *(session.get(f"w{name}").tobytes() for name in ("q", "k", "v", ""))))
    assert results[0] == results[1] == results[2]
