"""Epochs over arrays, with many steps per native call."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np

from wholestep.compiler.backend import Epoch, StepRange
from wholestep.compiler.ir.types import Dim, Extent, shape_text, symbols_of
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.state.state import State
from wholestep.compiler.spans import inner_span
from wholestep.errors import InputError, OptionError, ShapeError, UsageError
from wholestep.records import dataclass
from wholestep.session.inspect.inspect import Inspect
from wholestep.session.metrics import Measurements, raise_if_refused
from wholestep.session.programs import Programs
from wholestep.session.running.entry_point import EntryPoint, StepResult
from wholestep.session.running.inputs import Inputs


@dataclass(frozen=True)
class RowInputs:
    """The inputs that are split into batches along their first axis; others are passed whole."""

    names: tuple[str, ...]
    extent: Extent  # the extent of the batch axis in the program

    @property
    def symbol(self) -> str | None:
        return str(self.extent) if isinstance(self.extent, Dim) else None


def rows_of(inputs: Inputs, plan: Plan) -> RowInputs:
    """The batch is the first axis of the first input, and of every other input that begins with the same extent."""
    first = inputs.all[0] if inputs.all else None
    if first is None or first.type.rank == 0:
        raise UsageError("run needs an input with a batch axis; call step in a loop instead.")
    extent = first.type.shape[0]
    if isinstance(extent, Dim) and str(extent) not in plan.symbols:
        raise UsageError(f"run cannot split batches along {extent}: the first axis must be one symbol, e.g. 'batch'.")
    names = tuple(i.name for i in inputs.all if i.type.rank and i.type.shape[0] == extent)
    for item in inputs.all:
        rest = item.type.shape[1:] if item.name in names else item.type.shape
        if isinstance(extent, Dim) and symbols_of((*rest, *item.bounds)) & extent.symbols:
            raise UsageError(
                f"run splits batches along {extent}, which is also another axis (or the range of the values) of "
                f"{item.what}: {shape_text(item.type.shape)}. Call step in a loop instead."
            )
    return RowInputs(names, extent)


@dataclass(frozen=True)
class DataSet:
    """Validated arrays, ready to be read in place."""

    sources: dict[str, AnyArray]
    whole: dict[str, AnyArray]
    sizes: dict[str, int]
    rows: int


def prepare(inputs: Inputs, rows: RowInputs, arrays: Mapping[str, object], capacity: Mapping[str, int]) -> DataSet:
    """Validate whole data sets once: names, dtypes, shapes, ranges."""
    checked = inputs.check(arrays)
    lengths = {name: len(checked[name]) for name in rows.names}
    count = lengths[rows.names[0]]
    if len(set(lengths.values())) > 1:
        raise ShapeError(f"the inputs have different numbers of rows: {lengths}. Pass arrays of one length.")
    if count == 0:
        raise InputError("the data set has 0 rows; a run needs at least one.")
    sizes = inputs.solve(checked if rows.symbol is not None else _first_batch(checked, rows))
    for symbol, size in sizes.items():
        if symbol != rows.symbol and not 1 <= size <= capacity[symbol]:
            raise InputError(f"the dimension {symbol!r} is {size}; this session was built for 1 to {capacity[symbol]}.")
    ready: dict[str, AnyArray] = {}
    for item in inputs.all:
        array = checked[item.name]
        item.check_bounds(array, sizes, batches=item.name in rows.names)
        ready[item.name] = array if item.is_readable(array) else np.ascontiguousarray(array, item.dtype)
    whole = {name: a for name, a in ready.items() if name not in rows.names}
    return DataSet({n: ready[n] for n in rows.names}, whole, sizes, count)


def _first_batch(arrays: Mapping[str, AnyArray], rows: RowInputs) -> dict[str, AnyArray]:
    """The arrays whose shapes are checked: with a fixed batch size, the arrays of the first batch."""
    return {name: a[: int(str(rows.extent))] if name in rows.names else a for name, a in arrays.items()}


def batch_rows(rows: RowInputs, capacity: Mapping[str, int], asked: int | None, count: int) -> int:
    """The number of rows per step."""
    if rows.symbol is None:
        fixed = int(str(rows.extent))
        if asked not in (None, fixed):
            raise OptionError(f"batch_size={asked}: this program has a fixed batch of {fixed}.")
        if count % fixed:
            raise InputError(
                f"the data set has {count} rows, which is not a multiple of the program's fixed batch of {fixed}. Drop "
                "the last rows, or declare the inputs with a symbolic first axis: g.input('x', ('batch', ...))."
            )
        return fixed
    most = capacity[rows.symbol]
    if asked is not None and (not isinstance(asked, int) or not 1 <= asked <= most):
        raise OptionError(f"batch_size={asked!r}: expected 1 to {most}, the capacity that this session was built for.")
    return asked or most


@dataclass(frozen=True)
class StepObserver:
    """Calls a function with the inputs of every `every`-th step before it runs."""

    every: int
    see: Callable[[Mapping[str, object]], None]

    def before(self, step: int, epoch: Epoch) -> Epoch:
        """Observe the next batch if it is due; the epoch slice then ends before the next observed step."""
        if step % self.every == 0:
            self.see(epoch.inputs_of(epoch.first))
        ahead = self.every - step % self.every
        return replace(epoch, most=ahead if epoch.most is None else min(epoch.most, ahead))


class DataCache:
    """Data that the caller does not change between runs: it is validated once, and copied to a GPU once.

    Other arrays, or another program, replace it.
    """

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        self._data: DataSet | None = None
        self.program_caches: dict[object, Any] = {}  # as in Epoch

    def prepared(self, entry: EntryPoint, rows: RowInputs, arrays: Mapping[str, object]) -> DataSet:
        """The cached result of `prepare`."""
        now = (entry, *arrays, *arrays.values())
        if self._data is None or len(now) != len(self._of) or any(a is not b for a, b in zip(now, self._of)):
            self.program_caches = {}
            self._data, self._of = prepare(entry.inputs, rows, arrays, entry.plan.sizes), now
        return self._data


@dataclass(frozen=True)
class RunOptions:
    epochs: int
    shuffle: bool
    start: int
    batch_size: int | None
    begin_epoch: Callable[[], None]
    begin_slice: Callable[[], None]
    raises: bool  # raise NonFiniteError for gradients that are not finite?
    every: int | None = None  # the most updates per slice
    seed: int = 0  # seed of the order of rows
    most: int | None = None  # the most updates per epoch
    pause: int | None = None  # slices end at multiples of this number of updates within an epoch
    unchanged: DataCache | None = None
    observer: StepObserver | None = None


def batches(entry: EntryPoint, arrays: Mapping[str, object]) -> Iterator[dict[str, AnyArray]]:
    """Whole data sets as batches of the entry's capacity, in order; inputs without rows are passed whole each time."""
    rows = rows_of(entry.inputs, entry.plan)
    data = prepare(entry.inputs, rows, arrays, entry.plan.sizes)
    size = batch_rows(rows, entry.plan.sizes, None, data.rows)
    for start in range(0, data.rows, size):
        yield {**{name: a[start : start + size] for name, a in data.sources.items()}, **data.whole}


