"""Cells: one step of a recurrent layer, under PyTorch's names `weight_ih`, `weight_hh`, `bias_ih`, `bias_hh`."""

from __future__ import annotations

from typing import Any

from wholestep.compiler.frontend.layers.recurrent import RNN_CELLS
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.nn.layers.linear import positive
from wholestep.nn.layers.recurrent import GRU, LSTM, RNN, Recurrent, first_values
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import parameter, weight


class _Cell(Module):
    """The base class of cells: one step of `layer`, with separate weights."""

    layer: type[Recurrent]
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None
    nonlinearity = "tanh"

    def __init__(
        self,
        inputs: int,
        hidden: int,
        bias: bool = True,
        dtype: object = "float32",
        init: object = None,
        recurrent_init: object = None,
    ) -> None:
        positive(type(self).__name__, inputs=inputs, hidden=hidden)
        self.inputs, self.hidden = inputs, hidden
        rows, start = self.layer.gates * hidden, first_values(hidden)
        self.weight_ih = weight((rows, inputs), start if init is None else init, dtype)
        self.weight_hh = weight((rows, hidden), start if recurrent_init is None else recurrent_init, dtype)
        self.bias_ih = parameter((rows,), start, dtype) if bias else None
        self.bias_hh = parameter((rows,), start, dtype) if bias else None

    def forward(self, x: Tensor, state: Any = None) -> Any:
        """The state after a step; for an LSTM the pair (h, c).

        Args:
            x: (batch, inputs).
            state: (batch, hidden), of an LSTM a pair of them; zeros unless given.
        """
        kind, several = type(self).__name__, self.layer.states > 1
        if x.ndim != 2 or x.shape[-1] != self.inputs:
            fail(
                ShapeError,
                f"{kind}({self.inputs}, {self.hidden}) takes one step, (batch, {self.inputs}); received "
                f"{shape_text(x.shape)}. For all steps at once use ws.nn.{self.layer.__name__}.",
            )
        shape = (x.shape[0], self.hidden)
        parts = state if isinstance(state, tuple | list) else (state,)
        if state is None:
            parts = (as_tensor(0.0).astype(x.dtype).expand(*shape),) * self.layer.states
        if len(parts) != self.layer.states or any(not isinstance(s, Tensor) or s.shape != shape for s in parts):
            what = "a pair (h, c) of tensors" if several else "a tensor"
            fail(ShapeError, f"{kind}: state must be {what} of shape {shape_text(shape)}; received {state!r}.")
        cell = RNN_CELLS[self.nonlinearity] if self.layer is RNN else self.layer._cell
        input_bias, state_bias = cell.split_bias(self.bias_ih, self.bias_hh)
        gates = x @ self.weight_ih.T if input_bias is None else x @ self.weight_ih.T + input_bias
        h = parts[0] @ self.weight_hh.T
        after = cell.step(gates, h if state_bias is None else h + state_bias, tuple(parts))
        return after if several else after[0]

    def options(self) -> str:
        return f"{self.inputs}, {self.hidden}" + ("" if self.bias_ih is not None else ", bias=False")


class RNNCell(_Cell):
    """h' = tanh(W·x + b + U·h + c): one step of `ws.nn.RNN`.  Example: `h = ws.nn.RNNCell(8, 16)(x, h)`."""

    layer = RNN

    def __init__(self, inputs: int, hidden: int, bias: bool = True, nonlinearity: str = "tanh", **options: Any) -> None:
        super().__init__(inputs, hidden, bias, **options)
        if nonlinearity not in RNN_CELLS:
            fail(OptionError, f"RNNCell: nonlinearity is 'tanh' or 'relu'; received {nonlinearity!r}.")
        self.nonlinearity = nonlinearity


class LSTMCell(_Cell):
    """One step of `ws.nn.LSTM`.  Example: `h, c = ws.nn.LSTMCell(8, 16)(x, (h, c))`."""

    layer = LSTM


class GRUCell(_Cell):
    """One step of `ws.nn.GRU`.  Example: `h = ws.nn.GRUCell(8, 16)(x, h)`."""

    layer = GRU
