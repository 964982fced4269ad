"""DataLoader: orders, positions, sources, prefetching, errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.compiler.runtime.epoch_permutation import epoch_order
from wholestep.data import Balanced, DataLoader, Sequential, Subset, Weighted
from wholestep.data.order import RankRows

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10, dtype=np.int32)


def labels(loader: DataLoader) -> list[int]:
    return [int(y) for batch in loader for y in batch.labels]


def test_an_epoch_is_a_permutation_and_a_function_of_seed_and_epoch() -> None:
    one, same, other = (DataLoader(X, Y, 3, seed=s) for s in (1, 1, 2))
    first = labels(one)
    assert sorted(first) == list(range(10))
    assert first == labels(same) != labels(other)
    assert first != labels(one), "the next epoch has another order"
    assert first == epoch_order(1, 0, 10).tolist(), "the order of the native loop"


def test_the_interface_of_a_training_loop() -> None:
    loader = DataLoader(X, Y, 4)
    assert len(loader) == 3
    loader.shuffle(5)
    loader.reset()
    taken = list(iter(loader.next_batch, None))
    assert [b.rows for b in taken] == [4, 4, 2]
    assert loader.next_batch() is None
    loader.reset()
    again = loader.next_batch()
    assert again is not None
    np.testing.assert_array_equal(again.data, taken[0].inputs)
    np.testing.assert_array_equal(again.labels, taken[0].targets)
    np.testing.assert_array_equal(again.data[:, 0], 2 * again.labels)


def test_drop_last_and_sequential_order() -> None:
    loader = DataLoader((X, Y), batch_size=4, shuffle=False, drop_last=True)
    assert len(loader) == 2
    assert labels(loader) == list(range(8))


@pytest.mark.parametrize("prefetch", [0, 2])
def test_seeking_and_states_continue_where_they_were(prefetch: int) -> None:
    noise = [ws.data.Noise(0.1), ws.data.Flip()]
    loader = DataLoader(X, Y, 3, seed=7, transform=noise, prefetch=prefetch)
    whole = [[b.inputs for b in loader] for _ in range(2)]
    fresh = DataLoader(X, Y, 3, seed=7, transform=noise)
    fresh.seek(1, 2)
    state = fresh.state_dict()
    for resumed in (fresh, DataLoader(X, Y, 3, transform=noise)):
        resumed.load_state_dict(state)
        for expected, found in zip(whole[1][2:], resumed, strict=True):
            np.testing.assert_array_equal(found.inputs, expected)


def test_named_arrays_and_weights() -> None:
    batch = DataLoader(({"a": X, "b": Y}, {"kind": Y}, np.ones(10)), batch_size=5).next_batch()
    assert batch is not None
    assert list(batch.named()) == ["a", "b", "kind", "sample_weight"]
    assert list(DataLoader(X).next_batch().named()) == ["x"]  # type: ignore[union-attr]


def test_torch_datasets_and_rows() -> None:
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y))
    batch = DataLoader(data, batch_size=4, shuffle=False).next_batch()
    assert batch is not None
    np.testing.assert_array_equal(batch.inputs, X[:4])
    np.testing.assert_array_equal(batch.targets, Y[:4])


def test_iterables_of_batches() -> None:
    class Endless:
        def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
            yield X[:6], Y[:6]
            yield X[6:], Y[6:]

    loader = DataLoader(Endless())
    assert labels(loader) == labels(loader) == list(range(10))
    once = DataLoader((X[i : i + 5], Y[i : i + 5]) for i in (0, 5))
    assert labels(once) == list(range(10))
    with pytest.raises(ws.errors.UsageError, match="a generator, which can be read once"):
        labels(once)
    with pytest.raises(ws.errors.UsageError, match="number of batches of an iterable is not known"):
        len(loader)


def test_prefetching_keeps_order_and_hands_errors_over() -> None:
    def failing() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield X[:5], Y[:5]
        raise OSError("the disk is gone")

    assert labels(DataLoader(X, Y, 3, prefetch=2)) == labels(DataLoader(X, Y, 3))
    loader = iter(DataLoader(failing(), prefetch=1))
    assert next(loader).rows == 5
    with pytest.raises(OSError, match="the disk is gone"):
        next(loader)


def test_a_reader_that_stops_early_stops_the_thread() -> None:
    before = set(threading.enumerate())
    batches = iter(DataLoader(X, Y, 1, prefetch=2))
    next(batches)
    assert "wholestep-prefetch" in {t.name for t in set(threading.enumerate()) - before}
    batches.close()  # type: ignore[attr-defined]
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def test_samplers() -> None:
    assert sorted(labels(DataLoader(X, Y, 4, sampler=Subset([1, 3, 5])))) == [1, 3, 5]
    assert labels(DataLoader(X, Y, 4, sampler=Subset([5, 1], shuffle=False))) == [5, 1]
    only = Weighted([0.0] * 9 + [1.0])
    assert labels(DataLoader(X, Y, 4, sampler=only)) == [9] * 10
    rare = np.r_[np.zeros(90, int), np.ones(10, int)]
    drawn = rare[Balanced(rare, draws=4000).rows(0, 0, 100)]
    assert 0.45 < drawn.mean() < 0.55


def test_arrays_are_offered_to_the_native_loop_only_where_nothing_is_changed() -> None:
    assert DataLoader(X, Y).arrays() is not None
    assert DataLoader(X, Y, drop_last=True).arrays() is not None  # an epoch has len(loader) batches of them
    for loader in (DataLoader(X, Y, transform=ws.data.Flip()), DataLoader([(X, Y)])):
        assert loader.arrays() is None
    assert DataLoader(X, Y).shuffles
    assert not DataLoader(X, Y, sampler=Sequential()).shuffles


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: DataLoader(X, Y[:5]), "all arrays need one row per example; received .*'labels': 5"),
        (lambda: DataLoader(X[:0], Y[:0]), "the data set is empty"),
        (lambda: DataLoader(X, Y, 0), "batch_size must be an integer of at least 1; received 0"),
        (lambda: DataLoader(3.0), "received float"),
        (lambda: DataLoader({}), "empty dict"),
        (lambda: DataLoader(np.array([object()])), "is not an array of numbers"),
        (lambda: labels(DataLoader(X, Y, sampler=Subset([10]))), "indices go from 0 to 9; received 10 to 10"),
        (lambda: labels(DataLoader(X, Y, sampler=Weighted([1.0]))), "the data has 10 rows; received 1 weights"),
        (lambda: Weighted([0.0, 0.0]), "not all 0"),
        (lambda: Subset([]), "no rows to visit"),
        (lambda: DataLoader([(X, Y)], drop_last=True), "decides its own order and batches"),
        (lambda: DataLoader(X, Y).seek(0, 99), "an epoch has 1 batches; received batch 99"),
    ],
)
def test_errors_teach(make, text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        make()


# -- what a fit makes of a loader --------------------------------------------------------------------------------

ROWS = np.arange(24, dtype=np.float64)[:, None]


class Seen(ws.nn.Module):
    """One weight that does not move: the loss of a step is the mean of its rows."""

    def __init__(self) -> None:
        self.weight = ws.nn.Parameter((1,), 1.0, "float64")

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return x * self.weight


def losses(loader: DataLoader, **options: object) -> list[float]:
    """Of every step of two epochs."""
    seen = ws.LossHistory()
    ws.fit(
        Seen(), loader, loss=lambda output, target: output.mean(), optimizer=ws.SGD(lr=0.0), epochs=2,
        callbacks=seen, progress=False, **options,
    )  # fmt: skip
    return seen.losses


def by_hand(seed: int, size: int = 4) -> list[float]:
    order = [epoch_order(seed, epoch, 24) for epoch in range(2)]
    return [float(rows[i : i + size].mean()) for rows in order for i in range(0, 24, size)]


def same(x: np.ndarray, draw: object) -> np.ndarray:
    return x


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_seed_of_a_loader_is_the_order_of_a_fit(accumulate: int) -> None:
    for seed in (1, 2):
        for transform, prefetch in (((), 0), (same, 0), (same, 3)):
            loader = DataLoader(ROWS, ROWS, 4, seed=seed, transform=transform, prefetch=prefetch)
            assert losses(loader, seed=7, accumulate=accumulate) == pytest.approx(by_hand(seed, 4 * accumulate))
    assert by_hand(1) != by_hand(2)


@pytest.mark.parametrize("transform", [(), same])
def test_a_resumed_fit_keeps_the_seed_of_its_loader(transform: object, tmp_path: object) -> None:
    def loader() -> DataLoader:
        return DataLoader(ROWS, ROWS, 4, seed=5, transform=transform)  # type: ignore[arg-type]

    def part(**options: object) -> list[float]:
        seen = ws.LossHistory()
        ws.fit(
            Seen(), loader(), loss=lambda output, target: output.mean(), optimizer=ws.SGD(lr=0.0), epochs=2,
            progress=False, **{"callbacks": seen, **options},
        )  # fmt: skip
        return seen.losses

    seen = ws.LossHistory()
    part(callbacks=[seen, ws.StepBudget(8), ws.ModelCheckpoint(tmp_path, "loss", last=1, every=1)])  # type: ignore[arg-type]
    assert [*seen.losses, *part(resume=tmp_path)] == pytest.approx(by_hand(5))


@pytest.mark.parametrize("slow", [False, True])
def test_prefetching_a_stream_changes_no_number(slow: bool) -> None:
    """Rows are numbered when a batch is made, whoever reads, and however late; batches may have any size."""
    batches = [(np.zeros((rows, 3)), np.arange(rows)) for rows in (2, 40, 5, 33, 1)]
    wanted = [b.inputs for b in DataLoader(batches, seed=3, transform=ws.data.Noise(1.0))]
    assert len(np.unique(np.concatenate(wanted))) == 3 * 81, "no two rows draw the same numbers"
    loader = DataLoader(batches, seed=3, transform=ws.data.Noise(1.0), prefetch=4)
    for epoch in range(2):
        got = []
        for batch in loader:
            got.append(batch.inputs)
            time.sleep(0.02 if slow else 0.0)
        assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True)) == (epoch == 0)
    loader.seek(0, 2)
    np.testing.assert_array_equal(next(iter(loader)).inputs, wanted[2])
    plain = DataLoader(batches, seed=3, transform=ws.data.Noise(1.0))
    plain.seek(0, 2)
    again = plain.next_batch()
    assert again is not None
    np.testing.assert_array_equal(again.inputs, wanted[2])


def test_a_worker_reads_its_own_rows_of_every_micro_batch_alone() -> None:
    class Items:
        read: ClassVar[list[int]] = []

        def __len__(self) -> int:
            return 11

        def __getitem__(self, row: int) -> tuple[Any, Any]:
            Items.read.append(row)
            return np.full(3, row, np.float32), row

    whole = list(DataLoader(Items(), batch_size=8, shuffle=True, seed=1, transform=ws.data.Noise(0.5)))
    read: list[int] = []
    for rank in range(3):
        loader = DataLoader(Items(), batch_size=8, shuffle=True, seed=1, transform=ws.data.Noise(0.5))
        loader.own = RankRows(rank, 3, 4)
        Items.read.clear()
        for made, expected in zip(loader, whole, strict=True):
            places = loader.own.of(expected.rows)
            assert made.rows == expected.rows
            np.testing.assert_array_equal(made.inputs[places], expected.inputs[places])
            np.testing.assert_array_equal(made.targets[places], expected.targets[places])
            assert not np.delete(made.inputs, places, axis=0).any()
        read += Items.read
    assert sorted(read) == list(range(11))
    assert RankRows(0, 3, 4).of(7).tolist() == [0, 4]
    assert RankRows(2, 3, 4).of(7).tolist() == [2, 3, 6]


# -- a loop over a loader is one epoch ---------------------------------------------------------------------------


class Ten:
    """A data set that is read row by row, and never raises IndexError."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return X[row % 10], Y[row % 10]


