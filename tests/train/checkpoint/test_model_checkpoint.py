from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import wholestep as ws
from tests.train.checkpoint.test_checkpoint import BATCH, ROWS, data, fit, model
from wholestep.train.checkpoint import tensors
from wholestep.train.checkpoint.folder import checkpoints_in

STEPS = -(-ROWS // BATCH)


def epochs_kept(folder: Path) -> list[int]:
    return [f.step // STEPS for f in checkpoints_in(folder)]


def losses_as(monkeypatch: pytest.MonkeyPatch, values: list[float]) -> None:
    """Make `val_loss` of the epochs what a test says."""
    given = iter(values)
    monkeypatch.setattr(ws.Session, "evaluate_together", lambda self, arrays: {"loss": next(given), "accuracy": 0.5})


def test_defaults_and_aliases() -> None:  # J02
    plain = ws.ModelCheckpoint("runs/x")
    assert (plain.monitor, plain.mode) == ("val_loss", "min")
    assert ws.ModelCheckpoint("runs/x", monitor="val_acc", mode="max").monitor == "val_accuracy"


def test_written_only_on_improvement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # J02
    losses_as(monkeypatch, [1.0, 0.9, 0.95, 0.8])
    kept: list[list[int]] = []
    keeper = ws.ModelCheckpoint(tmp_path)

    class Watch(ws.Callback):
        def on_safe_point(self) -> None:
            keeper.wait()
            kept.append(epochs_kept(tmp_path))

    fit(model(), validation=data(), callbacks=[keeper, Watch()], epochs=4)
    after_epochs = [k for i, k in enumerate(kept) if i == len(kept) - 1 or k != kept[i + 1]]
    assert after_epochs == [[], [1], [2], [4]]
    assert ws.load_checkpoint(tmp_path).logs["val_loss"] == 0.8


@pytest.mark.parametrize(
    ("options", "expected"),
    [({"best": 1}, [2]), ({"best": 2}, [2, 4]), ({"best": 1, "last": 2}, [2, 4, 5]), ({"best": 0, "last": 1}, [5])],
    ids=str,
)
def test_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], expected: list[int]
) -> None:
    losses_as(monkeypatch, [1.0, 0.5, 0.9, 0.8, float("nan")])
    keeper = ws.ModelCheckpoint(tmp_path, **options)
    fit(model(), validation=data(), callbacks=[keeper], epochs=5)
    assert epochs_kept(tmp_path) == expected
    if options["best"]:
        assert keeper.best_path == tmp_path / f"step-{2 * STEPS:08d}"
        assert ws.load_checkpoint(tmp_path, best="val_loss").logs["val_loss"] == 0.5


def test_every_so_many_steps(tmp_path: Path) -> None:
    fit(model(), callbacks=[ws.ModelCheckpoint(tmp_path, "loss", best=0, last=100, every=5)], epochs=1)
    steps = [f.step for f in checkpoints_in(tmp_path)]
    assert steps[-1] == STEPS
    assert len(steps) >= STEPS // 5
    assert ws.load_checkpoint(tmp_path / f"step-{steps[0]:08d}").position.step == steps[0] < STEPS


def test_two_keepers_in_one_folder_leave_each_other_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses_as(monkeypatch, [1.0, 2.0, 3.0])
    both = [ws.ModelCheckpoint(tmp_path), ws.ModelCheckpoint(tmp_path, "val_loss", "max")]
    fit(model(), validation=data(), callbacks=both, epochs=3)
    assert epochs_kept(tmp_path) == [1, 3]


def test_a_misspelt_monitor_is_told_before_training() -> None:
    with pytest.raises(
        ws.errors.UnknownNameError, match=r"ModelCheckpoint monitors 'val_los'.*Did you mean 'val_loss'"
    ):
        fit(model(), validation=data(), callbacks=[ws.ModelCheckpoint("runs/x", monitor="val_los")])
    with pytest.raises(ws.errors.UnknownNameError, match="There is no validation data"):
        fit(model(), callbacks=[ws.ModelCheckpoint("runs/x")])
    assert not Path("runs/x").exists()


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk(monkeypatch: pytest.MonkeyPatch, writes: Sequence[bool] = ()) -> None:
    """Fail to write a file of arrays: the n-th where `writes` says so, all after these."""
    planned, write = iter(writes), tensors.write_parts

    def failing(*given: Any) -> Any:
        if next(planned, False):
            return write(*given)
        raise FULL

    monkeypatch.setattr(tensors, "write_parts", failing)


