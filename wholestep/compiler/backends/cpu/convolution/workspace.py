"""The thread-private workspace of a window kernel, as a list of named pieces that its scheduler reserves."""

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


class WorkspaceRequest:
    """Collects the workspace that a window kernel needs: a function of its op, operands and fused pool alone."""

    def __init__(self, kernel: Kernel, buffers: Sequence[Buffer], sizes: Mapping[str, int]) -> None:
        assert isinstance(kernel.body, Window)
        self.kernel, self.body, self.sizes = kernel, kernel.body, sizes
        self.head = rebuild_op(kernel, kernel.body, buffers)
        self.pool = kernel.body.pool if kernel.body.pooled is not None else (1, 1)
        self.asked: list[tuple[str, int, DType]] = []
        self.flops: int | None = None  # set if the chosen algorithm needs fewer than the op's definition

    def room(self, name: str, elements: int, dtype: DType | None = None) -> None:
        """Reserve a piece of workspace."""
        self.asked.append((name, elements, dtype or self.head.type.dtype))

    def image(self, input: int) -> tuple[int, int, int]:
        """(H, W, C) of images, or (KH, KW, C / groups) of a weight."""
        return _constant_image(self.head.inputs[input].type)

    def result_image(self) -> tuple[int, int, int]:
        """(H, W, C) of the result."""
        return _constant_image(self.head.type)

    def frame(self, input: int, low: Sequence[int], high: Sequence[int]) -> PaddedImage:
        """The frame of images with margins; if no workspace is reserved for it, the images in place."""
        height, width, channels = self.image(input)
        row = (low[1] + width + high[1]) * channels
        if not any(name == "frame" for name, _, _ in self.asked):
            step = self.steps(input)[1]
            assert isinstance(step, int), (
                f"ReadableViews.prepare() copies operands of window kernels with a stride of {step}"
            )
            row = step
        return PaddedImage(tuple(low), row, (low[0] + height + high[0]) * row + SLACK)

    def is_dense(self, input: int) -> bool:
        """Are pixels contiguous in memory, as in a frame?"""
        _, _, column, channel = self.steps(input)
        channels = self.kernel.axes[self.body.operands[input].axes[3]]
        return (channels == 1 or channel == 1) and column == channels

    def has_taps_last(self, input: int) -> bool:
        """Is a weight stored as users see it: output, channel, row, column?"""
        height, width, channels = self.image(input)
        taps = height * width
        strides = zip((2, height, width, channels), (taps * channels, width, 1, taps), self.steps(input), strict=True)
        return all(extent == 1 or step == actual for extent, step, actual in strides)

    def steps(self, input: int) -> tuple[Extent, ...]:
        """Elements from one image (or output), row, column, channel to the next."""
        operand = self.body.operands[input]
        steps = dict(linear(operand.load.index, operand.load.shape).terms)
        return tuple(steps.get(a, 0) for a in operand.axes)

    def count_tiles(self, batch: Extent, size: Sequence[int], pair: int) -> None:
        """Set the flops: multiplies and adds of the tiles' products, for `pair` pairs of channels."""
        down, across = winograd.tiles_of(size)
        self.flops = evaluate(batch * (2 * winograd.POSITIONS * down * across * pair), self.sizes)


def _constant_image(type: TensorType) -> tuple[int, int, int]:
    height, width, channels = type.shape[1:]
    assert isinstance(height, int), "the type rule requires a constant size"
    assert isinstance(width, int), "the type rule requires a constant size"
    assert isinstance(channels, int), "the type rule requires a constant size"
    return height, width, channels


def rebuild_op(kernel: Kernel, window: Window, buffers: Sequence[Buffer]) -> Node:
    """The op of a window kernel, rebuilt over its operands' types, so that its type rule checks the geometry."""
    types = [
        TensorType(tuple(kernel.axes[a] for a in o.axes), buffers[o.load.buffer].type.dtype) for o in window.operands
    ]
    inputs = [Node("input", (), at.InputAttrs(name, t)) for name, t in zip(OPERANDS[window.op], types, strict=True)]
    result_axes = kernel.axes[: 5 if window.op == "pooled_grad_weight" else 4]
    return Node(window.op, inputs, window_attrs(window, result_axes))


def area(size: Sequence[int], low: Sequence[int], high: Sequence[int]) -> int:
    """Pixels of a frame: an image and its margins."""
    (height, top, bottom), (width, left, right) = zip(size, low, high, strict=True)
    return (height + top + bottom) * (width + left + right)