class Pairs:
    """An iterable of batches that begins anew."""

    def __iter__(self) -> Iterator[Any]:
        return ((X[i : i + 3], Y[i : i + 3]) for i in range(0, 10, 3))


LOADERS: dict[str, Any] = {
    "arrays": lambda: DataLoader(X, Y, 3),
    "transformed": lambda: DataLoader(X, Y, 3, transform=same),
    "prefetched": lambda: DataLoader(Ten(), batch_size=3, prefetch=2),
    "rows": lambda: DataLoader(Ten(), batch_size=3),
    "an iterable": lambda: DataLoader(Pairs()),
    "an iterable, prefetched": lambda: DataLoader(Pairs(), prefetch=2),
}


def fitted(loader: DataLoader) -> None:
    ws.fit(ws.nn.Linear(2, 10), loader, loss="cross_entropy", epochs=2, progress=False)


def trained(loader: DataLoader) -> None:
    session = ws.build_session(
        ws.nn.Linear(2, 10), inputs=ws.Spec(("batch", 2)), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy",
        batch_size=3,
    )  # fmt: skip
    ws.Trainer(session, ws.TrainConfig(log_interval=0)).train(loader, 2)


def evaluated(loader: DataLoader) -> None:
    ws.nn.Linear(2, 10).evaluate(loader, loss="cross_entropy")


