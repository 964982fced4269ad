"""Ranks in the fuzzer: networks that they divide, in every way that is drawn, and numbers that they get wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import combinations
from tests.fuzz.case import Wrong
from tests.fuzz.cases import layer, network
from tests.fuzz.combinations import Combination
from tests.fuzz.networks import Trained
from tests.fuzz.ranks import RANKS

NETWORK = network(
    ("batch", 8), layer("linear", outputs=6, bias=True), layer("activation", name="tanh"), loss="cross_entropy",
    classes=4, optimizer="adam",
)  # fmt: skip


def combination(name: str, **told: Any) -> Combination:
    """Eleven rows in batches of four: of the last one, which has three, some ranks have one and others none."""
    return Combination(NETWORK, "fit", (name,), **{"epochs": 1, **told})


@pytest.mark.parametrize("name", RANKS)
def test_ranks_train_as_one_process_and_as_torch(name: str) -> None:
    combinations.check(combination(name))


def test_ranks_have_the_order_and_the_masks_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """With noise and in another order torch is no oracle; what is off by more than rounding is seen all the same."""
    mixed = combination("grid of parts", shuffle=True, dropout=0.3)
    combinations.check(mixed)
    run = combinations.run_fit

    def off(c: Combination, made: Any, changes: tuple[str, ...], cache: Path) -> Trained:
        found = run(c, made, changes, cache)
        state = {n: a + (1e-6 if changes and n.endswith("weight") else 0.0) for n, a in found.state.items()}
        return replace(found, state=state)

    monkeypatch.setitem(combinations.RUNS, "fit", off)
    with pytest.raises(Wrong, match=r"weight: off by 1e-06"):
        combinations.check(mixed)
