"""`TrainConfig`: the options of a `Trainer`."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from wholestep.errors import OptionError
from wholestep.optim import SGD, Adam, Optimizer


def need_integer(name: str, value: object, least: int, *, optional: bool = False) -> None:
    """Raise OptionError unless the value is an integer of at least `least`, or None if it is `optional`."""
    if (value is None and optional) or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
        return
    other = ", or None" if optional else ""
    raise OptionError(f"{name}={value!r}: expected an integer of at least {least}{other}.")


@dataclass(frozen=True)
class TrainConfig:
    """The options of a `Trainer`.

    Args:
        optimizer: None keeps the optimizer of the session.
        learning_rate: the rate of SGD, if neither this nor the session names another optimizer.
        log_interval: log the loss after this many steps each, from step 0; 0 logs epochs only.
        data_input, label_input: the session's inputs that receive a batch's data and labels.
        nonfinite: what happens if a loss is not finite: "raise" ends the run and reports the cause; "skip" skips such
            steps, in a session that was built with it; "ignore" trains on.  None: "skip" if the session skips, else
            "raise".
        validate_every: epochs between two validations; the last epoch always has one.
        validate_every_steps: also validate inside an epoch, after each of its steps that is a multiple of this.
        min_epochs: epochs that run even if a callback asks to stop.

    Example: `ws.TrainConfig(optimizer=ws.Adam(lr=1e-3), log_interval=10)`.
    """

    optimizer: Optimizer | None = None
    learning_rate: float = 0.01
    log_interval: int = 100
    data_input: str = "x"
    label_input: str = "labels"
    nonfinite: str | None = None
    validate_every: int = 1
    validate_every_steps: int | None = None
    min_epochs: int = 0

    def __post_init__(self) -> None:
        need_integer("validate_every", self.validate_every, 1)
        need_integer("validate_every_steps", self.validate_every_steps, 1, optional=True)
        need_integer("min_epochs", self.min_epochs, 0)
        if not isinstance(self.log_interval, int) or isinstance(self.log_interval, bool) or self.log_interval < 0:
            raise OptionError(
                f"TrainConfig: log_interval must be an integer of at least 0; received {self.log_interval!r}."
            )
        if self.learning_rate != 0.01 and isinstance(self.optimizer, Adam):
            warnings.warn(
                f"learning_rate={self.learning_rate} is ignored: the optimizer {type(self.optimizer).__name__} has its "
                f"own, lr={self.optimizer.lr}.",
                stacklevel=3,
            )

    def validates(self, epoch: int, epochs: int) -> bool:
        """Is the validation data evaluated at the end of an epoch?"""
        return (epoch + 1) % self.validate_every == 0 or epoch + 1 == epochs

    def chosen(self) -> Optimizer | None:
        """The configured optimizer; None: that of the session."""
        if self.optimizer is None and self.learning_rate != 0.01:
            return SGD(lr=self.learning_rate)
        return self.optimizer
