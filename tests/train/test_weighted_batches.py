"""Class-balanced, weighted and user-defined samplers: every way of reading the rows trains to the same bits, the native
loop among them, and their classes have the frequencies asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep import nn
from wholestep.data import loader as loader_module
from wholestep.session import Session

X, Y = (a[:220] for a in ws.datasets.digits())
RARE = np.where(Y == 3, 10.0, 1.0)


class Odd:
    """The odd rows: a sampler as users write them."""

    def rows(self, seed: int, epoch: int, count: int) -> Any:
        return np.roll(np.arange(1, count, 2), seed + epoch)


class Items:
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, row: int) -> Any:
        return X[row], Y[row]


SAMPLERS: dict[str, Callable[[], Any]] = {
    "balanced": lambda: ws.data.Balanced(Y),
    "weighted, fewer draws": lambda: ws.data.Weighted(RARE, draws=100),
    "subset": lambda: ws.data.Subset(range(50)),
    "own": Odd,
}
PATHS: dict[str, dict[str, Any]] = {
    "one by one": {},
    "a data set": {"data": Items()},
    "a thread": {"prefetch": 2},
    "processes": {"data": Items(), "num_workers": 1},
}


def train(sampler: Any, data: Any = None, prefetch: int = 0, num_workers: int = 0, **settings: Any) -> dict[str, bytes]:
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10))
    rng = np.random.default_rng(0)
    model.load_state_dict({n: rng.normal(0, 0.1, a.shape).astype(a.dtype) for n, a in model.state_dict().items()})
    source = (X, Y) if data is None else data
    loader = ws.DataLoader(
        source, batch_size=16, sampler=sampler, seed=1, prefetch=prefetch, num_workers=num_workers, drop_last=True
    )
    common: dict[str, Any] = {"loss": "cross_entropy", "optimizer": ws.Adam(lr=1e-2), "epochs": 2, "progress": False}
    ws.fit(model, loader, **{**common, **settings})
    return {name: a.tobytes() for name, a in model.state_dict().items()}


@pytest.fixture
def single_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each step that is called by itself."""
    calls, step = list[int](), Session.step

    def counted(self: Session, *args: Any, **inputs: Any) -> Any:
        calls.append(1)
        return step(self, *args, **inputs)

    monkeypatch.setattr(Session, "step", counted)
    return calls


@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_native_loop_trains_to_the_bits_of_every_other_path(
    kind: str, single_steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    native = train(SAMPLERS[kind]())
    assert not single_steps, "the native loop ran all steps"
    monkeypatch.setattr(loader_module, "LARGEST_COPY", 0)
    for name in PATHS if kind == "balanced" else ("one by one", "a data set"):
        assert train(SAMPLERS[kind](), **PATHS[name]) == native, name
    assert single_steps


@pytest.mark.parametrize(
    "settings",
    [
        {"accumulate": 2},
        {"augment": "jitter", "limit_batches": 5},
        {"metrics": ["accuracy"], "validation": (X, Y), "per_row": ["loss"]},
        {"device": "reference"},
    ],
    ids=["accumulated", "limited", "recorded", "reference"],
)
def test_other_settings_have_the_same_bits_too(settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**settings, "augment": Jitter()} if "augment" in settings else settings
    native = train(ws.data.Balanced(Y), **settings)
    monkeypatch.setattr(loader_module, "LARGEST_COPY", 0)
    assert train(ws.data.Balanced(Y), **settings) == native


class Jitter(ws.data.Augmentation):
    """Noise that is keyed by the number of the row."""

    def apply(self, x: Any, draws: Any) -> Any:
        return x + 0.1 * draws.each((64,))


def test_a_run_resumed_within_an_epoch_has_the_bits_of_a_whole_one(tmp_path: Path) -> None:
    whole = train(ws.data.Balanced(Y), epochs=3)
    train(ws.data.Balanced(Y), epochs=3, checkpoint=str(tmp_path / "run"), callbacks=ws.StepBudget(20))
    assert train(ws.data.Balanced(Y), epochs=3, checkpoint=str(tmp_path / "run"), resume=True) == whole


def test_the_classes_of_batches_have_the_frequencies_asked_for() -> None:
    x, y = np.zeros((1000, 1), np.float32), np.repeat([0, 1, 2], [900, 90, 10])
    for sampler, share in (
        (ws.data.Balanced(y, draws=30000), [1 / 3, 1 / 3, 1 / 3]),
        (ws.data.Weighted(np.array([1.0, 10.0, 0.0])[y], draws=30000), [0.5, 0.5, 0.0]),
    ):
        loader = ws.DataLoader(x, y, batch_size=100, sampler=sampler)
        table = loader.epoch_table(0)
        assert table is not None
        drawn = np.bincount(table.targets["labels"], minlength=3) / 30000
        np.testing.assert_allclose(drawn, share, atol=0.015)
        assert np.concatenate([b.labels for b in loader]).tolist() == table.targets["labels"].tolist()
