"""The contract of `fit` on a GPU: a table of features, each with every form of data, against the reference backend.

On a GPU that is none, or on the machine's own: `make test-cuda`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.models import UNCHECKED
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.ops.cases.custom_gradients import straight_through
from tests.support.sessions import assert_same_bits, data, mlp
from wholestep.compiler.backends.cuda.runtime import epochs
from wholestep.errors import NonFiniteError
from wholestep.session.building.arguments import SessionArguments
from wholestep.train.checkpoint.identity import differences, identity_of

Array = np.ndarray[Any, Any]
Rows = tuple[Array, Array]


@pytest.fixture(scope="module", autouse=True)
def everywhere(gpu: FakeDriver | None) -> None:
    """Every test here trains on it."""


# -- what is trained ---------------------------------------------------------------------------------------------


def rows_of(shape: tuple[int, ...], dtype: str = "float32", classes: int = 5) -> Rows:
    rng = np.random.default_rng(1)
    return rng.standard_normal((21, *shape)).astype(dtype), rng.integers(0, classes, 21).astype(np.int32)


def perceptron() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(20, 17), ws.nn.ReLU(), ws.nn.Dropout(0.2), ws.nn.Linear(17, 5))


class Rounded(ws.nn.Module):
    """A layer with a gradient of its own."""

    def __init__(self) -> None:
        self.first, self.second = ws.nn.Linear(20, 9), ws.nn.Linear(9, 5)

    def __call__(self, x: ws.Tensor) -> ws.Tensor:
        return self.second(straight_through(30.0 * self.first(x)))


def images() -> ws.nn.Module:
    return ws.nn.Sequential(
        ws.nn.Conv2d(2, 6, 3, padding=1),
        ws.nn.BatchNorm2d(6),
        ws.nn.ReLU(),
        ws.nn.MaxPool2d(2),
        ws.nn.Conv2d(6, 4, 3),
        ws.nn.GlobalAvgPool2d(),
        ws.nn.Linear(4, 5),
    )


class Sequences(ws.nn.Module):
    """A loop over time, and what it ends with."""

    def __init__(self) -> None:
        self.cells, self.head = ws.nn.GRU(4, 6), ws.nn.Linear(6, 5)

    def __call__(self, x: ws.Tensor) -> ws.Tensor:
        return self.head(self.cells(x)[0][:, -1])


def with_overflow() -> Rows:
    x, y = rows_of((20,))
    x[13, 4] = 3e38
    return x, y


@dataclass(frozen=True)
class Case:
    model: Callable[[], ws.nn.Module]
    rows: Callable[[], Rows]
    options: Mapping[str, Any] = field(default_factory=dict)
    near: float = 2e-5  # of a tensor's scale


CASES = {
    "clipping, accumulation, metrics, averaged weights": Case(
        perceptron,
        lambda: rows_of((20,)),
        {
            "optimizer": ws.optim.EMA(ws.Adam(lr=1e-2), 0.9),
            "clip_norm": 0.5,
            "clip_value": 0.1,
            "accumulate": 2,
            "metrics": ["accuracy", "f1"],
        },
    ),
    "steps left out that are not finite, a gradient of one's own, a schedule, the norm of gradients": Case(
        Rounded,
        with_overflow,
        {
            "optimizer": ws.AdamW(lr=1e-2),
            "nonfinite": "skip",
            "gradient_norm": True,
            "schedule": ws.schedules.cosine(steps=12, warmup=2),
        },
    ),
    "float16 with a loss scale, windows": Case(
        images,
        lambda: rows_of((2, 8, 8)),
        {"precision": "float16", "loss_scale": ws.LossScale(init=2.0**22)},
        near=1e-2,
    ),
    "bfloat16, a scan": Case(Sequences, lambda: rows_of((5, 4)), {"precision": "bfloat16"}, near=2e-2),
    "float64": Case(
        lambda: perceptron().astype("float64"),
        lambda: rows_of((20,), "float64"),
        {"optimizer": ws.Adam(lr=1e-2)},
        near=1e-11,
    ),
}


def fit(name: str, device: str, epochs: int = 2, **more: Any) -> tuple[Any, dict[str, Array]]:
    case = CASES[name]
    model = case.model()
    history = ws.fit(
        model,
        case.rows(),
        loss="cross_entropy",
        batch_size=4,
        epochs=epochs,
        device=device,
        progress=False,
        options=UNCHECKED,
        **{"optimizer": ws.SGD(lr=0.1, momentum=0.9), **case.options, **more},
    )
    return history, model.state_dict()


def assert_near(got: Mapping[str, Array], want: Mapping[str, Array], near: float) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        largest = max(1e-2, float(np.abs(value).max(initial=0)))
        np.testing.assert_allclose(got[name], value, rtol=0, atol=near * largest, err_msg=name)


def columns(history: Any) -> dict[str, Array]:
    """What every epoch has logged, without times."""
    logs = [epoch.logs for epoch in history.epochs]
    return {name: np.array([log[name] for log in logs], np.float64) for name in logs[0]}


# -- the table ---------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:the schedule of optimizer.lr")  # it is longer than the part that is resumed
@pytest.mark.parametrize("name", CASES)
def test_a_feature_trains_as_on_the_reference_whichever_way_data_comes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data that lies on the GPU; data that is streamed; batch by batch; a run that goes on: the bits are the same."""
    history, weights = fit(name, "cuda")
    others, expected = fit(name, "reference")
    assert_near(columns(history), columns(others), 10 * CASES[name].near)
    assert_near(weights, expected, CASES[name].near)

    fit(name, "cuda", epochs=1, checkpoint=tmp_path)
    with monkeypatch.context() as patch:
        set_costs(patch, "run", resident_share=0.0)
        streamed, own = fit(name, "cuda", checkpoint=tmp_path, resume=True)
        assert_same_bits(own, weights)
        assert_same_bits(columns(streamed), columns(history))
        patch.setattr(epochs.Epochs, "takes", lambda self, epoch: False)
        launched, own = fit(name, "cuda")
    assert_same_bits(own, weights)
    assert_same_bits(columns(launched), columns(history))


