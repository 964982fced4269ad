"""Ten steps of every model in float32 compared with torch and the CPU; the oracle is torch in float64.

Small on a GPU that is emulated; with `--gpu` at the sizes that people train.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.models import UNCHECKED
from tests.models import test_lstm, test_training
from tests.models.test_images import CifarTwin, LeNet
from tests.models.test_training import Pair

Array = np.ndarray[Any, Any]
STEPS = 10
# Of the deep network of convolutions it is small: relus flip where float32 rounds, and at 1e-3 torch's own float32 is
# 2e-3 of the scale away from its float64 after ten steps, at 1e-4 5e-6.
LR = {"lenet5": 1e-2, "resnet": 2e-5, "gpt2": 1e-2, "lstm_lm": 1e-2}
NEAR = 1e-5  # of a tensor's scale


@dataclass(frozen=True)
class Sizes:
    """Of a GPU that is emulated, and of a real one."""

    batch: tuple[int, int]
    width: tuple[int, int] = (0, 0)
    time: tuple[int, int] = (0, 0)
    words: tuple[int, int] = (0, 0)


SUITE = {
    "lenet5": Sizes((3, 64)),
    "resnet": Sizes((3, 32)),
    "gpt2": Sizes((3, 16), (20, 128), (7, 64), (11, 65)),
    "lstm_lm": Sizes((3, 32), (20, 256), (7, 64), (11, 65)),
}
SLOW = {"lenet5", "resnet"}  # where they are emulated


@pytest.fixture(params=[pytest.param(n, marks=pytest.mark.long) if n in SLOW else n for n in SUITE])
def pair(
    request: pytest.FixtureRequest, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Pair]]:
    """A model and its twin, with as many different batches as steps."""
    name, real = request.param, gpu is None
    sizes, rng = SUITE[name], np.random.default_rng(5)
    batch, width, time, words = (found[real] for found in (sizes.batch, sizes.width, sizes.time, sizes.words))
    torch.manual_seed(3)
    rows, labels = batch * STEPS, (rng.integers(0, 10, batch * STEPS).astype(np.int32))
    if name == "lenet5":
        yield name, Pair(ws.models.lenet5, LeNet, rng.normal(size=(rows, 1, 28, 28)).astype(np.float32), labels)
    elif name == "resnet":
        blocks, side = (3, 32) if real else (1, 8)
        x = rng.normal(size=(rows, 3, side, side)).astype(np.float32)
        ours = lambda: ws.models.CifarResNet(blocks, 10, "A", "float32")  # noqa: E731
        yield name, Pair(ours, lambda: CifarTwin(blocks, "A"), x, labels)
    else:
        for module in (test_training, test_lstm):
            monkeypatch.setattr(module, "WIDTH", width)
            monkeypatch.setattr(module, "VOCABULARY", words)
        monkeypatch.setattr(test_training, "CONTEXT", time)
        x, y = (rng.integers(0, words, (rows, time)).astype(np.int32) for _ in range(2))
        if name == "gpt2":
            yield name, Pair(test_training.transformer, test_training.TransformerTwin, x, y)
        else:
            yield name, Pair(lambda: ws.models.lstm_lm(words, width=width, layers=2), test_lstm.Twin, x, y)


def by_torch(
    pair: Pair, start: dict[str, torch.Tensor], dtype: torch.dtype, lr: float, half: bool = False
) -> dict[str, Array]:
    """Numbers after all steps; `half` are torch's own products in bfloat16, on the GPU."""
    device = "cuda" if half else "cpu"
    twin = pair.theirs()
    twin.load_state_dict(start)
    twin = twin.to(device, dtype)
    optimizer = torch.optim.SGD(twin.parameters(), lr=lr, momentum=0.9)
    for x, y in batches(pair):
        optimizer.zero_grad()
        given = torch.tensor(x, device=device)
        with torch.autocast(device, torch.bfloat16, enabled=half):
            scores = twin(given.to(dtype) if given.is_floating_point() else given)
            scores, labels = scores.reshape(-1, scores.shape[-1]), torch.tensor(y, device=device).long().reshape(-1)
            loss = F.cross_entropy(scores, labels)
        loss.backward()
        optimizer.step()
    return {name: value.cpu().numpy() for name, value in twin.state_dict().items() if value.is_floating_point()}


