"""Data into updates: every form of data x accumulate x drop_last x partial batch x shards x resume, against torch.

A cell of the table counts updates and the rows of each, and compares final weights with a loop that is written out in
torch, in float64; or it is refused with an error that is matched.  None differs in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.compilers import quick
from wholestep.compiler.runtime.epoch_permutation import epoch_order

RNG = np.random.default_rng(3)
ROWS, BATCH, EPOCHS, SEED = 22, 4, 2, 5
X = RNG.normal(size=(ROWS, 3)).astype(np.float32).astype(np.float64)  # frames hold float32
Y = X @ np.array([[1.0], [-2.0], [0.5]]) + RNG.normal(size=(ROWS, 1))
W = RNG.integers(1, 9, size=ROWS) / 4  # denominators of batches differ
START = {"weight": np.array([[0.3, 0.1, -0.2]]), "bias": np.array([0.05])}

Batches = list[list[np.ndarray[Any, Any]]]  # row numbers: by epoch, by batch


# -- the oracle ----------------------------------------------------------------------------------------------------


def batches_of(order: np.ndarray[Any, Any], drop_last: bool) -> list[np.ndarray[Any, Any]]:
    cut = [order[i : i + BATCH] for i in range(0, len(order), BATCH)]
    return [b for b in cut if len(b) == BATCH or not drop_last]


def by_torch(epochs: Batches, accumulate: int) -> tuple[list[list[int]], dict[str, np.ndarray[Any, Any]]]:
    """Plain gradient accumulation: the rows of every update, and the weights in the end."""
    model = torch.nn.Linear(3, 1, dtype=torch.float64)
    model.load_state_dict({name: torch.tensor(a) for name, a in START.items()})
    optimizer, rows = torch.optim.SGD(model.parameters(), lr=0.1), []
    for batches in epochs:
        rows.append([])
        for first in range(0, len(batches), accumulate):
            window = batches[first : first + accumulate]
            total = sum(W[b].sum() for b in window)
            optimizer.zero_grad()
            for b in window:
                error = model(torch.tensor(X[b])) - torch.tensor(Y[b])
                ((torch.tensor(W[b])[:, None] * error**2).sum() / total).backward()
            optimizer.step()
            rows[-1].append(sum(len(b) for b in window))
    return rows, {name: p.detach().numpy() for name, p in model.named_parameters()}


# -- forms of data -------------------------------------------------------------------------------------------------


class Rows:
    """A data set that is read row by row; it never raises IndexError."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        return X[row % ROWS], Y[row % ROWS], W[row % ROWS]


