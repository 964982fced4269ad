"""What a callback is, and a list of them, for our loops and for one's own."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from wholestep.errors import UnknownNameError, UsageError
from wholestep.schedules.modes import canonical as canonical  # whoever watches a number asks here

if TYPE_CHECKING:
    from wholestep.session import Session
    from wholestep.train.history import TrainHistory

log = logging.getLogger("wholestep")

Value = float | list[Any]  # a number, or lists of them: one for each class, a matrix
Logs = dict[str, Value]


@dataclass(frozen=True)
class StepMetrics:
    """One step: its epoch, its number in the epoch (from 0), its loss."""

    epoch: int
    step: int
    loss: float


@dataclass(frozen=True)
class EpochStats:
    """One epoch: the mean loss over its examples, how many steps it took, and its other numbers by name."""

    epoch: int
    avg_loss: float
    steps: int
    logs: Mapping[str, Value] = field(default_factory=dict)
    partial: bool = False  # was the run stopped before the end of the epoch?


@dataclass(frozen=True)
class Position:
    """How far a run is: the epoch, the steps of it that are done, and what its mean loss is made of so far."""

    epoch: int = 0
    step: int = 0
    loss_sum: float = 0.0  # each step's loss times its rows, added in order
    rows: int = 0


@dataclass
class Run:
    """What a callback may look at and ask for while training runs."""

    session: Session
    epochs: int
    steps_per_epoch: int | None = None
    names: tuple[str, ...] = ()  # of the numbers that `logs` will hold
    modes: Mapping[str, str] = field(default_factory=dict)  # of these: "min" or "max" is better, where a metric says it
    epoch: int = 0
    step: int = 0  # in the epoch
    schedules: str = ""  # what they count, for people
    stopped_by: str = ""
    interrupted: bool = False  # by a signal: whoever saves does so at the next safe point
    # What a checkpoint is made of, beside the session:
    position: Position = field(default_factory=Position)
    began: Position = field(default_factory=Position)  # where this run took over
    logs: Mapping[str, Value] = field(default_factory=dict)  # of the last epoch
    history: TrainHistory | None = None
    callbacks: CallbackList | None = None
    loader: Any = None
    config: Mapping[str, Any] = field(default_factory=dict)  # what the run was started with

    def stop(self, reason: str) -> None:
        """End training after the current step or epoch."""
        self.stopped_by = self.stopped_by or reason


class Callback:
    """Something that watches training.  Every method may be left out.

    `every` bounds how many steps run before `on_step` hears of them: 1 means at once; None leaves it to the loop, which
    then runs many steps natively and reports each of them, in order, afterwards.

    An exception of a callback ends the run and reaches whoever called `fit`; where checkpoints are kept, one is written
    first.  A callback that only writes things down may set `tolerant = True`: once training runs, a failure of it is
    logged and it is left out from then on.

    Example::

        class Shout(ws.Callback):
            def on_epoch_end(self, epoch, logs):
                print(epoch, logs["loss"])
    """

    every: int | None = None
    saves: bool = False  # does it keep the run in files?  Ctrl-C, SIGTERM and errors then wait for it
    tolerant: bool = False  # may training go on without it?  Else an exception of it ends the run
    run: Run | None = None

    def on_train_begin(self) -> None:
        """Training starts; `self.run` is set."""

    def on_train_end(self) -> None:
        """Training is over, whatever ended it."""

    def on_epoch_begin(self, epoch: int) -> None:
        """An epoch starts."""

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """An epoch is over; `logs` has `loss`, metrics, and `val_…` where there is validation.

        A metric that is no single number (of each class, a matrix) is a list, or a list of lists.
        """

    def on_step(self, metrics: StepMetrics) -> None:
        """A step was made."""

    def on_slice(self, steps: int, loss: float) -> None:
        """Some steps were made since the last time, at most about 50 ms of them; the loss is the last one's."""

    def on_epoch(self, stats: EpochStats) -> None:
        """An epoch is over: the same as numbers in fields."""

    def on_safe_point(self) -> None:
        """After a slice or an epoch of which every callback has heard: what is saved now is whole."""

    def on_exception(self, error: BaseException) -> None:
        """Training stopped by an error or an interrupt."""

    @property
    def session(self) -> Session:
        """The session that is trained; an error where a loop of one's own has not said which."""
        if self.run is None or self.run.session is None:
            raise UsageError(
                f"{type(self).__name__} looks at the model, and this loop has not said which: ws.CallbackList([...], "
                "session=session)."
            )
        return self.run.session

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps so that a resumed run goes on as this one would: JSON values and NumPy arrays."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from `state_dict`."""


