"""The records that callbacks receive: steps, epochs, the position of a run, and the run itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wholestep.callbacks.list import CallbackList
    from wholestep.compiler.runtime.process_group import RankGroup
    from wholestep.session import Session
    from wholestep.train.history import TrainHistory

Value = float | list[Any]  # a number, or nested lists of numbers, e.g. one per class, or a matrix
Logs = dict[str, Value]

NORM, UPDATE_RATIO = "norm/", "update_ratio/"  # prefixes of the names of parameters or layers


def is_detail(name: str) -> bool:
    """Is it a number of a single parameter?  These are omitted from one-line output."""
    return name.startswith((NORM, UPDATE_RATIO))


def is_count(value: Any) -> bool:
    """Is a value from a file a valid count of steps, rows or epochs?"""
    return type(value) is int and 0 <= value < 1 << 62


def is_number(value: Any) -> bool:
    return type(value) in (int, float)


def is_measure(value: Any) -> bool:
    """Is it a valid value in logs: a number, or nested lists of numbers?"""
    return is_number(value) or (type(value) is list and all(is_measure(v) for v in value))


@dataclass(frozen=True)
class StepMetrics:
    """The record of one step: its epoch, its number in the epoch (from 0), its loss."""

    epoch: int
    step: int
    loss: float


@dataclass(frozen=True)
class EpochStats:
    """The record of one epoch: the mean loss over its examples, its number of steps, and its other numbers by name."""

    epoch: int
    avg_loss: float
    steps: int
    logs: Mapping[str, Value] = field(default_factory=dict)
    partial: bool = False  # was the run stopped before the end of the epoch?
    # Measured in this process, without validation; 0: not measured.  Not compared: histories of equal runs are equal.
    steps_per_second: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class Position:
    """The position of a run: the epoch, the number of its completed steps, and the sums for its mean loss."""

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0  # each step's loss times its rows, added in order
    rows: int = 0


def advance(at: Position, losses: Any, rows: Any) -> Position:
    """The position after some steps, given as arrays of their losses and numbers of rows.

    Losses are added one by one, so that the division into slices does not change the sum.
    """
    total, count = at.loss_sum, at.rows
    for loss, size in zip(losses.tolist(), rows.tolist(), strict=True):  # faster than NumPy for few values
        total += loss * size
        count += size
    return Position(at.epoch, at.step + len(losses), total, count)


@dataclass
class Run:
    """The state of a run, which callbacks may read, and may ask to stop."""

    session: Session
    epochs: int
    steps_per_epoch: int | None = None
    names: tuple[str, ...] = ()  # names of the numbers that `logs` will contain
    modes: Mapping[str, str] = field(default_factory=dict)  # "min" or "max" for metrics with a direction
    epoch: int = 0
    step: int = 0  # steps completed in the epoch
    schedules: str = ""  # a description of the schedules
    asked: str = ""  # the reason why a callback in this process wants the run to end
    received: int = 0  # the signal that this process received
    # The decision of this process or, with several workers, their common decision (`train/worker_sync.py`).
    stopped_by: str = ""
    interrupted: bool = False  # was the run interrupted by a signal?  Checkpoints are written at the next safe point
    signal: int = 0  # the signal that a worker received
    # The contents of a checkpoint apart from the session:
    position: Position = field(default_factory=Position)
    began: Position = field(default_factory=Position)  # the position where this run started
    logs: Mapping[str, Value] = field(default_factory=dict)  # logs of the last epoch
    history: TrainHistory | None = None
    callbacks: CallbackList | None = None
    loader: Any = None
    config: Mapping[str, Any] = field(default_factory=dict)  # the configuration of the run
    numbers: Callable[[], Logs] | None = None  # reads metrics and rates of the epoch so far

    @property
    def group(self) -> RankGroup | None:
        """The ranks that run the steps together; None in a single process."""
        return self.session.group if self.session is not None else None

    @property
    def writes(self) -> bool:
        """Does this process write the run's files?  Only rank 0 does."""
        return self.group is None or self.group.rank == 0

    def stop(self, reason: str) -> None:
        """End training after the current step or epoch."""
        self.asked = self.asked or reason
        if self.group is None:
            self.stopped_by = self.asked

    def receive(self, signal: int, name: str) -> None:
        """Stop because this process received a signal."""
        self.received = signal
        self.stop(f"{name} was received")
        if self.group is None:
            self.interrupted, self.signal = True, signal