class Again:
    """An iterable that begins anew in every epoch."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


@dataclass(frozen=True)
class Form:
    """How rows are handed over: `make(rows, drop_last, folder)`; who cuts batches; in which order."""

    make: Callable[[int, bool, Path], Any]
    own_batches: bool = False  # does the data decide batch_size and drop_last itself?
    shuffled: bool = True


def arrays(n: int, drop_last: bool, folder: Path) -> Any:
    return X[:n], Y[:n], W[:n]


def frame(n: int, drop_last: bool, folder: Path) -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame(X[:n], columns=["a", "b", "c"]), Y[:n], W[:n]


def mapped(n: int, drop_last: bool, folder: Path) -> Any:
    for name, array in (("x", X), ("y", Y), ("w", W)):
        np.save(folder / f"{name}.npy", array[:n])
    return tuple(ws.data.open_npy(folder / f"{name}.npy") for name in "xyw")


def loader(**options: Any) -> Callable[[int, bool, Path], Any]:
    def make(n: int, drop_last: bool, folder: Path) -> Any:
        return ws.DataLoader((X[:n], Y[:n], W[:n]), None, BATCH, seed=SEED, drop_last=drop_last, **options)

    return make


def unchanged(x: Any, draw: Any) -> Any:
    return x


def rows_loader(n: int, drop_last: bool, folder: Path) -> Any:
    return ws.DataLoader(Rows(n), None, BATCH, seed=SEED, drop_last=drop_last, prefetch=2)


def tensors(n: int) -> Any:
    return torch.utils.data.TensorDataset(*(torch.tensor(a[:n]) for a in (X, Y, W)))


def torch_loader(n: int, drop_last: bool, folder: Path) -> Any:
    return torch.utils.data.DataLoader(tensors(n), BATCH, drop_last=drop_last)


def listed(n: int, drop_last: bool, folder: Path) -> Any:
    return [(X[b], Y[b], W[b]) for b in batches_of(np.arange(n), drop_last)]


FORMS: dict[str, Form] = {
    "arrays": Form(arrays),
    "a frame": Form(frame),
    "memory maps": Form(mapped),
    "a data set": Form(lambda n, drop_last, folder: Rows(n)),
    "a torch Dataset": Form(lambda n, drop_last, folder: tensors(n)),
    "DataLoader": Form(loader(), own_batches=True),
    "DataLoader, transformed": Form(loader(transform=unchanged), own_batches=True),
    "DataLoader, in order": Form(loader(shuffle=False), own_batches=True, shuffled=False),
    "DataLoader of a data set": Form(rows_loader, own_batches=True),
    "a torch DataLoader": Form(torch_loader, own_batches=True, shuffled=False),
    "a list of batches": Form(listed, own_batches=True, shuffled=False),
    "an iterable": Form(lambda *how: Again(listed(*how)), own_batches=True, shuffled=False),
}


def expected(form: Form, rows: int, drop_last: bool) -> Batches:
    orders = [epoch_order(SEED, e, rows) if form.shuffled else np.arange(rows) for e in range(EPOCHS)]
    return [batches_of(order, drop_last) for order in orders]


class Counted(ws.Callback):
    """The rows of every update, by epoch."""

    every = 1

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.before = 0

    def on_epoch_begin(self, epoch: int) -> None:
        self.rows.append([])
        self.before = self.run.position.rows if self.run is not None and self.run.position.step else 0

    def on_safe_point(self) -> None:
        assert self.run is not None
        now = self.run.position.rows
        if now > self.before:  # at the end of an epoch it begins again
            self.rows[-1].append(now - self.before)
            self.before = now


class Interrupted(Counted):
    """Ends a run in its second epoch after one update, as a signal does: a checkpoint is taken."""

    def on_step(self, metrics: ws.StepMetrics) -> None:
        if metrics.epoch == 1 and self.run is not None:
            self.run.interrupted = True
            self.run.stop("interrupted")


def line() -> ws.nn.Module:
    model = ws.nn.Linear(3, 1, dtype="float64")
    model.load_state_dict(START)
    return model


def fit(model: ws.nn.Module, form: Form, data: Any, drop_last: bool, **settings: Any) -> ws.TrainHistory:
    own = {} if form.own_batches else {"batch_size": BATCH, "drop_last": drop_last}
    given: dict[str, Any] = {"loss": "mse", "optimizer": ws.SGD(lr=0.1), "epochs": EPOCHS, "seed": SEED}
    return ws.fit(model, data, **given, **own, options=quick(), progress=False, **settings)


def assert_weights(model: ws.nn.Module, wanted: dict[str, np.ndarray[Any, Any]]) -> None:
    for name, array in model.state_dict().items():
        np.testing.assert_allclose(array, wanted[name], rtol=1e-10, atol=1e-12)


# -- the table -----------------------------------------------------------------------------------------------------

LARGE = 100  # batches of an update: more than an epoch has
COUNTS = {"partial": ROWS, "full": 5 * BATCH, "one row left": 4 * BATCH + 1, "fewer than a batch": 3}


@pytest.mark.parametrize("shards", [None, 2])
@pytest.mark.parametrize("form", FORMS)
def test_updates_are_those_of_a_torch_loop(form: str, shards: int | None, tmp_path: Path) -> None:
    how = FORMS[form]
    for accumulate, drop_last, (what, rows) in product((1, 3, LARGE), (False, True), COUNTS.items()):
        cell = f"accumulate={accumulate}, drop_last={drop_last}, {what}"
        model, counted = line(), Counted()
        settings: dict[str, Any] = {"accumulate": accumulate, "shards": shards, "callbacks": counted}
        epochs, data = expected(how, rows, drop_last), how.make(rows, drop_last, tmp_path)
        if not epochs[0]:
            with pytest.raises(ws.errors.InputError, match="no batches"):
                fit(model, how, data, drop_last, **settings)
            continue
        history = fit(model, how, data, drop_last, **settings)
        wanted, weights = by_torch(epochs, accumulate)
        assert counted.rows == wanted, cell
        assert [e.steps for e in history.epochs] == [len(e) for e in wanted], cell
        assert_weights(model, weights)


@pytest.mark.parametrize("form", FORMS)
def test_a_run_goes_on_inside_an_epoch(form: str, tmp_path: Path) -> None:
    how = FORMS[form]
    for accumulate, drop_last in product((1, 3), (False, True)):
        folder, first, second = tmp_path / f"{accumulate} {drop_last}", Interrupted(), Counted()
        wanted, weights = by_torch(expected(how, ROWS, drop_last), accumulate)
        settings: dict[str, Any] = {"accumulate": accumulate, "checkpoint": folder}
        fit(line(), how, how.make(ROWS, drop_last, tmp_path), drop_last, callbacks=first, **settings)
        taken = ws.load_checkpoint(folder)
        assert (taken.position.epoch, taken.position.step) == (1, 1)
        if taken.data:  # batches, where `position` counts updates
            assert (taken.data["epoch"], taken.data["batch"]) == (1, accumulate)
        again = line()
        fit(again, how, how.make(ROWS, drop_last, tmp_path), drop_last, callbacks=second, resume=True, **settings)
        assert first.rows == [wanted[0], wanted[1][:1]]
        assert second.rows == [wanted[1][1:]]
        assert_weights(again, weights)


REFUSED: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "a generator": (lambda: (b for b in listed(ROWS, False, Path())), {}, "a generator, which can be read once"),
    "a generator function": (lambda: lambda: iter(()), {}, "an iterable of batches; received function"),
    "drop_last of an iterable": (lambda: listed(ROWS, False, Path()), {"drop_last": True}, "decides its own batches"),
    "no accumulate": (lambda: (X, Y), {"accumulate": 0}, "accumulate=0: expected an integer of at least 1"),
    "rows of two lengths": (
        lambda: [(X[:4], Y[:4]), (X[:4, :2], Y[:4])],
        {"accumulate": 2},
        r"accumulate=2 joins 2 batches to one update.* received .*\(4, 3\).*\(4, 2\).* train with accumulate=1",
    ),
    "an epoch without batches": (
        lambda: Fading(listed(ROWS, False, Path())),
        {"epochs": 3},
        "epoch 1: the data gave no batches, so nothing was trained. Give an iterable that starts again",
    ),
}


class Fading:
    """An iterable that has batches twice: once to be looked at, once for the first epoch."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches, self.left = batches, 2

    def __iter__(self) -> Iterator[Any]:
        self.left -= 1
        yield from self.batches if self.left >= 0 else []


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_fed_is_refused(case: str) -> None:
    make, settings, text = REFUSED[case]
    with pytest.raises(ws.errors.WholestepError, match=text):
        ws.fit(line(), make(), loss="mse", progress=False, options=quick(), **settings)


