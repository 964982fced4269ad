"""What a device is: something that loads a plan and gives back a program that runs it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Protocol

from wholestep.compiler.ir.types import Dim, Shape
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.memory import Scratch
from wholestep.compiler.runtime.state import State
from wholestep.errors import OptionError
from wholestep.options import CompileOptions


@dataclass(frozen=True)
class Place:
    """What the programs of a session share."""

    state: State
    scratch: Scratch
    threads: int
    seed: int
    options: CompileOptions
    profile: bool = False  # kernels note when they begin and end; the bits are the same


@dataclass
class Epoch:
    """A pass over data: which rows, in which order, and how far it has come.  `order` None keeps the rows' order."""

    sources: Mapping[str, AnyArray]  # input -> all its rows
    rows: int
    batch: int  # rows of a step
    symbol: int | None  # the symbolic dimension that holds them
    order: int | None  # the epoch's key for shuffling
    seed: int  # the other key
    losses: AnyArray  # float64, one per update
    position: int = 0  # in rows
    done: int = 0  # updates
    most: int | None = None  # updates of a slice


@dataclass(frozen=True)
class IndexBound:
    """The values of an input, `count` integers of `bytes` bytes, are indices from 0 to `limit` - 1."""

    input: str
    count: int
    limit: int
    bytes: int


class Program(Protocol):
    """A plan on a device.  Sizes, input addresses and scalars are written in place; `run` makes one step of them."""

    plan: Plan
    mapped_bytes: int
    dims: MutableSequence[int]  # of each symbol
    addresses: MutableSequence[int]  # of each buffer that a call is given; inputs may be replaced
    slots: Mapping[str, int]  # input -> its place in `addresses`
    staging: Mapping[str, AnyArray]  # input -> a flat array to convert into
    outputs: Mapping[str, AnyArray]  # output -> its flat stored array

    @property
    def source(self) -> str:
        """The text that runs."""

    def bind(self) -> None:
        """Read the scratch memory's addresses again."""

    def set_scalar(self, name: str, value: float) -> bool:
        """Set a runtime scalar; False where the plan does not use it."""

    def set_bounds(self, bounds: Sequence[IndexBound]) -> None:
        """Which inputs hold indices, how many, and below what, from now on."""

    def count_steps(self, advances: bool, unless: str | None = None, stop: bool = False) -> None:
        """Does a step count as an update?  Not where the output `unless` is not 0; `stop` ends an epoch there."""

    def run(self) -> bool:
        """One step, to its end; False, with nothing run, where an index is out of its bound."""

    def run_epoch(self, epoch: Epoch) -> Iterator[None]:
        """Steps until the epoch's end; yields about every 50 ms so that others may act."""


@dataclass(frozen=True)
class WindowShape:
    """A window: the symbol that is cut, the rows of a part, and which dimension of its programs means what."""

    batch: str
    part: int
    dims: Mapping[str, str]  # what the native loop sets ("batch_dim", "first_dim", ...) -> symbol

    def is_cut(self, shape: Shape) -> bool:
        """Does an input of this shape have one row for each of the batch?"""
        return bool(shape) and shape[0] == Dim.symbol(self.batch)


def nothing() -> None:
    """What there is to do meanwhile, unless a caller knows better."""


class Device(Protocol):
    """A kind of machine."""

    name: str
    runs: bool

    def prepare(self, options: CompileOptions) -> None:
        """Begin with what every plan needs, beside whatever the caller does next."""

    def load(self, plan: Plan, place: Place, key: str = "", meanwhile: Callable[[], None] = nothing) -> Program:
        """Make a plan runnable.  `key` stands for the plan in caches; without one it is computed.

        `meanwhile` is called while the plan is compiled, before its states and scratch memory are looked for.
        """

    def load_window(self, plan: Plan, programs: Sequence[Program], place: Place, shape: WindowShape) -> Program:
        """One program of several that were loaded: each runs for every part of a window, the last one once."""

    def program_key(self, plan: Plan, options: CompileOptions, key: str = "") -> str:
        """The key under which caches hold what `load` makes of a plan."""


_DEVICES = {"cpu": "wholestep.compiler.backends.cpu.program", "null": "wholestep.compiler.backends.null"}


def device_named(name: str) -> Device:
    """The device called `name`."""
    if name not in _DEVICES:
        raise OptionError(f"device={name!r}: expected one of {', '.join(map(repr, _DEVICES))}.")
    device: Device = importlib.import_module(_DEVICES[name]).DEVICE
    return device
