"""Packed rows on a GPU: attention with masks of segments and loops with resets, as on the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.models import UNCHECKED


@pytest.fixture(scope="module", autouse=True)
def everywhere(gpu: FakeDriver | None) -> None:
    """Every test here trains on it."""


MODELS = {
    "gpt2": lambda: ws.models.gpt2(layers=1, width=16, heads=2, vocabulary=11, context=32),
    "lstm": lambda: ws.models.lstm_lm(11, 16, 1),
}


@pytest.mark.parametrize("name", MODELS)
def test_packed_rows_train_and_predict_as_on_the_reference(name: str) -> None:
    rng = np.random.default_rng(0)
    data = ws.data.Ragged([rng.integers(0, 11, n) for n in (5, 2, 7, 12, 3, 9, 1)], "next", capacity=16)
    one, other = MODELS[name](), MODELS[name]()
    other.load_state_dict(one.state_dict())
    options: dict[str, Any] = {
        "loss": "cross_entropy", "optimizer": ws.SGD(lr=0.1), "batch_size": 2, "epochs": 2, "progress": False,
    }  # fmt: skip
    ours = ws.fit(one, data, device="cuda", options=UNCHECKED, **options)
    theirs = ws.fit(other, data, device="reference", **options)
    np.testing.assert_allclose(ours["loss"], theirs["loss"], rtol=2e-5)
    for weight, value in other.state_dict().items():
        np.testing.assert_allclose(one.state_dict()[weight], value, rtol=2e-4, atol=2e-6, err_msg=weight)