# -- a run, or a measurement, of nothing ---------------------------------------------------------------------------

FEW = X[:3], Y[:3]
NOTHING: dict[str, Callable[[], Any]] = {
    "arrays": lambda: ws.fit(line(), FEW, loss="mse", batch_size=16, drop_last=True, progress=False),
    "DataLoader": lambda: ws.fit(line(), few_loader(), loss="mse", progress=False),
    "Trainer": lambda: ws.Trainer(session(1)).train(few_loader(), 1),
    "validation": lambda: ws.fit(line(), (X, Y), validation=few_loader(), loss="mse", progress=False),
    "evaluate": lambda: line().evaluate(few_loader(), loss="mse"),
    "find_lr": lambda: ws.find_lr(line(), few_loader(), loss="mse"),
}


def few_loader() -> ws.DataLoader:
    return ws.DataLoader(*FEW, batch_size=16, drop_last=True)


def session(accumulate: int, **options: Any) -> ws.Session:
    specs = {"inputs": ws.Spec(("batch", 3), "float64"), "targets": ws.Spec(("batch", 1), "float64")}
    given = {"loss": "mse", "optimizer": ws.SGD(lr=0.1), "batch_size": BATCH, "options": quick(), **options}
    return ws.build_session(line(), **specs, accumulate=accumulate, **given)


