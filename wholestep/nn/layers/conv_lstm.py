"""A convolutional LSTM, whose state is an image."""

from __future__ import annotations

import math

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.control.scan import scan
from wholestep.compiler.frontend.functions.primitives import sigmoid, tanh
from wholestep.compiler.frontend.layers.convolution import conv2d
from wholestep.compiler.frontend.layers.window import Sizes, per_axis
from wholestep.compiler.frontend.tensor import Tensor, as_tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import ShapeError
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import parameter, weight


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
