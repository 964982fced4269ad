"""Cells, transformers, dropout of attention and of channels, embeddings with padding, weights that are computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wholestep as ws
from tests.nn.twins import assert_twins

RNG = np.random.default_rng(5)
ROWS, SEQUENCE, MEMORY = RNG.normal(size=(4, 6)), RNG.normal(size=(2, 5, 8)), RNG.normal(size=(2, 3, 8))
CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


class First(nn.Module):
    """The part of a state that is h."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.cell = kind(6, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.cell(x, self.cell(x * 0.5))
        return state[0] * state[1] if isinstance(state, tuple) else state


class OurFirst(ws.nn.Module):
    def __init__(self, kind: type[ws.nn.Module]) -> None:
        self.cell = kind(6, 5)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        state = self.cell(x, self.cell(x * 0.5))
        return state[0] * state[1] if isinstance(state, tuple) else state


class TorchDecoder(nn.TransformerDecoderLayer):
    def __init__(self, norm_first: bool) -> None:
        super().__init__(8, 2, 32, 0.0, batch_first=True, norm_first=norm_first)

    def forward(self, x: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, memory, tgt_mask=CAUSAL)


class TorchTransformer(nn.Transformer):
    def __init__(self) -> None:
        super().__init__(8, 2, 1, 1, 32, 0.0, batch_first=True)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(source, target, tgt_mask=CAUSAL)


