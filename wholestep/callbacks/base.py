"""What a callback is: something that watches training.  Every method may be left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wholestep.callbacks.run import EpochStats, Logs, Run, StepMetrics
from wholestep.errors import UsageError

if TYPE_CHECKING:
    from wholestep.session import Session


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
    writes: bool = False  # does it write files?  A trial run, `fast_dev_run=True`, leaves it out
    run: Run | None = None

    def on_train_begin(self) -> None:
        """Training starts; `self.run` is set."""

    def on_train_end(self) -> None:
        """Training is over, whatever ended it."""

    def on_epoch_begin(self, epoch: int) -> None:
        """An epoch starts."""

    def epoch_numbers(self, epoch: int) -> Logs:
        """Numbers of its own for the logs and the history of an epoch that is over; asked before `on_epoch_end`."""
        return {}

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """An epoch is over; `logs` has `loss`, metrics, and `val_…` where there is validation.

        A metric that is no single number (of each class, a matrix) is a list, or a list of lists.
        """

    def on_step(self, metrics: StepMetrics) -> None:
        """A step was made."""

    def on_validation(self, epoch: int, step: int, logs: Logs) -> None:
        """The validation data was measured inside an epoch, after `step` steps of it (`validate_every_steps=`).

        `logs` are those of `on_epoch_end`, of the epoch so far.
        """

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


class LossHistory(Callback):
    """Collects the loss of every step in `losses`."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_step(self, metrics: StepMetrics) -> None:
        self.losses.append(metrics.loss)
