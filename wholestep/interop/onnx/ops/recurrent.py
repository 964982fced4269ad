"""RNN, LSTM and GRU as one loop over the steps, and Scan itself.

ONNX's cells are more general than those of `frontend/layers/recurrent.py`: other activations, clipping, peepholes, a
coupled input and forget gate, and lengths; the order of their gates is another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import wholestep as ws
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.errors import OptionError, UsageError
from wholestep.interop.onnx.ops.shapes import axis_of
from wholestep.interop.onnx.read.network import OnnxGraph
from wholestep.interop.onnx.read.table import NodeContext, onnx_op

Activation = Callable[[Tensor], Tensor]
State = tuple[Tensor, ...]


def _activation(name: str, alpha: float | None, beta: float | None) -> Activation:
    a = {"Affine": 1.0, "LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "ScaledTanh": 1.0, "HardSigmoid": 0.2, "Elu": 1.0}
    first = a.get(name, 0.0) if alpha is None else alpha
    second = {"HardSigmoid": 0.5, "ScaledTanh": 1.0}.get(name, 0.0) if beta is None else beta
    table: dict[str, Activation] = {
        "Relu": ws.relu,
        "Tanh": ws.tanh,
        "Sigmoid": ws.sigmoid,
        "Affine": lambda x: x * first + second,
        "LeakyRelu": lambda x: ws.leaky_relu(x, first),
        "ThresholdedRelu": lambda x: ws.where(x >= first, x, 0.0),
        "ScaledTanh": lambda x: ws.tanh(x * second) * first,
        "HardSigmoid": lambda x: ws.minimum(ws.maximum(x * first + second, 0.0), 1.0),
        "Elu": lambda x: ws.elu(x, first),
        "Softsign": lambda x: x / (1.0 + ws.abs(x)),
        "Softplus": ws.softplus,
    }
    if name not in table:
        raise OptionError(f"the activation {name!r} is not supported; supported: {', '.join(table)}.")
    return table[name]


def _activations(
    names: Sequence[str] | None,
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    default: Sequence[str],
    n: int,
) -> list[list[Activation]]:
    chosen = list(names or list(default) * n)
    first, second = list(alphas or []), list(betas or [])
    functions = [
        _activation(name, first[i] if i < len(first) else None, second[i] if i < len(second) else None)
        for i, name in enumerate(chosen)
    ]
    each = len(default)
    return [functions[i * each : (i + 1) * each] for i in range(n)]


Cell = Callable[[int], Callable[[Tensor, State], State]]  # direction -> (x, state) -> state


def _steps(
    x: Tensor, lengths: Tensor | None, firsts: Sequence[Sequence[Tensor]], direction: str, cell: Cell
) -> tuple[Tensor, list[Tensor]]:
    """All outputs (time, directions, batch, units), and the last value of each state (directions, batch, units)."""
    backwards = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    outputs, lasts = [], []
    time = ws.iota((x.shape[0],), 0, "int64")
    for d, back in enumerate(backwards):
        step = cell(d)

        def body(state: State, one: Any, step: Any = step) -> tuple[State, Tensor]:
            now, number = one
            after = step(now, state)
            if lengths is None:
                return after, after[0]
            inside = (number < lengths.astype("int64")).reshape((-1, 1))
            held = tuple(ws.where(inside, a, b) for a, b in zip(after, state))
            return held, ws.where(inside, after[0], 0.0)

        last, out = ws.scan(body, tuple(firsts[d]), (x, time), reverse=back)
        outputs.append(out)
        lasts.append(last)
    return ws.stack(outputs, 1), [ws.stack([last[i] for last in lasts], 0) for i in range(len(lasts[0]))]


def _first(state: Tensor | None, n: int, batch: Any, units: int, x: Tensor) -> list[Tensor]:
    """The initial state of each direction; an initial state that is the same for all rows may have a batch of one."""
    if state is None:
        return [ws.zeros((batch, units), dtype=x.dtype)] * n
    return [state[d].expand(batch, units) if state.shape[1] == 1 != batch else state[d] for d in range(n)]


@dataclass(frozen=True)
class Gates:
    """The parameters of a cell: the weights of one direction, clipping and two options."""

    w: Tensor
    r: Tensor
    bias: Tensor | None  # biases of the gates for the input, then for the state
    peepholes: Tensor | None
    units: int
    clip: float | None
    linear_before_reset: int
    input_forget: int

    def sum(self, *terms: Tensor | None) -> Tensor:
        """The sum of the terms that exist, clipped."""
        first, *rest = [t for t in terms if t is not None]
        total: Tensor = sum(rest, start=first)
        return ws.clip(total, -self.clip, self.clip) if self.clip else total

    def split(self, t: Tensor | None, count: int) -> list[Any]:
        """The blocks of rows of the gates; None if the input is missing."""
        return [None if t is None else t[i * self.units : (i + 1) * self.units] for i in range(count)]


def _rnn_step(g: Gates, functions: Sequence[Activation], x: Tensor, state: State) -> State:
    return (functions[0](g.sum(x @ g.w.T, state[0] @ g.r.T, *g.split(g.bias, 2))),)


def _gru_step(g: Gates, functions: Sequence[Activation], x: Tensor, state: State) -> State:
    (wz, wr, wh), (rz, rr, rh) = g.split(g.w, 3), g.split(g.r, 3)
    bz, br, bh, cz, cr, ch = g.split(g.bias, 6)
    (f, activation), old = functions, state[0]
    update, reset = f(g.sum(x @ wz.T, old @ rz.T, bz, cz)), f(g.sum(x @ wr.T, old @ rr.T, br, cr))
    if g.linear_before_reset:
        recurrent = old @ rh.T if ch is None else old @ rh.T + ch
        new = g.sum(x @ wh.T, bh, reset * recurrent)
    else:
        new = g.sum(x @ wh.T, (reset * old) @ rh.T, bh, ch)
    return ((1.0 - update) * activation(new) + update * old,)


def _lstm_step(g: Gates, functions: Sequence[Activation], x: Tensor, state: State) -> State:
    (pi, po, pf), (f, activation, last), (old, memory) = g.split(g.peepholes, 3), functions, state
    gates = x @ g.w.T + old @ g.r.T
    gates = gates if g.bias is None else gates + (g.bias[: 4 * g.units] + g.bias[4 * g.units :])
    i, o, fg, new = (gates[:, k * g.units : (k + 1) * g.units] for k in range(4))

    def look(peephole: Tensor | None, memory: Tensor) -> Tensor | None:
        return None if peephole is None else peephole * memory

    enter = f(g.sum(i, look(pi, memory)))
    keep = 1.0 - enter if g.input_forget else f(g.sum(fg, look(pf, memory)))
    after = keep * memory + enter * activation(g.sum(new))
    return f(g.sum(o, look(po, after))) * last(after), after


# operator -> its step and its activations
CELLS: dict[str, tuple[Callable[..., State], tuple[str, ...]]] = {
    "RNN": (_rnn_step, ("Tanh",)),
    "GRU": (_gru_step, ("Sigmoid", "Tanh")),
    "LSTM": (_lstm_step, ("Sigmoid", "Tanh", "Tanh")),
}


@onnx_op(*CELLS)
def recurrent(
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None = None,
    lengths: Tensor | None = None,
    h: Tensor | None = None,
    c: Tensor | None = None,
    p: Tensor | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    input_forget: int = 0,
    layout: int = 0,
    linear_before_reset: int = 0,
    node: NodeContext,
) -> tuple[Tensor, ...]:
    """All outputs and the last states in ONNX's layout; with layout 1 the batch is the first axis of each."""
    step, default = CELLS[node.op]
    n, units = int(w.shape[0]), int(r.shape[-1])
    functions = _activations(activations, activation_alpha, activation_beta, default, n)

    def cell(d: int) -> Callable[[Tensor, State], State]:
        bias, peepholes = (None if t is None else t[d] for t in (b, p))
        gates = Gates(w[d], r[d], bias, peepholes, units, clip, linear_before_reset, input_forget)
        return lambda now, state: step(gates, functions[d], now, state)

    states: list[Tensor | None] = [h, c] if node.op == "LSTM" else [h]
    if layout:
        x, states = x.transpose(0, 1), [None if t is None else t.transpose(0, 1) for t in states]
    firsts = zip(*(_first(state, n, x.shape[1], units, x) for state in states))  # initial states of each direction
    out, lasts = _steps(x, lengths, list(firsts), direction, cell)
    return (out.permute(2, 0, 1, 3), *(t.transpose(0, 1) for t in lasts)) if layout else (out, *lasts)


