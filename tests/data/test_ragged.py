"""`ws.data.Ragged`: reading, packing, and packed rows in fit, evaluate, predict and loaders."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wholestep as ws
from wholestep.compiler.frontend.layers.segments import OFFSETS
from wholestep.data import DataLoader, Ragged
from wholestep.data.sequences.packing import pack
from wholestep.errors import InputError, OptionError, ShapeError, UsageError, WholestepError

WORDS = 9
RNG = np.random.default_rng(3)
LENGTHS = [5, 1, 7, 12, 3, 2, 9, 1, 4, 6, 2, 8]
SEQUENCES = [RNG.integers(0, WORDS, n) for n in LENGTHS]
QUIET: dict[str, Any] = {"loss": "cross_entropy", "device": "reference", "progress": False}


def model() -> Any:
    return ws.models.gpt2(layers=1, width=8, heads=2, vocabulary=WORDS, context=32)


# -- packing ------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(2, 9))
def test_every_sequence_has_its_place(lengths: list[int], slots: int) -> None:
    sizes = np.array(lengths)
    row, slot, rows = pack(sizes, 20, slots)
    assert len({*zip(row.tolist(), slot.tolist(), strict=True)}) == len(lengths)
    for r in range(rows):
        of_row = np.flatnonzero(row == r)
        assert sizes[of_row].sum() <= 20
        assert sorted(slot[of_row]) == list(range(len(of_row)))
        assert len(of_row) <= slots


def test_rows_are_full() -> None:
    """Lines of text fill all but a few percent of their rows."""
    lengths = np.minimum(np.random.default_rng(0).geometric(1 / 28, 5000), 64)
    _, _, rows = pack(lengths, 128, 33)
    assert lengths.sum() / (rows * 128) > 0.97


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=20), st.booleans())
def test_rows_hold_the_sequences(lengths: list[int], features: bool) -> None:
    rng = np.random.default_rng(1)
    sequences = [rng.normal(size=(n, 2) if features else n) for n in lengths]
    ragged = Ragged(sequences, capacity=12)
    unpacked = ragged.unpack(ragged.table.inputs["x"])
    for sequence, same in zip(sequences, unpacked, strict=True):
        np.testing.assert_array_equal(sequence, same)


def test_weights_are_those_of_targets() -> None:
    weights = np.arange(1, len(LENGTHS) + 1, dtype=np.float32)
    table = Ragged(SEQUENCES, "next", sample_weight=weights).table
    assert table.weights is not None
    assert table.weights.sum() == pytest.approx(float((weights * (np.array(LENGTHS) - 1)).sum()))
    counted = table.weights > 0
    assert counted.sum() == sum(LENGTHS) - len(LENGTHS)
    assert (counted == (np.arange(table.capacity) < table.inputs[OFFSETS][:, -1:])).all()


# -- what it reads ------------------------------------------------------------------------------------------------


def _flat() -> tuple[Any, Any]:
    return np.concatenate(SEQUENCES), np.cumsum([0, *LENGTHS])


def _polars() -> Any:
    """Arrow lists, in chunks."""
    lists = [s.tolist() for s in SEQUENCES]
    return pl.Series(lists[:5]).append(pl.Series(lists[5:]))


FORMS: dict[str, Any] = {
    "arrays": lambda: SEQUENCES,
    "lists": lambda: [s.tolist() for s in SEQUENCES],
    "objects": lambda: np.array(SEQUENCES, dtype=object),
    "values and offsets": _flat,
    "arrow": _polars,
    "pandas": lambda: pd.Series(SEQUENCES),
    "dict": lambda: {"x": SEQUENCES},
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_sequences(form: str) -> None:
    read, expected = Ragged(FORMS[form](), capacity=16), Ragged(SEQUENCES, capacity=16)
    assert len(read) == len(SEQUENCES)
    for name, array in expected.table.columns.items():
        np.testing.assert_array_equal(read.table.columns[name], array)


@pytest.mark.parametrize("form", ["arrays", "objects", "arrow", "pandas"])
def test_lists_go_into_fit_evaluate_and_predict(form: str) -> None:
    data, targets = FORMS[form](), [(s + 1) % WORDS for s in SEQUENCES]
    net = model()
    history = ws.fit(net, (data, targets), metrics=["accuracy"], batch_size=2, epochs=2, **QUIET)
    assert history["loss"][-1] < history["loss"][0]
    measured = net.evaluate(data, targets, device="reference")
    assert measured == net.evaluate(Ragged(SEQUENCES, targets), device="reference")
    assert [len(out) for out in net.predict(data, device="reference")] == LENGTHS
    batches = list(DataLoader((data, targets), batch_size=2, shuffle=False))
    assert {*batches[0].named()} == {"x", OFFSETS, "labels", "sample_weight"}


@pytest.mark.parametrize("column", [np.array, pl.Series, pd.Series])
def test_a_target_for_each_sequence_is_any_column(column: Any) -> None:
    targets = np.arange(len(LENGTHS))
    expected, read = (Ragged(SEQUENCES, t, capacity=16).table.columns for t in (targets, column(targets)))
    for name, array in expected.items():
        np.testing.assert_array_equal(read[name], array)


def test_a_slice_of_arrow_lists() -> None:
    read = Ragged(pl.Series([s.tolist() for s in SEQUENCES], dtype=pl.List(pl.Int16)).slice(2, 4), capacity=16)
    for out, sequence in zip(read.unpack(read.table.inputs["x"]), SEQUENCES[2:6], strict=True):
        np.testing.assert_array_equal(out, sequence)


WRONG: dict[str, tuple[Any, type[WholestepError], str]] = {
    "nothing": (lambda: Ragged([]), InputError, "no sequences"),
    "text": (lambda: Ragged(["ab", "c"]), InputError, "Number the symbols"),
    "one array": (lambda: Ragged("abc"), UsageError, "list of arrays"),
    "too long": (lambda: Ragged(SEQUENCES, capacity=8), InputError, r"capacity=12, or cut"),
    "capacity": (lambda: Ragged(SEQUENCES, capacity=0), OptionError, "capacity"),
    "slots": (lambda: Ragged(SEQUENCES, sequences_per_row=True), OptionError, "sequences_per_row"),
    "word": (lambda: Ragged(SEQUENCES, "previous"), UsageError, "'next'"),
    "targets": (lambda: Ragged(SEQUENCES, SEQUENCES[1:]), ShapeError, "lengths"),
    "labels": (lambda: Ragged(SEQUENCES, np.zeros(3)), ShapeError, "12 sequences"),
    "both": (lambda: Ragged(SEQUENCES, {"a": SEQUENCES, "b": np.zeros(12)}), UsageError, "all must be alike"),
    "weights": (lambda: Ragged(SEQUENCES, "next", sample_weight=[1.0]), ShapeError, "sample_weight"),
    "inputs": (lambda: Ragged({"a": SEQUENCES, "b": SEQUENCES[::-1]}), ShapeError, "same lengths"),
    "features": (lambda: Ragged([np.zeros((2, 3)), np.zeros((2, 4))]), ShapeError, "different shapes"),
    "missing": (lambda: Ragged(pl.Series([[1, None], [2]])), InputError, "missing"),
    "offsets": (lambda: Ragged((np.zeros(4), np.array([0, 3]))), InputError, "increase from 0 to 4"),
    "single elements": (lambda: Ragged([[1], [2]], "next").table, InputError, "none to predict"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_data(name: str) -> None:
    make, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        make()


# -- runs --------------------------------------------------------------------------------------------------------


def test_rows_are_held_out_by_sequence() -> None:
    data = Ragged(SEQUENCES, "next", capacity=16)
    train, held = ws.data.split(data, 0.25)
    assert (len(train), len(held)) == (9, 3)
    history = ws.fit(model(), data, validation=0.25, batch_size=2, metrics=["accuracy"], **QUIET)
    assert len(history["val_accuracy"]) == 1


def test_validation_has_rows_of_the_same_size() -> None:
    short = [s[:3] for s in SEQUENCES]
    history = ws.fit(model(), Ragged(SEQUENCES, "next"), validation=Ragged(short, "next"), batch_size=2, **QUIET)
    assert np.isfinite(history["val_loss"][-1])
    with pytest.raises(InputError, match="validation: a sequence of 40 elements"):
        ws.fit(model(), Ragged(SEQUENCES, "next"), validation=Ragged([np.zeros(41, int)], "next"), **QUIET)


def test_a_run_resumes_with_the_same_bits(tmp_path: Path) -> None:
    data = Ragged(SEQUENCES, "next", capacity=16)
    whole, parts = model(), model()
    parts.load_state_dict(whole.state_dict())
    ws.fit(whole, data, batch_size=2, epochs=3, **QUIET)
    ws.fit(parts, data, batch_size=2, epochs=1, checkpoint=tmp_path / "run", **QUIET)
    ws.fit(parts, data, batch_size=2, epochs=3, checkpoint=tmp_path / "run", resume=True, **QUIET)
    for name, value in whole.state_dict().items():
        np.testing.assert_array_equal(value, parts.state_dict()[name])


def test_accumulated_batches_are_one_batch() -> None:
    """Rows have different numbers of targets; the denominator is that of all rows together."""
    data = Ragged(SEQUENCES, "next", capacity=16)
    one, other = model(), model()
    other.load_state_dict(one.state_dict())
    options: dict[str, Any] = {"optimizer": ws.SGD(lr=0.5), "shuffle": False, **QUIET}
    ws.fit(one, data, batch_size=4, **options)
    ws.fit(other, data, batch_size=2, accumulate=2, **options)
    for name, value in one.state_dict().items():
        np.testing.assert_allclose(other.state_dict()[name], value, atol=2e-6)


def test_nothing_is_compiled_for_other_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    from wholestep.session.running import prediction

    built: list[object] = []
    build = prediction._predictor
    monkeypatch.setattr(prediction, "_predictor", lambda *a: built.append(a) or build(*a))
    net = model()
    for seed in range(4):
        rng = np.random.default_rng(seed)
        net.predict(Ragged([rng.integers(0, WORDS, n) for n in rng.permutation(9)], capacity=16), device="reference")
    assert len(built) == 1


def test_a_model_that_needs_no_boundaries() -> None:
    """The offsets are not an input of its program, and are left out."""
    net = ws.nn.Sequential(ws.nn.Embedding(WORDS, 4), ws.nn.Linear(4, WORDS))
    history = ws.fit(net, Ragged(SEQUENCES, "next"), loss="cross_entropy", epochs=2, batch_size=2, progress=False)
    assert history["loss"][-1] < history["loss"][0]


def test_the_report_states_the_padding() -> None:
    data = Ragged(SEQUENCES, "next", capacity=16)
    share = 100 * (1 - (sum(LENGTHS) - len(LENGTHS)) / (len(data.table) * 16))
    assert f"{share:.1f} % of it padding" in repr(data)
    trainer, _ = ws.Experiment(model=model(), data=data, loss="cross_entropy", device="reference").trainer()
    assert re.search(
        rf"note: sequences are packed into rows of 16 elements, {share:.1f} %", str(trainer.session.report())
    )


def test_several_inputs_and_metrics_per_element() -> None:
    class Two(ws.nn.Module):
        def __init__(self) -> None:
            self.words, self.kinds = ws.nn.Embedding(WORDS, 8), ws.nn.Embedding(2, 8)
            self.mix, self.head = ws.nn.LSTM(8, 8, batch_first=True), ws.nn.Linear(8, 1)

        def forward(self, words: ws.Tensor, kinds: ws.Tensor) -> ws.Tensor:
            out: ws.Tensor = self.head(self.mix(self.words(words) + self.kinds(kinds))[0])
            return out

    inputs = {"words": SEQUENCES, "kinds": [s % 2 for s in SEQUENCES]}
    targets = [(s[:, None] / WORDS).astype(np.float32) for s in SEQUENCES]
    net, options = Two(), {**QUIET, "loss": "mse"}
    history = ws.fit(net, Ragged(inputs, targets), metrics=["mae", "r2"], batch_size=2, epochs=3, **options)
    outputs = net.predict(Ragged(inputs), device="reference")
    measured = net.evaluate(Ragged(inputs, targets), device="reference")
    errors = np.concatenate(outputs) - np.concatenate(targets)
    assert history["loss"][-1] < history["loss"][0]
    assert measured["loss"] == pytest.approx(float((errors**2).mean()), rel=1e-5)
    assert measured["mae"] == pytest.approx(float(np.abs(errors).mean()), rel=1e-5)
    assert measured["r2"] == pytest.approx(
        1 - (errors**2).sum() / (len(errors) * np.concatenate(targets).var()), rel=1e-4
    )


def test_the_loss_of_an_epoch_is_the_mean_over_targets() -> None:
    """Updates have different numbers of targets; with a learning rate of 0 the mean is that of `evaluate`."""
    data, net = Ragged(SEQUENCES, "next", capacity=16), model()
    history = ws.fit(net, data, optimizer=ws.SGD(lr=0.0), batch_size=2, **QUIET)
    assert len({int((b.weights > 0).sum()) for b in DataLoader(data, batch_size=2)}) > 1
    assert history["loss"][-1] == pytest.approx(net.evaluate(data, device="reference")["loss"], rel=1e-6)


def test_balanced_classes_are_counted_without_padding() -> None:
    labels = [s % 3 for s in SEQUENCES]
    counts = np.bincount(np.concatenate(labels))
    given = {c: counts.sum() / (3 * n) for c, n in enumerate(counts)}
    losses = []
    for weights in ("balanced", given):
        ws.manual_seed(0)
        net = ws.nn.Sequential(ws.nn.Embedding(WORDS, 4), ws.nn.Linear(4, 3))
        losses.append(ws.fit(net, Ragged(SEQUENCES, labels), class_weight=weights, seed=1, **QUIET)["loss"])
    assert losses[0] == losses[1]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "privacy": ({"privacy": ws.Privacy(noise=1.0, clip=1.0)}, "privacy= protects single rows"),
    "per_row": ({"per_row": ["loss"]}, "per_row= measures single rows"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_about_single_rows_are_refused(name: str) -> None:
    options, text = REFUSED[name]
    with pytest.raises(UsageError, match=text):
        ws.fit(model(), Ragged(SEQUENCES, "next"), **options, **QUIET)
