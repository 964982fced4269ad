"""A step of a run computed again, and the first step in which two runs differ.

A run is a function of its checkpoints, its data and its settings: from the nearest checkpoint before a step, training
continues to the same bits.  Two runs are compared by their checkpoints first, and between the last equal and the first
different one step by step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from wholestep.callbacks.list import CallbackList
from wholestep.callbacks.run import Position
from wholestep.callbacks.stopping import StepBudget
from wholestep.compiler.frontend.step import Step
from wholestep.data.loader import DataLoader
from wholestep.errors import CheckpointError, UsageError
from wholestep.session.running.entry_point import StepResult
from wholestep.train.checkpoint import load_checkpoint
from wholestep.train.checkpoint.folder import StoredCheckpoint, checkpoints_in
from wholestep.train.experiment import Experiment
from wholestep.train.history import TrainHistory

log = logging.getLogger("wholestep")
Array = np.ndarray[Any, Any]
POSITION = "session/"  # prefix of runtime scalars and counters in a state dict
BRANCH = "branch"  # key in a configuration: the run and the step that a branch starts from


class Replay:
    """A run in the state before one of its updates; `run()` computes the update again.

    Args:
        experiment: what the run trained.
        folder: the folder of its checkpoints; None: the run begins with the initial weights.
        step: the number of the update, over all epochs; the first one is 0.

    Example::

        again = ws.Replay(experiment, "runs/a", step=1234)
        print(again.rows, again.run().loss, again.tensor("0.weight.grad"))
    """

    def __init__(self, experiment: Experiment, folder: str | PathLike[str] | None, step: int) -> None:
        if step < 0:
            raise UsageError(f"step={step}: updates are numbered from 0.")
        quiet_callbacks = [c for c in CallbackList(experiment.callbacks) if not c.writes]
        quiet = {
            "checkpoint": None,
            "resume": None,
            "progress": False,
            "callbacks": quiet_callbacks,
            "seed": experiment.data_seed,
        }
        self._trainer, self._loader = experiment.having(quiet).trainer()
        self.session, self.step = self._trainer.session, step
        self.arguments = dict(self.session.scalars.items())  # runtime scalars by the settings of the experiment
        self.position: Position | None = None
        self.steps_per_epoch = per_epoch = self._trainer.feed.count(self._loader)
        if per_epoch is None:
            raise UsageError("a run over an iterable cannot be replayed: it does not number its batches.")
        self.epoch, self.step_of_epoch = divmod(step, per_epoch)
        start = None if folder is None else _nearest(Path(folder), step)
        if start is not None:
            stored = load_checkpoint(start.path)
            self.position = stored.position
            self._trainer.resume(stored, self._loader)
        elif folder is not None and (begins := _branched_at(Path(folder))):
            raise UsageError(f"{folder} begins at step {begins}, as a branch; replay step {step} of its own run.")
        if missing := step - (0 if start is None else start.step):
            budget = StepBudget(missing)
            self._trainer.callbacks.append(budget)
            self._trainer.train(self._loader, self.epoch + 1)
            self.position = None if budget.run is None else budget.run.position
        if self.session.state.step != step:
            raise UsageError(f"step {step} could not be reached: training stopped after {self.session.state.step}.")
        self.inputs: Mapping[str, Any] = self._trainer.batch_at(self._loader, self.epoch, self.step_of_epoch)

    @property
    def history(self) -> TrainHistory:
        """The epochs before the step."""
        return TrainHistory([e for e in self._trainer.history.epochs if e.epoch < self.epoch])

    @property
    def rows(self) -> Array:
        """The rows of the training data in the batch of the step."""
        assert isinstance(self._loader, DataLoader)
        rows = self._trainer.feed.rows_of_update(self._loader)
        return self._loader.order(self.epoch)[self.step_of_epoch * rows : (self.step_of_epoch + 1) * rows]

    def run(self) -> StepResult:
        """Compute the step, and the inputs of the next one."""
        result = self.session.step(self.inputs)
        result.wait()
        return result

    def tensor(self, name: str) -> Array:
        """A tensor of the step before its update: an input, a state, the output of a layer (`encoder.0`), a tensor
        that `keep(name)` named, or the gradient of the loss for one (`encoder.0.grad`).
        """
        if name in self.inputs:
            return np.asarray(self.inputs[name])
        states = self.session.state_dict()
        return states[name] if name in states else self.session.tensors([name], self.inputs)[name]


def _branched_at(folder: Path) -> int:
    """The step at which a run began; above 0 for a branch."""
    stored = checkpoints_in(folder)
    config = load_checkpoint(stored[0].path).config if stored else {}
    return int(config.get(BRANCH, {}).get("step", 0))


def _nearest(folder: Path, step: int) -> StoredCheckpoint | None:
    """The newest checkpoint at or before an update that can be read; None if the run must begin anew."""
    for stored in reversed(checkpoints_in(folder)):
        if stored.step <= step:
            try:
                load_checkpoint(stored.path)
            except CheckpointError as error:
                log.warning("%s is skipped: %s", stored.path, error)
            else:
                return stored
    return None


# -- two runs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """The first update after which two runs differ, and the tensors that do."""

    step: int  # the number of updates after which they differ
    tensors: tuple[str, ...]
    example: str  # the first different element of the first tensor
    settings: tuple[str, ...] = ()  # runtime scalars with different values, which explain it

    def __str__(self) -> str:
        others = f" and {len(self.tensors) - 1} more differ" if len(self.tensors) > 1 else " differs"
        why = f"; different settings: {', '.join(self.settings)}" if self.settings else ""
        return f"after {self.step} updates {self.tensors[0]!r}{others}: {self.example}{why}"


def different_tensors(one: Mapping[str, Array], other: Mapping[str, Array]) -> list[str]:
    """The names of the tensors whose bits differ, or that one of them lacks."""
    names = dict.fromkeys((*one, *other))
    return [n for n in names if n not in one or n not in other or not _equal_bits(one[n], other[n])]


def _equal_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _difference(step: int, one: Mapping[str, Array], other: Mapping[str, Array]) -> Difference | None:
    names = different_tensors(one, other)
    if not names:
        return None
    a, b = one.get(names[0]), other.get(names[0])
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return Difference(step, tuple(names), "its shape or dtype, or only one run has it")
    at = np.unravel_index(int(np.argmax(np.atleast_1d(a != b))), a.shape) if a.ndim else ()
    place = [int(i) for i in at]
    return Difference(step, tuple(names), f"{a[tuple(at)]!r} and {b[tuple(at)]!r} at index {place}")


def first_difference(one: Replay, other: Replay, steps: int) -> Difference | None:
    """Step two runs side by side; the first update after which their states differ, None if none does."""
    settings = _different_settings(one, other)
    for step in range(steps + 1):
        if step:
            _advance(one)
            _advance(other)
        difference = _difference(one.session.state.step, _tensors(one), _tensors(other))
        if difference is not None:
            return replace(difference, settings=settings)
    return None


def _different_settings(one: Replay, other: Replay) -> tuple[str, ...]:
    """The runtime scalars that two runs have with different values, and the settings that their manifests note."""
    a, b = dict(one.session.scalars.items()), dict(other.session.scalars.items())
    scalars = [f"{n}={a[n]:g} and {b[n]:g}" for n in a if n in b and a[n] != b[n]]
    noted = [_flat(run._trainer.started_with) for run in (one, other)]
    names = [n for n in dict.fromkeys((*noted[0], *noted[1])) if noted[0].get(n) != noted[1].get(n)]
    others = [n for n in names if n not in a]  # an optimizer's numbers are runtime scalars under the same names
    return (*scalars, *(f"{n}={noted[0].get(n)} and {noted[1].get(n)}" for n in others))


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their full names."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {prefix + name: value}
    return flat


def _tensors(replay: Replay) -> dict[str, Array]:
    return _without_position(replay.session.state_dict())


def _without_position(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """States without runtime scalars and counters, which are settings and the position of a run."""
    return {name: array for name, array in arrays.items() if not name.startswith(POSITION)}


def _advance(replay: Replay) -> None:
    """Compute one more step of a replay, and move to the inputs of the next."""
    trainer, loader = replay._trainer, replay._loader
    replay.session.state.epoch = replay.epoch
    replay.run()
    replay.step += 1
    per_epoch = trainer.feed.count(loader)
    assert per_epoch is not None
    replay.epoch, replay.step_of_epoch = divmod(replay.step, per_epoch)
    replay.inputs = trainer.batch_at(loader, replay.epoch, replay.step_of_epoch)


def compare_runs(
    one: tuple[Experiment, str | PathLike[str]], other: tuple[Experiment, str | PathLike[str]]
) -> Difference | None:
    """The first update after which two runs differ; None if all checkpoints that both have are equal.

    If the steps computed again do not differ, something outside of them changed the run, such as a callback: then the
    runs are repeated with their callbacks, and if these do not differ either, the difference is that of the first
    checkpoints that differ.

    Example: `ws.compare_runs((experiment_a, "runs/a"), (experiment_b, "runs/b"))`.
    """
    equal = max(_branched_at(Path(folder)) for _, folder in (one, other))
    for step, *arrays in _common_checkpoints(Path(one[1]), Path(other[1])):
        at_checkpoint = _difference(step, *map(_without_position, arrays))
        if at_checkpoint is not None:
            a, b = (Replay(_with_own_model(experiment), folder, equal) for experiment, folder in (one, other))
            stepped = first_difference(a, b, steps=step - equal)
            return stepped or _with_callbacks(one, other, equal, step) or at_checkpoint
        equal = step
    return None


def _with_own_model(experiment: Experiment) -> Experiment:
    """The experiment over a copy of its model, with which a replay without an earlier checkpoint begins."""
    return experiment if isinstance(experiment.model, Step) else replace(experiment, model=deepcopy(experiment.model))


def _with_callbacks(
    one: tuple[Experiment, str | PathLike[str]], other: tuple[Experiment, str | PathLike[str]], low: int, high: int
) -> Difference | None:
    """The first difference between two equal checkpoints and two different ones, by bisection over repeated runs."""
    first: Difference | None = None
    while high - low > 1:
        middle = (low + high) // 2
        a, b = (Replay(_with_own_model(experiment), folder, middle) for experiment, folder in (one, other))
        difference = _difference(middle, _tensors(a), _tensors(b))
        if difference is None:
            low = middle
        else:
            high, first = middle, replace(difference, settings=_different_settings(a, b))
    return first


def _common_checkpoints(a: Path, b: Path) -> Iterator[tuple[int, Mapping[str, Array], Mapping[str, Array]]]:
    stored = [{c.step: c.path for c in checkpoints_in(folder)} for folder in (a, b)]
    for folder, steps in zip((a, b), stored, strict=True):
        if not steps:
            raise CheckpointError(f"{folder} has no checkpoints to compare.")
    for step in sorted(stored[0].keys() & stored[1].keys()):
        yield step, load_checkpoint(stored[0][step]).arrays, load_checkpoint(stored[1][step]).arrays


def verify_determinism(build: Callable[[], Experiment], steps: int = 20) -> None:
    """Raise UsageError with the first difference if an experiment does not train to the same bits twice.

    The second run has another number of threads.  Use it in the tests of a project: it detects data that is drawn
    without a seed, and step functions that read a clock.

    Example: `ws.verify_determinism(build, steps=5)`, where `build()` returns a new `ws.Experiment`.
    """
    one, other = build(), build()
    threads = 1 if other.threads != 1 else 2
    runs = Replay(one, None, 0), Replay(other.having({"threads": threads}), None, 0)
    for step in range(steps):
        a, b = ({name: np.asarray(array) for name, array in run.inputs.items()} for run in runs)
        if names := different_tensors(a, b):
            raise UsageError(f"the experiment is not deterministic: the batches of step {step} differ in {names}.")
        difference = first_difference(*runs, steps=1)
        if difference is not None:
            raise UsageError(f"the experiment is not deterministic: {difference}.")
