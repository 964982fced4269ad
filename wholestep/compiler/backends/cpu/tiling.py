"""Tiling of one thread's part of a kernel: blocks of products and of queries, tiles of images; and their workspace.

A thread has one workspace, which every kernel uses from its start, so its size is the largest need of any kernel.
Block sizes change when a term is added to a sum, never the order of the terms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from wholestep.compiler.backends.cpu.convolution.forward import IMAGE_SCHEDULERS
from wholestep.compiler.backends.cpu.convolution.weight_gradient import schedule_weight_gradient
from wholestep.compiler.backends.cpu.convolution.workspace import WorkspaceRequest
from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.backends.cpu.kernel_schedule import Blocks, CpuSchedule, Inner, Queries, Tiles
from wholestep.compiler.backends.cpu.layout.stored_layout import LANES, PAIRS, PANELS
from wholestep.compiler.ir.types import Extent, TensorType, evaluate
from wholestep.compiler.plan.lower.attention import Head
from wholestep.compiler.plan.lower.convolution_ops import WEIGHTS
from wholestep.compiler.plan.lower.rewrite_loads import with_loads, with_stores
from wholestep.compiler.plan.model.bodies import Body, Call, Dot, Window
from wholestep.compiler.plan.model.kernel import Buffer, Draft, Kernel, Layout, Load, Space
from wholestep.compiler.plan.model.layout import layout_bytes

SCORES = {"attention": 1, "attention_grad": 2}  # routine -> number of score arrays in its workspace
INNER_AXES = 5  # axes of one attention head: group, queries, keys, width, values


def tile_kernels(draft: Draft, settings: Settings) -> tuple[Draft, int]:
    """The draft with blocks and workspace for every kernel, and the bytes of a thread's workspace."""
    tiler = _Tiler(draft, settings)
    kernels = tuple(map(tiler.block, draft.kernels))
    return replace(draft, buffers=tuple(tiler.buffers), kernels=kernels), tiler.largest


class _Tiler:
    """Appends the workspace buffers in kernel order; the buffers of each kernel start at offset 0."""

    def __init__(self, draft: Draft, settings: Settings) -> None:
        self.settings, self.sizes, self.draft_buffers = settings, draft.sizes, draft.buffers
        read = {load.buffer for k in draft.kernels for load, _ in k.body.reads()}
        # A state's half-precision copy that is only read transposed is not stored untransposed.
        unread = {b.id for b in draft.buffers if b.space is Space.COPY} - read
        live = [b for b in draft.buffers if b.space is not Space.WORK and b.id not in unread]
        self.unread = unread
        self.renumbered = {b.id: i for i, b in enumerate(live)}
        self.buffers = [replace(b, id=i) for i, b in enumerate(live)]
        self.used = self.largest = 0

    def block(self, kernel: Kernel) -> Kernel:
        self.used = 0
        body = self.renumber_body(with_stores(kernel.body, lambda s: [] if s.load.buffer in self.unread else [s]))
        kernel = replace(kernel, body=body)
        if isinstance(body, Dot):
            return replace(kernel, schedule=CpuSchedule(inner=self.product(body, kernel.axes[body.k])))
        if isinstance(body, Call):
            return replace(kernel, schedule=CpuSchedule(inner=self.queries(kernel, body)))
        if isinstance(body, Window):
            return self.window(kernel)
        return replace(kernel, schedule=CpuSchedule())

    def renumber_body(self, body: Body) -> Body:
        """The body with the new buffer numbers; rows that only this kernel uses become workspace."""
        for row_buffer in sorted({load.buffer for load in body.stores()} - self.renumbered.keys()):
            self.renumbered[row_buffer] = self.work(self.draft_buffers[row_buffer].type, Layout.ROWS)
        accessed = {load.buffer for load, _ in body.reads()} | {load.buffer for load in body.stores()}
        if all(self.renumbered[b] == b for b in accessed):
            return body
        return with_loads(body, lambda load: replace(load, buffer=self.renumbered[load.buffer]))

    def work(self, type: TensorType, layout: Layout) -> int:
        """Reserve a piece of the thread's workspace; returns its buffer."""
        id, bytes = len(self.buffers), layout_bytes(type, layout, self.sizes)
        self.buffers.append(Buffer(id, "", type, Space.WORK, layout, bytes, offset=self.used))
        self.used += bytes
        self.largest = max(self.largest, self.used)
        return id

    def product(self, dot: Dot, depth: Extent) -> Blocks:
        blocks, right = block_size(dot.a, self.buffers[dot.a.buffer], dot.m, self.settings), self.buffers[dot.b.buffer]
        if right.type.dtype.is_half and right.layout != PAIRS:
            pairs = self.work(TensorType((depth, blocks.columns), right.type.dtype), PAIRS)
            blocks = replace(blocks, pairs=pairs)
        if dot.is_direct:
            return blocks
        (dtype,) = (i.dtype for i in dot.levels[0].body if i.op == "acc")
        return replace(blocks, work=self.work(TensorType((blocks.rows, blocks.columns), dtype), PANELS))

    def queries(self, kernel: Kernel, call: Call) -> Queries:
        head, arrays = head_of(kernel), SCORES[call.routine]
        block = query_block(head, call.dtype.size, self.sizes, self.settings)
        return Queries(
            block, self.work(TensorType((attention_workspace(head, arrays, block),), call.dtype), Layout.ROWS)
        )

    def window(self, kernel: Kernel) -> Kernel:
        tiles, rooms = tiles_for(kernel, self.buffers, self.sizes)
        work = tuple((name, self.work(TensorType((n,), dtype), Layout.ROWS)) for name, n, dtype in rooms.asked)
        flops = rooms.body.work if rooms.flops is None else rooms.flops
        inner: Inner = replace(tiles, work=work)
        return replace(kernel, body=replace(rooms.body, work=flops), schedule=CpuSchedule(inner=inner))


