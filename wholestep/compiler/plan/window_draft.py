"""A window kernel while it is put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import DType, Extent, TensorType, evaluate
from wholestep.compiler.ir.windows import window_products
from wholestep.compiler.plan import winograd
from wholestep.compiler.plan.access import linear, resolve
from wholestep.compiler.plan.bodies import Window
from wholestep.compiler.plan.buffers import Buffers
from wholestep.compiler.plan.kernel import Index, Kernel, Load, Operand
from wholestep.compiler.plan.scheduled import CpuSchedule, Tiles
from wholestep.compiler.plan.window_ops import geometry


class Draft:
    """Axes, operands and workspace of a window kernel."""

    def __init__(self, head: Node, buffers: Buffers, axes: Sequence[Extent]) -> None:
        self.head, self.buffers = head, buffers
        self.axes: list[Extent] = list(axes)
        self.operands: list[Operand] = []
        self.work: list[tuple[str, int]] = []
        self.pool: tuple[int, ...] = (1, 1)  # the window of a pool in this kernel
        self.flops: int | None = None  # where tiles take fewer than the op

    def images(self, name: str, node: Node, batch: int | None) -> tuple[int, int, int]:
        """Images that are read whole, over axes of their own but for the batch; gives (H, W, C)."""
        n = self.new_axis(node.type.shape[0]) if batch is None else batch
        return self._whole(name, node, n)

    def weight(self, node: Node) -> tuple[int, int, int]:
        """A weight; gives (KH, KW, C / groups)."""
        return self._whole("weight", node, self.new_axis(node.type.shape[0]))

    def _whole(self, name: str, node: Node, first: int) -> tuple[int, int, int]:
        axes = (first, *(self.new_axis(e) for e in node.type.shape[1:]))
        access = resolve(node, tuple(Index.axis(a) for a in axes))
        self.operands.append(Operand(name, Load(self.buffers.of(access.base), access.shape, access.index), axes))
        height, width, channels = node.type.shape[1:]
        assert isinstance(height, int), "type rules ask for numbers"
        assert isinstance(width, int), "type rules ask for numbers"
        assert isinstance(channels, int), "type rules ask for numbers"
        return height, width, channels

    def new_axis(self, extent: Extent) -> int:
        self.axes.append(extent)
        return len(self.axes) - 1

    def room(self, name: str, elements: int, dtype: DType | None = None) -> None:
        """A piece of workspace."""
        of = dtype or self.head.type.dtype
        self.work.append((name, self.buffers.work(TensorType((elements,), of))))

    def is_dense(self, operand: Operand) -> bool:
        """Do the rows of images lie in memory as a frame's would?"""
        steps = dict(linear(operand.load.index, operand.load.shape).terms)
        _, _, column, channel = (steps.get(a, 0) for a in operand.axes)
        channels = self.axes[operand.axes[3]]
        return (channels == 1 or channel == 1) and column == channels

    def flops_of_tiles(self, batch: Extent, size: Sequence[int], pair: int) -> int:
        """Multiplies and adds of the products of tiles, for so many pairs of channels."""
        down, across = winograd.tiles_of(size)
        return evaluate(batch * (2 * winograd.POSITIONS * down * across * pair), self.buffers.sizes)

    def kernel(self, id: int, tiles: Tiles, **fields: object) -> Kernel:
        """The kernel of what was put together; `fields` are those of its body that the op's attributes do not tell."""
        work = self.flops_of_op() if self.flops is None else self.flops
        body = Window(self.head.op, tuple(self.operands), work=work, **(geometry(self.head.attrs) | fields))  # type: ignore[arg-type]
        return Kernel(id, tuple(self.axes), body, CpuSchedule(inner=replace(tiles, work=tuple(self.work))))

    def flops_of_op(self) -> int:
        types, last = tuple(i.type for i in self.head.inputs), True
        products = window_products(self.head.op, types, self.head.type, last)
        return evaluate(products * (1 if self.head.op.startswith("max_pool2d") else 2), self.buffers.sizes)


def area(size: Sequence[int], low: Sequence[int], high: Sequence[int]) -> int:
    """Pixels of a frame: an image and its margins."""
    (height, top, bottom), (width, left, right) = zip(size, low, high, strict=True)
    return (height + top + bottom) * (width + left + right)
