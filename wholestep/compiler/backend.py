"""What a backend is: it loads plans and gives back programs that run them.  No caller sees an address."""

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

SLICE_SECONDS = 0.05  # signals, progress and callbacks wait no longer than this
IN_FLIGHT = 8  # launches of an epoch that are begun before the oldest is waited for


class Scratch(Protocol):
    """Memory that the programs of a session share, since it means something during a launch alone."""

    @property
    def mapped_bytes(self) -> int:
        """Its size now."""

    def reserve(self, plan: Plan, threads: int) -> None:
        """Make room for a plan; programs that were loaded before go on working."""

    def spoil(self) -> None:
        """Fill it with what nobody may rely on, before a plan is tried."""


class NoScratch:
    """Of a backend whose programs share nothing."""

    mapped_bytes = 0

    def reserve(self, plan: Plan, threads: int) -> None:
        """Nothing is needed."""

    def spoil(self) -> None:
        """There is nothing."""


@dataclass(frozen=True)
class Placement:
    """Where plans run: the device, its threads, what keys random numbers, and how plans are made."""

    device: Device
    threads: int
    seed: int
    options: CompileOptions
    group: RankGroup | None = None  # the ranks that make a step together; None: this one alone
    shard: str | None = None  # "optimizer": of its state each has a part
    seeded: bool = True  # was the seed given, or is it the default of the process?

    @property
    def ranks(self) -> int:
        """How many divide the rows of a step among them; 0 where it is made as it is."""
        return 0 if self.group is None else self.group.grid.data

    @property
    def model_ranks(self) -> int:
        """And how many have the same rows, and may divide layers."""
        return 1 if self.group is None else self.group.grid.model

    @property
    def among(self) -> tuple[int, str | None, int]:
        """What the definition of a step is told of those who make it."""
        return self.ranks, self.shard, self.model_ranks


@dataclass(frozen=True)
class LoadContext:
    """What the programs of a session are loaded into: where they run, and the memory that they share."""

    where: Placement
    state: State
    scratch: Scratch  # of the backend's own making
    profile: bool = False  # kernels note when they begin and end; the bits are the same
    memory: StateMemory | None = None  # where states are, unless in the device's own
    apart: bool = False  # does a program run on its caller's thread, beside the others of this process?


# -- programs ----------------------------------------------------------------------------------------------------


class IndexRefusedError(Exception):
    """An input holds an index outside its bound; nothing was run.  Whoever launched knows which one to tell of."""


class Launch(Protocol):
    """A launch, which may still be under way."""

    def wait(self) -> None:
        """Return when the launch is done; raises what went wrong in it."""

    def loss(self) -> float:
        """The first output, where it is one number; waits."""

    def read(self, name: str) -> AnyArray:
        """A copy of an output, as the user sees it; waits."""

    def keep(self) -> Launch:
        """The launch with its outputs, which may lie where the next launch writes: called before that one begins."""


