"""Recurrent layers: one loop over the steps per layer and direction."""

from __future__ import annotations

from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.layers.recurrent import (
    GRU_CELL,
    LSTM_CELL,
    RNN_CELLS,
    RecurrentCell,
    State,
    run_layers,
)
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import row


def _record(
    r: AtenRecorder, cell: RecurrentCell, states: list[Tensor], x: Any, params: Any, has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The outputs, and each state after the last step.  A single example without a batch axis is a batch of one."""
    xs = r.tensor(x)
    unbatched = xs.ndim == 2
    xs = xs.reshape((xs.shape[0], 1, xs.shape[1])) if unbatched else xs.transpose(0, 1) if batch_first else xs
    states = [s.reshape((s.shape[0], 1, s.shape[1])) for s in states] if unbatched else states
    weights = [r.tensor(p) for p in params]
    directions = 2 if bidirectional else 1
    each = len(weights) // (num_layers * directions)  # weights of inputs and state, their biases, and a projection of h

    def layer(number: int, inputs: Tensor, state: State, reverse: bool) -> tuple[State, Tensor]:
        w, u, *others = weights[number * each : (number + 1) * each]

        def step(state: State, x: Tensor) -> tuple[State, Tensor]:
            h = state[0] @ u.T
            h, *c = cell.step(x + others[0], h + others[1], state) if has_biases else cell.step(x, h, state)
            h = h @ others[-1].T if len(others) % 2 else h
            return (h, *c), h

        return ws.scan(step, state, inputs @ w.T, reverse=reverse)  # input products of all steps at once

    rate = float(dropout) if train else 0.0
    xs, ends = run_layers(layer, xs, states, num_layers, directions, lambda out: ws.dropout(out, rate) if rate else out)
    if unbatched:
        return xs.reshape((xs.shape[0], xs.shape[2])), *(e.reshape((e.shape[0], e.shape[2])) for e in ends)
    return (xs.transpose(0, 1) if batch_first else xs), *ends


CELLS = {"lstm": LSTM_CELL, "gru": GRU_CELL, "rnn_tanh": RNN_CELLS["tanh"], "rnn_relu": RNN_CELLS["relu"]}


@row(*(f"{name}.input" for name in CELLS), refuses="packed sequences")
def _recurrent(r: AtenRecorder, x: Any, hx: Any, *options: Any) -> tuple[Tensor, ...]:
    states = hx if isinstance(hx, list | tuple) else [hx]
    return _record(r, CELLS[str(r.node.target).split(".")[1]], [r.tensor(h) for h in states], x, *options)
