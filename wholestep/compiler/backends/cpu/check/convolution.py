"""Checks that a window kernel has exactly the schedule that the planner chooses for its operands.

The op is rebuilt over the operands' types, so that its type rule checks the geometry, and the planner itself reserves
its workspace again; both must equal what the plan contains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from wholestep.compiler.backends.cpu.convolution.workspace import WorkspaceRequest
from wholestep.compiler.backends.cpu.kernel_schedule import Tiles, tiles_of
from wholestep.compiler.backends.cpu.tiling import tiles_for
from wholestep.compiler.ir.type_rules.convolution import SMALL_WINDOW
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.lower.convolution_ops import (
    OPERANDS,
    POOLED,
    WEIGHTS,
    WINDOWS,
    count_output_axes,
    geometry,
    operand_axes,
)
from wholestep.compiler.plan.model.access import linear
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Kernel, Layout, Operand, Plan, Space
from wholestep.errors import WholestepError

Need = Callable[[bool, str], None]
GEOMETRY = ("stride", "low", "high", "dilation", "groups", "pool", "middle")


def check_window(plan: Plan, kernel: Kernel, need: Need) -> None:
    """Check a convolution, a pool, or a gradient of one."""
    window, where = kernel.body, f"the window of kernel {kernel.id}"
    assert isinstance(window, Window)
    need(window.op in WINDOWS, f"{where} must be an op with windows; received {window.op!r}")
    need(
        tuple(o.name for o in window.operands) == OPERANDS[window.op], f"{where} must have the operands of {window.op}"
    )
    pairs = [window.stride, window.low, window.high, window.dilation, *(p for p in (window.pool, window.middle) if p)]
    need(all(len(pair) == 2 for pair in pairs), f"the geometry of {where} must be pairs of integers")
    for item in (*window.operands, *window.results):
        _check_view(plan, kernel, item, need)
    _check_levels(kernel, window, need)
    _check_pool(window, where, need)
    result_axes = kernel.axes[: count_output_axes(window)]
    axes = operand_axes(window.op, len(result_axes))
    need([o.axes for o in window.operands] == axes, f"the operands of {where} must have their own axes")
    need(len(kernel.axes) == axes[-1][-1] + 1, f"{where} must have no other axes than its operands")
    try:
        tiles, rooms = tiles_for(kernel, plan.buffers, plan.sizes)
    except (WholestepError, ValueError, TypeError, AssertionError, ZeroDivisionError) as error:
        need(False, f"{where} does not fit its operands: {error}")
        raise AssertionError from None
    reason = _differs(plan, kernel, rooms, tiles)
    need(reason is None, f"{where} does not fit its operands: {reason}")


def _check_pool(window: Window, where: str, need: Need) -> None:
    if window.pooled is not None or window.op in WINDOW_G:
        windows = len(window.pool) == 2 and min(window.pool) >= 1 and max(window.pool) <= SMALL_WINDOW
        need(windows and len(window.middle) == 2, f"{where} must have a pool with small windows")


def _check_view(plan: Plan, kernel: Kernel, item: Operand, need: Need) -> None:
    where, rank = f"{item.name!r} of kernel {kernel.id}", len(kernel.axes)
    need(plan.buffers[item.load.buffer].layout == Layout.ROWS, f"{where} must be stored in rows")
    valid = len(set(item.axes)) == len(item.axes) and all(0 <= a < rank for a in item.axes)
    need(valid and len(item.axes) in (4, 5), f"the axes of {where} must be distinct axes of the kernel")
    indices = item.load.index
    need(
        all(a in item.axes for i in indices for a, _ in i.terms), f"the indices of {where} must depend on its axes only"
    )
    need(all(i.value is None and i.over == 1 for i in indices), f"the indices of {where} must be affine")
    strides = dict(linear(indices, item.load.shape).terms)
    steps = [strides.get(a, 0) for a in item.axes[-3:]]
    need(all(isinstance(s, int) for s in steps), f"the strides of {where} must be integers")
    assert isinstance(kernel.body, Window)
    through_pool = item.name == "index" and kernel.body.op in WINDOW_G
    if item.name == "result" or through_pool:  # native code assumes that these operands are dense
        _, columns, channels = (kernel.axes[a] for a in item.axes[-3:])
        need(steps == [columns * channels, channels, 1], f"{where} must be dense")


def _check_levels(kernel: Kernel, window: Window, need: Need) -> None:
    where = f"the window of kernel {kernel.id}"
    if window.op in WEIGHTS:
        need(not kernel.levels and window.pooled is None, f"{where} must have no epilogue")
        rank = 5 if window.op == "pooled_grad_weight" else 4
        results = [(o.name, o.axes) for o in window.results]
        need(results == [("result", tuple(range(rank)))], f"{where} must have one result")
        return
    need(not window.results, f"{where} must store its result in its epilogue")
    need(
        len(kernel.levels) == (1 if window.pooled is None else 2),
        f"{where} must have one epilogue, and one after a pool",
    )
    if window.pooled is not None:
        need(window.op in POOLED and not kernel.levels[0].stores, f"{where} must have a convolution before its pool")
        need(window.pooled in {i.id for i in kernel.levels[0].body}, f"{where} must pool a value that it computes")


WINDOW_G = {"pooled_grad_weight": 1, "pooled_grad_input": 0}  # op -> position of the pool's gradient among the operands


def _differs(plan: Plan, kernel: Kernel, rooms: WorkspaceRequest, tiles: Tiles) -> str | None:
    """The first difference between a kernel's axes, schedule, workspace or result and those its operands require."""
    window, actual, shape = rooms.body, tiles_of(kernel), rooms.head.type.shape
    if window.pooled is not None:
        if shape[1:3] != window.middle:
            return f"its convolution has the shape {shape}"
        pooled = tuple(e // p for e, p in zip(window.middle, window.pool, strict=True))
        shape = (shape[0], *pooled, shape[3], *window.pool)
    if shape != tuple(kernel.axes[: len(shape)]):
        return f"its axes must be {shape}"
    expected = vars(Window(window.op, ())) | geometry(rooms.head.attrs)
    if window.pooled is not None:
        expected |= {"pool": window.pool, "middle": window.middle}
    for name in GEOMETRY:
        if getattr(window, name) != expected[name]:
            return f"{name} must be {expected[name]}; received {getattr(window, name)}"
    if replace(actual, work=()) != tiles:
        return f"its tiles must be {tiles}; received {actual}"
    if [name for name, _ in actual.work] != [name for name, _, _ in rooms.asked]:
        return f"its workspace must be {', '.join(name for name, _, _ in rooms.asked)}"
    for (name, id), (_, elements, dtype) in zip(actual.work, rooms.asked, strict=True):
        if not 0 <= id < len(plan.buffers):
            return f"{name} must be a buffer of the plan"
        buffer = plan.buffers[id]
        if buffer.space is not Space.WORK or buffer.layout != Layout.ROWS or buffer.type.dtype != dtype:
            return f"{name} must be a workspace of {dtype}"
        if evaluate(buffer.type.elements, plan.sizes) < elements:
            return f"{name} needs {elements} elements; it has {buffer.type.elements}"
    results = [o for o in window.results if plan.buffers[o.load.buffer].type.dtype != rooms.head.type.dtype]
    return "its result must have the dtype of the op" if results else None