@onnx_op("Scan")
def scan(
    *inputs: Tensor,
    body: OnnxGraph,
    num_scan_inputs: int,
    scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None,
    scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None,
    node: NodeContext,
) -> tuple[Tensor, ...]:
    if node.opset < 9:
        raise UsageError("Scan of an opset before 9 has its own batch axis; convert the file to opset 13 or newer.")
    carries = len(inputs) - num_scan_inputs
    first, sequences = list(inputs[:carries]), list(inputs[carries:])
    axes, ways = scan_input_axes or [0] * len(sequences), scan_input_directions or [0] * len(sequences)
    sequences = [_first_axis(x, a) for x, a in zip(sequences, axes)]
    stacked = len(body.outputs) - carries  # outputs of all steps, stacked
    out_ways = scan_output_directions or [0] * stacked
    reverse = bool(ways) and all(ways)
    if not reverse and any(ways):
        sequences = [ws.flip(x, 0) if way else x for x, way in zip(sequences, ways)]

    def step(state: Any, xs: Any) -> tuple[Any, Any]:
        results = node.run(body, [*state, *xs])
        return tuple(results[:carries]), tuple(results[carries:])

    last, ys = ws.scan(step, tuple(first), tuple(sequences), reverse=reverse)
    # A reverse loop stacks its results in the order of its slices, ONNX in the order of its steps.
    in_order = [ws.flip(y, 0) if bool(way) != reverse else y for y, way in zip(ys, out_ways)]
    return *last, *(_to_axis(y, a) for y, a in zip(in_order, scan_output_axes or [0] * stacked))


def _first_axis(x: Tensor, axis: int) -> Tensor:
    at = axis_of(axis, x.ndim)
    return x.permute((at, *(d for d in range(x.ndim) if d != at))) if at else x


def _to_axis(x: Tensor, axis: int) -> Tensor:
    at = axis_of(axis, x.ndim)
    return x.permute((*range(1, at + 1), 0, *range(at + 1, x.ndim))) if at else x
