"""Losses that are not finite: such a run ends with the step, the operation, its layer and line.

The compiled step checks nothing: losses are returned anyway and checked here.  The state is copied at intervals, if
memory allows; after a failure training is repeated from the copy, bit for bit, and the failing step is evaluated in
NumPy, operation by operation (`session.first_nonfinite`).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.callbacks.run import EpochStats, Position, advance
from wholestep.compiler.ir.types import letter_of
from wholestep.compiler.runtime.memory import free_bytes
from wholestep.data.loader import DataLoader
from wholestep.data.sources import Stream
from wholestep.errors import NonFiniteError, OptionError

if TYPE_CHECKING:
    from wholestep.session import Session
    from wholestep.session.inspect.nonfinite import Origin
    from wholestep.train.trainer import Trainer

log = logging.getLogger("wholestep")

POLICIES = ("raise", "skip", "ignore")
SPARE = 8  # a state is copied if it takes at most this part of the free memory
PAUSE = 2.0  # the least number of seconds between two copies
SHARE = 0.005  # the largest fraction of time that copies take
SHOWN = 3  # the most names in a message
EXPLODED = 1000.0  # a mean loss above 1000 · (1 + |first loss|) causes a warning


def policy_of(asked: str | None, session: Session) -> str:
    """The policy of a trainer: its argument, else that of its session."""
    if asked is not None and asked not in POLICIES:
        raise OptionError(f"nonfinite={asked!r}: expected one of {', '.join(map(repr, POLICIES))}.")
    built = session.nonfinite
    if asked == "skip" and built != "skip":
        raise OptionError(
            "nonfinite='skip' is part of the step, and this session was built without it: "
            "ws.build_session(..., nonfinite='skip')."
        )
    return "skip" if built == "skip" else asked or "raise"


@dataclass(frozen=True)
class Cause:
    """Why a loss is not finite, and the user's line."""

    text: str = ""
    place: str = ""