class Program(Launch, Protocol):
    """A plan on a device, and the ticket of its last launch; `wait` waits for all of them.

    A step is `bind` of every input and one `launch`.  Launches take effect in the order in which they are made; one
    that counts as an update advances `state.step` and the version of the state's family before it returns.
    """

    plan: Plan
    synchronous: bool  # is a launch done when it returns?
    outputs: Mapping[str, TensorType]  # by name, in order; the first one may be a loss

    @property
    def mapped_bytes(self) -> int:
        """What it has mapped or allocated for itself."""

    @property
    def source(self) -> str:
        """The text that runs."""

    def scalar(self, name: str, value: float) -> None:
        """Set a runtime scalar for the launches from now on; one that the plan does not use is ignored."""

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a launch count as an update?  Not where the output `unless` is not 0; `stop` ends a slice there."""

    def staging(self, name: str) -> AnyArray:
        """A flat array on the host, as large as an input can be, to convert or hold one in."""

    def bind(self, name: str, array: AnyArray) -> None:
        """Give the next launch an input: of its dtype, rows contiguous.

        It is read by the time the launch returns (an asynchronous device copies it); then it may change.
        """

    def launch(self, sizes: Mapping[str, int]) -> Launch:
        """Begin one step with these sizes of the symbols; IndexRefusedError, with nothing run, where an index is bad.

        The mapping is not changed afterwards: the same one means the same sizes.
        """

    def epoch(self, epoch: Epoch) -> Iterator[StepRange]:
        """Steps over the rows of an epoch; gives what was done about every 50 ms, so that others may act."""


def check_indices(plan: Plan, arrays: Mapping[str, AnyArray], sizes: Mapping[str, int]) -> None:
    """IndexRefusedError where an input holds an index outside its bound: for programs without a check of their own."""
    for bound in plan.bounds:
        array = arrays[bound.input]
        if bound.is_plain and array.size and not 0 <= array.min() <= array.max() < evaluate(bound.size, sizes):
            raise IndexRefusedError(bound.input)


# -- epochs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Epoch:
    """A pass over data that the caller holds: which rows, in which order, and which updates of it are to be made."""

    sources: Mapping[str, AnyArray]  # input -> all its rows
    whole: Mapping[str, AnyArray]  # input -> what every step is given
    sizes: Mapping[str, int]  # of every symbol, in a full batch
    rows: int
    batch: int  # rows of an update
    symbol: str | None = None  # the symbolic dimension that holds them
    order: int | None = None  # the epoch's key for shuffling; None keeps the rows' order
    seed: int = 0  # the other key
    number: int = 0  # of the run, from 0
    first: int = 0  # the update to begin with
    most: int | None = None  # updates in all
    every: int | None = None  # updates of a slice
    kept: dict[object, Any] = field(default_factory=dict)  # by programs, for the other epochs of the run

    @property
    def end(self) -> int:
        """The update before which it ends."""
        last = -(-self.rows // self.batch)
        return last if self.most is None else min(last, self.first + self.most)

    def rows_of(self, update: int) -> int:
        """How many rows an update has: the last one may have fewer."""
        return min(self.batch, self.rows - update * self.batch)

    def sizes_of(self, update: int) -> Mapping[str, int]:
        """The sizes of an update."""
        rows = self.rows_of(update)
        return self.sizes if self.symbol is None or rows == self.batch else {**self.sizes, self.symbol: rows}

    def inputs_of(self, update: int) -> dict[str, AnyArray]:
        """What an update is given, its rows gathered; those that lie side by side are seen where they are."""
        first, end = update * self.batch, update * self.batch + self.rows_of(update)
        if self.order is None:
            return {**{name: source[first:end] for name, source in self.sources.items()}, **self.whole}
        from wholestep.compiler.runtime.epoch_permutation import epoch_order  # a native loop knows by itself

        rows = epoch_order(self.seed, self.order, self.rows, np.arange(first, end))
        return {**{name: source[rows] for name, source in self.sources.items()}, **self.whole}


@dataclass(frozen=True)
class StepRange:
    """Some updates that were made one after the other."""

    epoch: int  # of the run, from 0
    first: int  # number of its first update in the epoch, from 0
    losses: AnyArray  # float64, one per update
    rows: AnyArray  # of each update

    @staticmethod
    def of(epoch: Epoch, first: int, losses: AnyArray) -> StepRange:
        """The slice that begins with the update `first`."""
        rows = np.full(len(losses), epoch.batch)
        rows[-1:] = epoch.rows_of(first + len(losses) - 1)
        return StepRange(epoch.number, first, losses, rows)

    @property
    def end(self) -> int:
        """The update that comes next."""
        return self.first + len(self.losses)


class Slicing(Protocol):
    """How ranks that make steps together agree on those of a slice."""

    seconds: float  # that a slice takes, at most

    def steps(self, left: int) -> int:
        """Of the next slice, at most."""

    def timed(self, run: Callable[[], int]) -> int:
        """Make a slice, and learn from the time that it takes."""


def epoch_of_launches(
    program: Program, epoch: Epoch, stop_at: str | None = None, pace: Slicing | None = None
) -> Iterator[StepRange]:
    """An epoch as a loop over launches, for programs without a loop of their own.

    Losses are read some launches late, so that an asynchronous device never waits for the host.  `stop_at` is the
    output that ends a slice where it is not 0.  Ranks agree on their steps by a pace.
    """
    first = epoch.first
    while first < epoch.end:
        most, losses = min(epoch.end - first, epoch.every or epoch.end), list[float]()
        if pace is None:
            _make_slice(program, epoch, range(first, first + most), stop_at, SLICE_SECONDS, losses)
        else:
            updates = range(first, first + pace.steps(most))
            pace.timed(partial(_make_slice, program, epoch, updates, stop_at, pace.seconds, losses))
        yield StepRange.of(epoch, first, np.array(losses))
        first += len(losses)


def _make_slice(
    program: Program, epoch: Epoch, updates: range, stop_at: str | None, seconds: float, losses: list[float]
) -> int:
    """Launch some updates; how many, and their losses."""
    deadline = time.monotonic() + seconds
    begun: deque[Launch] = deque()
    for update in updates:
        ticket = _launch_step(program, epoch, update)
        begun.append(ticket if program.synchronous else ticket.keep())
        if program.synchronous or len(begun) == IN_FLIGHT:
            losses.append(begun.popleft().loss())
        if (stop_at is not None and ticket.read(stop_at)) or time.monotonic() >= deadline:
            break
    losses += [ticket.loss() for ticket in begun]
    return len(losses)


def _launch_step(program: Program, epoch: Epoch, update: int) -> Launch:
    for name, array in epoch.inputs_of(update).items():
        program.bind(name, array)
    return program.launch(epoch.sizes_of(update))


@dataclass(frozen=True)
class MicroBatchShape:
    """How a batch is split: along which symbol, into how many rows, and which dimension of its programs means what."""

    batch: str
    part: int
    dims: Mapping[str, str]  # what the native loop sets ("batch_dim", "first_dim", ...) -> symbol

    def is_cut(self, shape: Shape) -> bool:
        """Does an input of this shape have one row for each of the batch?"""
        return bool(shape) and shape[0] == Dim.symbol(self.batch)


# -- backends ----------------------------------------------------------------------------------------------------


def do_nothing() -> None:
    """What there is to do meanwhile, unless a caller knows better."""


class Device(Protocol):
    """A kind of machine, as the target that plans are made for."""

    name: str  # as `device=` names it
    target: Target
    runs: bool
    memory: StateMemory  # where its programs find states

    def scratch(self) -> Scratch:
        """What the programs of one session share."""

    def prepare(self, options: CompileOptions) -> None:
        """Begin with what every plan needs, beside whatever the caller does next."""

    def load(
        self, plan: Plan, place: LoadContext, key: str = "", meanwhile: Callable[[], None] = do_nothing
    ) -> Program:
        """Make a plan runnable.  `key` stands for the plan in caches; without one it is computed.

        `meanwhile` is called while the plan is compiled, before its states and scratch memory are looked for.
        """

    def load_micro_batches(
        self, plan: Plan, programs: Sequence[Program], place: LoadContext, shape: MicroBatchShape
    ) -> Program:
        """One program of several that were loaded: each runs for every micro-batch, the last one once."""

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        """The key under which caches hold what `load` makes of a plan."""

    def notes(self, plan: Plan) -> tuple[str, ...]:
        """What a report says of a plan beside the numbers: the plan's own notes, as they are true of this machine."""
