"""The interface of backends: a device loads plans and returns programs that run them.

Invariant: callers never see an address of the device; they bind arrays, launch, and read results through a launch.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from typing import Any, Protocol

import numpy as np

from wholestep.compiler.ir.types import Dim, Shape, TensorType, evaluate
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.process_group import RankGroup
from wholestep.compiler.runtime.state.state import State
from wholestep.compiler.runtime.state.storage import StateMemory
from wholestep.compiler.target import Target
from wholestep.options import CompileOptions
from wholestep.records import dataclass

SLICE_SECONDS = 0.05  # longest run without returning to Python, where signals, progress and callbacks are handled
IN_FLIGHT = 8  # launches that may be queued before the oldest is waited for, so that an asynchronous device never idles


class Scratch(Protocol):
    """Memory shared by the programs of a session: its content is valid only during a launch."""

    @property
    def mapped_bytes(self) -> int:
        """The current size of the scratch memory."""

    def reserve(self, plan: Plan, threads: int) -> None:
        """Grow to fit a plan; programs that were loaded before keep working."""

    def spoil(self) -> None:
        """Fill it with garbage before a plan is checked, so that reads of uninitialised memory change its results."""


class NoScratch:
    """The scratch of a backend whose programs share no memory."""

    mapped_bytes = 0

    def reserve(self, plan: Plan, threads: int) -> None:
        """Do nothing."""

    def spoil(self) -> None:
        """Do nothing."""


@dataclass(frozen=True)
class Placement:
    """Where and how plans run: the device, its threads, the seed of random numbers, the compile options, the ranks."""

    device: Device
    threads: int
    seed: int
    options: CompileOptions
    group: RankGroup | None = None  # the ranks that compute a step together; None: not distributed
    shard: str | None = None  # "optimizer": each rank holds a part of the optimizer's state
    seeded: bool = True  # did the user pass the seed, or is it the default of the process?

    @property
    def ranks(self) -> int:
        """The number of data-parallel ranks, which divide the rows of a step; 0 if it is not distributed."""
        return 0 if self.group is None else self.group.grid.data

    @property
    def model_ranks(self) -> int:
        """The number of tensor-parallel ranks, which have the same rows and may divide layers."""
        return 1 if self.group is None else self.group.grid.model

    @property
    def among(self) -> tuple[int, str | None, int]:
        """(data ranks, sharding, model ranks): the arguments of a step's definition that depend on the ranks."""
        return self.ranks, self.shard, self.model_ranks


@dataclass(frozen=True)
class LoadContext:
    """The environment that the programs of a session are loaded into: their placement and the memory they share."""

    where: Placement
    state: State
    scratch: Scratch  # created by the backend
    profile: bool = False  # kernels record when they begin and end; results are the same bits
    memory: StateMemory | None = None  # the memory of states; None: the device's own
    apart: bool = False  # does the program run on its caller's thread, concurrently with others of this process?


# -- programs ----------------------------------------------------------------------------------------------------


class IndexRefusedError(Exception):
    """An input holds an index outside its bound; nothing was run.  The caller of `launch` reports which one."""


class Launch(Protocol):
    """A handle of a launch, which may still be running (a future)."""

    def wait(self) -> None:
        """Return when the launch is done; raises its error."""

    def loss(self) -> float:
        """The first output, which must be a scalar; waits for the launch."""

    def read(self, name: str) -> AnyArray:
        """A copy of an output in the user's shape and type; waits for the launch."""

    def keep(self) -> Launch:
        """A handle whose outputs stay valid after the next launch, which may overwrite them; called before that one."""