TWINS: dict[str, tuple[Callable[[], ws.nn.Module], Callable[[], nn.Module], list[np.ndarray]]] = {
    **{
        f"{kind} cell": (
            lambda k=kind: OurFirst(getattr(ws.nn, f"{k}Cell")), lambda k=kind: First(getattr(nn, f"{k}Cell")), [ROWS]
        )
        for kind in ("RNN", "LSTM", "GRU")
    },
    "block, norms behind": (
        lambda: ws.nn.TransformerBlock(8, 2, norm_first=False, activation=ws.relu),
        lambda: nn.TransformerEncoderLayer(8, 2, 32, 0.0, batch_first=True), [SEQUENCE],
    ),
    "decoder": (lambda: ws.nn.TransformerDecoderBlock(8, 2), lambda: TorchDecoder(False), [SEQUENCE, MEMORY]),
    "decoder, norms first": (
        lambda: ws.nn.TransformerDecoderBlock(8, 2, norm_first=True), lambda: TorchDecoder(True), [SEQUENCE, MEMORY],
    ),
    "transformer": (
        lambda: ws.nn.Transformer(8, 2, 1, 1, dropout=0.0), TorchTransformer, [MEMORY, SEQUENCE],
    ),
    "weight norm": (
        lambda: ws.nn.weight_norm(ws.nn.Linear(6, 5, dtype="float64")),
        lambda: torch.nn.utils.weight_norm(nn.Linear(6, 5)), [ROWS],
    ),
    "weight norm of a convolution": (
        lambda: ws.nn.weight_norm(ws.nn.Conv1d(5, 4, 3, dtype="float64")),
        lambda: torch.nn.utils.weight_norm(nn.Conv1d(5, 4, 3)), [SEQUENCE],
    ),
    "embedding with padding": (
        lambda: ws.nn.Embedding(7, 4, padding=2), lambda: nn.Embedding(7, 4, padding_idx=2),
        [np.array([[0, 2, 3], [2, 6, 2]])],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")  # torch's newer one has other names
@pytest.mark.parametrize("layer", TWINS)
def test_layer_equals_torchs(layer: str) -> None:
    torch.manual_seed(0)
    ours, theirs, inputs = TWINS[layer]
    assert_twins(ours(), theirs(), inputs, "float64", device="reference")


def test_weight_norm_begins_with_the_layers_own_weight() -> None:
    plain = ws.nn.Linear(6, 5)
    before = plain.state_dict()["weight"]
    found = ws.nn.weight_norm(plain).state_dict()
    lengths = np.linalg.norm(before, axis=1, keepdims=True)
    np.testing.assert_allclose(found["weight_v"] / lengths * found["weight_g"], before, rtol=1e-6)


def test_spectral_norm_divides_by_the_largest_singular_value_and_improves_it() -> None:
    layer = ws.nn.spectral_norm(ws.nn.Linear(6, 5, bias=False))
    x = RNG.normal(size=(16, 6)).astype(np.float32)
    ws.fit(layer, (x, x[:, :5]), loss="mse", epochs=4, batch_size=8, device="reference", optimizer=ws.SGD(lr=0.2))
    numbers = layer.state_dict()
    largest = np.linalg.svd(numbers["weight_orig"])[1][0]
    np.testing.assert_allclose(
        layer.predict(x, device="reference"), x @ (numbers["weight_orig"] / largest).T, rtol=2e-2, atol=2e-2
    )
    assert np.linalg.norm(numbers["weight_u"]) == pytest.approx(1.0, rel=1e-5)


def test_a_row_for_padding_begins_as_zeros_and_stays_while_others_learn() -> None:
    tokens = RNG.integers(0, 5, (16, 3)).astype(np.int32)
    model = ws.nn.Sequential(ws.nn.Embedding(5, 4, padding=0), ws.nn.Flatten(), ws.nn.Linear(12, 1))
    ws.fit(model, (tokens, tokens[:, :1].astype(np.float32)), loss="mse", batch_size=8, device="reference")
    table = model.state_dict()["0.weight"]
    assert (table[0] == 0).all()
    assert (table[1:] != 0).all()


# -- attention whose weights are dropped -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "shared heads"])
def test_dropped_weights_of_attention_are_torchs_with_the_same_ones_dropped(kind: str) -> None:
    """Values are the unit vectors, so that what comes out are the weights, and what was dropped can be seen."""
    heads = 2 if kind == "shared heads" else 4
    q, k = RNG.normal(size=(2, 4, 5, 3)), RNG.normal(size=(2, heads, 5, 3))
    mask = np.where(np.arange(5)[:, None] == 3, False, np.arange(5) < 4) if kind == "masked" else None  # row 3: none
    g = ws.Graph()
    tensors = [g.parameter(n, a.shape, init=a, dtype="float64") for n, a in (("q", q), ("k", k))]
    v = g.parameter("v", (2, heads, 5, 5), init=np.broadcast_to(np.eye(5), (2, heads, 5, 5)).copy(), dtype="float64")
    out = ws.attention(*tensors, v, causal=kind == "causal", mask=mask, dropout=0.4).keep("out")
    upstream = RNG.normal(size=(2, 4, 5, 5))
    grads = ws.gradients((out * upstream).sum(), [*tensors, v])
    g.set_outputs({"loss": (out * upstream).sum(), **{f"d{i}": d for i, d in enumerate(grads)}})
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.0), device="reference")
    found = session.step({})
    theirs = [torch.tensor(a, requires_grad=True) for a in (q, k, np.broadcast_to(np.eye(5), (2, heads, 5, 5)).copy())]
    wide = [t.repeat_interleave(4 // heads, 1) for t in theirs[1:]]
    scores = theirs[0] @ wide[0].mT * 3**-0.5
    if kind == "causal":
        scores = scores.masked_fill(CAUSAL, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~torch.tensor(mask), -1e9)
    weights = scores.softmax(-1)
    weights = weights * torch.tensor(mask) if mask is not None else weights
    kept = torch.tensor(found["out"] != 0)
    share = kept[weights > 1e-6].double().mean()
    assert 0.4 < share < 0.8
    expected = (weights * kept / 0.6) @ wide[1]
    np.testing.assert_allclose(found["out"], expected.detach().numpy(), atol=1e-9)
    (expected * torch.tensor(upstream)).sum().backward()
    for i, t in enumerate(theirs):
        np.testing.assert_allclose(found[f"d{i}"], t.grad.numpy(), atol=1e-8)


def test_dropped_attention_learns_and_predicts_with_nothing_dropped() -> None:
    torch.manual_seed(0)
    x = RNG.normal(size=(24, 5, 8)).astype(np.float32)
    model = ws.nn.TransformerBlock(8, 2, dropout=0.1, attention_dropout=0.2, norm_first=False, hidden=16)
    history = ws.fit(
        model, (x, np.roll(x, 1, 1)), loss="mse", epochs=4, batch_size=8, device="reference", precision="bfloat16",
        optimizer=ws.Adam(lr=1e-2),
    )  # fmt: skip
    assert history["loss"][-1] < history["loss"][0]
    twin = nn.TransformerEncoderLayer(8, 2, 16, 0.2, nn.functional.gelu, batch_first=True).eval()
    twin.load_state_dict({name: torch.tensor(a) for name, a in model.state_dict().items()})
    with torch.no_grad():
        np.testing.assert_allclose(model.predict(x, device="reference"), twin(torch.tensor(x)).numpy(), atol=2e-5)


def test_heads_may_have_a_width_of_their_own() -> None:
    layer = ws.nn.MultiHeadAttention(6, 4, head_width=3)
    assert layer.parameters()["in_proj_weight"].shape == (36, 6)
    assert layer.predict(np.ones((2, 5, 6), np.float32), device="reference").shape == (2, 5, 6)


# -- whole channels, whole branches ------------------------------------------------------------------------------------


def test_whole_channels_and_whole_examples_are_dropped() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 6, 3, 4))
    channels, rows = ws.nn.Dropout2d(0.5)(x).keep("channels"), ws.nn.DropPath(0.5)(x).keep("rows")
    g.set_outputs({"loss": (channels + rows).sum() * g.parameter("w", (), init=1.0)})
    given = {"x": np.ones((20, 6, 3, 4), np.float32)}
    session = ws.build_session(g, optimizer=ws.SGD(lr=0.0), batch_size=20, device="reference")
    out = session.step(given)
    for name, axes in (("channels", (2, 3)), ("rows", (1, 2, 3))):
        alike = out[name].min(axes) == out[name].max(axes)
        assert alike.all()
        assert set(np.unique(out[name])) == {0.0, 2.0}
    plain = ws.nn.Sequential(ws.nn.Dropout1d(0.5), ws.nn.Dropout3d(0.0))
    np.testing.assert_array_equal(plain.predict(given["x"][:, 0], device="reference"), given["x"][:, 0])