class LossWatch:
    """Checks the losses of a run as they are returned."""

    def __init__(self, trainer: Trainer, loader: Any, policy: str) -> None:
        self.trainer, self.loader, self.policy = trainer, loader, policy
        self._copy: dict[str, Any] = {}
        self._copied_at = Position()
        self._next = -math.inf  # when to copy again
        self._copies_state = policy == "raise" and trainer.session.state.mapped_bytes <= most_bytes()
        self.restored: Position | None = None  # after a failure: the session has the state before this step
        self._first_loss: float | None = None
        self._has_warned = trainer.session.group is not None and trainer.session.group.rank > 0  # rank 0 warns

    def keep(self, at: Position) -> None:
        """Copy the state at a position if a copy is due."""
        if not self._copies_state or not self._is_time(began := time.monotonic()):
            return
        self._copy, self._copied_at = self.trainer.session.state_dict(), at
        ended = time.monotonic()
        self._next = ended + max(PAUSE, (ended - began) / SHARE)

    def _is_time(self, now: float) -> bool:
        """Is a copy due?  By the clock of rank 0, since all workers repeat the same steps."""
        due, group = now >= self._next, self.trainer.session.group
        return due if group is None else group.broadcast(bytes([due])) == bytes([True])

    def check_growth(self, at: Position, losses: Any) -> None:
        """Warn, once in a run, if the mean loss of an epoch so far is above 1000 · (1 + |the first step's loss|)."""
        if self._first_loss is None and len(losses):
            self._first_loss = float(losses[0])
        if self._has_warned or not at.rows or self._first_loss is None:
            return
        mean = at.loss_sum / at.rows
        if mean > EXPLODED * (1.0 + abs(self._first_loss)) and math.isfinite(mean):
            self._has_warned = True
            log.warning(
                "the loss explodes: its mean over the first %d steps of epoch %d is %.3g, that of the first step was "
                "%.3g. Lower the learning rate%s, clip the gradients (clip_norm=1.0), or bring inputs and targets to "
                "scale.",
                *(at.step, at.epoch, mean, self._first_loss, self._rate()),
            )

    def judge(self, before: Position, after: Position, losses: Any, rows: Any) -> Position:
        """The position after steps with a loss that is not finite; NonFiniteError with the policy "raise"."""
        bad = [i for i, loss in enumerate(losses.tolist()) if not math.isfinite(loss)]
        if not bad or self.policy == "ignore":
            return after
        if self.policy == "raise":
            at = advance(before, losses[: bad[0]], rows[: bad[0]])
            self._record(at)
            raise NonFiniteError(self._report(at, float(losses[bad[0]])))
        fine = np.isfinite(losses)
        return replace(advance(before, losses[fine], rows[fine]), step=after.step)

    def end_epoch(self, stats: EpochStats, *, last: bool) -> None:
        """Raise NonFiniteError if the last update of an epoch made parameters non-finite, which no loss shows yet."""
        odd = any(isinstance(v, float) and not math.isfinite(v) for v in stats.logs.values())
        if self.policy == "raise" and (odd or last) and (names := nonfinite_states(self.trainer.session)):
            at = Position(stats.epoch + 1)
            raise NonFiniteError(
                self._text(f"after epoch {stats.epoch} {_are(names)}", *self._inspect_weights(at, has_run=False))
            )

    def _record(self, at: Position) -> None:
        """Record the finite part of the epoch in the history."""
        mean = at.loss_sum / at.rows if at.rows else math.nan
        self.trainer.history.epochs.append(EpochStats(at.epoch, mean, at.step, {"loss": mean}, partial=True))

    # -- the cause -----------------------------------------------------------------------------------------------

    def _report(self, at: Position, loss: float) -> str:
        what = f"the loss of step {at.step} of epoch {at.epoch} (both counted from 0) is {loss}"
        return self._text(what, *self._inspect_weights(at))

    def _text(self, what: str, why: Cause, weights: str) -> str:
        return (
            f"{what}: {why.text}. {weights} Lower the learning rate{self._rate()}, clip the gradients (clip_norm=1.0), "
            f"or look at the data; nonfinite='skip' leaves such steps out, nonfinite='ignore' trains on.{why.place}"
        )

    def _rate(self) -> str:
        optimizers = self.trainer.session.optimizers
        return f" (it is {next(iter(optimizers.values())).lr:.3g})" if len(optimizers) == 1 else ""

    def _inspect_weights(self, at: Position, *, has_run: bool = True) -> tuple[Cause, str]:
        """The cause, and a sentence about the weights; `has_run`: has the step at the position run?."""
        names = nonfinite_states(self.trainer.session)
        saved = any(c.saves for c in self.trainer.callbacks)
        where = "; go on from the last checkpoint, resume=..." if saved else ""
        weights = f"The weights are those after it{where}."
        why = Cause()
        try:
            if self._copy:
                why = self._replay_steps(at, has_run)
            elif has_run:
                why = Cause(_of_inputs(self._batch(at)))
        except Exception as error:  # an error in the user's data, for example, must not hide the error about the loss
            log.info("the step could not be repeated: %s", error)
        if self._copy:
            if self.restored is not None and saved and self._is_new(self.restored):
                where = " and saved as the last checkpoint: resume=True repeats the step"
            weights = f"The weights are restored to those before that step{where}."
            if not why.text:
                self.restored = None
                self._put_back()
                copied_at = self._copied_at
                weights = (
                    f"The weights are restored to those before step {copied_at.step} of epoch {copied_at.epoch}{where}."
                )
        return why if why.text else Cause(f"by then {_are(names)}" if names else "the parameters are finite"), weights

    def _is_new(self, at: Position) -> bool:
        run = self.trainer._run
        return run is not None and (at.epoch, at.step) != (run.began.epoch, run.began.step)

    def _replay_steps(self, at: Position, has_run: bool) -> Cause:
        """The cause, found by repeating the steps from the copy; the session keeps the state before the failure.

        Empty if the repetition differs, because the user has changed something in between.
        """
        session = self.trainer.session
        self.restored = None
        if has_run and math.isfinite(self._repeat_until(Position(at.epoch, at.step + 1))):
            return Cause()
        self._repeat_until(at)
        if not nonfinite_states(session):
            self.restored = at if has_run else None
            return self._of_step(at) if has_run else Cause()
        before = self._one_before(at)
        if before is None:
            return self._of_weights(at)
        self._repeat_until(before)
        return Cause() if nonfinite_states(session) else self._of_update(before)

    def _of_update(self, at: Position) -> Cause:
        """The cause if an update made parameters non-finite although its loss was finite."""
        batch, step = self._batch(at), f"the update before it, step {at.step} of epoch {at.epoch}"
        bad = [n for n, s in self.trainer.session.gradient_stats(batch).items() if not s.is_finite]
        if not bad:
            return Cause(f"{step}, made parameters infinite although its gradients are finite")
        text = f"{step}, had gradients that are not finite, first (from the loss) that of {bad[-1]!r}"
        origin = self._origin(batch)
        if origin is None:
            return Cause(text)
        return Cause(f"{text}: {origin}{self._rows_text(batch, at)}", origin.place)

    def _of_weights(self, at: Position) -> Cause:
        """The cause if parameters were not finite before the first step that can be repeated."""
        batch = self._batch(at)
        origin = self._origin(batch)
        if origin is None or not origin.is_leaf:
            return Cause()
        return Cause(f"before this step {origin}{self._rows_text(batch, at)}", origin.place)

    def _of_step(self, at: Position) -> Cause:
        batch = self._batch(at)
        origin = self._origin(batch)
        if origin is not None and origin.op != "input":
            return Cause(f"{origin}{self._rows_text(batch, at)}", origin.place)
        if why := _of_inputs(batch):
            return Cause(why)
        # In NumPy the step is finite: it overflows only in the compiled step's order of additions.
        for name, stats in self.trainer.session.activation_stats(batch).items():
            if not stats.is_finite:
                return Cause(f"the first output that is not finite is that of {name!r}; inputs and parameters are")
        return Cause("the outputs of all layers are finite, and the loss is not")

    def _rows_text(self, batch: Mapping[str, Any], at: Position) -> str:
        """The rows of the training data that make the step non-finite, as the end of a sentence."""
        arrays = {name: np.asarray(array) for name, array in batch.items()}
        count = min((len(a) for a in arrays.values() if a.ndim), default=0)
        rows = self._rows_to_blame(arrays, np.arange(count))
        if not rows or len(rows) == count:
            return "; it concerns every row" if rows and count > 1 else ""
        if isinstance(self.loader, DataLoader) and not isinstance(self.loader.source, Stream):
            first = at.step * self.trainer.feed.rows_of_update(self.loader)
            order = self.loader.order(at.epoch)
            rows = [int(order[first + row]) for row in rows]
            where = "of the training data"
        else:
            where = "of the batch"
        named = ", ".join(map(str, rows[:SHOWN])) + (" and others" if len(rows) > SHOWN else "")
        return f"; caused by row{'s' if len(rows) > 1 else ''} {named} {where}"

    def _rows_to_blame(self, arrays: Mapping[str, Any], rows: Any) -> list[int]:
        """The rows of a batch that make it non-finite, by bisection; at most a few more than are shown.

        All rows of a part are blamed if each half of it is not finite by a row of its own, down to single rows.
        """
        part = {name: array[rows] if array.ndim else array for name, array in arrays.items()}
        if not len(rows) or self._origin(part) is None:
            return []
        if len(rows) == 1:
            return [int(rows[0])]
        middle = len(rows) // 2
        left = self._rows_to_blame(arrays, rows[:middle])
        if len(left) > SHOWN and len(left) == middle:
            return [int(row) for row in rows]  # the weights cause it, not the rows
        right = self._rows_to_blame(arrays, rows[middle:]) if len(left) <= SHOWN else []
        return [*left, *right]

    def _origin(self, batch: Mapping[str, Any]) -> Origin | None:
        """The operation that computes the first value that is not finite, from the state as it is now."""
        try:
            return self.trainer.session.first_nonfinite(batch)
        except Exception as error:  # e.g. OutOfMemoryError: NumPy needs more than the compiled step
            log.info("the step could not be evaluated in NumPy: %s", error)
            return None

    def _one_before(self, at: Position) -> Position | None:
        count = self.trainer.feed.count(self.loader)
        before = Position(at.epoch, at.step - 1)
        if not at.step:
            if not at.epoch or count is None:
                return None
            before = Position(at.epoch - 1, count - 1)
        copied_at = self._copied_at
        return None if (before.epoch, before.step) < (copied_at.epoch, copied_at.step) else before

    def _batch(self, at: Position) -> Mapping[str, Any]:
        return self.trainer.feed.batch_at(self.loader, at.epoch, at.step)

    def _put_back(self) -> None:
        self.trainer.session.load_state_dict(self._copy, strict=False)

    def _repeat_until(self, at: Position) -> float:
        """Repeat training from the copy up to a position; the loss of the last step."""
        copied_at, loss = self._copied_at, 0.0
        self._put_back()
        for epoch in range(copied_at.epoch, at.epoch + 1):
            done = copied_at.step if epoch == copied_at.epoch else 0
            end = at.step if epoch == at.epoch else None
            if end is not None and done >= end:
                break
            for part in self.trainer.feed.of_epoch(self.loader, epoch, done, every=1):
                loss, done = float(part.losses[-1]), done + len(part.losses)
                if done == end:
                    break
        return loss


def most_bytes() -> int:
    """The largest state that is copied."""
    return free_bytes() // SPARE


def nonfinite_states(session: Session) -> list[str]:
    """The model's own states with values that are not finite."""
    names = [name for name, is_own in session.lasting_states.items() if is_own]
    return [name for name in names if not session.state.slot(name).newest.is_finite()]


def _are(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(map(repr, names[:SHOWN]))}{more} {'is' if len(names) == 1 else 'are'} not finite"


def _of_inputs(batch: Mapping[str, Any]) -> str:
    """A description of a non-finite input; "" if all are finite."""
    for name, array in batch.items():
        values = np.asarray(array)
        if letter_of(values.dtype) == "f" and not np.isfinite(values).all():
            row = int(np.argwhere(~np.isfinite(values))[0][0]) if values.ndim else 0
            return f"the input {name!r} has values that are not finite, first in row {row} of the batch"
    return ""