def broken_off(loader: DataLoader) -> None:
    for _ in loader:
        break


BEFORE: dict[str, Any] = {
    "nothing": lambda loader: None,
    "fit": fitted,
    "Trainer.train": trained,
    "evaluate": evaluated,
    "a peek": lambda loader: next(iter(loader)),
    "a loop that was left": broken_off,
    "next_batch": lambda loader: loader.next_batch(),
    "an epoch": labels,
    "the end of a seek": lambda loader: loader.seek(0, 4),
}


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("kind", LOADERS)
def test_a_loop_has_every_batch_of_an_epoch_whatever_came_before(kind: str, before: str) -> None:
    loader = LOADERS[kind]()
    if kind.startswith("an iterable") and before == "the end of a seek":
        return  # of an iterable nobody knows where that is
    BEFORE[before](loader)
    for _ in range(2):
        assert [batch.rows for batch in loader] == [3, 3, 3, 1]
        assert sorted(labels(loader)) == list(range(10))


@pytest.mark.parametrize("kind", LOADERS)
def test_two_loops_over_one_loader_are_independent(kind: str) -> None:
    loader = LOADERS[kind]()
    pairs = list(zip(loader, loader, strict=False))
    assert len(pairs) == 4
    for side in (0, 1):
        assert sorted(int(y) for pair in pairs for y in pair[side].labels) == list(range(10))
    inner = [(a.rows, sum(b.rows for b in loader)) for a in loader]
    assert inner == [(3, 10)] * 3 + [(1, 10)]


