"""`ws.branch`: a new run that starts from a step of another one, with other settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from wholestep.callbacks.run import Position
from wholestep.errors import UsageError
from wholestep.session.state_dict import SESSION
from wholestep.train.checkpoint.folder import checkpoints_in
from wholestep.train.checkpoint.write import capture, write_alone
from wholestep.train.experiment import Experiment
from wholestep.train.replay import BRANCH, Replay

WRITER = "branch"  # checkpoints of other writers are not rotated, so a branch keeps its first one


def branch(
    experiment: Experiment,
    folder: str | PathLike[str],
    step: int,
    other: Experiment,
    into: str | PathLike[str],
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Write the state of a run before update `step` as the first checkpoint of another run; return its path.

    All numbers are those of the run, to the bit; runtime scalars that differ between the two experiments have the
    values of the other one, which then resumes from there: `other.fit(checkpoint=into, resume=True)`.

    Args:
        experiment: what the run trained, with its folder.
        step: the number of updates that the branch keeps.
        other: what the branch trains.
        into: a folder without checkpoints.

    Example::

        ws.branch(experiment, "runs/a", 1200, experiment.having({"optimizer.lr": 1e-4}), "runs/a-slow")
    """
    target = Path(into)
    if target.is_dir() and checkpoints_in(target):
        raise UsageError(f"{target} holds a run; a branch starts one: name another folder.")
    again = Replay(experiment, folder, step)
    trainer, loader = other.having({"checkpoint": None, "resume": None, "progress": False}).trainer()
    own = dict(trainer.session.scalars.items())
    per_epoch = trainer.feed.count(loader)
    if again.step_of_epoch and per_epoch != again.steps_per_epoch:
        raise UsageError(
            f"step {step} is within an epoch of {again.steps_per_epoch} steps, and an epoch of the branch would have "
            f"{per_epoch}: branch between epochs, at {step - again.step_of_epoch}, or keep the batch size."
        )
    changed = {SESSION + n: np.array(v) for n, v in own.items() if again.arguments.get(n, v) != v}
    position = again.position or Position(again.epoch, again.step_of_epoch)
    taken = capture(
        again.session,
        position=position,
        history=again.history,
        loader=loader,
        config={**trainer.started_with, **(config or {}), BRANCH: {"from": str(folder), "step": step}},
        writer=WRITER,
    )
    trainer.session.close()
    return write_alone(target, replace(taken, arrays={**taken.arrays, **changed}))
