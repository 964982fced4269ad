"""`Callback`: the events of training.  Every method is optional."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wholestep.callbacks.run import EpochStats, Logs, Run, StepMetrics
from wholestep.errors import UsageError

if TYPE_CHECKING:
    from wholestep.session import Session


class Callback:
    """Receives the events of training.  Every method is optional.

    `every` is the largest number of steps between two calls of `on_step`: 1 reports each step at once; with None the
    loop runs many steps natively and reports them, in order, afterwards.

    An exception in a callback ends the run and propagates to the caller of `fit`; a run with checkpoints writes one
    first.  A callback that only logs may set `tolerant = True`: a failure during training is logged, and the callback
    is removed.

    Example::

        class Shout(ws.Callback):
            def on_epoch_end(self, epoch, logs):
                print(epoch, logs["loss"])
    """

    every: int | None = None
    pause: int | None = None  # a slice of steps ends at each multiple of this number of steps in an epoch
    saves: bool = False  # does it write checkpoints?  Ctrl-C, SIGTERM and errors then wait for its save
    tolerant: bool = False  # may training continue after an exception in it?
    writes: bool = False  # does it write files?  `fast_dev_run=True` removes it
    run: Run | None = None

    def on_train_begin(self) -> None:
        """Called before training; `self.run` is set."""

    def on_train_end(self) -> None:
        """Called after training has ended, for any reason."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Called before an epoch."""

    def epoch_numbers(self, epoch: int) -> Logs:
        """Additional numbers for the logs and the history of an epoch; called before `on_epoch_end`."""
        return {}

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """Called after an epoch; `logs` has `loss`, metrics, and `val_…` with validation data.

        A metric with several values (one per class, or a matrix) is a list, or a list of lists.
        """

    def on_step(self, metrics: StepMetrics) -> None:
        """Called after a step."""

    def on_validation(self, epoch: int, step: int, logs: Logs) -> None:
        """Called after a validation inside an epoch, after `step` of its steps (`validate_every_steps=`).

        `logs` are those of `on_epoch_end`, of the epoch so far.
        """

    def on_slice(self, steps: int, loss: float) -> None:
        """Called after a slice of steps, which takes at most about 50 ms; `loss` is the loss of its last step."""

    def on_epoch(self, stats: EpochStats) -> None:
        """Called after an epoch, with the logs as a record."""

    def on_safe_point(self) -> None:
        """Called when every callback has handled a slice or an epoch: a checkpoint taken now is consistent."""

    def on_exception(self, error: BaseException) -> None:
        """Called when an error or an interrupt stops training."""

    @property
    def session(self) -> Session:
        """The session that is trained; UsageError if a user-defined loop has not named one."""
        if self.run is None or self.run.session is None:
            raise UsageError(
                f"{type(self).__name__} needs the session, and this loop has not given one: ws.CallbackList([...], "
                "session=session)."
            )
        return self.run.session

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint stores for a resumed run: JSON values and NumPy arrays."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a `state_dict()`."""


class LossHistory(Callback):
    """Collects the loss of every step in `losses`."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, metrics: StepMetrics) -> None:
        self.losses.append(metrics.loss)
