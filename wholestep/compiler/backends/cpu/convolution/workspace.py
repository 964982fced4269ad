"""The workspace of a window kernel, piece by piece, and the tiles that it is computed in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.backends.cpu.convolution import winograd
from wholestep.compiler.backends.cpu.convolution.padding import SLACK
from wholestep.compiler.backends.cpu.kernel_schedule import PaddedImage
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import DType, Extent, TensorType, evaluate
from wholestep.compiler.plan.lower.convolution_ops import OPERANDS, window_attrs
from wholestep.compiler.plan.model.access import linear
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Buffer, Kernel


class Rooms:
    """What a window kernel asks of a thread's workspace: from its op, its operands and the pool in it alone."""

    def __init__(self, kernel: Kernel, buffers: Sequence[Buffer], sizes: Mapping[str, int]) -> None:
        assert isinstance(kernel.body, Window)
        self.kernel, self.body, self.sizes = kernel, kernel.body, sizes
        self.head = record_again(kernel, kernel.body, buffers)
        self.pool = kernel.body.pool if kernel.body.pooled is not None else (1, 1)
        self.asked: list[tuple[str, int, DType]] = []
        self.flops: int | None = None  # where tiles take fewer than the op

    def room(self, name: str, elements: int, dtype: DType | None = None) -> None:
        """A piece of workspace."""
        self.asked.append((name, elements, dtype or self.head.type.dtype))

    def image(self, input: int) -> tuple[int, int, int]:
        """(H, W, C) of images, or (KH, KW, C / groups) of a weight."""
        height, width, channels = self.head.inputs[input].type.shape[1:]
        assert isinstance(height, int), "type rules ask for numbers"
        assert isinstance(width, int), "type rules ask for numbers"
        assert isinstance(channels, int), "type rules ask for numbers"
        return height, width, channels

    def frame(self, input: int, low: Sequence[int], high: Sequence[int]) -> PaddedImage:
        """The frame of images with margins; without a piece of workspace for it, the images where they lie."""
        height, width, channels = self.image(input)
        row = (low[1] + width + high[1]) * channels
        if not any(name == "frame" for name, _, _ in self.asked):
            step = self.steps(input)[1]
            assert isinstance(step, int), f"prepare() copies what a window kernel would read with a step of {step}"
            row = step
        return PaddedImage(tuple(low), row, (low[0] + height + high[0]) * row + SLACK)

    def is_dense(self, input: int) -> bool:
        """Do the rows of images lie in memory as a frame's would?"""
        _, _, column, channel = self.steps(input)
        channels = self.kernel.axes[self.body.operands[input].axes[3]]
        return (channels == 1 or channel == 1) and column == channels

    def has_taps_last(self, input: int) -> bool:
        """Does a weight lie in memory as users see it: output, channel, row, column?"""
        height, width, channels = self.image(input)
        taps = height * width
        wanted = zip((2, height, width, channels), (taps * channels, width, 1, taps), self.steps(input), strict=True)
        return all(extent == 1 or step == found for extent, step, found in wanted)

    def steps(self, input: int) -> tuple[Extent, ...]:
        """Elements from one image (or output), row, column, channel to the next."""
        operand = self.body.operands[input]
        found = dict(linear(operand.load.index, operand.load.shape).terms)
        return tuple(found.get(a, 0) for a in operand.axes)

    def count_tiles(self, batch: Extent, size: Sequence[int], pair: int) -> None:
        """Count multiplies and adds of the products of tiles, for so many pairs of channels."""
        down, across = winograd.tiles_of(size)
        self.flops = evaluate(batch * (2 * winograd.POSITIONS * down * across * pair), self.sizes)


def record_again(kernel: Kernel, window: Window, buffers: Sequence[Buffer]) -> Node:
    """The op of a window kernel over the types of its operands; its type rule judges the geometry."""
    types = [
        TensorType(tuple(kernel.axes[a] for a in o.axes), buffers[o.load.buffer].type.dtype) for o in window.operands
    ]
    inputs = [Node("input", (), at.InputAttrs(name, t)) for name, t in zip(OPERANDS[window.op], types, strict=True)]
    made = kernel.axes[: 5 if window.op == "pooled_grad_weight" else 4]
    return Node(window.op, inputs, window_attrs(window, made))


def area(size: Sequence[int], low: Sequence[int], high: Sequence[int]) -> int:
    """Pixels of a frame: an image and its margins."""
    (height, top, bottom), (width, left, right) = zip(size, low, high, strict=True)
    return (height + top + bottom) * (width + left + right)
