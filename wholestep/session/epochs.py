"""Many steps per native call: epochs over arrays that the caller holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from wholestep.compiler.backend import Epoch
from wholestep.compiler.ir.types import Dim, Extent, shape_text, symbols_of
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.state import State
from wholestep.errors import InputError, OptionError, ShapeError, UsageError
from wholestep.session.inputs import Inputs
from wholestep.session.metrics import raise_if_refused
from wholestep.session.results import EntryPoint, StepResult


@dataclass(frozen=True)
class Rows:
    """Which inputs are data sets, cut into batches along their first axis; the others are given whole."""

    names: tuple[str, ...]
    extent: Extent  # of a batch, in the program

    @property
    def symbol(self) -> str | None:
        return str(self.extent) if isinstance(self.extent, Dim) else None


def rows_of(inputs: Inputs, plan: Plan) -> Rows:
    """The batch is the first axis of the first input, and of every other input that begins with the same extent."""
    first = inputs.all[0] if inputs.all else None
    if first is None or first.type.rank == 0:
        raise UsageError("run needs an input with a batch axis; call step in a loop instead.")
    extent = first.type.shape[0]
    if isinstance(extent, Dim) and str(extent) not in plan.symbols:
        raise UsageError(f"run cannot cut batches along {extent}: the first axis must be one symbol, e.g. 'batch'.")
    names = tuple(i.name for i in inputs.all if i.type.rank and i.type.shape[0] == extent)
    for item in inputs.all:
        rest = item.type.shape[1:] if item.name in names else item.type.shape
        if isinstance(extent, Dim) and symbols_of((*rest, *item.bounds)) & extent.symbols:
            raise UsageError(
                f"run cuts batches along {extent}, which is also another axis (or the range of the values) of "
                f"{item.what}: {shape_text(item.type.shape)}. Call step in a loop instead."
            )
    return Rows(names, extent)


@dataclass(frozen=True)
class DataSet:
    """Validated arrays, ready to be read in place."""

    sources: dict[str, AnyArray]
    whole: dict[str, AnyArray]
    sizes: dict[str, int]
    rows: int


def prepare(inputs: Inputs, rows: Rows, arrays: Mapping[str, object], capacity: Mapping[str, int]) -> DataSet:
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


def _first_batch(arrays: Mapping[str, AnyArray], rows: Rows) -> dict[str, AnyArray]:
    """With a fixed batch, shapes are those of one batch: the first stands for all of them."""
    return {name: a[: int(str(rows.extent))] if name in rows.names else a for name, a in arrays.items()}


def batch_rows(rows: Rows, capacity: Mapping[str, int], asked: int | None, count: int) -> int:
    """Rows of a step."""
    if rows.symbol is None:
        fixed = int(str(rows.extent))
        if asked not in (None, fixed):
            raise OptionError(f"batch_size={asked}: this program has a fixed batch of {fixed}.")
        if count % fixed:
            raise InputError(
                f"the data set has {count} rows, which is no multiple of the program's fixed batch of {fixed}. Drop "
                "the last rows, or declare the inputs with a symbolic first axis: g.input('x', ('batch', ...))."
            )
        return fixed
    most = capacity[rows.symbol]
    if asked is not None and (not isinstance(asked, int) or not 1 <= asked <= most):
        raise OptionError(f"batch_size={asked!r}: expected 1 to {most}, the capacity that this session was built for.")
    return asked or most


@dataclass(frozen=True)
class Look:
    """Somebody who sees the inputs of every so many steps before they are made."""

    every: int
    see: Callable[[Mapping[str, object]], None]
    longest: int | None  # the most updates of a slice, whoever looks

    def before(self, step: int, data: DataSet, epoch: Epoch) -> None:
        """Show the batch that comes next, if it is its turn; the slice then ends before the next one that is seen."""
        if step % self.every == 0:
            self.see(_next_batch(data, epoch))
        gap = self.every - step % self.every
        epoch.most = gap if self.longest is None else min(gap, self.longest)


def _next_batch(data: DataSet, epoch: Epoch) -> dict[str, AnyArray]:
    from wholestep.compiler.runtime.order import epoch_order  # only observers ask which rows come next

    positions = np.arange(epoch.position, min(epoch.position + epoch.batch, epoch.rows))
    rows = positions if epoch.order is None else epoch_order(epoch.seed, epoch.order, epoch.rows, positions)
    return {**{name: source[rows] for name, source in data.sources.items()}, **data.whole}


@dataclass(frozen=True)
class RunOptions:
    epochs: int
    shuffle: bool
    start: int
    batch_size: int | None
    begin_epoch: Callable[[], None]
    begin_slice: Callable[[], None]
    raises: bool  # where gradients are not finite
    every: int | None = None  # the most updates of a slice
    seed: int = 0  # of the order
    look: Look | None = None


@dataclass(frozen=True)
class Slice:
    """Some updates that were made natively, one after the other."""

    epoch: int  # of the run, from 0
    first: int  # number of its first update in the epoch, from 0
    losses: AnyArray
    rows: AnyArray  # of each update


def batches(entry: EntryPoint, arrays: Mapping[str, object]) -> Iterator[dict[str, AnyArray]]:
    """Whole data sets as batches of the entry's capacity, in order; inputs without rows are given whole each time."""
    rows = rows_of(entry.inputs, entry.plan)
    data = prepare(entry.inputs, rows, arrays, entry.plan.sizes)
    size = batch_rows(rows, entry.plan.sizes, None, data.rows)
    for start in range(0, data.rows, size):
        yield {**{name: a[start : start + size] for name, a in data.sources.items()}, **data.whole}


