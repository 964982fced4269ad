"""Over packed rows models compute, to 1e-10, what they compute for each sequence alone; others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import wholestep as ws
from wholestep.data import Ragged
from wholestep.errors import ShapeError, UsageError

WORDS, WIDTH = 11, 8
LENGTHS = [5, 0, 1, 7, 12, 3, 2, 9, 1, 4]


class Tagger(ws.nn.Module):
    """An embedding with positions, a body, and scores for each element, or for each sequence with `pool`."""

    def __init__(self, body: Callable[[ws.Tensor], Any], *layers: ws.nn.Module, pool: str | None = None) -> None:
        self.words = ws.nn.Embedding(WORDS, WIDTH, dtype="float64")
        self.places = ws.nn.Embedding(32, WIDTH, dtype="float64")
        self.layers, self.body = list(layers), body
        self.pool = None if pool is None else ws.nn.SequencePool(pool)
        self.head = ws.nn.Linear(WIDTH, 3, dtype="float64")

    def forward(self, tokens: ws.Tensor) -> ws.Tensor:
        x = self.body(self.words(tokens) + self.places(ws.positions(tokens)))
        out: ws.Tensor = self.head(x if self.pool is None else self.pool(x))
        return out


def _of(layer: ws.nn.Module, first: bool = False) -> Tagger:
    return Tagger(lambda x: layer(x)[0] if first else layer(x), layer)


def _recurrent(kind: Any, **options: Any) -> Tagger:
    return _of(kind(WIDTH, WIDTH, batch_first=True, dtype="float64", **options), first=True)


def _both_directions() -> Tagger:
    layer = ws.nn.GRU(WIDTH, WIDTH // 2, 2, batch_first=True, bidirectional=True, dtype="float64")
    return _of(layer, first=True)


def _convolution(**options: Any) -> Tagger:
    layer = ws.nn.Conv1d(WIDTH, WIDTH, 3, dtype="float64", **options)
    return Tagger(lambda x: layer(x.transpose(1, 2)).transpose(1, 2), layer)


SMALL = {"layers": 2, "width": WIDTH, "heads": 2, "vocabulary": WORDS, "context": 32, "dtype": "float64"}
MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: ws.models.gpt2(**SMALL),
    "llama": lambda: ws.models.llama(**SMALL, kv_heads=1),
    "bert": lambda: ws.models.bert(head="token_classes", classes=3, **SMALL),
    "lstm_lm": lambda: ws.models.lstm_lm(WORDS, WIDTH, 2, dtype="float64"),
    "attention": lambda: _of(ws.nn.MultiHeadAttention(WIDTH, 2, dtype="float64")),
    "rotary attention": lambda: _of(ws.nn.MultiHeadAttention(WIDTH, 2, rotary=True, causal=True, dtype="float64")),
    "transformer": lambda: _of(ws.nn.TransformerBlock(WIDTH, 2, causal=True, dropout=0.1, dtype="float64")),
    "attention with dropout": lambda: _of(
        ws.nn.TransformerBlock(WIDTH, 2, attention_dropout=0.2, dropout=0.1, dtype="float64")
    ),
    "rnn": lambda: _recurrent(ws.nn.RNN),
    "lstm": lambda: _recurrent(ws.nn.LSTM, num_layers=2),
    "gru both ways": _both_directions,
    "causal convolution": lambda: _convolution(padding="causal", dilation=2),
    "convolution": lambda: _convolution(padding="same", groups=2),
    "pointwise convolution": lambda: _of_pointwise(),
    **{pool: lambda pool=pool: _pooled(pool) for pool in ("mean", "sum", "max", "first", "last")},
}


def _of_pointwise() -> Tagger:
    layer = ws.nn.Conv1d(WIDTH, WIDTH, 1, dtype="float64")
    return Tagger(lambda x: layer(x.transpose(1, 2)).transpose(1, 2), layer)


def _pooled(how: str) -> Tagger:
    layer = ws.nn.TransformerBlock(WIDTH, 2, dtype="float64")
    return Tagger(lambda x: layer(x), layer, pool=how)


def _sequences(lengths: list[int], seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, WORDS, n) for n in lengths]


def _alone(model: Any, sequence: Any, device: str) -> Any:
    return model.predict(sequence[None], device=device)[0]


@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_each_sequence_alone(name: str) -> None:
    model, sequences = MODELS[name](), _sequences(LENGTHS)
    packed = model.predict(Ragged(sequences, capacity=16), device="reference")
    assert len(packed) == len(sequences)
    for sequence, out in zip(sequences, packed, strict=True):
        if len(sequence):
            np.testing.assert_allclose(out, _alone(model, sequence, "reference"), rtol=0, atol=1e-10)
        elif model.__dict__.get("pool") is None:
            assert out.shape[0] == 0


@pytest.mark.parametrize("name", ["gpt2", "llama", "lstm", "gru both ways", "causal convolution", "mean", "max"])
def test_the_cpu_computes_the_same(name: str) -> None:
    model, sequences = MODELS[name](), _sequences(LENGTHS)
    packed = Ragged(sequences, capacity=16)
    compiled, reference = model.predict(packed), model.predict(packed, device="reference")
    for one, other in zip(compiled, reference, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 24), min_size=1, max_size=12), st.integers(0, 99))
def test_any_lengths(lengths: list[int], seed: int) -> None:
    sequences = _sequences(lengths, seed)
    packed = _ANY.predict(Ragged(sequences, capacity=24, sequences_per_row=4), device="reference")
    for sequence, out in zip(sequences, packed, strict=True):
        assert len(out) == len(sequence)
        if len(sequence):
            np.testing.assert_allclose(out, _alone(_ANY, sequence, "reference"), rtol=0, atol=1e-10)


_ANY = MODELS["transformer"]()


# -- training ----------------------------------------------------------------------------------------------------


def _step_of_each_alone(model: Any, sequences: list[Any], targets: list[Any]) -> dict[str, Any]:
    """The weights after one step of SGD with the gradients summed over sequences, divided by the number of targets."""
    x = np.zeros((len(sequences), 16), np.int64)
    y, w = x.copy(), np.zeros((len(sequences), 16), np.float64)
    for i, (s, t) in enumerate(zip(sequences, targets, strict=True)):
        x[i, : len(s)], y[i, : len(s)], w[i, : len(s)] = s, t, 1.0
    ws.fit(model, (x, y, w), batch_size=len(x), shuffle=False, **_ONE_STEP)
    return model.state_dict()


_ONE_STEP: dict[str, Any] = {
    "loss": "cross_entropy", "optimizer": ws.SGD(lr=0.5), "device": "reference", "progress": False,
}  # fmt: skip


@pytest.mark.parametrize("name", ["gpt2", "lstm", "causal convolution"])
def test_a_step_is_that_of_padded_sequences(name: str) -> None:
    """Causal models do not see padding behind a sequence, so padded rows with weights are the oracle."""
    sequences = _sequences(LENGTHS)
    targets = [(s * 7 + 1) % 3 for s in sequences]
    one, other = MODELS[name](), MODELS[name]()
    other.load_state_dict(one.state_dict())
    expected = _step_of_each_alone(one, sequences, targets)
    ws.fit(other, Ragged(sequences, targets, capacity=16), batch_size=16, **_ONE_STEP)
    for key, value in other.state_dict().items():
        np.testing.assert_allclose(value, expected[key], rtol=0, atol=1e-10, err_msg=key)


def test_the_next_element_is_predicted_within_a_sequence() -> None:
    sequences = [s for s in _sequences(LENGTHS) if len(s) > 1]
    model = MODELS["gpt2"]()
    measured = model.evaluate(
        Ragged(sequences, "next", capacity=16), loss="cross_entropy", metrics=["accuracy"], device="reference"
    )
    losses, right = [], []
    for s in sequences:
        scores = _alone(model, s[:-1], "reference")
        losses += list(np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(s) - 1), s[1:]])
        right += list(scores.argmax(-1) == s[1:])
    assert measured["loss"] == pytest.approx(np.mean(losses), abs=1e-10)
    assert measured["accuracy"] == pytest.approx(np.mean(right), abs=1e-12)


def test_a_label_for_each_sequence() -> None:
    sequences = _sequences(LENGTHS)
    labels = np.arange(len(sequences)) % 3
    weights = np.linspace(0.5, 2.0, len(sequences))
    model = MODELS["mean"]()
    data = Ragged(sequences, labels, capacity=16, sample_weight=weights)
    measured = model.evaluate(data, loss="cross_entropy", metrics=["accuracy"], device="reference")
    scores = model.predict(data, device="reference")
    assert scores.shape == (len(sequences), 3)
    losses = np.log(np.exp(scores).sum(-1)) - scores[np.arange(len(labels)), labels]
    weights = weights.astype(np.float32)
    assert measured["loss"] == pytest.approx(np.average(losses, weights=weights), abs=1e-7)
    assert measured["accuracy"] == pytest.approx(np.average(scores.argmax(-1) == labels, weights=weights), abs=1e-7)


def test_classes_and_probabilities_are_by_sequence() -> None:
    sequences = _sequences(LENGTHS)
    model, data = MODELS["lstm"](), Ragged(sequences, capacity=16)
    classes = model.predict_classes(data, scores="softmax", device="reference")
    shares = model.predict(data, probabilities="softmax", device="reference")
    for s, c, p in zip(sequences, classes, shares, strict=True):
        assert c.shape == (len(s),)
        np.testing.assert_allclose(p.sum(-1), 1.0)


# -- refusals -----------------------------------------------------------------------------------------------------


def _absolute(x: ws.Tensor) -> ws.Tensor:
    return x + ws.arange(x.shape[1]).astype("float64").reshape((1, -1, 1))


REFUSED: dict[str, tuple[Callable[[ws.Tensor], Any], str]] = {
    "mean over time": (lambda x: x - x.mean(1, keepdims=True), "SequencePool"),
    "sum over time": (lambda x: x.sum(1), "SequencePool"),
    "maximum over time": (lambda x: x - x.max(1, keepdims=True), "SequencePool"),
    "last element": (lambda x: x[:, -1], "SequencePool"),
    "running sum": (lambda x: ws.cumsum(x, 1), "row"),
    "absolute positions": (_absolute, "ws.positions"),
    "reversed": (lambda x: ws.flip(x, 1), "row"),
    "shifted": (lambda x: ws.pad(x, [(0, 0), (1, 0), (0, 0)])[:, :-1], "row"),
    "mixed by a product": (lambda x: ws.matmul(ws.softmax(ws.matmul(x, x.transpose(1, 2))), x), "row"),
    "scan": (lambda x: ws.scan(lambda h, s: (h + s, h), x[:, 0] * 0.0, x.transpose(0, 1))[1].transpose(0, 1), "row"),
    "two-dimensional convolution": (
        lambda x: ws.conv2d(x.reshape((x.shape[0], 1, *x.shape[1:])), np.ones((1, 1, 3, 1)), padding=(1, 0)).reshape(
            x.shape
        ),
        "conv2d",
    ),
    "statistics of a batch": (lambda x: x - ws.stop_gradient(x.mean((0, 1), keepdims=True)), "SequencePool"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_sequences_is_refused_with_the_fix(name: str) -> None:
    body, fix = REFUSED[name]
    model = Tagger(body)
    with pytest.raises(UsageError, match=f"packed .*{fix}"):
        model.predict(Ragged(_sequences(LENGTHS), capacity=16), device="reference")


def test_the_last_state_of_a_row_is_refused() -> None:
    lstm = ws.nn.LSTM(WIDTH, WIDTH, batch_first=True, dtype="float64")
    model = Tagger(lambda x: lstm(x)[1][0][0], lstm)
    with pytest.raises(UsageError, match="SequencePool"):
        model.predict(Ragged(_sequences(LENGTHS), capacity=16), device="reference")


def test_batch_norm_is_refused() -> None:
    norm = ws.nn.BatchNorm1d(WIDTH, dtype="float64")
    model = Tagger(lambda x: norm(x.transpose(1, 2)).transpose(1, 2), norm)
    with pytest.raises(UsageError, match="LayerNorm"):
        ws.fit(model, Ragged(_sequences(LENGTHS), [s % 3 for s in _sequences(LENGTHS)]), **_ONE_STEP)


def test_a_memory_of_another_length_is_refused() -> None:
    layer = ws.nn.MultiHeadAttention(WIDTH, 2, dtype="float64")
    model = Tagger(lambda x: layer(x, x[:, :4]), layer)
    with pytest.raises((UsageError, ShapeError), match="packed"):
        model.predict(Ragged(_sequences(LENGTHS), capacity=16), device="reference")


def test_a_state_is_refused() -> None:
    lstm = ws.nn.GRU(WIDTH, WIDTH, batch_first=True, dtype="float64")
    model = Tagger(lambda x: lstm(x, x[:, :1].transpose(0, 1))[0], lstm)
    with pytest.raises(UsageError, match="leave out state"):
        model.predict(Ragged(_sequences(LENGTHS), capacity=16), device="reference")


def test_a_convolution_that_changes_the_length_is_refused() -> None:
    layer = ws.nn.Conv1d(WIDTH, WIDTH, 3, dtype="float64")
    model = Tagger(lambda x: layer(x.transpose(1, 2)).transpose(1, 2), layer)
    with pytest.raises((UsageError, ShapeError), match='padding "causal" or "same"'):
        model.predict(Ragged(_sequences(LENGTHS), capacity=16), device="reference")
