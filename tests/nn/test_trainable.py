"""Freezing in Keras' and PyTorch's words: `trainable`, `requires_grad`; and assignments that would do nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import HabitError, UsageError

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((24, 6)).astype(np.float32), RNG.integers(0, 3, 24).astype(np.int32)


def network() -> ws.nn.Sequential:
    return ws.nn.Sequential(ws.nn.Linear(6, 8), ws.nn.BatchNorm1d(8), ws.nn.ReLU(), ws.nn.Linear(8, 3))


def moved(model: ws.nn.Module, **options: Any) -> set[str]:
    """The arrays that a run has changed."""
    before = model.state_dict()
    given = {"loss": "cross_entropy", "epochs": 2, "batch_size": 8, "progress": False, **options}
    ws.fit(model, (X, Y), **given)
    return {name for name, value in model.state_dict().items() if not np.array_equal(value, before[name])}


HEAD = {"3.weight", "3.bias"}
NORM = {"1.weight", "1.bias", "1.running_mean", "1.running_var"}
BODY = {"0.weight", "0.bias"}


@pytest.mark.parametrize("optimizer", [ws.AdamW(), ws.SGD(lr=0.1, momentum=0.9), ws.optim.EMA(ws.Adam())], ids=str)
def test_a_layer_that_is_not_trainable_does_not_move(optimizer: ws.Optimizer) -> None:
    model = network()
    model[0].trainable = False
    assert moved(model, optimizer=optimizer) == HEAD | NORM
    assert not model[0].trainable
    assert model.trainable


def test_a_model_is_frozen_and_a_part_of_it_is_not() -> None:
    model = network()
    model.trainable = False
    model[3].trainable = True
    assert "72 of them frozen" in str(model.summary(ws.Spec(("batch", 6))))
    assert moved(model) == HEAD
    model.trainable = True
    assert moved(model) == HEAD | NORM | BODY


def test_a_batch_norm_that_is_not_trainable_uses_its_running_statistics() -> None:
    """As Keras' does; one that is frozen in PyTorch's words goes on with those of the batch."""
    model = network()
    moved(model)  # statistics to speak of
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
    theirs.load_state_dict({k: torch.tensor(v) for k, v in model.state_dict().items()}, strict=False)
    theirs.train()
    theirs[1].eval()
    for p in theirs[1].parameters():
        p.requires_grad_(False)
    loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(X)), torch.tensor(Y).long())
    loss.backward()
    torch.optim.SGD([p for p in theirs.parameters() if p.requires_grad], lr=0.1).step()
    model[1].trainable = False
    options = {"optimizer": ws.SGD(lr=0.1), "epochs": 1, "batch_size": 24}
    assert moved(model, **options) == BODY | HEAD
    for name, value in model.state_dict().items():
        np.testing.assert_allclose(value, theirs.state_dict()[name].numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
    model[1].trainable = True
    model[1].freeze("*")
    assert moved(model, **options) - BODY == HEAD | {"1.running_mean", "1.running_var"}


@pytest.mark.parametrize("shape", [(5, 2), (5, 2, 3), (5, 2, 3, 3), (5, 2, 2, 3, 3)], ids=str)
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norms_of_every_shape(shape: tuple[int, ...], affine: bool) -> None:
    kind = {2: "BatchNorm1d", 3: "BatchNorm1d", 4: "BatchNorm2d", 5: "BatchNorm3d"}[len(shape)]
    x = RNG.standard_normal(shape).astype(np.float32)
    plain, fixed = (getattr(ws.nn, kind)(2, affine=affine) for _ in "ab")
    values = {n: RNG.uniform(0.5, 2.0, p.shape).astype(np.float32) for n, p in plain.named_arrays().items()}
    for layer in (plain, fixed):
        layer.load_state_dict(values)
    fixed.trainable = False
    np.testing.assert_allclose(fixed.predict(x), plain.predict(x), rtol=1e-5, atol=1e-6)


def test_the_word_is_taken_by_constructors() -> None:
    assert not ws.nn.Linear(6, 8, trainable=False).trainable
    assert ws.nn.Linear(6, 8, trainable=True).trainable
    assert not ws.nn.Sequential(ws.nn.Linear(6, 8), trainable=False)[0].trainable
    model = ws.nn.Sequential(ws.nn.Embedding(9, 4, trainable=False), ws.nn.Flatten(), ws.nn.Linear(8, 2))
    before = model.state_dict()
    tokens = RNG.integers(0, 9, (24, 2)).astype(np.int32)
    ws.fit(model, (tokens, Y % 2), loss="cross_entropy", progress=False)
    assert {n for n, v in model.state_dict().items() if not np.array_equal(v, before[n])} == {"2.weight", "2.bias"}


def test_what_is_assigned_later_is_frozen_too() -> None:
    class Body(ws.nn.Module):
        def __init__(self) -> None:
            self.trainable = False
            self.first = ws.nn.Linear(6, 8)
            self.scale = ws.nn.Parameter((8,), 1.0)

        def forward(self, x: Any) -> Any:
            return self.first(x) * self.scale

    assert moved(ws.nn.Sequential(Body(), ws.nn.Linear(8, 3))) == {"1.weight", "1.bias"}


def test_parameters_in_torchs_words() -> None:
    model = network()
    model[0].requires_grad_(False)
    model[3].requires_grad = False
    model[1].bias.trainable = False
    assert not model[1].bias.requires_grad
    model[1].bias.requires_grad_(False)
    assert moved(model) == {"1.weight", "1.running_mean", "1.running_var"}
    assert not model[1].bias.requires_grad
    assert not ws.nn.Parameter((3,), requires_grad=False).requires_grad
    assert ws.nn.Parameter((3,)).requires_grad


def test_adapters_are_trained_beside_layers_that_are_not() -> None:
    model = ws.nn.Sequential(ws.nn.Linear(6, 8), ws.nn.ReLU(), ws.nn.Linear(8, 3))
    model.trainable = False
    ws.nn.lora(model, rank=2)
    assert moved(model) == {f"{i}.lora_{m}.weight" for i in (0, 2) for m in "AB"}


def test_resumed_it_stays_frozen(tmp_path: Path) -> None:
    model = network()
    model[0].trainable = False
    start = model.state_dict()["0.weight"]
    moved(model, checkpoint=tmp_path)
    again = network()
    again[0].trainable = False
    moved(again, epochs=3, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(again.state_dict()["0.weight"], start)


def test_a_model_that_is_frozen_as_a_whole_is_not_trained_in_silence() -> None:
    model = network()
    model.trainable = False
    with pytest.raises(UsageError, match=r"all 6 parameters of this Sequential are frozen: fit would train nothing"):
        moved(model)
    model = network().freeze("*")  # type: ignore[assignment]
    assert moved(model) == {"1.running_mean", "1.running_var"}  # they are measured anew


ASSIGNED = {
    "training": (False, r"Linear\.training = False would do nothing: .*session\.step trains, predict and evaluate do"),
    "stop_training": (True, r"Linear\.stop_training = True would do nothing: .*self\.run\.stop\('reason'\)"),
    "dtype": ("float64", r"model\.astype\('float64'\)"),
    "device": ("cuda", r"ws\.fit\(\.\.\., device='cuda'\)"),
    "activation": ("relu", r"ws\.nn\.Sequential\(layer, ws\.nn\.ReLU\(\)\)"),
}


@pytest.mark.parametrize("name", ASSIGNED)
def test_assignments_that_would_do_nothing_are_answered(name: str) -> None:
    value, text = ASSIGNED[name]
    with pytest.raises(HabitError, match=text):
        setattr(ws.nn.Linear(2, 2), name, value)


def test_the_rate_of_a_dropout_is_called_p() -> None:
    with pytest.raises(HabitError, match=r"Dropout\.rate = 0\.1 would do nothing: .*layer\.p = 0\.1"):
        ws.nn.Dropout(0.5).rate = 0.1


def test_classes_of_users_have_attributes_of_their_own() -> None:
    class Own(ws.nn.Module):
        def __init__(self) -> None:
            self.dtype, self.device, self.rate, self.activation = "float32", "cpu", 0.1, ws.relu
            self.weight = ws.nn.Parameter((6, 3))

        def forward(self, x: Any) -> Any:
            return self.activation(x @ self.weight) * self.rate

    assert Own().predict(X).shape == (24, 3)
    assert Own().dtype == "float32"


def test_trainable_is_no_name_for_a_part() -> None:
    with pytest.raises(UsageError, match=r"Linear\.trainable says whether the module is trained; assign .* another"):
        ws.nn.Linear(2, 2).trainable = ws.nn.Linear(2, 2)  # type: ignore[assignment]
