"""Checkpoints: everything comes back, damage is found, nothing is lost when a disk is full."""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import re
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.callbacks import Position
from wholestep.compiler.devices import device_named
from wholestep.train.checkpoint import format as stored
from wholestep.train.checkpoint.environment import git_revision
from wholestep.train.checkpoint.folder import checkpoints_in

Array = np.ndarray[Any, Any]
ROWS, BATCH, EPOCHS = 90, 8, 3


def data() -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(ROWS, 6)).astype(np.float32), rng.integers(0, 3, ROWS).astype(np.int32)


def model(hidden: int = 8) -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(6, hidden), ws.nn.ReLU(), ws.nn.Dropout(0.2), ws.nn.Linear(hidden, 3))


def fit(net: ws.nn.Module, source: object = None, **options: Any) -> ws.TrainHistory:
    known: dict[str, Any] = {"loss": "cross_entropy", "metrics": ["accuracy"], "epochs": EPOCHS, "batch_size": BATCH}
    return ws.fit(net, source or data(), progress=False, seed=0, **{**known, **options})


class StopAt(ws.Callback):
    """Ends a run as a signal does: the steps at hand are saved."""

    every = 1

    def __init__(self, epoch: int, step: int) -> None:
        self.at = epoch, step

    def on_step(self, metrics: ws.StepMetrics) -> None:
        if (metrics.epoch, metrics.step) == self.at and self.run is not None:
            self.run.interrupted = True
            self.run.stop("the test said so")


def folder_with(tmp_path: Path, *steps: int) -> tuple[Path, ws.Session]:
    """A run's folder with checkpoints of a session after some steps."""
    session = small_session()
    x, y = data()
    for step in range(1, max(steps) + 1):
        session.step(x=x[:BATCH], labels=y[:BATCH])
        if step in steps:
            ws.save_checkpoint(tmp_path, session)
    return tmp_path, session


def small_session(hidden: int = 8, optimizer: ws.Optimizer | None = None, seed: int = 0) -> ws.Session:
    return ws.build_session(
        model(hidden),
        inputs=ws.Spec(("batch", 6)),
        targets=ws.Spec(("batch",), "int32"),
        loss="cross_entropy",
        optimizer=optimizer or ws.Adam(),
        batch_size=BATCH,
        seed=seed,
    )


def assert_same_model(a: ws.nn.Module, b: ws.nn.Module) -> None:
    left, right = a.state_dict(), b.state_dict()
    assert left.keys() == right.keys()
    for name in left:
        assert left[name].tobytes() == right[name].tobytes(), f"{name} differs"


# -- resuming ----------------------------------------------------------------------------------------------------

