"""Checkpoints: a run at one moment, in a folder of its own, from which it goes on to the same bits.

    runs/digits/
      plans/<digest>.plan         the plans that the run was made under, each once
      step-00000120/
        weights.safetensors       what the model owns, under the names that `model.save` and torch use
        training.safetensors      optimizer, metrics, counters, runtime scalars, arrays of callbacks
        manifest.json             position, data, history, callbacks, configuration, versions, checksums

A checkpoint is written under a temporary name, synced to the disk, and appears by one rename: none is half written.
Nothing in it is executed when it is read.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.callbacks.base import CallbackList, Position, Value, canonical
from wholestep.compiler.plan import serialize
from wholestep.compiler.plan.kernel import Plan
from wholestep.errors import CheckpointError, InputError, UsageError
from wholestep.schedules.modes import known_mode, mode_of
from wholestep.train.history import TrainHistory
from wholestep.train.identity import differences, identity_of, plan_digest, versions
from wholestep.train.restore import check_fits
from wholestep.train.stored import (
    MANIFEST,
    TRAINING,
    WEIGHTS,
    WRITING,
    checked_arrays,
    checkpoints_in,
    is_checkpoint,
    manifest_bytes,
    ranked,
    read_manifest,
)
from wholestep.train.tensors import Array, sync_folder, write_parts, write_tensors

if TYPE_CHECKING:
    from wholestep.session import Session

log = logging.getLogger("wholestep")

PLANS = "plans"
STEP = "session/step"  # the array that counts updates
CALLBACKS = "callbacks/"  # prefix of their arrays


@dataclass(frozen=True)
class Checkpoint:
    """A run at one moment: every number, and where in the data it stands."""

    arrays: Mapping[str, Array]  # as `session.state_dict` names them
    position: Position
    identity: Mapping[str, Any]  # what the bits depend on: version, code, target, seed, plan, data
    history: TrainHistory = field(default_factory=TrainHistory)
    data: Mapping[str, int] = field(default_factory=dict)  # of `DataLoader.state_dict`
    callbacks: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)  # what the run was started with
    logs: Mapping[str, Value] = field(default_factory=dict)  # of the last epoch
    versions: Mapping[str, str] = field(default_factory=dict)
    writer: str = ""
    own: tuple[str, ...] = ()  # the arrays that are the model's own: its weights
    plans: tuple[Plan, ...] = ()  # that it ran under; of one from a file they lie in the run's folder
    path: Path | None = None  # None: not from a file

    @property
    def step(self) -> int:
        """Updates done, over all epochs."""
        return int(self.arrays[STEP])

    def restore(
        self, session: Session, callbacks: CallbackList | None = None, loader: Any = None, *, exact: bool = False
    ) -> None:
        """Give a session (and callbacks) these numbers; all of it is checked before the first is written.

        Args:
            exact: refuse where the run could not go on to the same bits, and say why.
        """
        session.prepare_to_load(self.arrays)
        found = differences(self.identity, identity_of(session, loader))
        if found and exact:
            listed = "\n  ".join(found)
            raise CheckpointError(
                f"{self._name} cannot be continued exactly:\n  {listed}\n"
                "Run it where and as it was made, or resume without exact=True (--exact)."
            )
        check_fits(self.arrays, session, self._name)
        asked = dict(session.scalars.items())
        if callbacks is not None:
            self._restore_callbacks(callbacks)
        session.load_state_dict(self.arrays)
        for name, value in session.scalars.items():
            if asked[name] != value:
                log.warning(
                    "%s is %g, as in the checkpoint, rather than %g, as this run asks: a resumed run keeps its own; "
                    "to train with other numbers give its weights to a new run: model.load('%s/weights.safetensors')",
                    *(name, value, asked[name], self._name),
                )
        for difference in found:
            log.warning("resumed, but bits may differ from an uninterrupted run: %s", difference)

    def _restore_callbacks(self, callbacks: CallbackList) -> None:
        """All of them, or none: a state that a callback does not understand leaves each as it was."""
        before = callbacks.state_dict()
        try:
            callbacks.load_state_dict(self.callbacks)
        except Exception as error:
            callbacks.load_state_dict(before)
            raise CheckpointError(
                f"{self._name} holds what a callback cannot go on from: {error!r}. Nothing was loaded. Resume with the "
                "callbacks of the run, or leave them out."
            ) from error

    @property
    def _name(self) -> str:
        return str(self.path) if self.path is not None else "the checkpoint"


# -- writing -----------------------------------------------------------------------------------------------------


def capture(
    session: Session,
    *,
    position: Position | None = None,
    history: TrainHistory | None = None,
    loader: Any = None,
    callbacks: CallbackList | None = None,
    config: Mapping[str, Any] | None = None,
    logs: Mapping[str, Value] | None = None,
    writer: str = "",
) -> Checkpoint:
    """A run as it is now, in memory; what happens to the run afterwards does not change it."""
    keep, past = session.lasting_states, history or TrainHistory()
    numbers = session.state_dict()
    return Checkpoint(
        arrays={n: a for n, a in numbers.items() if n in keep or n not in session.state},
        position=position or Position(epoch=session.state.epoch),
        identity=identity_of(session, loader),
        history=TrainHistory(list(past.epochs), past.stopped_by),
        data=loader.state_dict() if hasattr(loader, "state_dict") else {},
        callbacks={} if callbacks is None else _with_arrays(*_without_arrays(callbacks.state_dict())),
        config=dict(config or {}),
        logs=dict(logs or {}),
        versions=versions(),
        writer=writer,
        own=tuple(n for n, is_own in keep.items() if is_own),
        plans=session.plans,
    )


def save_checkpoint(folder: str | PathLike[str], session: Session, **run: Any) -> Path:
    """Write a checkpoint of a session into the folder of its run; the folder of the checkpoint.

    Args:
        folder: of the run, e.g. "runs/digits"; the checkpoint becomes `runs/digits/step-00000120`.
        run: what else goes on where it was: `position, history, loader, callbacks, config, logs`.

    A folder that cannot be written, or a full disk, is a `CheckpointError`; what was there before is still there.

    Example::

        path = ws.save_checkpoint("runs/digits", session)
        ws.load_checkpoint("runs/digits").restore(session)
    """
    return write_checkpoint(Path(folder), capture(session, **run))


_WRITING = threading.Lock()  # temporary names are this process's: one writer at a time


def write_checkpoint(folder: Path, taken: Checkpoint) -> Path:
    """Write what `capture` took; any thread may do it."""
    try:
        with _WRITING:
            folder.mkdir(parents=True, exist_ok=True)
            _keep_plans(folder, taken.plans)
            return _publish(folder, taken)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint of step {taken.step} could not be written to {folder}: {error}. Those before it are "
            "untouched. Free some space, or name a folder that can be written."
        ) from error


def _publish(folder: Path, taken: Checkpoint) -> Path:
    temporary = folder / f"{WRITING}{taken.step:08d}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        callbacks, extra = _without_arrays(taken.callbacks)
        weights = {n: taken.arrays[n] for n in taken.own}
        training = {**{n: a for n, a in taken.arrays.items() if n not in weights}, **extra}
        sums = {
            name: write_tensors(temporary / name, arrays) for name, arrays in ((WEIGHTS, weights), (TRAINING, training))
        }
        write_parts(temporary / MANIFEST, [_manifest(taken, callbacks, sums)])
        sync_folder(temporary)
        target = _free_name(folder, taken.step)
        temporary.rename(target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(folder)
    return target


def _free_name(folder: Path, step: int) -> Path:
    """A second one of the same step gets a name of its own: there is never a moment without either."""
    name, attempt = folder / f"step-{step:08d}", 0
    while (target := name.with_name(f"{name.name}.{attempt}") if attempt else name).exists():
        attempt += 1
    return target


def _manifest(taken: Checkpoint, callbacks: Any, sums: Mapping[str, str]) -> bytes:
    body = {
        "step": taken.step,
        "position": asdict(taken.position),
        "identity": taken.identity,
        "data": taken.data,
        "logs": taken.logs,
        "history": json.loads(taken.history.to_json()),
        "callbacks": callbacks,
        "config": taken.config,
        "versions": taken.versions,
        "writer": taken.writer,
        "files": sums,
    }
    try:
        return manifest_bytes(body)
    except TypeError as error:
        raise UsageError(
            f"a checkpoint's configuration is made of JSON values: {error}; received {taken.config!r}."
        ) from None


def _keep_plans(folder: Path, ran: Sequence[Plan]) -> None:
    """Store the plans of a run, each under its fingerprint, once."""
    plans = folder / PLANS
    for plan in ran:
        target = plans / f"{plan_digest(plan)[:16]}.plan"
        if target.exists():
            continue
        plans.mkdir(exist_ok=True)
        temporary = plans / f"{WRITING}{target.name}-{os.getpid()}"
        temporary.unlink(missing_ok=True)
        try:
            write_parts(temporary, [serialize.dump(plan)])
            temporary.rename(target)
        finally:
            temporary.unlink(missing_ok=True)


def _without_arrays(states: Mapping[str, Any]) -> tuple[Any, dict[str, Array]]:
    """Callbacks' states with names in the place of arrays, and the arrays by these names."""
    arrays: dict[str, Array] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray):
            arrays[path] = value
            return {"$array": path}
        if isinstance(value, Mapping):
            return {str(k): walk(v, f"{path}/{k}") for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [walk(v, f"{path}/{i}") for i, v in enumerate(value)]
        plain = value.item() if isinstance(value, np.generic) else value
        if plain is not None and not isinstance(plain, str | int | float):
            raise UsageError(f"{path}: a callback's state is made of JSON values and arrays; received {value!r}.")
        return plain

    return {name: walk(state, CALLBACKS + name) for name, state in states.items()}, arrays


def _with_arrays(value: Any, arrays: Mapping[str, Array]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {"$array"}:
            return arrays[value["$array"]]
        return {k: _with_arrays(v, arrays) for k, v in value.items()}
    return [_with_arrays(v, arrays) for v in value] if isinstance(value, list) else value


# -- reading -----------------------------------------------------------------------------------------------------


def load_checkpoint(path: str | PathLike[str], *, best: str | None = None, mode: str | None = None) -> Checkpoint:
    """Read a checkpoint, or the newest whole one of a run's folder.

    Args:
        path: "runs/digits", or one checkpoint in it, "runs/digits/step-00000120".
        best: of a run's folder, the checkpoint that is best in this number, e.g. "val_loss", instead of the newest.
        mode: "min" or "max"; None goes by the number's name.

    A damaged checkpoint is refused by name; of a run's folder the one before it is then used, and the log says so.

    Example::

        ws.load_checkpoint("runs/digits").restore(session)
    """
    folder = Path(path)
    if is_checkpoint(folder):
        return read_checkpoint(folder)
    order = everything = checkpoints_in(folder)[::-1]
    if best is not None:
        order = ranked(order, canonical(best), mode or known_mode(best) or "min")
        if order and mode is None:
            mode_of("load_checkpoint", best)
    problems = []
    for found in order:
        try:
            return read_checkpoint(found.path)
        except CheckpointError as error:
            problems.append(str(error))
            log.warning("%s The checkpoint before it is used.", error)
    if problems:
        raise CheckpointError(f"no checkpoint in {folder} is whole:\n  " + "\n  ".join(problems))
    if everything and best is not None:
        known = dict.fromkeys(name for found in everything for name in read_manifest(found.path)["logs"])
        raise CheckpointError(
            f"no checkpoint in {folder} knows the number {best!r}; they know: {', '.join(known) or 'none'}."
        )
    raise CheckpointError(f"there is no checkpoint in {folder}; expected folders like {folder}/step-00000120.")


def read_checkpoint(folder: Path) -> Checkpoint:
    """One checkpoint, with every file checked against its checksum."""
    body = read_manifest(folder)
    files = {name: checked_arrays(folder, name, wanted) for name, wanted in body["files"].items()}
    arrays = {n: a for found in files.values() for n, a in found.items()}
    counted = arrays.get(STEP)
    if counted is None or counted.shape != () or counted != body["step"]:
        raise CheckpointError(
            f"the checkpoint {folder} is not one of ours: its files count other steps than {MANIFEST}."
        )
    try:
        callbacks = _with_arrays(body["callbacks"], arrays)
        history = TrainHistory.from_json(json.dumps(body["history"]))
    except (LookupError, TypeError, InputError) as error:
        raise CheckpointError(f"the checkpoint {folder} is not one of ours: {error} in {MANIFEST}.") from None
    return Checkpoint(
        arrays={n: a for n, a in arrays.items() if not n.startswith(CALLBACKS)},
        position=Position(**body["position"]),
        identity=body["identity"],
        history=history,
        data=body["data"],
        callbacks=callbacks,
        config=body["config"],
        logs=body["logs"],
        versions=body["versions"],
        writer=body["writer"],
        own=tuple(files[WEIGHTS]),
        path=folder,
    )
