"""Recurrent cells by their equations, and stacks of their layers, for `nn` and for ATen's ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from wholestep.compiler.frontend.functions.primitives import concat, relu, sigmoid, stack, tanh
from wholestep.compiler.frontend.tensor import Tensor

State = tuple[Tensor, ...]  # h, and c of an LSTM; each is (batch, hidden)


@dataclass(frozen=True)
class RecurrentCell:
    """One step of a recurrent layer."""

    gates: int  # the rows of the weights are as many blocks of `hidden` rows
    states: int  # tensors of a state, of which the first, h, is the output
    # (contribution of the inputs to the gates, contribution of h, state) -> state after the step; the contributions are
    # (batch, gates · hidden).
    step: Callable[[Tensor, Tensor, State], State]
    is_sum: bool = True  # does the step depend only on the sum of both contributions?

    def split_bias(self, of_inputs: Tensor | None, of_state: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The biases of the inputs' contribution, for all steps at once, and of the state's, for each step."""
        if of_inputs is None or of_state is None:
            return None, None
        return (of_inputs + of_state, None) if self.is_sum else (of_inputs, of_state)


def _split_gates(gates: Tensor, count: int) -> list[Tensor]:
    """Split (batch, count · hidden) into `count` tensors (batch, hidden)."""
    width = gates.shape[-1]
    assert isinstance(width, int), "the width of the gates is that of a weight"
    hidden = width // count
    return [gates[:, k * hidden : (k + 1) * hidden] for k in range(count)]


def _lstm_step(x: Tensor, h: Tensor, state: State) -> State:
    """c' = sigmoid(f) · c + sigmoid(i) · tanh(g) and h' = sigmoid(o) · tanh(c'); the gates are i, f, g, o."""
    i, f, g, o = _split_gates(x + h, 4)
    c = sigmoid(f) * state[1] + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def _gru_step(x: Tensor, h: Tensor, state: State) -> State:
    """h' = (1 - z) · n + z · h with n = tanh(xₙ + r · hₙ), xₙ and hₙ the contributions to n; the gates are r, z, n."""
    (x_r, x_z, x_n), (h_r, h_z, h_n) = _split_gates(x, 3), _split_gates(h, 3)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = tanh(x_n + r * h_n)
    return ((1.0 - z) * n + z * state[0],)


RNN_CELLS = {  # by nonlinearity
    "tanh": RecurrentCell(1, 1, lambda x, h, _: (tanh(x + h),)),
    "relu": RecurrentCell(1, 1, lambda x, h, _: (relu(x + h),)),
}
LSTM_CELL = RecurrentCell(4, 2, _lstm_step)
GRU_CELL = RecurrentCell(3, 1, _gru_step, is_sum=False)


class Layer(Protocol):
    """One layer in one direction, by its number; directions of a layer follow each other."""

    def __call__(self, number: int, inputs: Tensor, state: State, reverse: bool) -> tuple[State, Tensor]:
        """The state after the last step, and h of all steps, (time, batch, hidden)."""
        ...


def run_layers(
    layer: Layer,
    inputs: Tensor,
    states: Sequence[Tensor],
    layers: int,
    directions: int,
    between: Callable[[Tensor], Tensor],
) -> tuple[Tensor, list[Tensor]]:
    """All outputs of the last layer, (time, batch, directions · hidden), and the states after the last step.

    Args:
        inputs: (time, batch, features).
        states: before the first step, each (layers · directions, batch, hidden).
        between: a function applied to the outputs of a layer before the next one reads them, such as dropout.
    """
    ends: list[State] = []
    for number in range(0, layers * directions, directions):
        if number:
            inputs = between(inputs)
        outputs = []
        for direction in range(directions):
            state = tuple(s[number + direction] for s in states)
            end, output = layer(number + direction, inputs, state, direction == 1)
            ends.append(end)
            outputs.append(output)
        inputs = outputs[0] if directions == 1 else concat(outputs, -1)
    if len(ends) == 1:
        return inputs, [state.reshape(1, *state.shape) for state in ends[0]]
    return inputs, [stack([end[i] for end in ends]) for i in range(len(states))]