def run_in_slices(
    entry: EntryPoint, state: State, arrays: Mapping[str, object], options: RunOptions
) -> Iterator[Slice]:
    """Train over whole data sets in slices of about 50 ms, between which interrupts take effect and callers look."""
    plan, inputs = entry.plan, entry.inputs
    if not entry.has_loss:
        raise UsageError("run needs a scalar loss as the program's first output; call step in a loop instead.")
    rows = rows_of(inputs, plan)
    data = prepare(inputs, rows, arrays, plan.sizes)
    batch = batch_rows(rows, plan.sizes, options.batch_size, data.rows)
    updates = -(-data.rows // batch)
    _check_options(options, updates)
    for size in (min(batch, data.rows), (data.rows - 1) % batch + 1):
        inputs.check_least({**data.sizes, **({} if rows.symbol is None else {rows.symbol: size})})
    for number in range(options.epochs):
        skipped = 0 if number else options.start
        if not skipped:
            options.begin_epoch()
        epoch = Epoch(
            sources=data.sources,
            rows=data.rows,
            batch=batch,
            symbol=None if rows.symbol is None else plan.symbols.index(rows.symbol),
            order=state.epoch if options.shuffle else None,
            seed=options.seed,
            losses=np.zeros(updates - skipped),
            position=skipped * batch,
            most=options.every,
        )
        for part in _slices(entry, state, rows, data, epoch, options):
            if options.raises:
                raise_if_refused(entry, state)
            if plan.updated and epoch.position >= epoch.rows:
                state.epoch += 1
            yield replace(part, epoch=number, first=part.first + skipped)


def _slices(
    entry: EntryPoint, state: State, rows: Rows, data: DataSet, epoch: Epoch, options: RunOptions
) -> Iterator[Slice]:
    """One epoch.  What a call reads is set anew before each slice: whoever looked in between may have made steps."""
    slices = entry.program.run_epoch(epoch)
    while epoch.position < epoch.rows:
        first, position = epoch.done, epoch.position
        if options.look is not None:
            options.look.before(state.step, data, epoch)
        with entry.turns:
            entry.release()
            try:
                _place(entry, rows, data, epoch.batch)
                options.begin_slice()
                next(slices)
            finally:
                entry.inputs.forget()
            entry.ran = True
        count = epoch.done - first
        sizes = np.full(count, epoch.batch)
        if count and epoch.position >= epoch.rows:
            sizes[-1] = epoch.rows - position - (count - 1) * epoch.batch
        yield Slice(0, first, epoch.losses[first : epoch.done], sizes)


def _place(entry: EntryPoint, rows: Rows, data: DataSet, batch: int) -> None:
    """Write the sizes, and where the inputs are that are given whole."""
    program = entry.program
    for i, symbol in enumerate(entry.plan.symbols):
        program.dims[i] = batch if symbol == rows.symbol else data.sizes[symbol]
    for name, array in data.whole.items():
        program.addresses[program.slots[name]] = array.ctypes.data


def evaluate_rows(entry: EntryPoint, arrays: Mapping[str, object]) -> StepResult:
    """One window over all rows, in their order: the loss of a whole data set, batch by batch, with nothing changed."""
    plan, inputs = entry.plan, entry.inputs
    rows = rows_of(inputs, plan)
    data = prepare(inputs, rows, arrays, plan.sizes)
    with entry.turns:
        entry.release()
        _place(entry, rows, data, data.rows)
        for _ in entry.program.run_epoch(Epoch(data.sources, data.rows, data.rows, None, None, 0, np.zeros(1))):
            entry.ran = True
        inputs.forget()
        return StepResult(entry, inputs.sizes, entry.loss())


def _check_options(options: RunOptions, updates: int) -> None:
    if not isinstance(options.epochs, int) or options.epochs < 0:
        raise OptionError(f"epochs={options.epochs!r}: expected a whole number, 0 or more.")
    if not isinstance(options.start, int) or not 0 <= options.start < updates:
        raise OptionError(
            f"start={options.start!r}: expected 0 to {updates - 1}, the updates of the first epoch already done."
        )
