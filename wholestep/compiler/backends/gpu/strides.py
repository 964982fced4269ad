"""Strides and alignment of affine accesses: which axis is contiguous, and are vector loads along it aligned?"""

from __future__ import annotations

from wholestep.compiler.ir.types import Extent, product
from wholestep.compiler.plan.model.kernel import Load


def stride_of(load: Load, axis: int) -> Extent:
    """Element stride along an axis."""
    stride: Extent = 0
    for d, i in enumerate(load.index):
        for a, c in i.terms:
            if a == axis:
                stride = stride + c * product(load.shape[d + 1 :])
    return stride


def start_of(load: Load) -> Extent:
    """Element offset at index 0 of all axes."""
    start: Extent = 0
    for d, i in enumerate(load.index):
        start = start + i.offset * product(load.shape[d + 1 :])
    return start


def is_affine(load: Load) -> bool:
    """Is the address linear in the axes, without computed indices and divisions?"""
    return all(i.value is None and i.over == 1 for i in load.index)


def is_multiple(extent: Extent, of: int) -> bool:
    """Is an extent a multiple of a number, for all values of its symbols?"""
    if isinstance(extent, int):
        return extent % of == 0
    return all(coefficient % of == 0 for _, coefficient in extent.terms)


def is_aligned_in(load: Load, axis: int, count: int) -> bool:
    """Is an affine access contiguous along an axis in groups of `count` elements, aligned to `count`?"""
    return is_affine(load) and is_packed(load, axis, count)


def is_packed(load: Load, axis: int, count: int) -> bool:
    """Are `count` elements along an axis contiguous and aligned to `count` elements?

    Buffers begin at multiples of 64 bytes.  A computed index may select the row, if rows are aligned.
    """
    for d, index in enumerate(load.index):
        stride = product(load.shape[d + 1 :])
        if index.over != 1 or index.value is not None:
            if any(a == axis for a, _ in index.terms) or not is_multiple(stride, count):
                return False
            continue
        other_strides = [c * stride for a, c in index.terms if a != axis]
        if not all(is_multiple(x, count) for x in (*other_strides, index.offset * stride)):
            return False
    return stride_of(load, axis) == 1