def run_in_slices(
    entry: EntryPoint, state: State, arrays: Mapping[str, object], options: RunOptions
) -> Iterator[StepRange]:
    """Train over whole data sets in slices of about 50 ms, between which the caller has control."""
    plan, inputs = entry.plan, entry.inputs
    if not entry.has_loss:
        raise UsageError("run needs a scalar loss as the program's first output; call step in a loop instead.")
    rows = rows_of(inputs, plan)
    unchanged = options.unchanged or DataCache()
    with inner_span("set_input"):
        data = unchanged.prepared(entry, rows, arrays)
    batch = batch_rows(rows, plan.sizes, options.batch_size, data.rows)
    whole = -(-data.rows // batch)
    updates = whole if options.most is None else min(whole, options.most)
    _check_options(options, updates)
    for size in (min(batch, data.rows), min(batch, data.rows - (updates - 1) * batch)):
        inputs.check_least({**data.sizes, **({} if rows.symbol is None else {rows.symbol: size})})
    epoch = replace(_epoch_over(data, rows, batch, unchanged), seed=options.seed, every=options.every)
    for number in range(options.epochs):
        done = 0 if number else options.start
        if not done:
            options.begin_epoch()
        order = state.epoch if options.shuffle else None
        while done < updates:
            most = _until(done, updates, options.pause)
            now = replace(epoch, number=number, order=order, first=done, most=most)
            if options.observer is not None:
                now = options.observer.before(state.step, now)
            slices = entry.program.epoch(now)
            while done < now.end:
                with entry.turns:
                    entry.release()
                    options.begin_slice()
                    began = perf_counter()
                    part = next(slices)
                    entry.time_slice(len(part.losses), perf_counter() - began)
                    entry.ran = True
                done = part.end
                if options.raises:
                    raise_if_refused(entry, state)
                if plan.updated and done == updates:
                    state.epoch += 1
                yield part


def prepare_run(entry: EntryPoint, arrays: Mapping[str, object], batch_size: int | None, unchanged: DataCache) -> None:
    """Compile the programs of epochs on a GPU and copy the data, before the first epoch is timed."""
    if entry.program.synchronous or not entry.has_loss:
        return
    rows = rows_of(entry.inputs, entry.plan)
    data = unchanged.prepared(entry, rows, arrays)
    batch = batch_rows(rows, entry.plan.sizes, batch_size, data.rows)
    # it is a generator: nothing runs before the first `next`
    entry.program.epoch(_epoch_over(data, rows, batch, unchanged))


def _epoch_over(data: DataSet, rows: RowInputs, batch: int, unchanged: DataCache) -> Epoch:
    return Epoch(
        sources=data.sources,
        whole=data.whole,
        sizes=data.sizes if rows.symbol is None else {**data.sizes, rows.symbol: batch},
        rows=data.rows,
        batch=batch,
        symbol=rows.symbol,
        program_caches=unchanged.program_caches,
    )


def _until(done: int, updates: int, pause: int | None) -> int:
    """Updates until the next pause, or the epoch's end."""
    return updates - done if pause is None else min(updates - done, pause - done % pause)


def evaluate_rows(entry: EntryPoint, arrays: Mapping[str, object]) -> StepResult:
    """One pass over all rows in order: the loss of a data set, batch by batch, without updates."""
    plan, inputs = entry.plan, entry.inputs
    rows = rows_of(inputs, plan)
    data = prepare(inputs, rows, arrays, plan.sizes)
    sizes = data.sizes if rows.symbol is None else {**data.sizes, rows.symbol: data.rows}
    with entry.turns:
        entry.release()
        for _ in entry.program.epoch(Epoch(data.sources, data.whole, sizes, data.rows, data.rows, rows.symbol)):
            entry.ran = True
        return entry.result()


def _check_options(options: RunOptions, updates: int) -> None:
    if not isinstance(options.epochs, int) or options.epochs < 0:
        raise OptionError(f"epochs={options.epochs!r}: expected an integer, 0 or more.")
    if not isinstance(options.start, int) or not 0 <= options.start < updates:
        raise OptionError(
            f"start={options.start!r}: expected 0 to {updates - 1}, the updates of the first epoch already done."
        )


class Training:
    """The part of a session that runs epochs."""

    def __init__(self, programs: Programs, measurements: Measurements, inspect: Inspect) -> None:
        self._programs, self._measurements, self._inspect = programs, measurements, inspect

    def run(
        self,
        data: Mapping[str, object] | None = None,
        /,
        *more: object,
        epochs: int = 1,
        shuffle: bool = True,
        start: int = 0,
        batch_size: int | None = None,
        **arrays: object,
    ) -> AnyArray:
        """Epochs over whole data sets; returns the loss of every update.

        Batches are gathered inside the native loop.  The order of an epoch is a function of (seed, epochs done);
        `start` skips that many updates of the first epoch, to resume another run.
        """
        if data is not None:
            arrays = {**self._programs.by_name("run", data, more), **arrays}
        _refuse_typos(arrays, [i.name for i in self._programs.main.inputs.all])
        self._check_calls(arrays, epochs, batch_size)
        slices = self.run_in_slices(arrays, epochs=epochs, shuffle=shuffle, start=start, batch_size=batch_size)
        losses = [part.losses for part in slices]
        return np.concatenate(losses) if losses else np.zeros(0)

    def _check_calls(self, arrays: Mapping[str, object], epochs: int, batch_size: int | None) -> None:
        """Warn about a schedule under torch's names, which counts updates here, if epochs were probably meant."""
        programs = self._programs
        called = {t: s for t, s in programs.step_options.schedules.items() if s.unit == "call"}
        if not called or not (rows := programs.need("a schedule").definition.rows_in(arrays)):
            return
        from wholestep.schedules.checks import length_warning

        batch, most = rows
        updates = epochs * -(-batch // (batch_size or most))
        for target, schedule in called.items():
            if warning := length_warning(programs.scalars.schedule(target, schedule), updates, "step"):
                warnings.warn(f"the schedule of {target}, {warning}", stacklevel=4)

    def prepare_to_run(self, arrays: Mapping[str, object], batch_size: int | None, unchanged: DataCache) -> None:
        """Compile and copy for runs with this `unchanged`, so that the runs spend their time in steps only."""
        prepare_run(self._programs.main, arrays, batch_size, unchanged)

    def run_in_slices(
        self,
        arrays: Mapping[str, object],
        *,
        epochs: int = 1,
        shuffle: bool = True,
        start: int = 0,
        batch_size: int | None = None,
        every: int | None = None,
        order_seed: int | None = None,
        most: int | None = None,
        pause: int | None = None,
        unchanged: DataCache | None = None,
    ) -> Iterator[StepRange]:
        """`run` as an iterator over slices of about 50 ms, of `every` steps at most, with their losses.

        `order_seed` keys the order of the rows; None: the session's own seed does.  An epoch has `most` updates, and no
        slice goes past a multiple of `pause`.  Runs with the same `unchanged` find arrays as they were.  Between two
        slices the session may be read, saved, evaluated; training stops when the iteration does.

        Example: `for part in session.run_in_slices({"x": X, "labels": Y}): print(part.losses[-1])`.
        """
        programs, reset = self._programs, self._measurements.reset_metrics
        programs.held = {}  # batches are gathered into the memory of held inputs
        with programs.turns:
            programs.take_turn()
        programs.stepped = main = programs.main
        seed = programs.where.seed if order_seed is None else order_seed

        def begin_slice() -> None:
            if programs.state.turn is not programs.turn:
                programs.take_turn()
            if programs.main is not main:
                raise UsageError("the session was recompiled between two slices of a run; start the run again.")

        limits = (every, seed, most, pause, unchanged)
        options = RunOptions(epochs, shuffle, start, batch_size, reset, begin_slice, programs.raises, *limits)
        if programs.observer is not None:
            every_observed = max(1, getattr(programs.observer, "every", 1))
            options = replace(options, observer=StepObserver(every_observed, self._inspect.observe))
        return run_in_slices(main, programs.state, arrays, options)


_RUN_OPTIONS = ("epochs", "shuffle", "start", "batch_size")


def _refuse_typos(arrays: Mapping[str, object], inputs: Sequence[str]) -> None:
    """Raise UsageError for a misspelt option of `run`, which would be taken for an input."""
    from difflib import get_close_matches  # imported here because single steps do not need it

    for name in arrays:
        close = get_close_matches(name, _RUN_OPTIONS, 1, 0.7)
        if name not in inputs and close:
            raise UsageError(f"run has no option {name!r}; did you mean {close[0]}={arrays[name]!r}?")
