"""`CallbackList`: several callbacks called as one, in built-in or user-defined loops."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.run import EpochStats, Logs, Position, Run, StepMetrics
from wholestep.errors import UsageError

if TYPE_CHECKING:
    from wholestep.session import Session

log = logging.getLogger("wholestep")

OURS = __name__.partition(".")[0]  # the package


class CallbackList:
    """Calls several callbacks in order, in built-in or user-defined loops.

    Args:
        session: the session that a user-defined loop trains, for `ModelCheckpoint` and other callbacks that need the
            model; by default the only session of this process that trains.

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
        items: list[Any] = [callbacks] if isinstance(callbacks, Callback) else list(callbacks)
        for c in items:
            if not isinstance(c, Callback):
                hint = " Make an instance: add ()." if isinstance(c, type) else ""
                raise UsageError(f"callbacks are ws.Callback objects; received {c!r}.{hint}")
        self.callbacks: list[Callback] = items
        self.failed: dict[str, BaseException] = {}
        self._session = session
        self._run: Run | None = None  # the run of a user-defined loop

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def __len__(self) -> int:
        return len(self.callbacks)

    def append(self, callback: Callback) -> None:
        """Append a callback."""
        self.callbacks += CallbackList(callback).callbacks

    @property
    def every(self) -> int | None:
        """The longest slice that all callbacks allow."""
        asked = [c.every for c in self.callbacks if c.every]
        return min(asked) if asked else None

    @property
    def pauses(self) -> list[int]:
        """The numbers at whose multiples callbacks let slices end."""
        return [c.pause for c in self.callbacks if c.pause]

    @property
    def watches_steps(self) -> bool:
        """Does any callback define `on_step`?"""
        return any(type(c).on_step is not Callback.on_step for c in self.callbacks)

    @property
    def are_ours(self) -> bool:
        """Are all callbacks classes of this library?"""
        return all(type(c).__module__.startswith(f"{OURS}.") for c in self.callbacks)

    def begin(self, run: Run) -> None:
        """Set the run of all callbacks, then call `on_train_begin`."""
        for c in self.callbacks:
            c.run = run
        self.on_train_begin()

    @property
    def stopped_by(self) -> str:
        """In a user-defined loop: the reason why a callback wants training to end; "" if none does."""
        return self._run.asked if self._run is not None else ""

    def on_train_begin(self) -> None:
        """Training starts; in a user-defined loop the first event of any kind starts it."""
        waiting = [c for c in self.callbacks if c.run is None or c.run is self._run]
        if waiting and self._run is None:
            from wholestep.train.history import TrainHistory

            self._run = Run(self._session or _only_trained(), 0, history=TrainHistory(), callbacks=self)  # type: ignore[arg-type]
        for c in waiting:
            c.run = self._run
        self._each("on_train_begin")

    def on_train_end(self) -> None:
        """Training has ended: all callbacks are called, even if one fails; then the first failure is raised."""
        failures = self._all("on_train_end", raises=True)
        if failures:
            raise failures[0]

    def on_epoch_begin(self, epoch: int) -> None:
        self._begin_run()
        self._each("on_epoch_begin", epoch)

    def epoch_numbers(self, epoch: int) -> Logs:
        """The numbers that callbacks add to the logs of an epoch."""
        return {name: value for numbers in self._each("epoch_numbers", epoch) for name, value in numbers.items()}

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._begin_run()
        run = self._run
        if run is not None:
            logs = {**logs, **self.epoch_numbers(epoch)}
        if run is not None and run.history is not None:
            loss = logs.get("loss", float("nan"))
            run.history.epochs.append(EpochStats(epoch, loss if isinstance(loss, float) else float("nan"), 0, logs))
            run.epoch, run.position, run.logs = epoch, Position(epoch + 1), logs
        self._each("on_epoch_end", epoch, logs)
        if run is not None:
            self._each("on_safe_point")

    def _begin_run(self) -> None:
        if any(c.run is None for c in self.callbacks):
            self.on_train_begin()

    def on_step(self, metrics: StepMetrics) -> None:
        self._begin_run()
        self._each("on_step", metrics)

    def on_validation(self, epoch: int, step: int, logs: Logs) -> None:
        self._each("on_validation", epoch, step, logs)

    def on_slice(self, steps: int, loss: float) -> None:
        self._each("on_slice", steps, loss)

    def on_epoch(self, stats: EpochStats) -> None:
        self._each("on_epoch", stats)

    def on_safe_point(self) -> None:
        self._each("on_safe_point")

    def on_exception(self, error: BaseException) -> None:
        """Training stopped by an error: all callbacks are called, and their failures are only logged."""
        self._all("on_exception", error)

    def fail(self, run: Run, error: BaseException, *, save: bool) -> None:
        """Training ends by an error: save as after Ctrl-C, then call `on_exception` and `on_train_end`."""
        run.interrupted = save
        if save:
            self._all("on_safe_point", of=[c for c in self.callbacks if c.saves])
        self.on_exception(error)
        self._all("on_train_end")

    def _each(self, event: str, *arguments: Any) -> list[Any]:
        """Call an event of all callbacks in order; return their results."""
        results = []
        for c in list(self.callbacks):
            try:
                results.append(getattr(c, event)(*arguments))
            except Exception as error:
                if not c.tolerant or event == "on_train_begin":
                    raise
                name = type(c).__name__
                self.callbacks.remove(c)
                self.failed[name] = error
                log.error("the callback %s failed in %s and is left out from here on", name, event, exc_info=error)
        return results

    def _all(
        self, event: str, *arguments: Any, of: Iterable[Callback] | None = None, raises: bool = False
    ) -> list[Exception]:
        """Call an event of all callbacks, or of `of`, even if some fail; return all failures, logged unless one is
        raised.
        """
        failures: list[Exception] = []
        for c in list(self.callbacks if of is None else of):
            try:
                getattr(c, event)(*arguments)
            except Exception as error:
                if c.tolerant or failures or not raises:
                    log.error("the callback %s failed in %s", type(c).__name__, event, exc_info=error)
                failures += [] if c.tolerant else [error]
        return failures

    @property
    def saves(self) -> bool:
        """Does any callback write checkpoints?"""
        return any(c.saves for c in self.callbacks)

    def state_dict(self) -> dict[str, Any]:
        """The states of callbacks, named by class and number: adding a callback of another class changes no name."""
        return {name: s for name, c in self._callbacks_by_name() if (s := c.state_dict())}

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Restore a `state_dict()`."""
        for name, c in self._callbacks_by_name():
            if (state := states.get(name)) is not None:
                c.load_state_dict(state)

    def _callbacks_by_name(self) -> Iterator[tuple[str, Callback]]:
        seen: Counter[str] = Counter()
        for c in self.callbacks:
            kind = type(c).__name__
            yield f"{kind}.{seen[kind]}", c
            seen[kind] += 1


def _only_trained() -> Session | None:
    from wholestep.session.session import only_trained

    return only_trained()