def batches(pair: Pair) -> Iterator[tuple[Array, Array]]:
    each = len(pair.x) // STEPS
    for i in range(STEPS):
        yield pair.x[i * each : (i + 1) * each], pair.labels[i * each : (i + 1) * each]


def by_session(
    pair: Pair, start: dict[str, torch.Tensor], device: str, lr: float, checked: bool, precision: str = "float32"
) -> dict[str, Array]:
    model = pair.ours()
    model.load_state_dict(start)
    inputs, targets = (ws.Spec(("batch", *a.shape[1:]), a.dtype.name) for a in (pair.x, pair.labels))
    session = ws.build_session(
        model,
        inputs=inputs,
        targets=targets,
        loss="cross_entropy",
        optimizer=ws.SGD(lr=lr, momentum=0.9),
        batch_size=len(pair.x) // STEPS,
        device=device,
        precision=precision,
        options=replace(UNCHECKED, verify=True, cache=False) if checked else UNCHECKED,
    )
    if checked:
        assert "note: checked against the interpreter at batch=3 and batch=" in str(session.report())
    for x, y in batches(pair):
        session.step(x=x, labels=y)
    return model.state_dict()


def farthest(got: dict[str, Array], exact: dict[str, Array]) -> tuple[float, str]:
    """The largest error of a tensor relative to its scale, and whose it is."""

    def off(name: str) -> float:
        scale = max(float(np.abs(exact[name]).max()), 1e-2)
        return float(np.abs(got[name].astype(np.float64) - exact[name]).max()) / scale

    return max((off(name), name) for name in exact)


def moved(start: dict[str, torch.Tensor], exact: dict[str, Array]) -> float:
    return max(float(np.abs(exact[name] - start[name].numpy()).max()) for name in exact)


def test_ten_steps_are_as_near_to_float64_as_torchs(pair: tuple[str, Pair], gpu: FakeDriver | None) -> None:
    name, each = pair
    start = {n: t.clone() for n, t in each.theirs().state_dict().items()}
    lr = LR[name]
    exact, torchs = (by_torch(each, start, dtype, lr) for dtype in (torch.float64, torch.float32))
    devices = {"cuda": gpu is None and name != "resnet", "cpu": False}  # is the plan checked by the interpreter?
    found = {d: by_session(each, start, d, lr, checked) for d, checked in devices.items() if d == "cuda" or gpu is None}
    assert moved(start, exact) > 100 * NEAR, "ten steps changed something"
    errors = {who: farthest(got, exact) for who, got in {"torch": torchs, **found}.items()}
    print(f"{name}: of float64 after {STEPS} steps, by scale: {errors}")
    assert errors["cuda"][0] <= NEAR, errors
    if "cpu" in found:
        cpu = {n: a.astype(np.float64) for n, a in found["cpu"].items() if n in exact}
        assert farthest(found["cuda"], cpu)[0] <= NEAR, errors


def test_bfloat16_is_as_near_to_float64_as_torchs_autocast(pair: tuple[str, Pair], gpu: FakeDriver | None) -> None:
    """How far the whole step is off, relative to how far weights moved."""
    if gpu is not None or not torch.cuda.is_available():
        pytest.skip("torch is asked on a GPU")
    name, each = pair
    start = {n: t.clone() for n, t in each.theirs().state_dict().items()}
    exact = by_torch(each, start, torch.float64, LR[name])
    found = {
        "torch": by_torch(each, start, torch.float32, LR[name], half=True),
        "cuda": by_session(each, start, "cuda", LR[name], False, "bfloat16"),
    }
    trained = [n for n, p in each.theirs().named_parameters() if p.requires_grad]

    def off(got: dict[str, Array]) -> float:
        wrong = sum(float(((got[n].astype(np.float64) - exact[n]) ** 2).sum()) for n in trained)
        moved = sum(float(((exact[n] - start[n].numpy()) ** 2).sum()) for n in trained)
        return (wrong / moved) ** 0.5

    errors = {who: off(got) for who, got in found.items()}
    print(f"{name}: of float64 after {STEPS} steps in bfloat16, by movement: {errors}")
    assert errors["cuda"] <= 1.3 * errors["torch"], errors
