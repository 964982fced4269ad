"""A checkpoint folder has one writer: of runs that share it one trains, and the others get an error that names it."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import wholestep as ws
from tests.train.checkpoint.test_checkpoint import data, fit, model
from wholestep.errors import CheckpointError, TrainingWarning
from wholestep.train.checkpoint.folder import checkpoints_in

pytestmark = pytest.mark.native  # other processes train on the CPU
SCRIPT = Path(__file__).with_name("run_on_request.py")
ROOT = SCRIPT.parents[3]
STEPS = 4  # of an epoch of the script


class Child:
    """A process that trains when it is asked to."""

    def __init__(self) -> None:
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )

    def say(self, line: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Child]]:
    children = [Child(), Child()]
    assert [c.answer() for c in children] == ["ready", "ready"]
    yield children
    for child in children:
        child.process.kill()
        child.process.communicate()


@pytest.mark.parametrize("number", range(20))
def test_of_two_runs_that_start_at_once_one_trains(tmp_path: Path, pair: list[Child], number: int) -> None:
    for child in pair:
        child.say(f"{tmp_path} 2")
    answers = {child: child.answer() for child in pair}
    winner = next(child for child in pair if answers[child] == "training")
    (loser,) = [child for child in pair if child is not winner]
    name = (
        rf"process {winner.process.pid} on host \S+ \(\S*run_on_request\.py\), since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d,"
    )
    expected = rf"refused: {name} is writing checkpoints to {tmp_path}: .*Wait until it has ended, or give this run a"
    assert re.match(expected, answers[loser])
    winner.say()
    assert winner.answer() == f"done {2 * STEPS}"
    assert [f.step for f in checkpoints_in(tmp_path)] == [STEPS, 2 * STEPS], "nothing is lost"
    assert not (tmp_path / "superseded").exists()
    loser.say(f"{tmp_path} 3")  # now it may, and goes on where the other ended
    assert loser.answer() == "training"
    loser.say()
    assert loser.answer() == f"done {3 * STEPS}"


def test_a_killed_run_leaves_no_lock(tmp_path: Path) -> None:
    first, second = Child(), Child()
    assert [first.answer(), second.answer()] == ["ready", "ready"]
    first.say(f"{tmp_path} 1")
    assert first.answer() == "training"
    first.process.send_signal(signal.SIGKILL)
    first.process.communicate()
    second.say(f"{tmp_path} 1")
    assert second.answer() == "training"
    second.say()
    assert second.answer() == f"done {STEPS}"
    second.process.communicate()


class Inner(ws.Callback):
    """Does something in the middle of a run."""

    def __init__(self, action: Any) -> None:
        self.action = action

    def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
        self.action()


def test_runs_of_one_process(tmp_path: Path) -> None:
    """One inside another is refused; one after the other is not."""
    nested = Inner(lambda: fit(model(), epochs=1, checkpoint=tmp_path / "run"))
    with pytest.raises(CheckpointError, match=r"another run of this process is writing checkpoints to .*run\. Wait"):
        fit(model(), epochs=2, checkpoint=tmp_path / "run", callbacks=[nested])
    fit(model(), epochs=1, checkpoint=tmp_path / "run")
    fit(model(), epochs=2, checkpoint=tmp_path / "run", resume=True)
    assert ws.load_checkpoint(tmp_path / "run").position.epoch == 2
    elsewhere = Inner(lambda: fit(model(), epochs=1, checkpoint=tmp_path / "other"))
    fit(model(), epochs=3, checkpoint=tmp_path / "run", resume=True, callbacks=[elsewhere])


def test_readers_and_checkpoints_by_hand_of_the_same_process_are_free(tmp_path: Path) -> None:
    read: list[int] = []

    class ByHand(ws.Callback):
        def on_epoch_end(self, epoch: int, logs: dict[str, Any]) -> None:
            ws.save_checkpoint(tmp_path, self.session)
            read.append(ws.load_checkpoint(tmp_path).step)

    fit(model(), epochs=2, callbacks=[ByHand(), ws.ModelCheckpoint(tmp_path, "loss")])
    assert len(read) == 2


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[Path]:
    """A folder that somebody else is writing to, who has not said yet who it is."""
    descriptor = os.open(tmp_path / ".lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield tmp_path
    os.close(descriptor)


def session() -> ws.Session:
    x, _ = data()
    return ws.build_session(
        model(), inputs=ws.Spec(("batch", *x.shape[1:])), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy",
        batch_size=8,
    )  # fmt: skip


WRITERS = {
    "fit": lambda folder: fit(model(), epochs=1, checkpoint=folder),
    "resume": lambda folder: fit(model(), epochs=1, checkpoint=folder, resume=True),
    "callback": lambda folder: fit(model(), epochs=1, callbacks=[ws.ModelCheckpoint(folder, "loss")]),
    "trainer": lambda folder: ws.Trainer(session(), callbacks=ws.ModelCheckpoint(folder, "loss")).train(
        ws.DataLoader(*data(), 8), 1
    ),
    "loop": lambda folder: ws.CallbackList(ws.ModelCheckpoint(folder, "loss"), session()).on_train_begin(),
    "by hand": lambda folder: ws.save_checkpoint(folder, session()),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_every_writer_is_refused(taken: Path, writer: str) -> None:
    with pytest.raises(CheckpointError, match=r"another process is writing checkpoints to .*: two runs would remove"):
        WRITERS[writer](taken)
    assert [p.name for p in taken.iterdir()] == [".lock"]


def test_a_loop_that_nobody_ended_gives_its_folder_back(tmp_path: Path) -> None:
    def abandoned() -> None:
        keeper = ws.ModelCheckpoint(tmp_path, "loss")
        ws.CallbackList(keeper, session()).on_epoch_end(0, {"loss": 1.0})
        keeper.wait()

    gc.disable()
    try:
        abandoned()
        fit(model(), epochs=1, checkpoint=tmp_path)
    finally:
        gc.enable()
    callbacks = ws.CallbackList(ws.ModelCheckpoint(tmp_path, "loss"), session())
    callbacks.on_train_begin()
    with pytest.raises(CheckpointError, match=r"A training loop of your own ends its run with callbacks\.on_train_end"):
        fit(model(), epochs=1, checkpoint=tmp_path)
    callbacks.on_train_end()
    fit(model(), epochs=1, checkpoint=tmp_path)


def test_a_forked_child_does_not_hold_the_lock(tmp_path: Path) -> None:
    """Neither one that lives on, nor one that has not come so far as to close its copy of the descriptor."""
    callbacks = ws.CallbackList(ws.ModelCheckpoint(tmp_path, "loss"), session())
    callbacks.on_train_begin()
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    callbacks.on_train_end()
    fit(model(), epochs=1, checkpoint=tmp_path)
    os.close(writer)
    os.waitpid(child, 0)
    os.close(reader)


def test_a_lock_file_of_another_user_is_locked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".lock").touch()
    opened = os.open

    def refusing(path: Any, flags: int, *more: Any, **named: Any) -> int:
        if str(path).endswith(".lock") and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", refusing)
    inside = Inner(lambda: WRITERS["fit"](tmp_path))
    with pytest.raises(CheckpointError, match="another run of this process is writing"):
        fit(model(), epochs=1, checkpoint=tmp_path, callbacks=[inside])


def test_a_file_system_without_locks_is_warned_about_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.warns(TrainingWarning, match=r"cannot be locked \(No locks available\).*no other run") as caught:
        fit(model(), epochs=1, checkpoint=tmp_path)
    assert len([w for w in caught if w.category is TrainingWarning]) == 1
    fit(model(), epochs=2, checkpoint=tmp_path, resume=True)  # a second warning would be an error