class MetricCallback(Callback):
    """`Callback` under its name in a loop of steps and epochs: define `on_step`, `on_epoch` or both."""


class LossHistory(MetricCallback):
    """Collects the loss of every step in `losses`."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, metrics: StepMetrics) -> None:
        self.losses.append(metrics.loss)


class CallbackList:
    """Calls several callbacks in order, in our loops or in one's own.

    Args:
        session: what a loop of one's own trains; `ModelCheckpoint` and whoever else looks at the model needs it.

    Example::

        callbacks = ws.CallbackList([ws.EarlyStopping(), ws.ModelCheckpoint("runs/mine")], session=session)
        for epoch in range(100):
            callbacks.on_epoch_begin(epoch)
            ...
            callbacks.on_epoch_end(epoch, {"val_loss": loss})
            if callbacks.stopped_by:
                break
        callbacks.on_train_end()
    """

    def __init__(self, callbacks: Iterable[Callback] | Callback = (), session: Session | None = None) -> None:
        given: list[Any] = [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
        for c in given:
            if not isinstance(c, Callback):
                hint = " Make an instance: add ()." if isinstance(c, type) else ""
                raise UsageError(f"callbacks are ws.Callback objects; received {c!r}.{hint}")
        self.callbacks: list[Callback] = given
        self.failed: dict[str, BaseException] = {}
        self._session = session
        self._run: Run | None = None  # in a loop of one's own

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def __len__(self) -> int:
        return len(self.callbacks)

    def append(self, callback: Callback) -> None:
        """Add one at the end."""
        self.callbacks += CallbackList(callback).callbacks

    @property
    def every(self) -> int | None:
        """The longest slice that all of them allow."""
        asked = [c.every for c in self.callbacks if c.every]
        return min(asked) if asked else None

    @property
    def watches_steps(self) -> bool:
        """Does any of them define `on_step`?"""
        return any(type(c).on_step is not Callback.on_step for c in self.callbacks)

    def begin(self, run: Run) -> None:
        """Hand the run to everyone, then say that training starts."""
        for c in self.callbacks:
            c.run = run
        self.on_train_begin()

    @property
    def stopped_by(self) -> str:
        """Why somebody wants training to end, in a loop of one's own; "" while nobody does."""
        return self._run.stopped_by if self._run is not None else ""

    def on_train_begin(self) -> None:
        """Training starts; in a loop of one's own the first other event says so too."""
        own = [c for c in self.callbacks if c.run is None or c.run is self._run]
        if own and self._run is None:
            from wholestep.train.history import TrainHistory

            self._run = Run(self._session, 0, history=TrainHistory(), callbacks=self)  # type: ignore[arg-type]
        for c in own:
            c.run = self._run
        self._each("on_train_begin")

    def on_train_end(self) -> None:
        """Training is over: everyone hears of it, whoever fails; the first failure is raised then."""
        failures = self._all("on_train_end")
        if failures:
            raise failures[0]

    def on_epoch_begin(self, epoch: int) -> None:
        self._begin_own()
        self._each("on_epoch_begin", epoch)

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._begin_own()
        run = self._run
        if run is not None and run.history is not None:
            loss = logs.get("loss", float("nan"))
            run.history.epochs.append(EpochStats(epoch, loss if isinstance(loss, float) else float("nan"), 0, logs))
            run.epoch, run.position, run.logs = epoch, Position(epoch + 1), logs
        self._each("on_epoch_end", epoch, logs)
        if run is not None:
            self._each("on_safe_point")

    def _begin_own(self) -> None:
        if any(c.run is None for c in self.callbacks):
            self.on_train_begin()

    def on_step(self, metrics: StepMetrics) -> None:
        self._begin_own()
        self._each("on_step", metrics)

    def on_slice(self, steps: int, loss: float) -> None:
        self._each("on_slice", steps, loss)

    def on_epoch(self, stats: EpochStats) -> None:
        self._each("on_epoch", stats)

    def on_safe_point(self) -> None:
        self._each("on_safe_point")

    def on_exception(self, error: BaseException) -> None:
        """Training stopped by an error: everyone hears of it; what fails meanwhile is logged, this error counts."""
        self._all("on_exception", error)

    def fail(self, run: Run, error: BaseException, *, save: bool) -> None:
        """Training ends by an error: what is done is saved as when Ctrl-C is pressed, and everyone hears of it."""
        run.interrupted = save
        if save:
            self._all("on_safe_point", of=[c for c in self.callbacks if c.saves])
        self.on_exception(error)
        self._all("on_train_end")

    def _each(self, event: str, *arguments: Any) -> None:
        for c in list(self.callbacks):
            try:
                getattr(c, event)(*arguments)
            except Exception as error:
                if not c.tolerant or event == "on_train_begin":
                    raise
                name = type(c).__name__
                self.callbacks.remove(c)
                self.failed[name] = error
                log.error("the callback %s failed in %s and is left out from here on", name, event, exc_info=error)

    def _all(self, event: str, *arguments: Any, of: Iterable[Callback] | None = None) -> list[Exception]:
        """Tell everyone (or those `of`), whoever fails; the failures, which are logged."""
        failures = []
        for c in list(self.callbacks if of is None else of):
            try:
                getattr(c, event)(*arguments)
            except Exception as error:
                log.error("the callback %s failed in %s", type(c).__name__, event, exc_info=error)
                failures += [] if c.tolerant else [error]
        return failures

    @property
    def saves(self) -> bool:
        """Does any of them keep the run in files?"""
        return any(c.saves for c in self.callbacks)

    def state_dict(self) -> dict[str, Any]:
        """The states of those that have one, by class and number: one more of another class changes no name."""
        return {name: s for name, c in self._named() if (s := c.state_dict())}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        for name, c in self._named():
            if (state := states.get(name)) is not None:
                c.load_state_dict(state)

    def _named(self) -> Iterator[tuple[str, Callback]]:
        seen: Counter[str] = Counter()
        for c in self.callbacks:
            kind = type(c).__name__
            yield f"{kind}.{seen[kind]}", c
            seen[kind] += 1


