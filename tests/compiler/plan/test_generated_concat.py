"""Concatenations of generated values: one kernel generates all parts, in place, and a block of random words once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import emulated_device
from wholestep.compiler.backends.cpu.render.writer import block_and_word
from wholestep.compiler.ir.types import Dim
from wholestep.compiler.plan.model.kernel import Index


def graph(parts: int = 4, *, loaded: bool = False) -> ws.Graph:
    """Random words by columns, a function of each, and all of them in one vector."""
    g = ws.Graph()
    x = g.input("x", (1, 40))
    words = g.random_uniform((40, 4), dtype="float32").permute((1, 0))
    columns = [ws.sqrt(words[i : i + 1]) * float(i + 1) for i in range(parts)]
    if loaded:
        columns[0] = columns[0] + x
    loss = (g.parameter("w", (1, 40)) * x).mean()
    g.set_outputs({"loss": loss, "all": ws.concat(columns, 0).reshape((40 * parts,)) * 2.0})
    return g


def outputs(g: ws.Graph, device: str, **options: Any) -> tuple[ws.Session, np.ndarray]:
    session = ws.build_session(g, device=device, seed=3, **options)
    return session, np.array(session.step(x=np.ones((1, 40), np.float32))["all"])


@pytest.mark.parametrize("parts", [2, 4])
@pytest.mark.parametrize("device", ["cpu", "cpu/portable", "emulated", "reference"])
def test_one_kernel_generates_all_parts(parts: int, device: str) -> None:
    with emulated_device():
        session, values = outputs(graph(parts), device)
    draws = [k for k in session.plan.kernels if any("sqrt" in name for name in k.origin)]
    assert len(draws) == 1
    assert not [k for k in session.plan.kernels if list(k.origin) == ["concat"]]
    if device.startswith("cpu"):
        assert "ws_uniform_of_block" in session.source
    _, expected = outputs(graph(parts), "reference", options=ws.CompileOptions(egraph=False))
    np.testing.assert_allclose(values, expected, rtol=1e-6)


def test_a_part_that_loads_something_is_copied() -> None:
    session, values = outputs(graph(loaded=True), "cpu")
    assert len(session.plan.kernels) > 2
    _, plain = outputs(graph(), "cpu")
    np.testing.assert_allclose(values[40:], plain[40:], rtol=1e-6)
    np.testing.assert_allclose(values[:40], plain[:40] + 2.0, rtol=1e-6)


def test_a_fixed_word_of_a_block_is_one_with_strides_of_four() -> None:
    batch = Dim.symbol("batch")
    assert block_and_word(Index(((0, 4),), 7)) == (Index(((0, 1),), 1), 3)
    assert block_and_word(Index(((0, 4 * batch), (1, 8)), 2)) == (Index(((0, batch), (1, 2)), 0), 2)
    assert block_and_word(Index(((0, 4), (1, 1)), 0)) is None
    assert block_and_word(Index(((0, 4),), batch)) is None
    assert block_and_word(Index(((0, 4),), 0, over=2)) is None
