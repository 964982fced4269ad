"""An observer sees the same activations at the same steps, whoever drives, and changes no bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws

RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def mlp() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(3, 4), ws.nn.ReLU(), ws.nn.Linear(4, 2))


class Spy:
    def __init__(self, every: int | None = None) -> None:
        self.seen: list[tuple[int, float]] = []
        if every is not None:
            self.every = every

    def on_activations(self, step: int, stats: Mapping[str, Any]) -> None:
        assert list(stats) == ["0", "1", "2"]
        self.seen.append((step, round(stats["2"].norm, 4)))


def session(model: ws.nn.Module) -> ws.Session:
    return ws.build_session(
        model, inputs=ws.Spec(("batch", 3)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy",
        optimizer=ws.SGD(lr=0.5), batch_size=8,
    )  # fmt: skip


def by_fit(model: ws.nn.Module, spy: Spy | None, **options: Any) -> None:
    ws.fit(
        model, options.pop("data", (X, Y)), loss="cross_entropy", optimizer=ws.SGD(lr=0.5), epochs=2, observer=spy,
        progress=False, **{"batch_size": 8, **options},
    )  # fmt: skip


def by_run(model: ws.nn.Module, spy: Spy | None) -> None:
    made = session(model)
    made.set_observer(spy)
    made.run(x=X, labels=Y, epochs=2)


def by_trainer(model: ws.nn.Module, spy: Spy | None) -> None:
    made = session(model)
    made.set_observer(spy)
    ws.Trainer(made).train(ws.DataLoader(X, Y, 8), 2)


def by_steps(model: ws.nn.Module, spy: Spy | None) -> None:
    by_fit(model, spy, data=ws.DataLoader(X, Y, 8, transform=lambda x, draw: x))


def by_windows(model: ws.nn.Module, spy: Spy | None) -> None:
    by_fit(model, spy, batch_size=4, accumulate=2)


WAYS = {"fit": by_fit, "run": by_run, "Trainer": by_trainer, "single steps": by_steps, "accumulated": by_windows}


@pytest.mark.usefixtures("equal_starts")
@pytest.mark.parametrize("way", WAYS)
def test_every_step_is_seen(way: str) -> None:
    wanted, got, plain, watched = Spy(), Spy(), mlp(), mlp()
    by_hand = session(mlp())
    by_hand.set_observer(wanted)
    for epoch in range(2):
        loader = ws.DataLoader(X, Y, 8)
        loader.shuffle(epoch)
        for batch in loader.remaining():
            by_hand.step(batch.named())
    WAYS[way](watched, got)
    assert len(got.seen) == 6
    assert [step for step, _ in got.seen] == list(range(6))
    np.testing.assert_allclose([n for _, n in got.seen], [n for _, n in wanted.seen], rtol=1e-3)
    WAYS[way](plain, None)
    for name, value in plain.state_dict().items():
        assert watched.state_dict()[name].tobytes() == value.tobytes()


def test_every_so_many_steps(capsys: pytest.CaptureFixture[str]) -> None:
    spy = Spy(every=4)
    by_fit(mlp(), spy)
    assert [step for step, _ in spy.seen] == [0, 4]
    by_fit(mlp(), ws.ConsoleObserver(every=5))  # type: ignore[arg-type]
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines() if "step" in line] == ["0", "5"]


# -- rows that are held out --------------------------------------------------------------------------------------


def test_held_out_rows_of_ordered_data_are_the_last_ones() -> None:
    from wholestep.train.data.loaders import prepare_data

    rows = np.arange(20.0)[:, None]
    loader, held = prepare_data((rows, rows), 0.25, 5, False, 0)
    assert held is not None
    assert held.columns["x"][:, 0].tolist() == list(range(15, 20))
    assert loader.source.columns["x"][:, 0].tolist() == list(range(15))  # type: ignore[union-attr]
    _, drawn = prepare_data((rows, rows), 0.25, 5, True, 0)
    assert drawn is not None
    assert drawn.columns["x"][:, 0].tolist() != list(range(15, 20))
    with pytest.raises(
        ws.errors.UsageError, match=r"ws\.data\.split\(data, 0\.25, shuffle=False\); then ws\.fit\(.*validation=held"
    ):
        ws.fit(mlp(), ws.DataLoader(X, Y, shuffle=False), validation=0.25, loss="cross_entropy")


def test_a_fit_validates_on_the_last_rows() -> None:
    y = np.arange(20, dtype=np.float64)[:, None]

    class Zero(ws.nn.Module):
        def __init__(self) -> None:
            self.weight = ws.nn.Parameter((1,), 0.0, "float64")

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            return x * self.weight

    history = ws.fit(
        Zero(),
        (y, y),
        loss="mae",
        optimizer=ws.SGD(lr=0.0),
        validation=0.25,
        shuffle=False,
        batch_size=5,
        progress=False,
    )
    assert history["val_loss"] == [np.arange(15, 20).mean()]


class Kept(ws.nn.Module):
    def __init__(self) -> None:
        self.first, self.drop, self.last = ws.nn.Linear(3, 4), ws.nn.Dropout(0.5), ws.nn.Linear(4, 2)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        h = ws.tanh(self.first(x)).keep("hidden")
        return self.last(self.drop(h))


class Watch:
    every = 1
    tensors = ("hidden", "hidden.grad", "last")

    def __init__(self) -> None:
        self.seen: list[dict[str, float]] = []

    def on_activations(self, step: int, stats: Mapping[str, Any]) -> None:
        self.seen.append({name: stats[name].norm for name in stats})


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_an_observer_of_chosen_tensors_gets_them_and_their_gradients(device: str) -> None:
    watch, model, plain = Watch(), Kept(), Kept()
    by_fit(model, watch, seed=0, device=device)  # type: ignore[arg-type]
    by_fit(plain, None, seed=0, device=device)
    assert len(watch.seen) == 6
    assert {tuple(stats) for stats in watch.seen} == {("hidden", "hidden.grad", "last")}
    assert all(0 < stats["hidden.grad"] < 1 for stats in watch.seen)
    for name, array in plain.state_dict().items():
        np.testing.assert_array_equal(model.state_dict()[name], array)  # the steps are unchanged


def test_tensors_and_gradients_are_those_of_torch() -> None:
    model = mlp()
    made = session(model)
    weights = {n: torch.tensor(a, requires_grad=True) for n, a in model.state_dict().items()}
    x = torch.tensor(X[:8], requires_grad=True)
    hidden = x @ weights["0.weight"].T + weights["0.bias"]
    hidden.retain_grad()
    scores = torch.relu(hidden) @ weights["2.weight"].T + weights["2.bias"]
    torch.nn.functional.cross_entropy(scores, torch.tensor(Y[:8]).long()).backward()
    found = made.tensors(["0", "0.grad", "2.weight.grad", "x.grad"], x=X[:8], labels=Y[:8])
    assert list(found) == ["0", "0.grad", "2.weight.grad", "x.grad"]
    expected = (hidden, hidden.grad, weights["2.weight"].grad, x.grad)
    for ours, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-4, atol=1e-6)


def test_only_the_tensors_that_are_asked_for_are_computed() -> None:
    made = session(Kept())
    entries = made._programs.entries
    before = set(entries)
    made.tensors(["first"], x=X[:8])
    (name,) = set(entries) - before
    assert [o for o, _ in entries[name].plan.outputs] == ["first"]
    assert {entries[name].plan.buffers[i].name for _, i in entries[name].plan.states} == {"first.weight", "first.bias"}
    made.step(x=X[:8], labels=Y[:8])
    assert set(entries) - before == {name}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("fist", "has no tensor 'fist'. Did you mean 'first'?"),
        ("labels.grad", "the loss has no gradient for 'labels'"),
        ("nothing.grad", "has no tensor 'nothing'"),
    ],
)
def test_unknown_tensors_are_refused(name: str, says: str) -> None:
    with pytest.raises(ws.errors.UnknownNameError, match=says):
        session(Kept()).tensors([name], x=X[:8], labels=Y[:8])