def test_a_loop_that_is_left_is_an_epoch_too() -> None:
    """As in PyTorch: the next loop has another order, and does not begin with the same batches again."""
    loader = DataLoader(X, Y, 3)
    orders = [next(iter(loader)).labels.tolist() for _ in range(3)]
    assert orders == [epoch_order(0, epoch, 10)[:3].tolist() for epoch in range(3)]


@pytest.mark.parametrize("kind", LOADERS)
def test_a_state_taken_inside_a_loop_goes_on_there_once(kind: str) -> None:
    loader, again = LOADERS[kind](), LOADERS[kind]()
    seen = []
    for batch in loader:
        seen.append(batch.labels.tolist())
        if len(seen) == 2:
            state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (0, 2)
    again.load_state_dict(state)
    assert [b.labels.tolist() for b in again] == seen[2:]
    assert sorted(labels(again)) == list(range(10))


def test_a_sampler_and_drop_last_say_what_is_measured() -> None:
    model = ws.nn.Linear(2, 10)
    subset = DataLoader(X, Y, 4, sampler=Subset([1, 3, 5]))
    wanted = model.evaluate(X[[1, 3, 5]], Y[[1, 3, 5]], loss="cross_entropy")["loss"]
    assert model.evaluate(subset, loss="cross_entropy")["loss"] == pytest.approx(wanted, rel=1e-6)
    full = DataLoader(X, Y, 4, shuffle=False, drop_last=True)
    wanted = model.evaluate(X[:8], Y[:8], loss="cross_entropy")["loss"]
    assert model.evaluate(full, loss="cross_entropy")["loss"] == pytest.approx(wanted, rel=1e-6)
    history = ws.fit(model, (X, Y), validation=full, loss="cross_entropy", progress=False)
    assert history["val_loss"][0] == pytest.approx(model.evaluate(X[:8], Y[:8], loss="cross_entropy")["loss"], rel=1e-6)
