"""RNN, LSTM and GRU under PyTorch's names: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, ...

A layer is one product for all steps (the inputs' part of the gates) and one loop over the steps (the rest).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.control.scan import scan
from wholestep.compiler.frontend.functions.primitives import concat, relu, sigmoid, tanh
from wholestep.compiler.frontend.layers.composites import Switchable, dropout
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.attrs import Initializer
from wholestep.compiler.ir.types import Extent, shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.nn.layers.linear import positive, regularize
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import parameter, weight

if TYPE_CHECKING:
    from wholestep.nn.module.regularizers import Regularizer

Weights = tuple[Tensor, Tensor, Tensor | None, Tensor | None]  # of inputs and state, their biases


class Recurrent(Module):
    """What RNN, LSTM and GRU share: stacked layers, directions, biases, the order of axes."""

    gates = 1
    states = 1  # of one cell: h, and c of an LSTM

    def __init__(
        self,
        inputs: int,
        hidden: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float | Switchable = 0.0,
        bidirectional: bool = False,
        dtype: object = "float32",
        init: object = None,
        recurrent_init: object = None,
        *,
        weight_regularizer: Regularizer = None,
    ) -> None:
        kind = type(self).__name__
        regularize(self, weight_regularizer, None)
        positive(kind, inputs=inputs, hidden=hidden, num_layers=num_layers)
        rate = dropout.value if isinstance(dropout, Switchable) else dropout
        if not isinstance(rate, int | float) or not 0 <= rate <= 1:
            fail(OptionError, f"{kind}: dropout is a probability, between 0 and 1; received {rate!r}.")
        self.inputs, self.hidden, self.num_layers = inputs, hidden, num_layers
        self.batch_first, self.dropout, self.bidirectional = batch_first, dropout, bidirectional
        uniform = first_values(hidden)
        starts = {"weight_ih": init, "weight_hh": recurrent_init}
        for layer in range(num_layers):
            width = inputs if layer == 0 else hidden * self.directions
            for suffix in self._suffixes(layer):
                shapes: dict[str, tuple[int, ...]] = {
                    "weight_ih": (self.gates * hidden, width),
                    "weight_hh": (self.gates * hidden, hidden),
                }
                if bias:
                    shapes |= {"bias_ih": (self.gates * hidden,), "bias_hh": (self.gates * hidden,)}
                for name, shape in shapes.items():
                    given = starts.get(name)
                    made = parameter(shape, uniform, dtype) if given is None else weight(shape, given, dtype)
                    setattr(self, name + suffix, made)
        self.bias = bias

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.directions]

    def _weights(self, suffix: str) -> Weights:
        biases = ("bias_ih", "bias_hh") if self.bias else ()
        found = [getattr(self, name + suffix) for name in ("weight_ih", "weight_hh", *biases)]
        return (found[0], found[1], *(found[2:] or (None, None)))

    # -- forward ---------------------------------------------------------------------------------------------------
    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        """All outputs, and the state after the last step.

        Args:
            x: (time, batch, inputs), or (batch, time, inputs) with `batch_first`.
            state: (layers · directions, batch, hidden), of an LSTM the pair (h, c) of those; zeros unless given.

        Returns:
            The outputs of the last layer, (time, batch, directions · hidden) or batch first, and a state like `state`,
            which never has the batch first.
        """
        self._check(x)
        steps = x.transpose(0, 1) if self.batch_first else x  # (time, batch, inputs)
        first = self._first(steps, state)
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            if layer:
                steps = dropout(steps, self.dropout)
            outputs = []
            for direction, suffix in enumerate(self._suffixes(layer)):
                begin = tuple(s[len(last)] for s in first)
                end, out = self._run(steps, begin, self._weights(suffix), reverse=direction == 1)
                last.append(end)
                outputs.append(out)
            steps = outputs[0] if len(outputs) == 1 else concat(outputs, axis=-1)
        ends = tuple(_stack_states([end[i] for end in last]) for i in range(self.states))
        return (steps.transpose(0, 1) if self.batch_first else steps), (ends if self.states > 1 else ends[0])

    def _check(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.inputs:
            axes = "(batch, time, " if self.batch_first else "(time, batch, "
            fail(
                ShapeError,
                f"{type(self).__name__}({self.inputs}, {self.hidden}) takes {axes}{self.inputs}); received "
                f"{shape_text(x.shape)}." + ("" if self.batch_first else " With the batch first: batch_first=True."),
            )

    def _first(self, steps: Tensor, state: Any) -> tuple[Tensor, ...]:
        """The state before the first step, one tensor (layers · directions, batch, hidden) per part of it."""
        batch: Extent = steps.shape[1]
        shape = (self.num_layers * self.directions, batch, self.hidden)
        if state is None:
            return (as_tensor(0.0).astype(steps.dtype).expand(*shape),) * self.states
        given = state if isinstance(state, tuple | list) else (state,)
        for s in given:
            if not isinstance(s, Tensor) or s.shape != shape or len(given) != self.states:
                what = "a pair (h, c) of tensors" if self.states > 1 else "a tensor"
                fail(
                    ShapeError,
                    f"{type(self).__name__}: state is {what} of shape {shape_text(shape)}; received {state!r}.",
                )
        return tuple(given)

    def _run(
        self, steps: Tensor, first: tuple[Tensor, ...], weights: Weights, reverse: bool
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """One layer in one direction: the state after the last step, and all outputs."""
        w, u, b, c = weights
        outside = self._outside(b, c)
        gates = steps @ w.T if outside is None else steps @ w.T + outside

        def cell(state: tuple[Tensor, ...], x: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
            after = self._cell(x, state, u, c)
            return after, after[0]

        end, out = scan(cell, first, gates, reverse=reverse)
        return end, out

    def _outside(self, bias_ih: Tensor | None, bias_hh: Tensor | None) -> Tensor | None:
        """The part of the biases that is added for all steps at once."""
        return None if bias_ih is None or bias_hh is None else bias_ih + bias_hh

    @abstractmethod
    def _cell(self, x: Tensor, state: tuple[Tensor, ...], u: Tensor, bias_hh: Tensor | None) -> tuple[Tensor, ...]:
        """The state after a step; x is the inputs' part of its gates."""

    def _gate(self, gates: Tensor, number: int) -> Tensor:
        return gates[:, number * self.hidden : (number + 1) * self.hidden]

    def options(self) -> str:
        said = [f"{self.inputs}, {self.hidden}", f"num_layers={self.num_layers}" if self.num_layers > 1 else ""]
        said += ["batch_first=True" if self.batch_first else "", "bidirectional=True" if self.bidirectional else ""]
        return ", ".join(s for s in said if s)