def test_a_run_whose_last_checkpoint_is_missing_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After training: the model has its trained weights, and the history is at hand."""
    trained, expected = model(), model()
    fit(expected, epochs=2)
    full_disk(monkeypatch)
    keeper = ws.ModelCheckpoint(tmp_path / "run", "loss")
    with pytest.raises(
        ws.errors.CheckpointError,
        match=r"training has finished, but its last checkpoint was not saved: the checkpoint of step \d+ could not be "
        r"written to .*run: \[Errno 28\] No space left on device.* model\.save\('trained\.safetensors'\)",
    ) as caught:
        fit(trained, callbacks=[keeper], epochs=2)
    assert len(caught.value.history) == 2
    assert caught.value.history.stopped_by == ""
    assert all((trained.state_dict()[n] == a).all() for n, a in expected.state_dict().items())
    assert caplog.text.count("could not be written") == 2, "each failure is logged once, when it happens"
    assert isinstance(keeper.failure, ws.errors.CheckpointError)
    assert checkpoints_in(tmp_path / "run") == []
    fit(model(), callbacks=[ws.EarlyStopping("loss")], epochs=1)  # a run without checkpoints is not concerned


def test_an_earlier_checkpoint_that_is_missing_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch, [False, *[True] * 9])
    keeper = ws.ModelCheckpoint(tmp_path, "loss", best=0, last=3)
    assert len(fit(model(), callbacks=[keeper], epochs=2)) == 2
    assert epochs_kept(tmp_path) == [2]
    assert keeper.failure is None


def test_a_loop_of_ones_own_hears_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full_disk(monkeypatch)
    x, _ = data()
    session = ws.build_session(
        model(), inputs=ws.Spec(("batch", *x.shape[1:])), targets=ws.Spec(("batch",), "int32"), loss="cross_entropy",
        batch_size=8,
    )  # fmt: skip
    callbacks = ws.CallbackList(ws.ModelCheckpoint(tmp_path, "loss"), session)
    callbacks.on_epoch_end(0, {"loss": 1.0})
    with pytest.raises(ws.errors.CheckpointError, match="training has finished, but its last checkpoint was not saved"):
        callbacks.on_train_end()


def test_the_error_that_ends_a_run_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails and cannot be saved, too, ends with what it failed of."""
    full_disk(monkeypatch)

    class Fails(ws.Callback):
        def on_epoch_end(self, epoch: int, logs: object) -> None:
            raise RuntimeError("my own")

    with pytest.raises(RuntimeError, match="my own"):
        fit(model(), callbacks=[ws.ModelCheckpoint(tmp_path, "loss"), Fails()], epochs=2)


def test_a_folder_that_cannot_be_used_is_told_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    losses = ws.LossHistory()
    for folder, why in ((tmp_path / "file" / "run", "Not a directory"), (tmp_path / "file", "File exists")):
        with pytest.raises(ws.errors.UsageError, match=rf"cannot write to .*file.*: {why}\. Name a folder that can"):
            fit(model(), callbacks=[losses, ws.ModelCheckpoint(folder, "loss")])
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, *how: "locked" not in str(path) and may(path, *how))
    with pytest.raises(ws.errors.UsageError, match=r"cannot write to .*locked: Permission denied"):
        fit(model(), callbacks=[losses, ws.ModelCheckpoint(tmp_path / "locked", "loss")])
    assert losses.losses == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "smallest"}, "mode must be 'min' or 'max'; received 'smallest'"),
        ({"best": 0}, "best=0 and last=0 would delete every checkpoint"),
        ({"every": 0}, "every must be an integer of at least 1; received 0"),
    ],
)
def test_bad_options(options: dict[str, Any], text: str) -> None:
    with pytest.raises((ws.errors.OptionError, ws.errors.UsageError), match=text):
        ws.ModelCheckpoint("runs/x", **options)


def test_a_run_from_an_older_checkpoint_takes_the_place_of_later_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(model(), callbacks=[ws.ModelCheckpoint(tmp_path, "loss", last=9)], epochs=3)
    assert epochs_kept(tmp_path) == [1, 2, 3]
    older = tmp_path / f"step-{STEPS:08d}"

    stopped = [ws.ModelCheckpoint(tmp_path, "loss", last=9), ws.StepBudget(1)]
    fit(model(), callbacks=stopped, epochs=3, resume=older)  # ends inside an epoch: nothing was written
    assert epochs_kept(tmp_path) == [1, 2, 3]

    resumed = model()
    fit(resumed, callbacks=[ws.ModelCheckpoint(tmp_path, "loss", last=9)], epochs=2, resume=older)
    assert epochs_kept(tmp_path) == [1, 2]
    assert epochs_kept(tmp_path / "superseded") == [2, 3]
    assert f"step-{2 * STEPS:08d}, step-{3 * STEPS:08d} are of later steps than this run starts with" in caplog.text
    newest = ws.load_checkpoint(tmp_path)
    assert newest.position.epoch == 2
    assert all((newest.arrays[n] == a).all() for n, a in resumed.state_dict().items())


def test_a_new_run_in_a_used_folder_is_what_the_next_resume_finds(tmp_path: Path) -> None:
    fit(model(), callbacks=[ws.ModelCheckpoint(tmp_path, "loss", last=9)], epochs=2)
    fit(model(), callbacks=[ws.ModelCheckpoint(tmp_path, "loss", last=9)], epochs=1)
    fit(model(), callbacks=[ws.ModelCheckpoint(tmp_path, "loss", last=9)], epochs=1)
    assert epochs_kept(tmp_path) == [1]
    aside = sorted(p.name for p in (tmp_path / "superseded").iterdir())
    assert aside == [f"step-{STEPS:08d}", f"step-{STEPS:08d}-1", f"step-{2 * STEPS:08d}"]
