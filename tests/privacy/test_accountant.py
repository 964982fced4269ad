"""The accountant agrees with Opacus' and with published tables; settings outside their range are refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import wholestep as ws
from wholestep.errors import OptionError, UsageError
from wholestep.privacy.accountant import ORDERS
from wholestep.privacy.settings import capacity_for, chance_outside

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "opacus_epsilon.json").read_text(encoding="utf-8"))
# The table of TensorFlow Privacy's MNIST tutorial: batches of 256 of 60,000 rows, delta 1e-5.
PUBLISHED = [(1.3, 15, 1.19), (1.1, 60, 3.01), (0.7, 45, 7.10)]


@pytest.mark.parametrize("row", GOLDEN["epsilon"], ids=str)
def test_epsilon_is_that_of_opacus(row: dict[str, Any]) -> None:
    phase = ws.privacy.Phase(row["noise"], row["rate"], row["steps"])
    assert ws.privacy.epsilon_of(phase, row["delta"]) == pytest.approx(row["epsilon"], rel=1e-6)


@pytest.mark.parametrize("row", GOLDEN["noise"], ids=str)
def test_the_noise_for_an_epsilon_is_that_of_opacus(row: dict[str, Any]) -> None:
    noise = ws.privacy.noise_for(row["epsilon"], row["delta"], row["rate"], row["steps"])
    assert noise == pytest.approx(row["noise"], rel=1e-3)
    assert ws.privacy.epsilon_of(ws.privacy.Phase(noise, row["rate"], row["steps"]), row["delta"]) <= row["epsilon"]


@pytest.mark.parametrize(("noise", "epochs", "epsilon"), PUBLISHED)
def test_divergences_give_the_published_table(noise: float, epochs: int, epsilon: float) -> None:
    """The table was computed with the older conversion, ε = RDP(α) + log(1/δ)/(α − 1)."""
    steps = round(epochs * 60000 / 256)
    values = [
        steps * ws.privacy.renyi_divergence(noise, 256 / 60000, order) + math.log(1e5) / (order - 1) for order in ORDERS
    ]
    assert min(values) == pytest.approx(epsilon, abs=0.01)


def test_phases_add_up_and_no_noise_is_no_privacy() -> None:
    half, whole = ws.privacy.Phase(1.1, 0.01, 500), ws.privacy.Phase(1.1, 0.01, 1000)
    assert ws.privacy.epsilon_of([half, half], 1e-5) == pytest.approx(ws.privacy.epsilon_of(whole, 1e-5))
    assert ws.privacy.renyi_divergence(0.0, 0.01, 2) == math.inf
    with pytest.raises(OptionError, match=r"epsilon=0\.001 is out of reach with delta=1e-05 for 10000 steps"):
        ws.privacy.noise_for(0.001, 1e-5, 0.9, 10_000)


@pytest.mark.parametrize(
    ("settings", "pattern"),
    [
        ({}, r"give either epsilon=, the bound for the run, or noise="),
        ({"epsilon": 3, "noise": 1.0}, r"give either epsilon=, the bound for the run, or noise="),
        ({"epsilon": -1}, r"epsilon must be a number above 0; received -1"),
        ({"noise": -1.0}, r"noise must be a number of at least 0; received -1"),
        ({"epsilon": 3, "delta": 1.5}, r"delta must be a probability below 1; received 1\.5"),
    ],
)
def test_settings_outside_their_range_are_refused(settings: dict[str, Any], pattern: str) -> None:
    with pytest.raises(OptionError, match=pattern):
        ws.Privacy(**settings)


def test_draws_outside_the_capacity_are_too_rare_to_matter() -> None:
    assert capacity_for(60_000, 256 / 60_000) == 426
    assert chance_outside(60_000, 256 / 60_000) < 1e-19
    assert capacity_for(100, 0.9) == 100
    with pytest.raises(OptionError, match="batch_size=4 a random batch is empty too often"):
        ws.Privacy(epsilon=3).for_run(1000, 4, 250)
    with pytest.raises(UsageError, match=r"is for ws\.fit, whose number of steps determines the noise"):
        ws.Privacy(epsilon=3).for_batches(32)
