"""The values of one kernel, each an array over all of the kernel's axes: loads, stores, instructions, reductions.

An array has length 1 along an axis that its value does not depend on.  Nothing here loops over elements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from wholestep.compiler.backends.common.numpy_program import LaunchMemory, pointwise
from wholestep.compiler.backends.reference.target import REFERENCE
from wholestep.compiler.ir.semantics.random import uniform_of_hash
from wholestep.compiler.ir.types import DType, Extent, Shape, evaluate
from wholestep.compiler.plan.model.kernel import Guard, Index, Instr, Load, Reduce, Space, Store

Array = np.ndarray[Any, Any]


def accumulator(dtype: DType) -> np.dtype[Any]:
    """The NumPy dtype in which sums of a dtype accumulate."""
    return np.dtype(REFERENCE.dtypes[dtype.name])


class Values:
    """The values of a kernel, by instruction id."""

    def __init__(self, memory: LaunchMemory, axes: Shape, written: frozenset[int]) -> None:
        self.memory, self.extents = memory, memory.shape(axes)
        self.computed: dict[int, Array] = {}
        self._written = written  # buffers that the kernel stores into: loads from them are copied
        self._carried: dict[int, Array] = {}  # workspace rows, for all rows of the kernel at once

    # -- indices ---------------------------------------------------------------------------------------------------
    def along(self, axis: int) -> Array:
        """The indices along an axis, as an array over all axes."""
        shape = [1] * len(self.extents)
        shape[axis] = self.extents[axis]
        return np.arange(self.extents[axis]).reshape(shape)

    def number(self, extent: Extent) -> int:
        return evaluate(extent, self.memory.sizes)

    def index(self, index: Index, extent: int = 0) -> Array:
        """The index in a dimension; a computed index is clamped to its extent, unless it is the start of a store."""
        position = np.full([1] * len(self.extents), self.number(index.offset))
        for axis, coefficient in index.terms:
            position = position + self.number(coefficient) * self.along(axis)
        if index.value is not None:
            value = self.computed[index.value].astype(np.int64)
            position = position + (value if index.is_behind_start else np.clip(value, 0, extent - 1))
        return position // index.over

    def inside(self, index: Index, low: Extent, high: Extent) -> Array:
        position = self.index(index)
        return (self.number(low) <= position) & (position < self.number(high))

    def positions(self, load: Load) -> Array:
        """The row-major position of each element."""
        shape = self.memory.shape(load.shape)
        at = np.zeros([1] * len(self.extents), np.int64)
        for d, index in enumerate(load.index):
            at = at + self.index(index, shape[d]) * prod(shape[d + 1 :])
        return at

    def view(self, load: Load) -> Array | None:
        """A strided view of the elements, if the load is affine in the axes; else None."""
        if any(i.value is not None or i.over != 1 for i in load.index):
            return None
        shape, flat = self.memory.shape(load.shape), self.memory.arrays[load.buffer]
        start, steps = 0, [0] * len(self.extents)
        for d, index in enumerate(load.index):
            stride = prod(shape[d + 1 :])
            start += self.number(index.offset) * stride
            for axis, coefficient in index.terms:
                steps[axis] += self.number(coefficient) * stride
        lengths = [n if step else 1 for n, step in zip(self.extents, steps, strict=True)]
        if 0 in lengths:
            return np.empty(lengths, flat.dtype)
        reach = [step * (n - 1) for step, n in zip(steps, lengths, strict=True)]
        low, high = start + sum(min(r, 0) for r in reach), start + sum(max(r, 0) for r in reach)
        assert low >= 0 and high < flat.size, f"buffer {load.buffer} has {flat.size} elements: {low} to {high}"  # noqa: PT018
        return as_strided(flat[start:], lengths, [s * flat.itemsize for s in steps])

    # -- memory ----------------------------------------------------------------------------------------------------
    def read(self, load: Load, guards: Sequence[Guard] = (), fill: int | None = None) -> Array:
        """The elements of a buffer; where a guard fails, the value `fill` instead."""
        if self.is_work(load):
            return self._carried[load.buffer]
        flat = self.memory.arrays[load.buffer]
        if not guards:
            view = self.view(load)
            if view is None:
                return flat[self.positions(load)]
            return view.copy() if load.buffer in self._written else view
        assert fill is not None, "a guarded load has a fill value"
        inside = np.ones([1] * len(self.extents), bool)
        for guard in guards:
            inside = inside & self.inside(guard.index, guard.lo, guard.hi)
        at = np.where(inside, self.positions(load), 0)
        return np.where(inside, flat[at] if flat.size else self.computed[fill], self.computed[fill])

    def write(self, store: Store) -> None:
        """Store a value into a buffer; elements after a computed start that fall outside the dimension are dropped."""
        load, value = store.load, self.computed[store.value]
        if self.is_work(load):
            self._carried[load.buffer] = value
            return
        target = self.view(load)
        if target is not None:
            target[...] = value
            return
        shape = self.memory.shape(load.shape)
        inside = np.ones([1] * len(self.extents), bool)
        for index, extent in zip(load.index, shape, strict=True):
            if index.is_behind_start:
                inside = inside & self.inside(index, 0, extent)
        inside, at, value = np.broadcast_arrays(inside, self.positions(load), value)
        self.memory.arrays[load.buffer][at[inside]] = value[inside]

    def over(self, load: Load, axes: Sequence[int]) -> Array:
        """The elements of a buffer along these axes alone, in this order."""
        value = self.read(load)
        full = np.broadcast_to(value, [n if a in axes else 1 for a, n in enumerate(self.extents)])
        sorted_axes = sorted(axes)
        squeezed = full.squeeze(tuple(a for a in range(value.ndim) if a not in axes))
        return squeezed.transpose([sorted_axes.index(a) for a in axes])

    def put(self, load: Load, axes: Sequence[int], value: Array) -> None:
        """Store an array over these axes into a buffer."""
        target = self.view(load)
        assert target is not None, "a result has affine indices"
        sorted_axes = sorted(axes)
        shape = [n if a in axes else 1 for a, n in enumerate(self.extents)]
        target[...] = value.transpose([axes.index(a) for a in sorted_axes]).reshape(shape)

    def is_work(self, load: Load) -> bool:
        """Is the buffer a workspace row?  Each row of the kernel then gets its own: all are computed at once."""
        return self.memory.plan.buffers[load.buffer].space is Space.WORK

    # -- instructions ----------------------------------------------------------------------------------------------
    def run(self, instrs: Sequence[Instr], stores: Sequence[Store] = ()) -> None:
        """Run instructions in order, then the stores."""
        for instr in instrs:
            if instr.op not in GIVEN:
                self.computed[instr.id] = self.compute(instr)
        for store in stores:
            self.write(store)

    def compute(self, instr: Instr) -> Array:
        row = SOURCES.get(instr.op)
        if row is not None:
            return np.asarray(row(self, instr), instr.dtype.numpy)
        return pointwise(instr.op, instr.dtype, [self.computed[a] for a in instr.args])

    def scalar(self, value: float, dtype: DType) -> Array:
        return np.full([1] * len(self.extents), value, dtype.numpy)

    def reduce(self, reduce: Reduce, axis: int) -> None:
        """sum, max or argmax along an axis, which the value need not depend on."""
        value = self.computed[reduce.value]
        length = self.extents[axis]
        full = np.broadcast_to(value, [length if a == axis else n for a, n in enumerate(value.shape)])
        self.computed[reduce.id] = np.expand_dims(REDUCE[reduce.op](full, axis, reduce.dtype), axis)


def _sum(value: Array, axis: int, dtype: DType) -> Array:
    total: Array = value.sum(axis=axis, dtype=accumulator(dtype))
    return total.astype(dtype.numpy)


def _max(value: Array, axis: int, dtype: DType) -> Array:
    lowest = -np.inf if dtype.is_float else np.iinfo(dtype.numpy).min
    largest: Array = value.max(axis=axis, initial=lowest)
    return largest


def _argmax(value: Array, axis: int, dtype: DType) -> Array:
    first: Array = value.argmax(axis=axis)  # the first of equal maxima
    return first.astype(dtype.numpy)


REDUCE: Mapping[str, Callable[[Array, int, DType], Array]] = {"sum": _sum, "max": _max, "argmax": _argmax}

GIVEN = ("acc", "position")  # values that a product or a window passes to its epilogue


def _load(values: Values, instr: Instr) -> Array:
    assert instr.load is not None
    return values.read(instr.load, instr.guards, instr.fill)


def _index(values: Values, instr: Instr) -> Array:
    assert instr.index is not None
    return values.index(instr.index)


def _random(values: Values, instr: Instr) -> Array:
    assert instr.index is not None
    elements = values.index(instr.index).astype(np.uint64)
    return uniform_of_hash(values.memory.seed, instr.key, values.memory.step, elements)


SOURCES: Mapping[str, Callable[[Values, Instr], Array]] = {
    "load": _load,
    "const": lambda values, instr: values.scalar(instr.const, instr.dtype),
    "scalar": lambda values, instr: values.scalar(values.memory.slots[instr.slot], instr.dtype),
    "index": _index,
    "random": _random,
}