class Program(Launch, Protocol):
    """A plan loaded on a device, and the handle of its last launch; `wait` waits for all launches.

    A step is `bind` of every input and one `launch`.  Launches take effect in the order of their calls; a launch that
    counts as an update advances `state.step` and the version of the state's family before it returns.
    """

    plan: Plan
    synchronous: bool  # is a launch done when it returns?
    outputs: Mapping[str, TensorType]  # types of the outputs by name, in order; the first one may be a loss

    @property
    def mapped_bytes(self) -> int:
        """The bytes that the program has mapped or allocated for itself."""

    @property
    def source(self) -> str:
        """The generated source code."""

    def scalar(self, name: str, value: float) -> None:
        """Set a runtime scalar for all later launches; a scalar that the plan does not use is ignored."""

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a launch count as an update?  Not if the output `unless` is nonzero; `stop` then ends the range."""

    def staging(self, name: str) -> AnyArray:
        """A flat host array of an input's capacity, to convert or gather the input in."""

    def bind(self, name: str, array: AnyArray) -> None:
        """Set an input of the next launch: an array of its dtype, rows contiguous.

        It has been read when the launch returns (an asynchronous device copies it); then the caller may change it.
        """

    def launch(self, sizes: Mapping[str, int]) -> Launch:
        """Begin one step with these sizes of the symbols; IndexRefusedError, with nothing run, if an index is invalid.

        The caller must not change the mapping afterwards: programs compare it by identity.
        """

    def epoch(self, epoch: Epoch) -> Iterator[StepRange]:
        """Run the steps of an epoch; yields the finished steps about every 50 ms, so that the caller can act."""


def check_indices(plan: Plan, arrays: Mapping[str, AnyArray], sizes: Mapping[str, int]) -> None:
    """Raise IndexRefusedError if an input holds an index outside its bound: for programs without a native check."""
    for bound in plan.bounds:
        array = arrays[bound.input]
        if bound.is_plain and array.size and not 0 <= array.min() <= array.max() < evaluate(bound.size, sizes):
            raise IndexRefusedError(bound.input)