RUNS: dict[str, dict[str, Any]] = {
    "a schedule, clipping and validation": {
        "schedule": lambda: ws.schedules.cosine(warmup=5),
        "clip_norm": 1.0,
        "validation": (*data(),),
    },
    "micro-batches": {"accumulate": 3, "batch_size": 4},
    "another optimizer": {"optimizer": ws.SGD(lr=0.1, momentum=0.9)},
}


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize("at", [(0, 0), (1, 3), (1, "end")], ids=str)
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, name: str, at: tuple[int, Any]) -> None:
    options = {k: v() if callable(v) else v for k, v in RUNS[name].items()}
    rows = options.get("batch_size", BATCH) * options.get("accumulate", 1)
    last = -(-ROWS // rows) - 1
    epoch, step = at[0], last if at[1] == "end" else at[1]
    whole, part, resumed = model(), model(), model()
    wanted = fit(whole, **options)
    fit(part, checkpoint=tmp_path, callbacks=[StopAt(epoch, step)], **options)
    taken = ws.load_checkpoint(tmp_path)
    assert (taken.position.epoch, taken.position.step) == ((epoch + 1, 0) if step == last else (epoch, step + 1))
    got = fit(resumed, resume=tmp_path, exact=True, **options)
    assert_same_model(whole, resumed)
    assert got.to_json() == wanted.to_json(), "the history too, to the last bit"


def test_resuming_before_an_epoch_was_measured(tmp_path: Path) -> None:
    """A kill between the last step of an epoch and its end."""
    whole, resumed = model(), model()
    wanted = fit(whole, validation=data())

    class SaveEarly(ws.Callback):
        def on_safe_point(self) -> None:
            run = self.run
            assert run is not None
            if run.position.step == run.steps_per_epoch and run.position.epoch == 1:
                ws.save_checkpoint(tmp_path, run.session, position=run.position, history=run.history, loader=run.loader)

    fit(model(), validation=data(), callbacks=[SaveEarly()])
    assert ws.load_checkpoint(tmp_path).position.step == -(-ROWS // BATCH)
    got = fit(resumed, validation=data(), resume=tmp_path, exact=True)
    assert_same_model(whole, resumed)
    assert got.to_json() == wanted.to_json()


def test_data_that_is_read_batch_by_batch(tmp_path: Path) -> None:
    def loader() -> ws.DataLoader:
        return ws.DataLoader(*data(), batch_size=BATCH, transform=ws.data.Noise(0.1))

    whole, part, resumed = model(), model(), model()
    fit(whole, loader())
    fit(part, loader(), checkpoint=tmp_path, callbacks=[StopAt(1, 4)])
    fit(resumed, loader(), resume=tmp_path, exact=True)
    assert_same_model(whole, resumed)


def test_callbacks_go_on_where_they_were(tmp_path: Path) -> None:
    def stopping() -> ws.EarlyStopping:
        return ws.EarlyStopping("loss", patience=1, mode="max", restore_best=True)  # the loss falls: it stops

    whole, resumed = model(), model()
    wanted = fit(whole, callbacks=[stopping()], epochs=5)
    assert "has not improved" in wanted.stopped_by
    fit(model(), callbacks=[StopAt(1, 2), stopping()], checkpoint=tmp_path, epochs=5)
    got = fit(resumed, callbacks=[stopping()], resume=tmp_path, checkpoint=tmp_path, epochs=5)
    assert got.to_json() == wanted.to_json()
    assert_same_model(whole, resumed)  # the weights of the best epoch, which the first process saw
    again = model()
    assert len(fit(again, callbacks=[stopping()], resume=tmp_path, epochs=5)) == len(wanted), "it was over"


def test_resume_true_starts_where_there_is_nothing_yet(tmp_path: Path) -> None:
    first = fit(model(), checkpoint=tmp_path / "run", resume=True, epochs=1)
    assert len(first) == 1
    assert len(fit(model(), checkpoint=tmp_path / "run", resume=True, epochs=2)) == 2
    with pytest.raises(ws.errors.UsageError, match="resume=True resumes from the folder that checkpoint= names"):
        fit(model(), resume=True)
    with pytest.raises(ws.errors.CheckpointError, match=r"there is no checkpoint in .*absent; expected folders like"):
        fit(model(), resume=tmp_path / "absent")


def test_a_session_of_ones_own(tmp_path: Path) -> None:
    folder, session = folder_with(tmp_path, 3)
    x, y = data()
    other = small_session()
    ws.load_checkpoint(folder).restore(other, exact=True)
    for each in (session, other):
        each.step(x=x[:BATCH], labels=y[:BATCH])
    assert all(np.array_equal(session.get(n), other.get(n)) for n in session.state.names)
    assert other.state.step == 4


# -- exact -------------------------------------------------------------------------------------------------------


def test_exact_refuses_what_could_differ_and_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, _ = folder_with(tmp_path, 1)
    taken = ws.load_checkpoint(folder)
    other = small_session(seed=7)
    with pytest.raises(
        ws.errors.CheckpointError, match=r"(?s)cannot be continued exactly:.*seed: .* has 0, this run 7"
    ):
        taken.restore(other, exact=True)
    assert other.state.step == 0, "nothing was loaded"
    taken.restore(other)
    assert "bits may differ from an uninterrupted run: seed" in caplog.text


@pytest.mark.parametrize("what", ["version", "code", "target", "plan"])
def test_each_reason(tmp_path: Path, what: str) -> None:
    folder, _ = folder_with(tmp_path, 1)
    path = checkpoints_in(folder)[0].path
    body = stored.read_manifest(path)
    body["identity"][what] = "another"
    (path / stored.MANIFEST).write_bytes(stored.manifest_bytes(body))
    with pytest.raises(ws.errors.CheckpointError, match=f"{what}: the checkpoint has another, this run"):
        ws.load_checkpoint(folder).restore(small_session(), exact=True)


def test_numbers_of_the_checkpoint_hold_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder, _ = folder_with(tmp_path, 1)
    other = small_session(optimizer=ws.Adam(lr=0.5))
    ws.load_checkpoint(folder).restore(other, exact=True)
    assert other.optimizer.lr == 1e-3
    assert "optimizer.lr is 0.001, from the checkpoint; the argument 0.5 of this run is ignored" in caplog.text


def test_other_data(tmp_path: Path) -> None:
    fit(model(), checkpoint=tmp_path, epochs=1)
    x, y = data()
    with pytest.raises(ws.errors.CheckpointError, match=r"data: .* the rows or their order differ"):
        fit(model(), (x + 1, y), resume=tmp_path, exact=True)


def test_another_architecture(tmp_path: Path) -> None:
    folder, _ = folder_with(tmp_path, 1)
    taken, other = ws.load_checkpoint(folder), small_session(hidden=9)
    before = other.get("0.weight")
    with pytest.raises(ws.errors.CheckpointError, match=r"is of another model: .* Build the model as it was"):
        taken.restore(other)
    assert np.array_equal(before, other.get("0.weight"))
    with pytest.raises(
        ws.errors.CheckpointError, match=r"another model, optimizer or metrics: it has .* take the weights"
    ):
        taken.restore(small_session(optimizer=ws.SGD()))


# -- files -------------------------------------------------------------------------------------------------------


def test_torch_loads_the_weights(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    folder, session = folder_with(tmp_path, 2)
    twin = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3))
    twin.load_state_dict(load_file(folder / "step-00000002" / "weights.safetensors"))
    x, _ = data()
    got = twin.eval()(torch.from_numpy(x)).detach().numpy()
    assert np.allclose(got, session.predict(x=x), atol=1e-6)
    fresh = model()
    fresh.load(folder / "step-00000002" / "weights.safetensors")
    assert np.array_equal(fresh.state_dict()["0.weight"], session.get("0.weight"))


@pytest.mark.native
def test_the_manifest_says_what_the_run_was(tmp_path: Path) -> None:
    given = {"optimizer": ws.AdamW(lr=0.125), "validation": 0.2, "threads": 1}
    fit(model(), checkpoint=tmp_path, epochs=2, **given)
    taken = ws.load_checkpoint(tmp_path)
    assert taken.config["optimizer"] == ws.AdamW(lr=0.125).to_config()
    assert taken.config["epochs"] == 2
    assert taken.position == Position(epoch=2)
    assert taken.history.names == ["loss", "accuracy", "val_loss", "val_accuracy", "lr"]
    noted = taken.versions
    assert (noted["wholestep"], noted["numpy"]) == (ws.__version__, np.__version__)
    assert (noted["python"], noted["system"]) == (platform.python_version(), platform.platform())
    assert (noted["device"], noted["threads"]) == (device_named("cpu").name, "1")
    assert noted["processor"]
    assert shlex.split(noted["command"]) == sys.argv
    digest = taken.identity["plan"][0]
    from wholestep.compiler.plan.io import serialize

    assert serialize.load((tmp_path / "plans" / f"{digest[:16]}.plan").read_bytes()).kernels
    json.loads((checkpoints_in(tmp_path)[-1].path / "manifest.json").read_text())


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the oracle")
def test_the_manifest_names_the_revision_that_the_run_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
        return subprocess.run(("git", *who, *words), check=True, capture_output=True, text=True).stdout.strip()

    class CommitMeanwhile(ws.Callback):
        def on_epoch_begin(self, epoch: int) -> None:
            git("commit", "--allow-empty", "-m", "meanwhile")

    folder = tmp_path / "repository" / "scripts"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    git("init", "..")
    assert git_revision() is None  # nothing is committed
    git("commit", "--allow-empty", "-m", "first")
    first = git("rev-parse", "HEAD")
    fit(model(), checkpoint="run", epochs=1, device="reference", callbacks=CommitMeanwhile())
    assert ws.load_checkpoint("run").versions["git"] == first
    second = git("rev-parse", "HEAD")
    assert git_revision() == second != first
    git("pack-refs", "--all")
    assert git_revision() == second
    git("worktree", "add", str(tmp_path / "other"), "-b", "topic/one", first)
    assert git_revision(tmp_path / "other") == first
    git("pack-refs", "--all")
    assert git_revision(tmp_path / "other") == first
    git("checkout", "--detach", first)
    assert git_revision() == first
    for damaged in (b"ref: refs/heads/gone", b"\xff", b"zz"):
        (tmp_path / "repository/.git/HEAD").write_bytes(damaged)
        assert git_revision() is None


@pytest.mark.parametrize("file", ["weights.safetensors", "training.safetensors", "manifest.json"])
@pytest.mark.parametrize("how", ["truncated", "one bit", "gone"])
def test_a_damaged_one_is_refused_by_name_and_the_one_before_is_used(
    tmp_path: Path, file: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, _ = folder_with(tmp_path, 1, 2)
    target = folder / "step-00000002" / file
    damage(target, how)
    with pytest.raises(
        ws.errors.CheckpointError, match=r"step-00000002 is (damaged|not a checkpoint).*" + re.escape(file)
    ):
        ws.load_checkpoint(folder / "step-00000002")
    with caplog.at_level(logging.WARNING, "wholestep"):
        assert ws.load_checkpoint(folder).step == 1
    assert "step-00000002" in caplog.text
    damage(folder / "step-00000001" / file, how)
    with pytest.raises(
        ws.errors.CheckpointError, match=r"(?s)no checkpoint in .* is intact:.*step-00000002.*step-00000001"
    ):
        ws.load_checkpoint(folder)


def damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    else:
        content[len(content) // 2] ^= 4
        path.write_bytes(content)


def test_every_bit_of_a_manifest_counts(tmp_path: Path) -> None:
    folder, _ = folder_with(tmp_path, 1)
    file = folder / "step-00000001" / "manifest.json"
    whole, rng = file.read_bytes(), np.random.default_rng(0)
    taken = ws.load_checkpoint(folder)
    for _ in range(60):
        flipped = bytearray(whole)
        flipped[rng.integers(len(whole))] ^= 1 << int(rng.integers(8))
        file.write_bytes(flipped)
        try:
            again = ws.load_checkpoint(folder)
        except ws.errors.CheckpointError:
            continue
        assert again.position == taken.position, "only what has no meaning, such as white space, may change"
        assert again.identity == taken.identity


def test_a_full_disk(tmp_path: Path) -> None:
    folder, session = folder_with(tmp_path, 1)
    x, y = data()
    session.step(x=x[:BATCH], labels=y[:BATCH])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, before[1]))  # a file may not become longer: writing fails half-way
    try:
        with pytest.raises(
            ws.errors.CheckpointError, match=r"step 2 could not be written to .* before it are untouched"
        ):
            ws.save_checkpoint(folder, session)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [p.name for p in sorted(folder.iterdir())] == [".lock", "plans", "step-00000001"], "nothing half-written"
    assert ws.load_checkpoint(folder).step == 1
    assert ws.save_checkpoint(folder, session).name == "step-00000002"


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, session = folder_with(tmp_path, 1)

    def refuse(self: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", refuse)
        with pytest.raises(ws.errors.CheckpointError, match=r"Read-only file system.*folder that can be written"):
            ws.save_checkpoint(folder, session)
    (tmp_path / "file").write_text("")
    with pytest.raises(ws.errors.CheckpointError, match=r"could not be written to .*file"):
        ws.save_checkpoint(tmp_path / "file" / "run", session)
    assert ws.load_checkpoint(folder).step == 1


def test_a_callbacks_state_that_cannot_be_kept(tmp_path: Path) -> None:
    class Odd(ws.Callback):
        def state_dict(self) -> dict[str, Any]:
            return {"thing": object()}

    _, session = folder_with(tmp_path, 1)
    with pytest.raises(
        ws.errors.UsageError, match=r"Odd\.0/thing: a callback's state must consist of JSON values and arrays"
    ):
        ws.save_checkpoint(tmp_path, session, callbacks=ws.CallbackList(Odd()))
    assert [p.name for p in sorted(tmp_path.iterdir())] == [".lock", "plans", "step-00000001"]


def test_logs_hold_nothing_twice(tmp_path: Path) -> None:
    """A run that is killed has logged more than its last checkpoint knows."""

    def loggers(name: str) -> list[ws.Callback]:
        return [ws.CSVLogger(tmp_path / f"{name}.csv"), ws.JSONLinesLogger(tmp_path / f"{name}.jsonl", steps=True)]

    fit(model(), callbacks=loggers("whole"))
    fit(model(), callbacks=[StopAt(1, 3), *loggers("part")], checkpoint=tmp_path / "run")
    for kind in ("csv", "jsonl"):
        with (tmp_path / f"part.{kind}").open("a") as file:
            file.write("half a li")
    fit(model(), callbacks=loggers("part"), resume=tmp_path / "run")
    for kind in ("csv", "jsonl"):
        assert (tmp_path / f"part.{kind}").read_text() == (tmp_path / f"whole.{kind}").read_text()