def first_values(hidden: int) -> Initializer:
    """Of every number of a recurrent layer."""
    return initializers.uniform(-1.0 / math.sqrt(hidden), 1.0 / math.sqrt(hidden))


def _stack_states(ends: list[Tensor]) -> Tensor:
    """(batch, hidden) each -> (layers · directions, batch, hidden)"""
    placed = [e.reshape(1, *e.shape) for e in ends]
    return placed[0] if len(placed) == 1 else concat(placed, axis=0)


class RNN(Recurrent):
    """h' = tanh(W·x + b + U·h + c), layer upon layer (Elman, 1990); PyTorch's names, shapes and first values.

    Args:
        inputs, hidden: features of a step, and of the state.
        nonlinearity: "tanh" or "relu".
        batch_first: inputs and outputs are (batch, time, features); else (time, batch, features), which is faster.
        dropout: between layers, in training.
        bidirectional: a second loop from the last step to the first; outputs are put side by side.
        init, recurrent_init: how the weights of the inputs and of the state start, where not as in PyTorch.
        weight_regularizer: as of `ws.nn.Linear`.

    Example: `outputs, last = ws.nn.RNN(64, 128)(x)`.
    """

    def __init__(
        self, inputs: int, hidden: int, num_layers: int = 1, nonlinearity: str = "tanh", **options: Any
    ) -> None:
        super().__init__(inputs, hidden, num_layers, **options)
        if nonlinearity not in ("tanh", "relu"):
            fail(OptionError, f"RNN: nonlinearity is 'tanh' or 'relu'; received {nonlinearity!r}.")
        self.nonlinearity = nonlinearity

    def _cell(self, x: Tensor, state: tuple[Tensor, ...], u: Tensor, bias_hh: Tensor | None) -> tuple[Tensor, ...]:
        (h,) = state
        return ((tanh if self.nonlinearity == "tanh" else relu)(x + h @ u.T),)


class LSTM(Recurrent):
    """Long short-term memory (Hochreiter & Schmidhuber, 1997; with a forget gate); PyTorch's names, shapes and first
    values.  The rows of the weights are the gates i, f, g, o.

    Args:
        inputs, hidden: features of a step, and of h and c.
        num_layers, bias, batch_first, dropout, bidirectional, init, recurrent_init: as for `ws.nn.RNN`.

    Example: `outputs, (h, c) = ws.nn.LSTM(256, 256, num_layers=2)(x)`.
    """

    gates = 4
    states = 2

    def _cell(self, x: Tensor, state: tuple[Tensor, ...], u: Tensor, bias_hh: Tensor | None) -> tuple[Tensor, ...]:
        h, c = state
        gates = x + h @ u.T  # (batch, 4 · hidden)
        i, f, g, o = (self._gate(gates, k) for k in range(4))
        c = sigmoid(f) * c + sigmoid(i) * tanh(g)
        return sigmoid(o) * tanh(c), c


class GRU(Recurrent):
    """Gated recurrent units (arXiv:1406.1078) with PyTorch's names, shapes and first values.  The rows of the weights
    are the gates r, z, n; r multiplies the state's part of n, its bias included.

    Args:
        inputs, hidden: features of a step, and of the state.
        num_layers, bias, batch_first, dropout, bidirectional, init, recurrent_init: as for `ws.nn.RNN`.

    Example: `outputs, last = ws.nn.GRU(64, 128)(x)`.
    """

    gates = 3

    def _outside(self, bias_ih: Tensor | None, bias_hh: Tensor | None) -> Tensor | None:
        return bias_ih

    def _cell(self, x: Tensor, state: tuple[Tensor, ...], u: Tensor, bias_hh: Tensor | None) -> tuple[Tensor, ...]:
        (h,) = state
        own = h @ u.T if bias_hh is None else h @ u.T + bias_hh
        r, z = (sigmoid(self._gate(x, k) + self._gate(own, k)) for k in range(2))
        n = tanh(self._gate(x, 2) + r * self._gate(own, 2))
        return ((1.0 - z) * n + z * h,)
