"""Recurrent layers, as one loop each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row

Weights = list[Tensor]
Cell = Callable[[Any, Tensor, Weights], Any]  # state, input of a step, weights -> the next state


def _gates(x: Tensor, h: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    """What the input and the state add to the gates."""
    bias = len(w) >= 4
    return (x if not bias else x + w[2]), (h @ w[1].T + w[3] if bias else h @ w[1].T)


def _lstm_cell(state: tuple[Tensor, Tensor], x: Tensor, w: Weights) -> tuple[Tensor, Tensor]:
    h, c = state
    given, kept = _gates(x, h, w)
    i, f, g, o = ws.chunk(given + kept, 4, -1)
    c = ws.sigmoid(f) * c + ws.sigmoid(i) * ws.tanh(g)
    h = ws.sigmoid(o) * ws.tanh(c)
    return (h @ w[-1].T if len(w) % 2 else h), c  # weights of an odd number: the last one projects


def _gru_cell(state: tuple[Tensor], x: Tensor, w: Weights) -> tuple[Tensor]:
    (h,) = state
    given, kept = _gates(x, h, w)
    (gr, gz, gn), (kr, kz, kn) = ws.chunk(given, 3, -1), ws.chunk(kept, 3, -1)
    reset, update = ws.sigmoid(gr + kr), ws.sigmoid(gz + kz)
    new = ws.tanh(gn + reset * kn)
    return ((1.0 - update) * new + update * h,)


def _plain_cell(activation: Callable[[Tensor], Tensor]) -> Cell:
    def cell(state: tuple[Tensor], x: Tensor, w: Weights) -> tuple[Tensor]:
        given, kept = _gates(x, state[0], w)
        return (activation(given + kept),)

    return cell


def _direction(cell: Cell, xs: Tensor, state: tuple[Tensor, ...], w: Weights, reverse: bool) -> tuple[Tensor, Any]:
    """One layer in one direction over (time, batch, features): what it gives, and its last state."""
    seen = xs @ w[0].T  # of all steps at once

    def step(carry: Any, x: Tensor) -> Any:
        after = cell(carry, x, w)
        return after, after[0]

    last, out = ws.scan(step, state, seen, reverse=reverse)
    return out, last


def _layers(
    r: AtenRecorder, cell: Cell, states: list[Tensor], x: Any, params: Any, has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    xs = r.tensor(x)
    alone = xs.ndim == 2
    xs = xs.reshape((xs.shape[0], 1, xs.shape[1])) if alone else xs.transpose(0, 1) if batch_first else xs
    weights = [r.tensor(p) for p in params]
    each, directions = 4 if has_biases else 2, 2 if bidirectional else 1
    each += len(weights) > each * directions * num_layers  # a projection
    finals: list[Any] = []
    for layer in range(num_layers):
        outs = []
        for d in range(directions):
            number = layer * directions + d
            state = tuple(s[number] if not alone else s[number].reshape((1, -1)) for s in states)
            out, last = _direction(cell, xs, state, weights[number * each : (number + 1) * each], d == 1)
            outs.append(out)
            finals.append(last)
        xs = outs[0] if len(outs) == 1 else ws.concat(outs, -1)
        if dropout and train and layer < num_layers - 1:
            xs = ws.dropout(xs, float(dropout))
    ends = [ws.stack([f[i] for f in finals], 0) for i in range(len(states))]
    if alone:
        return xs.reshape((xs.shape[0], xs.shape[2])), [e.reshape((e.shape[0], e.shape[2])) for e in ends]
    return (xs.transpose(0, 1) if batch_first else xs), ends


@row("lstm.input", refuses="packed sequences")
def _lstm(r: AtenRecorder, x: Any, hx: Any, *options: Any) -> tuple[Tensor, ...]:
    out, ends = _layers(r, _lstm_cell, [r.tensor(h) for h in hx], x, *options)
    return out, *ends


@row("gru.input", refuses="packed sequences")
def _gru(r: AtenRecorder, x: Any, hx: Any, *options: Any) -> tuple[Tensor, ...]:
    out, ends = _layers(r, _gru_cell, [r.tensor(hx)], x, *options)
    return out, *ends


@row("rnn_tanh.input", refuses="packed sequences")
def _rnn_tanh(r: AtenRecorder, x: Any, hx: Any, *options: Any) -> tuple[Tensor, ...]:
    out, ends = _layers(r, _plain_cell(ws.tanh), [r.tensor(hx)], x, *options)
    return out, *ends


@row("rnn_relu.input", refuses="packed sequences")
def _rnn_relu(r: AtenRecorder, x: Any, hx: Any, *options: Any) -> tuple[Tensor, ...]:
    out, ends = _layers(r, _plain_cell(ws.relu), [r.tensor(hx)], x, *options)
    return out, *ends