# -- monitors ----------------------------------------------------------------------------------------------------


def read_monitor(kind: str, monitor: str, logs: Mapping[str, Value], known: Sequence[str] = ()) -> float:
    """The number that a callback watches; a name that is not there is an error with suggestions."""
    name = canonical(monitor)
    if name in logs:
        value = logs[name]
        if isinstance(value, list):
            raise UsageError(
                f"{kind} watches {monitor!r}, which is not one number but {len(value)} of them. Watch one number: a "
                "metric with average='macro'."
            )
        return float(value)
    names = list(dict.fromkeys([*logs, *known]))
    close = get_close_matches(name, names, 2, 0.5)
    hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
    if name.startswith("val_") and not any(n.startswith("val_") for n in names):
        hint = " There is no validation data: pass validation=(x, y) or validation=0.1."
    raise UnknownNameError(
        f"{kind} watches {monitor!r}, which this run does not have.{hint} It has: {', '.join(names)}."
    )


@dataclass
class Best:
    """The best value seen of a number that is to fall ("min") or to rise ("max")."""

    mode: str
    min_delta: float = 0.0
    value: float | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max", ""):  # "": not known yet
            raise UsageError(f"mode is 'min' or 'max'; received {self.mode!r}.")

    def improves(self, value: float) -> bool:
        """Is this the best so far?  It is then remembered.  NaN never is."""
        if value != value:
            return False
        better = self.value is None or (
            value < self.value - self.min_delta if self.mode == "min" else value > self.value + self.min_delta
        )
        if better:
            self.value = value
        return better
