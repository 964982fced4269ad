"""The benchmark of GPT-2 small, on a narrow twin: the memory that was told is mapped, and the losses are looked at."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import wholestep as ws
from benchmarks import gpt2_small
from benchmarks.contender import BenchmarkError

WORDS = 97


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt2_small, "VOCABULARY", WORDS)
    monkeypatch.setattr(
        gpt2_small, "model", lambda: ws.models.gpt2(layers=2, width=32, heads=2, vocabulary=WORDS, context=32)
    )


@pytest.mark.usefixtures("narrow")
def test_memory_is_told_before_and_the_loss_falls_from_a_guess() -> None:
    promised = gpt2_small.estimate(3, 16)
    told = json.loads(gpt2_small.first_step(3, 16))
    gpt2_small.check(promised, told)
    assert told["mapped_bytes"] == promised
    assert len(told["losses"]) == gpt2_small.STEPS


def told(**changes: Any) -> dict[str, Any]:
    guess = math.log(gpt2_small.VOCABULARY)
    return {"seconds": 1.0, "mapped_bytes": 100, "losses": [guess, guess - 1.0], **changes}


def test_memory_that_was_not_told_is_an_error() -> None:
    gpt2_small.check(100, told())
    with pytest.raises(BenchmarkError, match=r"estimate was 99 bytes.*maps 100"):
        gpt2_small.check(99, told())


@pytest.mark.parametrize("losses", [[5.0, 4.0], [10.8, 10.9], [math.nan, math.nan], [10.8, math.nan]])
def test_losses_of_no_training_are_an_error(losses: list[float]) -> None:
    with pytest.raises(BenchmarkError, match=r"expected about 10\.82"):
        gpt2_small.check(100, told(losses=losses))
