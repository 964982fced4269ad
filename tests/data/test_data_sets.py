"""Data sets with `len` and `[i]` wherever data goes in; several inputs without names; no rows; sparse matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws

RNG = np.random.default_rng(1)
ROWS = 30
X = RNG.normal(size=(ROWS, 6)).astype(np.float32)
A, B = X[:, :4], X[:, 4:]
Y = RNG.integers(0, 3, ROWS).astype(np.int32)
GIVEN: dict[str, Any] = {"loss": "cross_entropy", "batch_size": 8, "progress": False}


class Examples:
    """What a user writes: `len` is right, and no index is ever too large."""

    def __init__(self, item: Callable[[int], Any], rows: int = ROWS) -> None:
        self.item, self.rows, self.read = item, rows, list[int]()

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Any:
        assert row < self.rows, f"row {row} was read of {self.rows}"
        self.read.append(row)
        return self.item(row)


class Two(ws.nn.Module):
    """Takes two inputs, under names of its own."""

    def __init__(self) -> None:
        self.left, self.right = ws.nn.Linear(4, 3), ws.nn.Linear(2, 3)

    def forward(self, first: ws.Tensor, second: ws.Tensor) -> ws.Tensor:
        return self.left(first) + self.right(second)


class Together(Two):
    """The same over any number of inputs."""

    def forward(self, *inputs: ws.Tensor) -> ws.Tensor:
        return self.left(inputs[0]) + self.right(inputs[1])


def plain() -> ws.nn.Module:
    return ws.nn.Linear(6, 3)


def started(model: ws.nn.Module) -> ws.nn.Module:
    rng = np.random.default_rng(2)
    model.load_state_dict({name: rng.normal(size=a.shape).astype(a.dtype) for name, a in model.state_dict().items()})
    return model


# The model, data sets of it, and the arrays that they hold: inputs as `predict` takes them.
CASES: dict[str, tuple[Callable[[], ws.nn.Module], Callable[[], Any], Any, tuple[Any, ...]]] = {
    "(x, y)": (plain, lambda: Examples(lambda i: (X[i], Y[i])), (X, Y), (X,)),
    "(x, y), labels of Python": (plain, lambda: Examples(lambda i: (X[i], int(Y[i]))), (X, Y), (X,)),
    "tensors": (plain, lambda: Examples(lambda i: (torch.tensor(X[i]), torch.tensor(Y[i]))), (X, Y), (X,)),
    "a torch Dataset": (
        plain, lambda: torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(Y)), (X, Y), (X,),
    ),
    "a list of examples": (plain, lambda: [(X[i], int(Y[i])) for i in range(ROWS)], (X, Y), (X,)),
    "((a, b), y)": (Two, lambda: Examples(lambda i: ((A[i], B[i]), Y[i])), ((A, B), Y), (A, B)),
    "((a, b), y), any number": (Together, lambda: Examples(lambda i: ((A[i], B[i]), Y[i])), ((A, B), Y), (A, B)),
    "({...}, y)": (
        Two, lambda: Examples(lambda i: ({"first": A[i], "second": B[i]}, Y[i])), ({"first": A, "second": B}, Y),
        (A, B),
    ),
}  # fmt: skip


def weights(model: ws.nn.Module) -> list[bytes]:
    return [array.tobytes() for array in model.state_dict().values()]


@pytest.mark.parametrize("case", CASES)
def test_a_data_set_trains_measures_and_predicts_as_its_arrays_do(case: str) -> None:
    make, data, arrays, inputs = CASES[case]
    model, other = started(make()), started(make())
    wanted = ws.fit(model, arrays, validation=0.2, **GIVEN)
    found = ws.fit(other, data(), validation=0.2, **GIVEN)
    assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-6)
    assert found["val_loss"] == pytest.approx(wanted["val_loss"], rel=1e-6)
    assert weights(model) == weights(other)
    by_arrays = model.evaluate(arrays, loss="cross_entropy", metrics=["accuracy"])
    assert other.evaluate(data(), loss="cross_entropy", metrics=["accuracy"]) == pytest.approx(by_arrays)
    if case != "a list of examples":  # a list is an array, row by row
        np.testing.assert_array_equal(other.predict(data()), model.predict(*inputs))
        np.testing.assert_array_equal(other.predict_classes(data()), model.predict_classes(*inputs))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "how", [{}, {"shuffle": False}, {"stratify": True}, {"groups": np.arange(ROWS) // 3}], ids=lambda how: "".join(how)
)
def test_a_data_set_is_split_as_its_arrays_are(case: str, how: dict[str, Any]) -> None:
    make, data, arrays, _ = CASES[case]
    found, wanted = ws.data.split(data(), 0.2, seed=3, **how), ws.data.split(arrays, 0.2, seed=3, **how)
    for part, table in zip(found, wanted, strict=True):
        assert len(part) == len(table)
        for name, array in table.columns.items():
            got = next(iter(ws.DataLoader(part, batch_size=ROWS, shuffle=False))).named()[name]
            np.testing.assert_array_equal(got, array)
    model = make()
    history = ws.fit(model, found[0], validation=found[1], **GIVEN)
    loss = model.evaluate(found[1], loss="cross_entropy")["loss"]
    assert history["val_loss"][0] == pytest.approx(loss, rel=1e-6)
    np.testing.assert_allclose(model.predict(found[1]), model.predict(wanted[1]), rtol=1e-6, atol=1e-6)


def test_splitting_reads_nothing_and_len_says_how_much_there_is() -> None:
    data = Examples(lambda i: (X[i], Y[i]))
    train, held = ws.data.split(data, 0.2)
    assert data.read == []
    assert (len(train), len(held), str(held)) == (24, 6, "6 examples of Examples")
    assert sum(1 for _ in held) == 6
    inner, _ = ws.data.split(train, 0.5)
    assert len(inner) == 12
    rows = sorted(int(y) for part in ws.data.folds(data, 3) for _, y in part[1])
    assert rows == sorted(Y.tolist())


def test_a_frame_and_parts_of_it_predict() -> None:
    model = plain()
    _, held = ws.data.split((X, Y), 0.2)
    np.testing.assert_array_equal(model.predict(held), model.predict(held.inputs["x"]))


def test_a_model_that_was_trained_on_several_inputs_is_summarised() -> None:
    model = Two()
    ws.fit(model, ((A, B), Y), **GIVEN)
    assert "left Linear" in str(model.summary())


# -- no rows -------------------------------------------------------------------------------------------------------


class Named(ws.nn.Module):
    def __init__(self) -> None:
        self.layer = ws.nn.Linear(6, 3)

    def forward(self, x: ws.Tensor) -> dict[str, ws.Tensor]:
        return {"scores": self.layer(x), "largest": self.layer(x).max(axis=1)}


class Pair(Named):
    def forward(self, x: ws.Tensor) -> Any:
        return tuple(super().forward(x).values())


class Mean(ws.nn.Module):
    def __init__(self) -> None:
        self.layer = ws.nn.Linear(6, 3)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.layer(x) - self.layer(x).mean(axis=0, keepdims=True)


def test_no_rows_give_outputs_of_no_rows() -> None:
    model = plain()
    assert model.predict(X[:0]).shape == (0, 3)
    assert model.predict(X[:0]).dtype == np.float32
    assert model.predict(X[:0], probabilities="softmax").shape == (0, 3)
    assert model.predict_classes(X[:0], scores="softmax").shape == (0,)
    assert Two().predict(A[:0], B[:0]).shape == (0, 3)
    assert {n: a.shape for n, a in Named().predict(X[:0]).items()} == {"scores": (0, 3), "largest": (0,)}
    assert [a.shape for a in Pair().predict(X[:0])] == [(0, 3), (0,)]
    with pytest.raises(ws.errors.ShapeError, match="takes 6 features"):
        model.predict(X[:0, :5])
    with pytest.raises(ws.errors.InputError, match="Mean has no output row for each input row"):
        Mean().predict(X[:0])


def test_no_rows_of_a_frame() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": X[:, 0], "kind": ["u", "v", "w"] * 10})
    model = ws.models.Tabular()
    ws.fit(model, (frame, Y), **GIVEN)
    assert model.predict(frame[:0]).shape == (0, 3)
    assert model.predict_classes(frame[:0]).shape == (0,)
    assert plain().predict(pandas.DataFrame(X)[:0]).shape == (0, 3)
    numeric = ws.models.Tabular()
    ws.fit(numeric, (frame[["a"]], Y), **GIVEN)
    assert numeric.predict(frame[["a"]][:0]).shape == (0, 3)
    with pytest.raises(ws.errors.InputError, match="the table is empty"):
        ws.fit(ws.models.Tabular(), (frame[:0], Y[:0]), **GIVEN)


# -- what is refused -----------------------------------------------------------------------------------------------


def sparse(x: Any) -> Any:
    return pytest.importorskip("scipy.sparse").csr_matrix(x)


DENSE = r"received a sparse matrix of shape \(30, 6\) \(csr_matrix\); a step takes dense arrays. Give x.toarray\(\)"
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "sparse, fit": (lambda: ws.fit(plain(), (sparse(X), Y), **GIVEN), DENSE),
    "sparse, predict": (lambda: plain().predict(sparse(X)), DENSE),
    "sparse, evaluate": (lambda: plain().evaluate(sparse(X), Y, loss="cross_entropy"), DENSE),
    "sparse, DataLoader": (lambda: ws.DataLoader(sparse(X), Y), DENSE),
    "sparse, split": (lambda: ws.data.split((sparse(X), Y), 0.2), DENSE),
    "a data set and labels": (
        lambda: ws.fit(plain(), (Examples(lambda i: X[i]), Y), **GIVEN),
        "'x' received a data set, Examples, where an array is expected. Give the data set alone, without labels",
    ),
    "a data set for an input of a step": (
        lambda: Two().predict(Examples(lambda i: A[i]), B),
        "the input 'first' received a data set, Examples",
    ),
    "too many inputs": (lambda: ws.fit(plain(), ((A, B), Y), **GIVEN), "forward takes x; the data has 2 inputs"),
    "too few inputs": (lambda: ws.fit(Two(), (X, Y), **GIVEN), "takes first, second; the data has one input. Give"),
    "a loader to split": (
        lambda: ws.data.split(ws.DataLoader(X, Y), 0.2),
        r"DataLoader gives batches of it. Split what it reads, .*train, held = ws.data.split\(data, 0.2\)",
    ),
    "validation of a loader": (
        lambda: ws.fit(plain(), ws.DataLoader(X, Y, shuffle=False), validation=0.2, **GIVEN),
        r"received DataLoader. .*split\(data, 0.2, shuffle=False\); then ws.fit\(model, ws.DataLoader\(train\), val",
    ),
    "validation of an iterable": (
        lambda: ws.fit(plain(), [(X, Y)], validation=0.2, **GIVEN),
        r"received list, an iterable of batches. Give other data to validation=: \(x, y\)",
    ),
    "an empty data set": (lambda: ws.data.split(Examples(lambda i: X[i], 0), 0.2), r"data set is empty: len\(\) is 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_data_is_told(case: str) -> None:
    call, text = WRONG[case]
    with pytest.raises(ws.errors.WholestepError, match=text):
        call()