class Movie(ws.nn.Module):
    def __init__(self) -> None:
        self.remember, self.draw = ws.nn.ConvLSTM2d(1, 3, 3), ws.nn.Conv2d(3, 1, 1)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.draw(self.remember(x)[1][0])


def test_a_convolutional_lstm_is_an_lstm_of_every_pixel_and_learns() -> None:
    """With kernels of one pixel it is torch's LSTM over all of them."""
    video = RNG.normal(size=(2, 4, 3, 2, 2))
    theirs, ours = nn.LSTM(3, 5, batch_first=True).double(), ws.nn.ConvLSTM2d(3, 5, 1).astype("float64")
    pixels = torch.tensor(video).permute(0, 3, 4, 1, 2).reshape(8, 4, 3)
    numbers = {n.removesuffix("_l0"): a.detach().numpy() for n, a in theirs.state_dict().items()}
    ours.load_state_dict({
        "weight_ih": numbers["weight_ih"][..., None, None], "weight_hh": numbers["weight_hh"][..., None, None],
        "bias": numbers["bias_ih"] + numbers["bias_hh"],
    })  # fmt: skip
    out, _ = ours.predict(video, device="reference")
    with torch.no_grad():
        expected = theirs(pixels)[0].reshape(2, 2, 2, 4, 5).permute(0, 3, 4, 1, 2)
    np.testing.assert_allclose(out, expected.numpy(), atol=1e-12)
    x = RNG.normal(size=(12, 3, 1, 4, 4)).astype(np.float32)
    history = ws.fit(
        Movie(), (x, x[:, -1]), loss="mse", epochs=4, batch_size=6, device="reference", optimizer=ws.Adam(lr=3e-2)
    )
    assert history["loss"][-1] < history["loss"][0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ws.nn.LSTMCell(6, 5)(SEQUENCE), r"takes one step, \(batch, 6\); .* use ws.nn.LSTM\."),
        (lambda: ws.nn.Embedding(4, 2, padding=4), "padding must be an index from 0 to 3; received 4"),
        (lambda: ws.nn.weight_norm(ws.nn.ReLU()), "takes a layer with a 'weight' of two or more axes"),
        (lambda: ws.nn.ConvLSTM2d(2, 3, 3)(SEQUENCE), r"takes \(batch, time, 2, H, W\); received"),
        (lambda: ws.nn.Dropout2d(0.5)(ROWS), r"Dropout2d drops slices of \(N, C, ...\); received \(batch, 6\)"),
        (lambda: ws.nn.MultiHeadAttention(10, 3), "or say how wide a head is: head_width="),
    ],
)
def test_errors_teach(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        make()
