"""RNN, LSTM and GRU under PyTorch's names: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, ...; and a convolutional LSTM.

A layer is one product for all steps (the inputs' part of the gates) and one loop over the steps (the rest).
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.control.scan import scan
from wholestep.compiler.frontend.functions.primitives import arange, sigmoid, tanh
from wholestep.compiler.frontend.layers.composites import Switchable, dropout
from wholestep.compiler.frontend.layers.convolution import conv2d
from wholestep.compiler.frontend.layers.recurrent import (
    GRU_CELL,
    LSTM_CELL,
    RNN_CELLS,
    RecurrentCell,
    State,
    run_layers,
)
from wholestep.compiler.frontend.layers.segments import current_segments
from wholestep.compiler.frontend.layers.window import Sizes, per_axis
from wholestep.compiler.frontend.tensor import Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.attrs import Initializer
from wholestep.compiler.ir.types import Extent, shape_text
from wholestep.errors import OptionError, ShapeError, UsageError
from wholestep.nn.layers.linear import positive, regularize
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import parameter, weight

if TYPE_CHECKING:
    from wholestep.nn.module.regularizers import Regularizer


class Recurrent(Module):
    """The base class of RNN, LSTM and GRU: stacked layers, directions, biases, the order of axes."""

    _cell = RNN_CELLS["tanh"]
    gates = 1
    states = 1  # states of one cell: h, and for an LSTM also c

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
            fail(OptionError, f"{kind}: dropout must be a probability, between 0 and 1; received {rate!r}.")
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
                    start = starts.get(name)
                    array = parameter(shape, uniform, dtype) if start is None else weight(shape, start, dtype)
                    setattr(self, name + suffix, array)
        self.bias = bias

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def _equations(self) -> RecurrentCell:
        return self._cell

    def _suffixes(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.directions]

    # -- forward ---------------------------------------------------------------------------------------------------
    def forward(
        self, x: Tensor, state: Any = None, lengths: Tensor | None = None, mask: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        """Compute all outputs, and the state after the last step.

        Over packed rows (`ws.data.Ragged`) the state is reset where a sequence begins, and the state after the last
        step must not be used: `ws.nn.SequencePool("last")` reads the outputs at the end of each sequence.

        Args:
            x: (time, batch, inputs), or (batch, time, inputs) with `batch_first`.
            state: (layers · directions, batch, hidden), of an LSTM the pair (h, c) of those; zeros unless given.
            lengths: (batch,), how many steps of a row count, as in torch's packed sequences: the state is the one after
                them, outputs after them are 0, and a reverse direction begins at the last of them.
            mask: the same for any steps: True where a step counts, (time, batch), or batch first.

        Returns:
            The outputs of the last layer, (time, batch, directions · hidden) or batch first, and a state like `state`,
            which never has the batch first.
        """
        self._check(x)
        steps = x.transpose(0, 1) if self.batch_first else x  # (time, batch, inputs)
        first = self._first(steps, state)
        counts = self._counted_steps(steps, lengths, mask)
        if current_segments() is not None and not (state is None and counts is None):
            fail(
                UsageError,
                f"{type(self).__name__}: sequences in packed rows begin with a state of zeros and have their own "
                "lengths; leave out state, lengths and mask.",
            )
        steps, ends = run_layers(
            partial(self._run, counts),
            steps,
            first,
            self.num_layers,
            self.directions,
            lambda outputs: dropout(outputs, self.dropout),
        )
        return (steps.transpose(0, 1) if self.batch_first else steps), (tuple(ends) if self.states > 1 else ends[0])

    def _check(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[-1] != self.inputs:
            axes = "(batch, time, " if self.batch_first else "(time, batch, "
            fail(
                ShapeError,
                f"{type(self).__name__}({self.inputs}, {self.hidden}) takes {axes}{self.inputs}); received "
                f"{shape_text(x.shape)}." + ("" if self.batch_first else " With the batch first: batch_first=True."),
            )

    def _first(self, steps: Tensor, state: Any) -> tuple[Tensor, ...]:
        """The initial state, as a tensor (layers · directions, batch, hidden) for each of its parts."""
        batch: Extent = steps.shape[1]
        shape = (self.num_layers * self.directions, batch, self.hidden)
        if state is None:
            return (as_tensor(0.0).astype(steps.dtype).expand(*shape),) * self.states
        parts = state if isinstance(state, tuple | list) else (state,)
        for s in parts:
            if not isinstance(s, Tensor) or s.shape != shape or len(parts) != self.states:
                what = "a pair (h, c) of tensors" if self.states > 1 else "a tensor"
                fail(
                    ShapeError,
                    f"{type(self).__name__}: state must be {what} of shape {shape_text(shape)}; received {state!r}.",
                )
        return tuple(parts)

    def _counted_steps(self, steps: Tensor, lengths: Tensor | None, mask: Tensor | None) -> Tensor | None:
        """(time, batch, 1): True where a step counts; None if all do."""
        time, batch = steps.shape[:2]
        if lengths is None and mask is None:
            return None
        name, counts = ("mask", mask) if lengths is None else ("lengths", lengths)
        axes = (batch,) if lengths is not None else (batch, time) if self.batch_first else (time, batch)
        if not isinstance(counts, Tensor) or counts.shape != axes or (lengths is not None and mask is not None):
            fail(
                ShapeError,
                f"{type(self).__name__}: {name} must be a tensor of shape {shape_text(axes)}, and lengths and mask are "
                f"not given together; received {counts!r}.",
            )
        if lengths is not None:
            return (arange(time).reshape((time, 1)) < lengths.reshape((1, batch))).reshape((time, batch, 1))
        return ((counts.T if self.batch_first else counts) != 0).reshape((time, batch, 1))

    def _run(
        self, counts: Tensor | None, number: int, inputs: Tensor, state: State, reverse: bool
    ) -> tuple[State, Tensor]:
        """Run one layer in one direction; return the state after the last step and all outputs."""
        suffix = self._suffixes(number // self.directions)[number % self.directions]
        w, u = getattr(self, "weight_ih" + suffix), getattr(self, "weight_hh" + suffix)
        biases = (getattr(self, "bias_ih" + suffix), getattr(self, "bias_hh" + suffix)) if self.bias else (None, None)
        input_bias, state_bias = self._equations.split_bias(*biases)
        gates = inputs @ w.T if input_bias is None else inputs @ w.T + input_bias

        def step(state: State, x: Tensor) -> tuple[State, Tensor]:
            h = state[0] @ u.T
            after = self._equations.step(x, h if state_bias is None else h + state_bias, state)
            return after, after[0]

        def step_with_reset(state: State, x: tuple[Tensor, Tensor]) -> tuple[State, Tensor]:
            return step(tuple(s * x[1] for s in state), x[0])

        def step_that_counts(state: State, x: tuple[Tensor, Tensor]) -> tuple[State, Tensor]:
            after, _ = step(state, x[0])
            return tuple(where(x[1], new, old) for new, old in zip(after, state)), where(x[1], after[0], 0.0)

        if (segments := current_segments()) is not None:
            factors = segments.state_factors(gates, reverse)
            end, outputs = scan(step_with_reset, state, (gates, factors), reverse=reverse)
            return end, segments.recurrent_outputs(outputs)
        if counts is not None:
            return scan(step_that_counts, state, (gates, counts), reverse=reverse)
        return scan(step, state, gates, reverse=reverse)

    def options(self) -> str:
        shown = [f"{self.inputs}, {self.hidden}", f"num_layers={self.num_layers}" if self.num_layers > 1 else ""]
        shown += ["batch_first=True" if self.batch_first else "", "bidirectional=True" if self.bidirectional else ""]
        return ", ".join(option for option in shown if option)


def first_values(hidden: int) -> Initializer:
    """The initializer of all parameters of a recurrent layer."""
    return initializers.uniform(-1.0 / math.sqrt(hidden), 1.0 / math.sqrt(hidden))


class RNN(Recurrent):
    """h' = tanh(W·x + b + U·h + c), layer upon layer (Elman, 1990); PyTorch's names, shapes and initial weights.

    Args:
        inputs, hidden: features of a step, and of the state.
        nonlinearity: "tanh" or "relu".
        batch_first: inputs and outputs are (batch, time, features); else (time, batch, features), which is faster.
        dropout: between layers, in training.
        bidirectional: a second loop from the last step to the first; the outputs of both are concatenated.
        init, recurrent_init: initializers of the weights of the inputs and of the state; by default PyTorch's.
        weight_regularizer: as for `ws.nn.Linear`.

    Example: `outputs, last = ws.nn.RNN(64, 128)(x)`.
    """

    def __init__(
        self, inputs: int, hidden: int, num_layers: int = 1, nonlinearity: str = "tanh", **options: Any
    ) -> None:
        super().__init__(inputs, hidden, num_layers, **options)
        if nonlinearity not in RNN_CELLS:
            fail(OptionError, f"RNN: nonlinearity is 'tanh' or 'relu'; received {nonlinearity!r}.")
        self.nonlinearity = nonlinearity

    @property
    def _equations(self) -> RecurrentCell:
        return RNN_CELLS[self.nonlinearity]


class LSTM(Recurrent):
    """Long short-term memory (Hochreiter & Schmidhuber, 1997; with a forget gate); PyTorch's names, shapes and initial
    weights.  The rows of the weights are the gates i, f, g, o.

    Args:
        inputs, hidden: features of a step, and of h and c.
        num_layers, bias, batch_first, dropout, bidirectional, init, recurrent_init: as for `ws.nn.RNN`.

    Example: `outputs, (h, c) = ws.nn.LSTM(256, 256, num_layers=2)(x)`.
    """

    _cell = LSTM_CELL
    gates, states = LSTM_CELL.gates, LSTM_CELL.states


class GRU(Recurrent):
    """Gated recurrent units (arXiv:1406.1078) with PyTorch's names, shapes and initial weights.  The rows of the
    weights are the gates r, z, n; r multiplies the state's part of n, its bias included.

    Args:
        inputs, hidden: features of a step, and of the state.
        num_layers, bias, batch_first, dropout, bidirectional, init, recurrent_init: as for `ws.nn.RNN`.

    Example: `outputs, last = ws.nn.GRU(64, 128)(x)`.
    """

    _cell = GRU_CELL
    gates = GRU_CELL.gates


class ConvLSTM2d(Module):
    """A convolutional LSTM (arXiv:1506.04214) over videos (batch, time, channels, H, W); images keep their size.

    The gates of a step are a convolution of its image and one of h, in the order i, f, g, o, as in `ws.nn.LSTM`.

    Args:
        inputs, hidden: channels of an image, and of h and c.
        kernel: odd, a number or a pair.
        init, recurrent_init: initializers of the weights of the images and of the state; uniform in ±1/√(hidden·KH·KW)
            unless given.

    Example: `outputs, (h, c) = ws.nn.ConvLSTM2d(1, 16, 3)(video)`.
    """

    weight_ih: Tensor
    weight_hh: Tensor
    bias: Tensor | None

    def __init__(
        self,
        inputs: int,
        hidden: int,
        kernel: Sizes,
        bias: bool = True,
        init: object = None,
        recurrent_init: object = None,
        dtype: object = "float32",
    ) -> None:
        size = per_axis("ConvLSTM2d", "kernel", kernel, 2)
        positive("ConvLSTM2d", inputs=inputs, hidden=hidden, **{f"kernel[{i}]": k for i, k in enumerate(size)})
        bound = 1.0 / math.sqrt(hidden * math.prod(size))
        start = initializers.uniform(-bound, bound)
        self.inputs, self.hidden, self.kernel = inputs, hidden, size
        self.weight_ih = weight((4 * hidden, inputs, *size), start if init is None else init, dtype)
        self.weight_hh = weight((4 * hidden, hidden, *size), start if recurrent_init is None else recurrent_init, dtype)
        self.bias = parameter((4 * hidden,), 0.0, dtype) if bias else None

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """The h of all steps, (batch, time, hidden, H, W), and (h, c) after the last step."""
        if x.ndim != 5 or x.shape[2] != self.inputs:
            fail(
                ShapeError,
                f"ConvLSTM2d({self.inputs}, {self.hidden}) takes (batch, time, {self.inputs}, H, W); received "
                f"{shape_text(x.shape)}.",
            )
        batch, time, channels, height, width = x.shape
        shape = (batch, self.hidden, height, width)
        first = (as_tensor(0.0).astype(x.dtype).expand(*shape),) * 2 if state is None else tuple(state)
        images = x.reshape((-1, channels, height, width))  # one convolution over the images of all steps
        gates = conv2d(images, self.weight_ih, self.bias, padding="same").reshape(
            (batch, time, 4 * self.hidden, height, width)
        )

        def cell(before: tuple[Tensor, Tensor], now: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
            h, c = before
            mixed = now + conv2d(h, self.weight_hh, padding="same")
            i, f, g, o = (mixed[:, k * self.hidden : (k + 1) * self.hidden] for k in range(4))
            c = sigmoid(f) * c + sigmoid(i) * tanh(g)
            h = sigmoid(o) * tanh(c)
            return (h, c), h

        end, out = scan(cell, first, gates.transpose(0, 1))
        return out.transpose(0, 1), end

    def options(self) -> str:
        return f"{self.inputs}, {self.hidden}, {self.kernel}"