def block_size(a: Load, buffer: Buffer, m: int, settings: Settings) -> Blocks:
    """Rows and columns of a block, chosen by how the left operand is read: down its columns, or along its rows."""
    if not a.index or a.index[-1].plain != m:  # an expanded scalar has no index
        return Blocks()
    if buffer.type.dtype.is_half:
        return Blocks(columns=settings.paired_for)
    if buffer.layout == PANELS:
        return Blocks(rows=LANES)
    stride = a.shape[-1] * buffer.type.dtype.size
    copied = isinstance(stride, int) and stride >= settings.copied_stride and stride % settings.copied_step == 0
    return Blocks(columns=settings.copied_for) if copied else Blocks()


def head_of(kernel: Kernel) -> Head:
    """The axes of an attention call."""
    lead = len(kernel.axes) - INNER_AXES
    group = kernel.axes[lead]
    assert isinstance(group, int), "the type rule requires a constant size"
    return Head(kernel.axes[:lead], group, *kernel.axes[lead + 1 :])


def query_block(head: Head, dtype_size: int, sizes: Mapping[str, int], settings: Settings) -> int:
    """The number of queries whose scores are in the workspace at a time: a multiple of the panel width."""
    fitting = settings.scores // (dtype_size * (evaluate(head.keys, sizes) + LANES))
    return max(LANES, min(settings.most_queries, fitting // LANES * LANES))


def attention_workspace(head: Head, arrays: int, block: int) -> Extent:
    """Elements of the workspace: transposed keys (and values), and the score arrays of one block of queries."""
    transposed = head.width + (head.values if arrays == 2 else 0)
    return (head.keys + 2 * LANES) * (transposed + arrays * block)


def tiles_for(kernel: Kernel, buffers: Sequence[Buffer], sizes: Mapping[str, int]) -> tuple[Tiles, WorkspaceRequest]:
    """The tiling of a window kernel, and the workspace that it needs."""
    rooms = WorkspaceRequest(kernel, buffers, sizes)
    return (schedule_weight_gradient if rooms.body.op in WEIGHTS else IMAGE_SCHEDULERS[rooms.body.op])(rooms), rooms
