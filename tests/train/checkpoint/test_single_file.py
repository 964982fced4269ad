"""A checkpoint in one file, as exported steps and pages write it: Python continues it to the same bits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import wholestep as ws
from wholestep.train.checkpoint.identity import identity_of
from wholestep.train.checkpoint.read import IDENTITY, RUN

X = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)


def experiment() -> ws.Experiment:
    model = ws.nn.Sequential(ws.nn.Linear(4, 8), ws.nn.ReLU(), ws.nn.Linear(8, 2))
    return ws.Experiment(
        model=model, data=(X, Y), loss="cross_entropy", batch_size=16, epochs=3, seed=0, progress=False
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A whole run, and a file of its state after the first epoch."""
    whole = experiment()
    history = whole.fit()
    begun = experiment()
    trainer, loader = begun.trainer()
    first = trainer.train(loader, 1)
    file = tmp_path_factory.mktemp("run") / "run.safetensors"
    position = {"epoch": 1, "step": 0, "loss_sum": 0.0, "rows": 0}
    run = {"position": position, "history": json.loads(first.to_json())}
    notes = {RUN: json.dumps(run), IDENTITY: json.dumps(identity_of(trainer.session, loader))}
    save_file(trainer.session.state_dict(), file, notes)
    return whole, history, file


def test_a_run_continues_to_the_same_bits(runs):
    whole, history, file = runs
    resumed = experiment()
    again = resumed.fit(resume=file, exact=True)
    assert [e.logs["loss"] for e in again.epochs] == [e.logs["loss"] for e in history.epochs]
    for name, array in whole.model.state_dict().items():
        np.testing.assert_array_equal(resumed.model.state_dict()[name], array)


def test_a_file_without_a_header_continues_after_its_epochs(runs, tmp_path):
    _, history, file = runs
    bare = tmp_path / "bare.safetensors"
    save_file(load_file(file), bare)
    resumed = experiment()
    again = resumed.fit(resume=bare)
    assert [e.epoch for e in again.epochs] == [1, 2]
    assert again.epochs[-1].logs["loss"] == history.epochs[-1].logs["loss"]
    with pytest.raises(ws.errors.CheckpointError, match="does not name the program that wrote it"):
        experiment().fit(resume=bare, exact=True)
    assert "bare.safetensors: 4 updates, epoch 1" in repr(ws.load_checkpoint(bare))


def test_other_files_are_refused(runs, tmp_path):
    whole, _, file = runs
    path = tmp_path / "other.safetensors"
    whole.model.save(path)
    with pytest.raises(ws.errors.CheckpointError, match=r"no number 'session/step'.*take them alone: model.load"):
        ws.load_checkpoint(path)
    path.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ws.errors.CheckpointError, match="is damaged: it cannot be read"):
        ws.load_checkpoint(path)
    with pytest.raises(ws.errors.CheckpointError, match="is damaged: it cannot be read"):
        ws.load_checkpoint(tmp_path / "missing.safetensors")
    for notes, says in (
        ({RUN: "[1]"}, "its header holds"),
        ({RUN: json.dumps({"position": {"epoch": 2, "step": 0, "loss_sum": 0.0, "rows": 0}})}, "its position is"),
        ({RUN: json.dumps({"history": {"epochs": 3}})}, "is not one of ours: this is not a history"),
        ({RUN: "{"}, "is damaged"),
    ):
        save_file(load_file(file), path, notes)
        with pytest.raises(ws.errors.CheckpointError, match=says):
            ws.load_checkpoint(path)
