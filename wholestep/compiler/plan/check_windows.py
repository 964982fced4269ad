"""Is a window kernel the one that is planned for its operands?

The op is recorded again over the operands' types, so that its type rule judges the geometry, and its workspace is
reserved again by the planner itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import DType, Extent, TensorType, evaluate
from wholestep.compiler.ir.windows import SMALL_WINDOW
from wholestep.compiler.plan.access import linear
from wholestep.compiler.plan.kernel import Kernel, Layout, Operand, Plan, Space, Window
from wholestep.compiler.plan.window_draft import Draft
from wholestep.compiler.plan.window_ops import POOLED, WEIGHTS, WINDOWS
from wholestep.compiler.plan.window_weights import weight_fields
from wholestep.compiler.plan.windows import FRAMES
from wholestep.errors import WholestepError

Need = Callable[[bool, str], None]
GEOMETRY = ("stride", "low", "dilation", "groups", "pool", "tile_rows", "granule")
OPERANDS = {  # in the order of the op's inputs
    "conv2d": ("x", "weight"),
    "conv2d_grad_input": ("g", "weight"),
    "conv2d_grad_weight": ("x", "g"),
    "pooled_grad_weight": ("x", "g", "index"),
    "pooled_grad_input": ("g", "index", "weight"),
    "max_pool2d": ("x",),
    "max_pool2d_index": ("x",),
    "max_pool2d_grad": ("g", "index"),
    "max_pool2d_pick": ("x", "index"),
}


class Replay(Draft):
    """A draft over operands that are there: what it reserves is what the kernel needs."""

    def __init__(self, head: Node, kernel: Kernel, axes: Sequence[Extent], sizes: dict[str, int]) -> None:
        super().__init__(head, cast(Any, SimpleNamespace(sizes=sizes)), axes)
        assert kernel.window is not None
        self.given = {o.name: o for o in kernel.window.operands}
        self.rooms: list[tuple[str, int, DType]] = []
        self.fits = True

    def _whole(self, name: str, node: Node, first: int) -> tuple[int, int, int]:
        axes = (first, *(self.new_axis(e) for e in node.type.shape[1:]))
        self.fits = self.fits and self.given[name].axes == axes
        self.operands.append(self.given[name])
        height, width, channels = (e for e in node.type.shape[1:] if isinstance(e, int))
        return height, width, channels

    def room(self, name: str, elements: int, dtype: DType | None = None) -> None:
        self.rooms.append((name, elements, dtype or self.head.type.dtype))


def check_window(plan: Plan, kernel: Kernel, need: Need) -> None:
    """A convolution, a pool or an adjoint."""
    window, where = kernel.window, f"the window of kernel {kernel.id}"
    assert window is not None
    need(window.op in WINDOWS, f"{where} is an op with windows; received {window.op!r}")
    need(tuple(o.name for o in window.operands) == OPERANDS[window.op], f"{where} has the operands of {window.op}")
    pairs = (window.stride, window.low, window.dilation, *([window.pool] if window.pool else []))
    need(all(len(pair) == 2 for pair in pairs), f"{where} has pairs of numbers")
    for item in (*window.operands, *window.results):
        _check_view(plan, kernel, item, need)
    _check_levels(kernel, window, need)
    reasons = []
    for head, axes in _heads(plan, kernel, window):
        draft = Replay(head, kernel, axes, plan.sizes)
        if window.pooled is not None:
            draft.pool = window.pool
        fields = weight_fields(draft) if window.op in WEIGHTS else FRAMES[window.op](draft)
        reason = _differs(plan, kernel, draft, fields)
        if reason is None:
            return
        reasons.append(reason)
    need(False, f"{where} is planned for its operands: {reasons[0] if reasons else 'no such op over them'}")


def _check_view(plan: Plan, kernel: Kernel, item: Operand, need: Need) -> None:
    where, rank = f"{item.name!r} of kernel {kernel.id}", len(kernel.axes)
    need(plan.buffers[item.load.buffer].layout is Layout.ROWS, f"{where} lies in rows")
    known = len(set(item.axes)) == len(item.axes) and all(0 <= a < rank for a in item.axes)
    need(known and len(item.axes) in (4, 5), f"{where} has axes of the kernel")
    indices = item.load.index
    need(all(a in item.axes for i in indices for a, _ in i.terms), f"{where} moves along its axes")
    need(all(i.value is None and i.over == 1 for i in indices), f"{where} has indices of axes")
    found = dict(linear(indices, item.load.shape).terms)
    steps = [found.get(a, 0) for a in item.axes[-3:]]
    need(all(isinstance(s, int) for s in steps), f"{where} has steps that are numbers")
    assert kernel.window is not None
    through_pool = item.name == "index" and kernel.window.op in WINDOW_G
    if item.name == "result" or through_pool:  # native code walks them as they lie
        _, columns, channels = (kernel.axes[a] for a in item.axes[-3:])
        need(steps == [columns * channels, channels, 1], f"{where} lies without gaps")


def _check_levels(kernel: Kernel, window: Window, need: Need) -> None:
    where = f"the window of kernel {kernel.id}"
    if window.op in WEIGHTS:
        need(not kernel.levels and window.pooled is None, f"{where} has no epilogue")
        need(kernel.rows == (0,) and kernel.vector is None, f"{where} runs over its outputs")
        rank = 5 if window.op == "pooled_grad_weight" else 4
        results = [(o.name, o.axes) for o in window.results]
        need(results == [("result", tuple(range(rank)))], f"{where} has one result")
        return
    need(kernel.rows == (0, 1, 2) and kernel.vector == 3 and not window.results, f"{where} runs over pixels")
    need(len(kernel.levels) == (1 if window.pooled is None else 2), f"{where} has one epilogue, and one behind a pool")
    if window.pooled is not None:
        need(window.op in POOLED and not kernel.levels[0].stores, f"{where} has a pool behind a convolution")
        need(window.pooled in {i.id for i in kernel.levels[0].body}, f"{where} pools a value of its own")


def _heads(plan: Plan, kernel: Kernel, window: Window) -> Iterator[tuple[Node, tuple[Extent, ...]]]:
    """The op recorded again, with the axes that its kernel begins with; none where its type rule refuses it.

    A pool drops the last rows that fill no window: how many there were is not written down, so each number is tried.
    """
    types = [
        TensorType(tuple(kernel.axes[a] for a in o.axes), plan.buffers[o.load.buffer].type.dtype)
        for o in window.operands
    ]
    inputs = [Node("input", (), at.InputAttrs(name, t)) for name, t in zip(OPERANDS[window.op], types, strict=True)]
    behind_pool = window.pooled is not None
    through_pool = behind_pool or window.op in WINDOW_G
    dropped = product(*(range(n) for n in window.pool)) if through_pool else [(0, 0)]
    made = kernel.axes[: 5 if window.op == "pooled_grad_weight" else 4]
    if through_pool and not (len(window.pool) == 2 and min(window.pool) >= 1 and max(window.pool) <= SMALL_WINDOW):
        return
    for left in dropped:
        try:
            head = Node(window.op, inputs, _attrs(window, types, made, left))
        except (WholestepError, ValueError, TypeError, AssertionError, ZeroDivisionError):
            continue
        shape = head.type.shape
        if behind_pool:
            n, rows, columns, channels = shape
            pooled = tuple(e // p for e, p in zip((rows, columns), window.pool, strict=True) if isinstance(e, int))
            shape = (n, *pooled, channels, *window.pool)
        if shape == tuple(kernel.axes[: len(shape)]):
            yield head, shape


def _attrs(window: Window, types: Sequence[TensorType], made: Sequence[Any], left: Sequence[int]) -> at.Attrs:
    """The attributes of the op; the padding behind an image is the least that gives as many windows."""
    w, ones = window, (1, 1)
    if w.op == "conv2d":
        pool = w.pool if w.pooled is not None else ones
        full = [n * p + more for n, p, more in zip(made[1:3], pool, left, strict=True)]
        high = _behind(types[0].shape[1:3], full, types[1].shape[1:3], w.stride, w.low, w.dilation)
        return at.ConvAttrs(w.stride, w.low, high, w.dilation, w.groups, True)
    if w.op == "conv2d_grad_input":
        high = _behind(made[1:3], types[0].shape[1:3], types[1].shape[1:3], w.stride, w.low, w.dilation)
        return at.ConvGradAttrs(w.stride, w.low, high, w.dilation, w.groups, True, tuple(made[1:3]))
    if w.op == "conv2d_grad_weight":
        high = _behind(types[0].shape[1:3], types[1].shape[1:3], made[1:3], w.stride, w.low, w.dilation)
        return at.ConvGradAttrs(w.stride, w.low, high, w.dilation, w.groups, True, tuple(made[1:3]))
    if w.op in ("pooled_grad_weight", "pooled_grad_input"):
        g, by_weight = types[WINDOW_G[w.op]], w.op == "pooled_grad_weight"
        middle = tuple(n * p + more for n, p, more in zip(cast(Any, g.shape[1:3]), w.pool, left, strict=True))
        size, kernel = (types[0].shape[1:3], made[2:4]) if by_weight else (made[1:3], types[2].shape[1:3])
        high = _behind(size, middle, kernel, ones, w.low, ones)
        return at.PooledConvAttrs(w.low, high, w.pool, middle, tuple(made[2:4] if by_weight else made[1:3]))
    if w.op == "max_pool2d_grad":
        high = _behind(made[1:3], types[0].shape[1:3], w.pool, w.stride, w.low, ones)
        return at.PoolGradAttrs(w.pool, w.stride, w.low, high, True, tuple(made[1:3]))
    high = _behind(types[0].shape[1:3], made[1:3], w.pool, w.stride, w.low, ones)
    return at.PoolAttrs(w.pool, w.stride, w.low, high, True)


WINDOW_G = {"pooled_grad_weight": 1, "pooled_grad_input": 0}  # which input the pool's gradient is


def _behind(size: Any, windows: Any, window: Any, stride: Any, low: Any, dilation: Any) -> tuple[int, ...]:
    return tuple(
        max(0, (n - 1) * s + d * (k - 1) + 1 - lo - e)
        for e, n, k, s, lo, d in zip(size, windows, window, stride, low, dilation, strict=True)
    )


def _differs(plan: Plan, kernel: Kernel, draft: Replay, fields: dict[str, object]) -> str | None:
    window = kernel.window
    assert window is not None
    if not draft.fits or tuple(draft.axes) != kernel.axes:
        return "its axes are others"
    plain = Window(window.op, ())
    expected = {name: fields.get(name, getattr(plain, name)) for name in GEOMETRY}
    if window.pooled is not None:
        expected["pool"] = window.pool
    for name, value in expected.items():
        if getattr(window, name) != value:
            return f"{name} is {value}; received {getattr(window, name)}"
    if [name for name, _ in window.work] != [name for name, _, _ in draft.rooms]:
        return f"its workspace is {', '.join(name for name, _, _ in draft.rooms)}"
    for (name, id), (_, elements, dtype) in zip(window.work, draft.rooms, strict=True):
        if not 0 <= id < len(plan.buffers):
            return f"{name} is a buffer"
        buffer = plan.buffers[id]
        if buffer.space is not Space.WORK or buffer.layout is not Layout.ROWS or buffer.type.dtype != dtype:
            return f"{name} is a workspace of {dtype}"
        if evaluate(buffer.type.elements, plan.sizes) < elements:
            return f"{name} needs {elements} elements; it has {buffer.type.elements}"
    results = [o for o in window.results if plan.buffers[o.load.buffer].type.dtype != draft.head.type.dtype]
    return "its result has another dtype" if results else None
