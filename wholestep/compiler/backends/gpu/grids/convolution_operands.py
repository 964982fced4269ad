"""Operands of window kernels: their shapes, of which only the number of images may vary between calls."""

from __future__ import annotations

from wholestep.compiler.ir.types import Extent
from wholestep.compiler.plan.model.bodies import Window
from wholestep.compiler.plan.model.kernel import Kernel, Operand


def operand(window: Window, name: str) -> Operand:
    return next(o for o in window.operands if o.name == name)


def shape_of(kernel: Kernel, item: Operand) -> tuple[Extent, ...]:
    return tuple(kernel.axes[a] for a in item.axes)


def static_extent(extent: Extent) -> int:
    """An extent that does not depend on the call."""
    assert isinstance(extent, int), f"only the number of images may vary between calls, not {extent}"
    return extent