def test_a_checkpoint_goes_from_the_cpu_to_the_gpu_and_back(tmp_path: Path) -> None:
    name = "clipping, accumulation, metrics, averaged weights"
    _, expected = fit(name, "cpu", epochs=3)
    for epoch, device in enumerate(("cpu", "cuda", "cpu"), 1):
        _, weights = fit(name, device, epochs=epoch, checkpoint=tmp_path, resume=epoch > 1)
    assert_near(weights, expected, CASES[name].near)


def test_a_checkpoint_of_another_kind_of_gpu_says_so() -> None:
    here = identity_of(build("cuda"))
    assert "NVRTC" in here["machine"]
    there = {**here, "machine": "another GPU, NVRTC 12.0"}
    (found,) = differences(there, here)
    assert found.startswith("machine: the checkpoint has another GPU, NVRTC 12.0, this run ")
    assert not differences({**here, "machine": ""}, here)
    assert here["code"] != identity_of(build("reference"))["code"]


# -- sessions ----------------------------------------------------------------------------------------------------


def build(device: str, **options: Any) -> ws.Session:
    return ws.build_session(
        mlp(), optimizer=ws.SGD(lr=0.1), batch_size=8, seed=2, device=device, options=UNCHECKED, **options
    )


def test_numbers_are_read_and_written_measured_and_predicted() -> None:
    """Two sessions in one process, whose steps alternate; statistics of gradients; weights that somebody sets."""
    ours, other, second = build("cuda"), build("reference"), build("cuda")
    for seed in range(3):
        for session in (ours, second, other):
            session.step(**data(8, seed=seed))
    assert_same_bits(ours.state_dict(), second.state_dict())
    new = np.random.default_rng(0).standard_normal((20, 24)).astype(np.float32)
    for session in (ours, other):
        session.set("w1", new)
        np.testing.assert_array_equal(session.get("w1"), new)
    assert not np.array_equal(second.get("w1"), new)
    stats = [session.gradient_stats(**data(8)) for session in (ours, other)]
    assert stats[0].keys() == stats[1].keys() == {"w1", "b1", "w2", "b2"}
    for name, wanted in stats[1].items():
        assert stats[0][name].norm == pytest.approx(wanted.norm, rel=1e-5), name
    losses = [float(session.step(**data(8, seed=9))) for session in (ours, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert_near(ours.state_dict(), other.state_dict(), 2e-5)
    measured = [session.evaluate(**data(7, seed=4)).loss for session in (ours, other)]
    assert measured[0] == pytest.approx(measured[1], rel=1e-5)
    np.testing.assert_allclose(*(s.predict(x=data(5)["x"]) for s in (ours, other)), rtol=1e-4, atol=1e-5)


def test_a_step_that_is_not_finite_is_raised() -> None:
    session = build("cuda", nonfinite="raise")
    session.step(**data(8))
    before, bad = session.state_dict(), data(8)
    bad["x"][3, 4] = np.nan
    with pytest.raises(NonFiniteError):
        session.step(**bad)
    assert session.state.step == 1
    after = session.state_dict()
    assert_same_bits({n: after[n] for n in ("w1", "b1", "w2", "b2")}, {n: before[n] for n in ("w1", "b1", "w2", "b2")})


def test_the_largest_batch_is_that_of_the_gpus_memory() -> None:
    """To the byte: one row more does not fit; and without a limit the GPU's own free memory is one."""
    options = {"optimizer": ws.Adam(), "options": UNCHECKED}
    found = ws.find_batch_size(mlp(), memory="1MB", device="null:cuda/sm_90", **options)
    needed = [
        ws.estimate(mlp(), batch_size=n, device="null:cuda/sm_90", **options).peak_bytes for n in (found, found + 1)
    ]
    assert needed[0] <= 1_000_000 < needed[1]
    free = SessionArguments(device="cuda").placement().device.memory.free_bytes
    largest = ws.find_batch_size(mlp(), device="cuda", most=1 << 40, **options)
    assert ws.estimate(mlp(), batch_size=largest, device="null:cuda/sm_90", **options).peak_bytes <= free + (64 << 20)


def test_a_model_predicts_and_is_measured_on_a_gpu() -> None:
    x, y = rows_of((20,))
    model = perceptron()
    found = [model.predict(x, device=device) for device in ("cuda", "reference")]
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
    losses = [
        model.evaluate(x, y, loss="cross_entropy", metrics=["accuracy"], device=device)
        for device in ("cuda", "reference")
    ]
    assert losses[0].keys() == losses[1].keys()
    for name, value in losses[1].items():
        assert losses[0][name] == pytest.approx(value, rel=1e-5), name