# -- epochs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Epoch:
    """A pass over data in memory: which rows, in which order, and which of its updates to run."""

    sources: Mapping[str, AnyArray]  # input -> all its rows
    whole: Mapping[str, AnyArray]  # input -> the array that every step gets unchanged
    sizes: Mapping[str, int]  # size of every symbol in a full batch
    rows: int
    batch: int  # rows of an update
    symbol: str | None = None  # the symbolic dimension of the batch
    order: int | None = None  # the epoch's key for shuffling; None: rows in their order
    seed: int = 0  # the other key for shuffling
    number: int = 0  # number of the epoch in the run, from 0
    first: int = 0  # the first update to run
    most: int | None = None  # updates to run; None: all
    every: int | None = None  # updates of a range; None: by time alone
    program_caches: dict[object, Any] = field(default_factory=dict)  # program -> its cache, shared by epochs of a run

    @property
    def end(self) -> int:
        """The number of the first update that is not run."""
        last = -(-self.rows // self.batch)
        return last if self.most is None else min(last, self.first + self.most)

    def rows_of(self, update: int) -> int:
        """The number of rows of an update; the last one may have fewer."""
        return min(self.batch, self.rows - update * self.batch)

    def sizes_of(self, update: int) -> Mapping[str, int]:
        """The sizes of an update."""
        rows = self.rows_of(update)
        return self.sizes if self.symbol is None or rows == self.batch else {**self.sizes, self.symbol: rows}

    def inputs_of(self, update: int) -> dict[str, AnyArray]:
        """The inputs of an update: views of consecutive rows, or the rows gathered if the epoch is shuffled."""
        first, end = update * self.batch, update * self.batch + self.rows_of(update)
        if self.order is None:
            return {**{name: source[first:end] for name, source in self.sources.items()}, **self.whole}
        from wholestep.compiler.runtime.epoch_permutation import (
            epoch_order,
        )  # imported here: native loops do not need it

        rows = epoch_order(self.seed, self.order, self.rows, np.arange(first, end))
        return {**{name: source[rows] for name, source in self.sources.items()}, **self.whole}


@dataclass(frozen=True)
class StepRange:
    """Consecutive updates that have been run."""

    epoch: int  # number of the epoch in the run, from 0
    first: int  # number of the first update within the epoch, from 0
    losses: AnyArray  # float64, one per update
    rows: AnyArray  # number of rows of each update

    @staticmethod
    def of(epoch: Epoch, first: int, losses: AnyArray) -> StepRange:
        """The range that begins with the update `first`."""
        rows = np.full(len(losses), epoch.batch)
        rows[-1:] = epoch.rows_of(first + len(losses) - 1)
        return StepRange(epoch.number, first, losses, rows)

    @property
    def end(self) -> int:
        """The number of the next update."""
        return self.first + len(self.losses)


class Slicing(Protocol):
    """The protocol by which distributed ranks agree on the number of steps of a range."""

    seconds: float  # longest duration of a range

    def steps(self, left: int) -> int:
        """The largest number of steps of the next range; `left` remain in the epoch."""

    def measure(self, run: Callable[[], int]) -> int:
        """Run a range and adapt the length of the next range to the measured time."""


def epoch_of_launches(
    program: Program, epoch: Epoch, stop_at: str | None = None, pace: Slicing | None = None
) -> Iterator[StepRange]:
    """Run an epoch as a loop over launches, for programs without a native loop.

    Losses are read some launches late, so that an asynchronous device never waits for the host.  A range ends when the
    output `stop_at` is nonzero.  Distributed ranks agree on the steps of a range by `pace`.
    """
    first = epoch.first
    while first < epoch.end:
        most, losses = min(epoch.end - first, epoch.every or epoch.end), list[float]()
        if pace is None:
            _make_slice(program, epoch, range(first, first + most), stop_at, SLICE_SECONDS, losses)
        else:
            updates = range(first, first + pace.steps(most))
            pace.measure(partial(_make_slice, program, epoch, updates, stop_at, pace.seconds, losses))
        yield StepRange.of(epoch, first, np.array(losses))
        first += len(losses)


def _make_slice(
    program: Program, epoch: Epoch, updates: range, stop_at: str | None, seconds: float, losses: list[float]
) -> int:
    """Launch a range of updates and append their losses; returns the number of updates that were run."""
    deadline = time.monotonic() + seconds
    in_flight: deque[Launch] = deque()
    for update in updates:
        launch = _launch_step(program, epoch, update)
        in_flight.append(launch if program.synchronous else launch.keep())
        if program.synchronous or len(in_flight) == IN_FLIGHT:
            losses.append(in_flight.popleft().loss())
        if (stop_at is not None and launch.read(stop_at)) or time.monotonic() >= deadline:
            break
    losses += [launch.loss() for launch in in_flight]
    return len(losses)


def _launch_step(program: Program, epoch: Epoch, update: int) -> Launch:
    for name, array in epoch.inputs_of(update).items():
        program.bind(name, array)
    return program.launch(epoch.sizes_of(update))


@dataclass(frozen=True)
class MicroBatchShape:
    """How a batch is split into micro-batches: its symbol, their rows, and the symbols that the loop sets."""

    batch: str
    part: int
    dims: Mapping[str, str]  # parameter of the native loop ("batch_dim", "first_dim", ...) -> symbol

    def is_cut(self, shape: Shape) -> bool:
        """Does an input of this shape have one row per row of the batch?"""
        return bool(shape) and shape[0] == Dim.symbol(self.batch)


# -- backends ----------------------------------------------------------------------------------------------------


def do_nothing() -> None:
    """Do nothing: the default of `meanwhile`."""


class Device(Protocol):
    """A device, and the target that its plans are compiled for."""

    name: str  # the name that `device=` accepts
    target: Target
    runs: bool  # can the device run plans?  A null device only plans
    memory: StateMemory  # the memory of its programs' states

    def scratch(self) -> Scratch:
        """New scratch memory, for the programs of one session."""

    def prepare(self, options: CompileOptions) -> None:
        """Start preparing what every plan needs, in the background."""

    def load(
        self, plan: Plan, place: LoadContext, key: str = "", meanwhile: Callable[[], None] = do_nothing
    ) -> Program:
        """Compile and load a plan.  `key` is the key of the plan in caches; it is computed if empty.

        `meanwhile` is called while the plan is compiled, before its states and scratch memory are bound.
        """

    def load_micro_batches(
        self, plan: Plan, programs: Sequence[Program], place: LoadContext, shape: MicroBatchShape
    ) -> Program:
        """Combine loaded programs into one: each runs for every micro-batch, the last one once."""

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        """The key of the compiled plan in caches."""

    def notes(self, plan: Plan) -> tuple[str, ...]:
        """The remarks in a plan's report: the plan's own notes, adapted to this machine."""
