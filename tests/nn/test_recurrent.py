"""RNN, LSTM and GRU against torch's: the same weights by the same names, values and every gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import OptionError, ShapeError

INPUTS, HIDDEN, CAPACITY = 3, 18, {"time": 9, "batch": 20}
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


@dataclass
class Twins:
    session: ws.Session
    theirs: torch.nn.Module
    batch_first: bool
    dtype: str

    def compare(self, time: int, batch: int) -> None:
        """Values, the last state, and the gradient of every parameter."""
        shape = (batch, time, INPUTS) if self.batch_first else (time, batch, INPUTS)
        x = np.random.default_rng(time).normal(size=shape).astype(self.dtype)
        self.session.step(x=x)
        self.theirs.zero_grad()
        out, last = self.theirs(torch.tensor(x))
        ends = last if isinstance(last, tuple) else (last,)
        loss_of(out, ends).backward()
        self.close("out", out)
        for i, end in enumerate(ends):
            self.close(f"end{i}", end)
        for name, p in self.theirs.named_parameters():
            self.close(f"{name}.grad", p.grad)

    def close(self, name: str, theirs: Any) -> None:
        want = theirs.detach().numpy()
        scale = max(1e-4, float(np.abs(want).max()))
        assert np.abs(self.session.get(name) - want).max() <= TOLERANCE[self.dtype] * scale, name


def loss_of(out: Any, ends: Any) -> Any:
    return (out * out).sum() + sum((e * e * e).sum() for e in ends)


def twins(kind: str, dtype: str = "float64", threads: int = 2, **options: Any) -> Twins:
    ours = getattr(ws.nn, kind)(INPUTS, HIDDEN, **options, dtype=dtype)
    theirs = getattr(torch.nn, kind)(INPUTS, HIDDEN, **options, dtype=getattr(torch, dtype))
    batch_first = options.get("batch_first", False)
    g = ws.Graph()
    x = g.input("x", ("batch", "time", INPUTS) if batch_first else ("time", "batch", INPUTS), dtype)
    out, last = ours(x)
    ends = last if isinstance(last, tuple) else (last,)
    loss = loss_of(out, ends)
    grads = {f"{name}.grad": d for name, d in ws.gradients(loss, ours).items()}
    g.set_outputs({"loss": loss, "out": out, **{f"end{i}": e for i, e in enumerate(ends)}, **grads})
    session = ws.build_inference_session(g, capacity=CAPACITY, threads=threads)
    assert {f"{name}.grad" for name, _ in theirs.named_parameters()} == set(grads)
    for name, value in theirs.state_dict().items():
        session.set(name, value.numpy())
    return Twins(session, theirs, batch_first, dtype)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "both directions, batch first": {"num_layers": 2, "bidirectional": True, "batch_first": True},
    "no bias": {"bias": False},
}
CASES = [
    *(("LSTM", name) for name in OPTIONS),
    ("RNN", "two layers"),
    ("GRU", "both directions, batch first"),
    ("GRU", "no bias"),
]


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_equals_torch_in_float64(kind: str, name: str) -> None:
    pair = twins(kind, **OPTIONS[name])
    for time, batch in ((9, 20), (1, 1), (5, 7)):  # whole, least, and a part of the capacity
        pair.compare(time, batch)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
def test_equals_torch_in_float32(kind: str) -> None:
    twins(kind, "float32", threads=3).compare(8, 13)


def test_relu_cells_equal_torch() -> None:
    twins("RNN", nonlinearity="relu").compare(6, 5)


def test_a_given_state_is_where_the_loop_begins() -> None:
    model = ws.nn.LSTM(INPUTS, HIDDEN, dtype="float64")
    theirs = torch.nn.LSTM(INPUTS, HIDDEN, dtype=torch.float64)
    g = ws.Graph()
    x, h, c = (
        g.input(n, (s, "batch", w), "float64") for n, s, w in (("x", 4, INPUTS), ("h", 1, HIDDEN), ("c", 1, HIDDEN))
    )
    out, (hn, cn) = model(x, (h, c))
    g.set_outputs({"out": out, "hn": hn, "cn": cn})
    session = ws.build_inference_session(g, capacity={"batch": 5})
    for name, value in theirs.state_dict().items():
        session.set(name, value.numpy())
    rng = np.random.default_rng(0)
    values = {n: rng.normal(size=(s, 3, w)) for n, s, w in (("x", 4, INPUTS), ("h", 1, HIDDEN), ("c", 1, HIDDEN))}
    session.step(**values)
    want, (h_want, c_want) = theirs(torch.tensor(values["x"]), (torch.tensor(values["h"]), torch.tensor(values["c"])))
    for name, value in (("out", want), ("hn", h_want), ("cn", c_want)):
        np.testing.assert_allclose(session.get(name), value.detach().numpy(), rtol=1e-9, atol=1e-12)


def test_dropout_between_layers_is_off_in_prediction() -> None:
    class Outputs(ws.nn.Module):
        def __init__(self, dropout: float) -> None:
            self.gru = ws.nn.GRU(INPUTS, HIDDEN, num_layers=2, dropout=dropout)

        def forward(self, x: ws.Tensor) -> ws.Tensor:
            return self.gru(x)[0]

    dropping, plain = Outputs(0.5), Outputs(0.0)
    plain.load_state_dict(dropping.state_dict())
    x = np.random.default_rng(0).normal(size=(4, 3, INPUTS)).astype(np.float32)
    np.testing.assert_array_equal(dropping(x), plain(x))


def test_mistakes() -> None:
    g = ws.Graph()
    with pytest.raises(ShapeError, match=r"LSTM\(3, 18\) takes \(time, batch, 3\); received \(time, batch, 4\)"):
        ws.nn.LSTM(3, 18)(g.input("a", ("time", "batch", 4)))
    other = ws.Graph()
    with pytest.raises(ShapeError, match=r"state must be a pair \(h, c\) of tensors of shape \(1, batch, 18\)"):
        ws.nn.LSTM(3, 18)(other.input("b", ("time", "batch", 3)), other.input("h", (1, "batch", 18)))
    with pytest.raises(OptionError, match="GRU: hidden must be an integer of at least 1; received 0"):
        ws.nn.GRU(3, 0)
    with pytest.raises(OptionError, match="RNN: nonlinearity is 'tanh' or 'relu'; received 'elu'"):
        ws.nn.RNN(3, 4, nonlinearity="elu")
    with pytest.raises(OptionError, match="LSTM: dropout must be a probability"):
        ws.nn.LSTM(3, 4, dropout=2.0)


def test_a_layer_called_on_an_array_gives_its_states_as_forward_does() -> None:  # N6
    x = np.random.default_rng(0).normal(size=(6, 3, 2)).astype(np.float32)
    out, (hidden, cell) = ws.nn.LSTM(2, 4, num_layers=2)(x)
    assert (out.shape, hidden.shape, cell.shape) == ((6, 3, 4), (2, 3, 4), (2, 3, 4))
    np.testing.assert_array_equal(out[-1], hidden[-1])


# -- rows of different lengths -------------------------------------------------------------------------------------

LENGTHS = np.array([5, 1, 9, 4, 0], np.int32)


@pytest.mark.parametrize("kind", ["RNN", "LSTM", "GRU"])
@pytest.mark.parametrize("by", ["lengths", "mask"])
def test_rows_of_different_lengths_equal_torchs_packed_sequences(kind: str, by: str) -> None:
    options: dict[str, Any] = {"num_layers": 2, "bidirectional": True, "batch_first": True}
    ours = getattr(ws.nn, kind)(INPUTS, HIDDEN, **options, dtype="float64")
    theirs = getattr(torch.nn, kind)(INPUTS, HIDDEN, **options, dtype=torch.float64)
    g = ws.Graph()
    x = g.input("x", ("batch", 9, INPUTS), "float64")
    if by == "lengths":
        out, last = ours(x, lengths=g.input("lengths", ("batch",), "int32"))
        given = {"lengths": LENGTHS}
    else:
        out, last = ours(x, mask=g.input("mask", ("batch", 9), "bool"))
        given = {"mask": np.arange(9) < LENGTHS[:, None]}
    ends = last if isinstance(last, tuple) else (last,)
    loss = loss_of(out, ends)
    grads = {f"{name}.grad": d for name, d in ws.gradients(loss, ours).items()}
    g.set_outputs({"loss": loss, "out": out, **{f"end{i}": e for i, e in enumerate(ends)}, **grads})
    session = ws.build_inference_session(g, capacity={"batch": 5}, device="reference")
    for name, value in theirs.state_dict().items():
        session.set(name, value.numpy())
    data = np.random.default_rng(1).normal(size=(5, 9, INPUTS))
    session.step(x=data, **given)
    some = LENGTHS > 0  # torch refuses rows of no steps
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        torch.tensor(data[some]), torch.tensor(LENGTHS[some]), batch_first=True, enforce_sorted=False
    )
    want, last = theirs(packed)
    ends = last if isinstance(last, tuple) else (last,)
    want, _ = torch.nn.utils.rnn.pad_packed_sequence(want, batch_first=True, total_length=9)
    loss_of(want, ends).backward()
    np.testing.assert_allclose(session.get("out")[some], want.detach().numpy(), atol=1e-12)
    assert not session.get("out")[~some].any()
    for i, end in enumerate(ends):
        np.testing.assert_allclose(session.get(f"end{i}")[:, some], end.detach().numpy(), atol=1e-12)
        assert not session.get(f"end{i}")[:, ~some].any()
    for name, p in theirs.named_parameters():
        np.testing.assert_allclose(session.get(f"{name}.grad"), p.grad.numpy(), rtol=1e-9, atol=1e-11, err_msg=name)


def test_wrong_lengths() -> None:
    g = ws.Graph()
    x, lengths = g.input("x", ("time", "batch", 3)), g.input("lengths", ("batch",), "int32")
    gru = ws.nn.GRU(3, 4)
    with pytest.raises(ShapeError, match=r"GRU: lengths must be a tensor of shape \(batch,\)"):
        gru(x, lengths=x)
    with pytest.raises(ShapeError, match=r"GRU: mask must be a tensor of shape \(time, batch\)"):
        gru(x, mask=lengths)
    with pytest.raises(ShapeError, match="not given together"):
        gru(x, lengths=lengths, mask=lengths)
