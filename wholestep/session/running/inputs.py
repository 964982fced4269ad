"""Binds the user's arrays to the inputs and sizes of a launch, after all checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from wholestep.compiler.backend import Program
from wholestep.compiler.ir.types import Dim, Extent, TensorType, evaluate, shape_text
from wholestep.compiler.plan.model.kernel import Bound, Plan
from wholestep.compiler.runtime.arrays import AnyArray, as_array, check_dtype
from wholestep.errors import GraphError, InputError, ShapeError, UnknownNameError
from wholestep.steps.capacity import MICRO_BATCH_DIMS

_READABLE = 0x1 | 0x100  # NumPy's flags for C-contiguous and aligned: such an array is read in place


class BoundInput:
    """One input of an entry point: its type, bounds, and last shape."""

    __slots__ = ("bounds", "dtype", "name", "partial", "shape", "type", "what")

    def __init__(self, name: str, type: TensorType, bounds: Sequence[Bound]) -> None:
        self.name, self.type, self.what = name, type, f"the input {name!r}"
        self.dtype: np.dtype[Any] = type.dtype.numpy
        # its values are indices and must be below each of these
        self.bounds = tuple(b.size for b in bounds if b.is_plain)
        # bounds on some elements, or with a value that is exempt
        self.partial = tuple(b for b in bounds if not b.is_plain)
        self.shape: tuple[int, ...] | None = None

    def accept(self, value: object) -> AnyArray:
        """`value` as an array of a fitting dtype and rank."""
        array = as_array(value, self.what)
        check_dtype(array, self.dtype, self.what)
        if array.ndim != self.type.rank:
            raise ShapeError(
                f"{self.what} has shape {shape_text(self.type.shape)}; received {array.shape}. Reshape the array."
            )
        return array

    def is_readable(self, array: AnyArray) -> bool:
        """Can a kernel read the array in place?"""
        return array.dtype == self.dtype and array.flags.num & _READABLE == _READABLE

    def check_bounds(self, array: AnyArray, sizes: Mapping[str, int], batches: bool = False) -> None:
        """Raise InputError for indices outside their axis, which a kernel would clamp silently.

        For an array of many `batches` bounds on the first rows of each are skipped: the batches are not known here.
        """
        for size in self.bounds:
            self._check(array, Bound(self.name, size), sizes)
        for bound in self.partial:
            if not (batches and bound.part and bound.part[0] != (0, 0, 1)):
                self._check(array, bound, sizes)

    def _check(self, array: AnyArray, bound: Bound, sizes: Mapping[str, int]) -> None:
        limit = evaluate(bound.size, sizes)
        cuts = tuple(slice(start, stop or None, step) for start, stop, step in bound.part)
        part = array[cuts]
        used = part if bound.excused is None else part[part != bound.excused]
        if not used.size:
            return
        low, high = int(used.min()), int(used.max())
        if low < 0 or high >= limit:
            bad = high if high >= limit else low
            also = "" if bound.excused is None else f", or {bound.excused} to be ignored"
            where = f" in [{', '.join(map(_cut_text, bound.part))}]" if bound.part else ""
            raise InputError(
                f"{self.what} holds indices from 0 to {limit - 1}{also}{where}; received {bad} at position "
                f"{_position(part, bad, array.shape, cuts)}. Correct the values (nothing was changed)."
            )


def _position(part: AnyArray, value: int, shape: tuple[int, ...], cuts: Sequence[slice]) -> str:
    """The position of a value in the whole array."""
    index = np.argwhere(part == value)[0]
    places = [range(n)[c][int(i)] for i, n, c in zip(index, shape, cuts or [slice(None)] * len(shape), strict=True)]
    return ", ".join(map(str, places))


def _cut_text(cut: tuple[int, int, int]) -> str:
    start, stop, step = cut
    if stop == start + 1:
        return str(start)
    return f"{start or ''}:{stop or ''}" + (f":{step}" if step != 1 else "")


class Inputs:
    """The inputs of a loaded program."""

    def __init__(self, program: Program) -> None:
        plan = program.plan
        self._program = program
        self._capacity = plan.sizes
        bounds = {name: [b for b in plan.bounds if b.input == name] for name, _ in plan.inputs}
        self.all = tuple(BoundInput(name, plan.buffers[id].type, bounds[name]) for name, id in plan.inputs)
        self._partial = [i for i in self.all if i.partial]  # a native step does not check these
        self._bind = program.bind
        self.sizes: dict[str, int] = dict(self._capacity)  # sizes of the last call; the dict is replaced, never changed
        self._fixed: dict[str, int] = {}  # sizes that no input determines
        _need_inferable(plan, self.all)

    def named(self, name: str) -> BoundInput:
        """The input called `name`."""
        for i in self.all:
            if i.name == name:
                return i
        raise self._unknown([name])

    def bind(self, arrays: Mapping[str, object]) -> Mapping[str, int]:
        """Validate the arrays of a step and bind them to the program; the sizes of its launch.

        The fast path is a few comparisons: arrays of the right dtype, readable in place, shaped as in the last step.
        """
        if len(arrays) != len(self.all):
            return self._bind_any(arrays)
        for item in self.all:
            array: Any = arrays.get(item.name)
            if (
                type(array) is not np.ndarray
                or array.shape != item.shape
                or array.dtype != item.dtype
                or not array.flags.carray  # contiguous, aligned and writeable
            ):
                return self._bind_any(arrays)
            self._bind(item.name, array)
        for item in self._partial:
            item.check_bounds(arrays[item.name], self.sizes)  # type: ignore[arg-type]
        return self.sizes

    def refuse_indices(self, values: Mapping[str, object]) -> NoReturn:
        """Raise InputError with the index that the program refused."""
        arrays = self.check(values)
        for item in self.all:
            item.check_bounds(arrays[item.name], self.sizes)
        raise AssertionError("the program refused indices that are in range")

    def _bind_any(self, values: Mapping[str, object]) -> Mapping[str, int]:
        arrays = self.check(values)
        sizes = self.solve(arrays)
        self._check_sizes(sizes)
        self.check_least(sizes)
        for item in self.all:
            item.check_bounds(arrays[item.name], sizes)
        for item in self.all:
            array = arrays[item.name]
            if not item.is_readable(array):
                array = self.stage(item, array)
            self._bind(item.name, array)
            item.shape = array.shape
        if sizes != self.sizes:  # the identical dict tells a program that sizes have not changed
            self.sizes = sizes
        return self.sizes

    def stage(self, item: BoundInput, array: AnyArray) -> AnyArray:
        """A converted copy in the session's staging memory."""
        staged = self._program.staging(item.name)[: array.size].reshape(array.shape)
        np.copyto(staged, array, casting="unsafe")  # check_dtype has seen that the values fit
        return staged

    def hold(self, item: BoundInput, value: object) -> AnyArray:
        """Copy an array to the session's staging memory, for a later step."""
        array = item.accept(value)
        if array.size > self._program.staging(item.name).size:
            limits = tuple(evaluate(e, self._capacity) for e in item.type.shape)
            raise InputError(
                f"{item.what} takes at most {limits}; received {array.shape}. Build with a larger capacity."
            )
        return self.stage(item, array)

    def fix(self, sizes: dict[str, int]) -> None:
        """Set sizes that no input determines, for a micro-batch program that runs alone."""
        if sizes != self._fixed:
            self._fixed = sizes
            if not self.all:  # no input is validated
                self.sizes = {**self._capacity, **sizes}
            for item in self.all:
                item.shape = None  # the next step is validated in full

    def check(self, values: Mapping[str, object]) -> dict[str, AnyArray]:
        """Arrays by input, in order; an error for a wrong name, dtype or rank."""
        names = [i.name for i in self.all]
        unknown = [n for n in values if n not in names]
        if unknown:
            raise self._unknown(unknown)
        missing = [n for n in names if n not in values]
        if missing:
            raise UnknownNameError(
                f"the input {missing[0]!r} is missing: expected {_list_names(names)}; received {_list_names(values)}."
            )
        return {i.name: i.accept(values[i.name]) for i in self.all}

    def _unknown(self, names: Sequence[str]) -> UnknownNameError:
        expected = _list_names(i.name for i in self.all)
        return UnknownNameError(f"there is no input named {names[0]!r}; expected {expected}. Correct the name.")

    def solve(self, arrays: Mapping[str, AnyArray]) -> dict[str, int]:
        """The size of every symbol; ShapeError if shapes do not fit or disagree."""
        sizes: dict[str, int] = {}
        origin: dict[str, str] = {}
        for item in self.all:
            for extent, length in zip(item.type.shape, arrays[item.name].shape, strict=True):
                symbol, value = _solve_symbol(extent, length)
                if symbol is not None and symbol not in sizes:
                    sizes[symbol], origin[symbol] = value, item.what
        for item in self.all:
            self._check_shape(item, arrays[item.name].shape, sizes, origin)
        return {**self._capacity, **self._fixed, **sizes}

    def _check_shape(
        self, item: BoundInput, shape: tuple[int, ...], sizes: Mapping[str, int], origin: Mapping[str, str]
    ) -> None:
        expected = tuple(evaluate(e, sizes) for e in item.type.shape)
        if shape == expected:
            return
        others = [f"{s}={sizes[s]} from {o}" for s, o in origin.items() if o != item.what]
        sizes_text = f" ({', '.join(others)})" if others else ""
        raise ShapeError(
            f"{item.what} has shape {shape_text(item.type.shape)}{sizes_text}; received {shape}, expected {expected}. "
            "Pass arrays whose dimensions agree."
        )

    def check_least(self, sizes: Mapping[str, int]) -> None:
        """Raise InputError if an op needs more elements, as batch norm does."""
        for least in self._program.plan.least:
            if (value := least.value(sizes)) < least.size:
                sizes_text = ", ".join(f"{s}={n}" for s, n in sizes.items() if s not in MICRO_BATCH_DIMS)
                raise InputError(
                    f"{least.why}: {least.extent} must be {least.size} or more, but is {value} in a step of "
                    f"{sizes_text}. Give more rows; in a run, leave such a last batch out, drop_last=True, or choose "
                    "another batch_size (nothing was changed)."
                )

    def check_rows(self, rows: int) -> None:
        """`check_least` before a run, for a step of `rows` rows."""
        if self._rows_symbol in self._capacity:
            self.check_least({**self._capacity, self._rows_symbol: rows})

    @property
    def most_rows(self) -> int | None:
        """The capacity of the first axis of the first input; None if it is fixed."""
        return self._capacity.get(self._rows_symbol)

    @property
    def _rows_symbol(self) -> str:
        return str(self.all[0].type.shape[0]) if self.all and self.all[0].type.rank else ""

    def _check_sizes(self, sizes: Mapping[str, int]) -> None:
        for symbol, size in sizes.items():
            if size == 0:
                raise InputError(f"the dimension {symbol!r} is 0: a step needs at least one row. Skip empty batches.")
            if size > self._capacity[symbol]:
                raise InputError(
                    f"the dimension {symbol!r} is {size}, but this session was built for at most "
                    f"{self._capacity[symbol]}. Pass fewer rows, use session.run for a whole data set, or build with "
                    + (f"batch_size={size}." if symbol == "batch" else f"capacity={{{symbol!r}: {size}}}.")
                )


def _list_names(names: Any) -> str:
    return ", ".join(map(repr, names)) or "none"


def _solve_symbol(extent: Extent, length: int) -> tuple[str | None, int]:
    """The symbol that an extent of one symbol determines, and its value."""
    if isinstance(extent, Dim) and len(extent.terms) == 1:
        ((names, coefficient),) = extent.terms
        if len(names) == 1:
            return names[0], length // coefficient
    return None, 0


def _need_inferable(plan: Plan, inputs: Sequence[BoundInput]) -> None:
    symbols = {_solve_symbol(e, 0)[0] for i in inputs for e in i.type.shape}
    for symbol in plan.symbols:
        if symbol not in symbols and symbol not in MICRO_BATCH_DIMS:
            raise GraphError(
                f"no input has the dimension {symbol!r} as an axis of its own, so its size cannot be known when the "
                f"program runs. Give an input that axis, or replace {symbol!r} by a number."
            )