@pytest.mark.parametrize("case", NOTHING)
def test_nothing_is_neither_trained_nor_measured(case: str) -> None:
    text = r"drop_last=True leaves out .* batch_size=16 is more than the rows .* smaller batch_size, or drop_last=False"
    with pytest.raises(ws.errors.InputError, match=text):
        NOTHING[case]()


def test_all_rows_are_one_batch_where_there_are_fewer() -> None:
    wanted = by_torch([[np.arange(3)]], 1)
    for data in (FEW, ws.DataLoader(*FEW, batch_size=16), Rows(3)):
        counted = Counted()
        ws.fit(line(), data, loss="mse", batch_size=16, callbacks=counted, progress=False, options=quick())
        assert counted.rows == wanted[0]


# -- a trainer, foreign loaders, iterables -------------------------------------------------------------------------


class Foreign:
    """Somebody's loader: the four methods that `Trainer.train` needs."""

    def shuffle(self, epoch: int) -> None:
        self.at = 0

    def reset(self) -> None:
        self.at = 0

    def next_batch(self) -> Any:
        rows = slice(self.at, self.at + BATCH)
        self.at += BATCH
        return ws.data.Batch(X[rows], Y[rows]) if rows.start < ROWS else None

    def __len__(self) -> int:
        return -(-ROWS // BATCH)


def test_a_trainer_takes_as_many_batches_as_its_session_says() -> None:
    for data in (ws.DataLoader(X, Y, BATCH, shuffle=False), Foreign()):
        for accumulate in (1, 3):
            counted = Counted()
            ws.Trainer(session(accumulate), ws.TrainConfig(log_interval=0), counted).train(data, 1)
            assert counted.rows == [[4, 4, 4, 4, 4, 2] if accumulate == 1 else [12, 10]]


@pytest.mark.parametrize("accumulate", [1, 2])
def test_parts_that_a_memory_limit_makes_are_no_batches(accumulate: int) -> None:
    layers = [m for _ in range(3) for m in (ws.nn.Linear(64, 64), ws.nn.GELU(), ws.nn.Dropout(0.1))]
    model, x, counted = ws.nn.Sequential(*layers, ws.nn.Linear(64, 10)), np.ones((1300, 64), np.float32), Counted()
    settings: dict[str, Any] = {"loss": "cross_entropy", "batch_size": 512, "memory": 0.6, "options": quick()}
    experiment = ws.Experiment(model=model, data=(x, np.zeros(1300, int)), accumulate=accumulate, **settings)
    trainer, loader = experiment.trainer()
    assert "accumulate=" in trainer.session.plan.notes[-1], "the batch was cut"
    trainer.callbacks.append(counted)
    trainer.train(loader, 1)
    assert counted.rows == [[512, 512, 276] if accumulate == 1 else [1024, 276]]


def test_a_loader_with_batches_that_are_too_large_for_a_session() -> None:
    text = r"accumulate=3: an update of this session takes 3 batches of at most 4 rows; the loader has batch_size=12"
    with pytest.raises(ws.errors.InputError, match=text):
        ws.Trainer(session(3)).train(ws.DataLoader(X, Y, 12), 1)


def test_an_iterable_may_have_larger_batches_than_batch_size() -> None:
    counted = Counted()
    batches = [(X[:20], Y[:20]), (X[20:], Y[20:])]
    ws.fit(line(), batches, loss="mse", batch_size=4, callbacks=counted, progress=False, options=quick())
    assert counted.rows == [[20, 2]]


def spread(output: Any, target: Any) -> Any:
    return (output - target).abs().max()


def test_a_loss_per_micro_batch_is_one_per_batch_of_any_data() -> None:
    error = np.abs(X @ START["weight"].T + START["bias"] - Y)
    wanted = np.mean([error[:4].max(), error[4:8].max(), error[8:10].max()])
    settings: dict[str, Any] = {"loss": spread, "accumulate": 3, "per_micro_batch": True, "shuffle": False}
    for data in ((X[:10], Y[:10]), ws.DataLoader(X[:10], Y[:10], 4, shuffle=False),
                 [(X[i : i + 4], Y[i : i + 4]) for i in (0, 4)] + [(X[8:10], Y[8:10])]):  # fmt: skip
        history = ws.fit(line(), data, batch_size=4, progress=False, options=quick(), **settings)
        assert history["loss"][0] == pytest.approx(wanted, rel=1e-12)
    uneven = [(X[:4], Y[:4]), (X[4:6], Y[4:6]), (X[6:10], Y[6:10])]
    with pytest.raises(ws.errors.InputError, match=r"each batch by itself.* received batches of 4, 2, 4 rows"):
        ws.fit(line(), uneven, progress=False, options=quick(), **settings)


# -- rows that a model cannot take, rows that only it can ----------------------------------------------------------


@pytest.mark.parametrize("form", ["arrays", "a data set", "DataLoader"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_one_row_before_batch_norm_is_told_before_the_first_step(form: str, accumulate: int) -> None:
    how, counted = FORMS[form], Counted()
    rows = 2 * BATCH * accumulate + 1
    net = ws.nn.Sequential(ws.nn.BatchNorm1d(3, dtype="float64"), line())
    settings: dict[str, Any] = {"accumulate": accumulate, "per_micro_batch": True, "callbacks": counted}
    with pytest.raises(ws.errors.InputError, match=r"batch=.*leave such a last batch out, drop_last=True"):
        fit(net, how, how.make(rows, False, Path()), False, **settings)
    assert counted.rows == []
    fit(net, how, how.make(rows, True, Path()), True, **settings)
    assert counted.rows == [[BATCH * accumulate] * 2] * EPOCHS


class Filled(ws.nn.Module):
    """Replaces NaN by itself."""

    def __init__(self) -> None:
        self.line = line()

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.line(ws.where(ws.isnan(x), 0.0, x))


def test_nan_goes_to_a_model_that_replaces_it() -> None:
    holes = X.copy()
    holes[2, 1] = np.nan
    plain = line()
    settings: dict[str, Any] = {"loss": "mse", "seed": SEED, "batch_size": BATCH, "progress": False}
    ws.fit(plain, (np.nan_to_num(holes), Y), **settings)
    for data in ((holes, Y), ws.DataLoader(holes, Y, BATCH, seed=SEED)):
        model = Filled()
        for nonfinite in ("raise", "skip"):
            with pytest.raises(ws.errors.InputError, match=r"'x' holds nan at \[2, 1\].* nonfinite='ignore' is for"):
                ws.fit(Filled(), data, **settings, nonfinite=nonfinite)
        ws.fit(model, data, validation=(holes, Y), **settings, nonfinite="ignore")
        for name, array in plain.state_dict().items():
            np.testing.assert_array_equal(model.line.state_dict()[name], array)
        with pytest.raises(ws.errors.InputError, match=r"'x' holds nan"):
            model.evaluate(data, loss="mse")
        found = model.evaluate(data, loss="mse", nonfinite="ignore")["loss"]
        assert found == pytest.approx(plain.evaluate(np.nan_to_num(holes), Y, loss="mse")["loss"], rel=1e-12)
    with pytest.raises(ws.errors.OptionError, match="nonfinite='skip': expected 'raise' or 'ignore'"):
        model.evaluate((holes, Y), loss="mse", nonfinite="skip")


def test_nan_goes_to_a_step_of_ones_own() -> None:
    @ws.step(inputs={"x": ws.Spec(("batch", 3)), "y": ws.Spec(("batch", 1))})
    def own(g: ws.Graph, x: ws.Tensor, y: ws.Tensor) -> Any:
        w = g.parameter("w", (3, 1))
        loss = ((ws.where(ws.isnan(x), 0.0, x) @ w - y) ** 2).mean()
        ws.SGD(lr=0.1).update(g, [w], ws.gradients(loss, [w]))
        return {"loss": loss}

    holes = X.astype(np.float32)
    holes[2, 1] = np.nan
    given: dict[str, Any] = {"batch_size": BATCH, "progress": False}
    with pytest.raises(ws.errors.InputError, match=r"holds nan at \[2, 1\]"):
        ws.fit(own, (holes, Y.astype(np.float32)), **given)
    assert np.isfinite(ws.fit(own, (holes, Y.astype(np.float32)), **given, nonfinite="ignore")["loss"]).all()
