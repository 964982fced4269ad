"""Resuming from a checkpoint: before anything is changed, one error names everything that does not fit the session."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wholestep.callbacks.list import CallbackList
from wholestep.callbacks.run import Position, Value
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.errors import CheckpointError
from wholestep.session.state_dict import SESSION
from wholestep.train.checkpoint.format import STEP
from wholestep.train.checkpoint.identity import differences, identity_of
from wholestep.train.checkpoint.tensors import Array
from wholestep.train.history import TrainHistory

if TYPE_CHECKING:
    from wholestep.session import Session

log = logging.getLogger("wholestep")

SHOWN = 6


@dataclass(frozen=True, repr=False)
class Checkpoint:
    """The state of a run: all numbers, and the position in the data."""

    arrays: Mapping[str, Array]  # under the names of `session.state_dict`
    position: Position
    identity: Mapping[str, Any]  # version, code, target, seed, plan, data
    history: TrainHistory = field(default_factory=TrainHistory)
    data: Mapping[str, int] = field(default_factory=dict)  # the position from `DataLoader.state_dict`
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)  # the configuration of the run
    logs: Mapping[str, Value] = field(default_factory=dict)  # logs of the last epoch
    versions: Mapping[str, str] = field(default_factory=dict)  # versions, machine, command line, git revision
    writer: str = ""
    own: tuple[str, ...] = ()  # names of the model's own arrays, its weights
    plans: tuple[Plan, ...] = ()  # plans of the run; empty for a checkpoint from a file, whose folder has them
    path: Path | None = None  # None: it was not read from a file

    def __repr__(self) -> str:
        size = sum(a.nbytes for a in self.arrays.values()) / 1e6
        at = f"epoch {self.position.epoch}" + (f", step {self.position.step} of it" if self.position.step else "")
        numbers = {name: value for name, value in self.logs.items() if isinstance(value, int | float)}
        logs = "".join(f", {name} {value:.4g}" for name, value in list(numbers.items())[:SHOWN])
        where = "not from a file" if self.path is None else str(self.path)
        return (
            f"<Checkpoint {where}: {self.step} updates, {at}, {len(self.arrays)} arrays of {size:.3g} MB, "
            f"{len(self.own)} of them the model's{logs}>"
        )

    @property
    def step(self) -> int:
        """The number of updates, over all epochs."""
        return int(self.arrays[STEP])

    def restore(
        self, session: Session, callbacks: CallbackList | None = None, loader: Any = None, *, exact: bool = False
    ) -> None:
        """Restore a session (and callbacks); everything is checked before the first value is written.

        Args:
            exact: CheckpointError with the reasons if the run would not continue to the same bits.
        """
        session.prepare_to_load(self.arrays)
        changes = differences(self.identity, identity_of(session, loader))
        if changes and exact:
            listed = "\n  ".join(changes)
            raise CheckpointError(
                f"{self._name} cannot be continued exactly:\n  {listed}\n"
                "Resume on the same machine with the same arguments, or without exact=True (--exact)."
            )
        check_fits(self.arrays, session, self._name)
        arguments = dict(session.scalars.items())
        if callbacks is not None:
            self._restore_callbacks(callbacks)
        session.load_state_dict(self.arrays)
        for name, value in session.scalars.items():
            if arguments[name] != value:
                log.warning(
                    "%s is %g, from the checkpoint; the argument %g of this run is ignored. A resumed run keeps its "
                    "hyper-parameters; to train with others start a new run from the weights: model.load('%s')",
                    *(name, value, arguments[name], self._name),
                )
        for difference in changes:
            log.warning("resumed, but bits may differ from an uninterrupted run: %s", difference)

    def _restore_callbacks(self, callbacks: CallbackList) -> None:
        """Restore all callbacks, or none if one of them fails."""
        before = callbacks.state_dict()
        try:
            callbacks.load_state_dict(self.callbacks)
        except Exception as error:
            callbacks.load_state_dict(before)
            raise CheckpointError(
                f"{self._name} has a state that a callback cannot restore: {error!r}. Nothing was loaded. Resume with "
                "the callbacks of the run, or leave them out."
            ) from error

    @property
    def _name(self) -> str:
        return str(self.path) if self.path is not None else "the checkpoint"


def check_fits(arrays: Mapping[str, Array], session: Session, name: str) -> None:
    """Raise CheckpointError if names or shapes differ: another model, optimizer or metrics."""
    states = session.lasting_states
    here = {n: tuple(int(e) for e in session.state.slot(n).type.shape) for n in states}
    there = {n: a.shape for n, a in arrays.items() if not n.startswith(SESSION)}
    model_states = {n for n, is_own in states.items() if is_own}
    wrong = [f"{n} is {there[n]} in it and {here[n]} here" for n in here if n in there and there[n] != here[n]]
    missing = [n for n in here if n not in there]
    unexpected = [n for n in there if n not in here]
    if wrong or any(n in model_states for n in missing):
        what = f"{name} is of another model: " + "; ".join(_list_problems(wrong, missing, unexpected))
        raise CheckpointError(
            f"{what}. Nothing was loaded. Build the model as it was, or start anew in another folder."
        )
    if missing or unexpected:
        what = f"{name} was made with another model, optimizer or metrics: " + "; ".join(
            _list_problems([], missing, unexpected)
        )
        raise CheckpointError(
            f"{what}. Nothing was loaded. Train as before, or take the weights alone: model.load('{name}')."
        )


def _list_problems(wrong: list[str], missing: list[str], unexpected: list[str]) -> list[str]:
    parts = [_some(wrong)] if wrong else []
    parts += [f"it lacks {_some(missing)}"] if missing else []
    return [*parts, *([f"it has {_some(unexpected)} too"] if unexpected else [])]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
