"""`model.load` reads what `save`, `ModelCheckpoint` and `checkpoint=` wrote, under the name that the user gave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.train.checkpoint.test_checkpoint import data, fit, model
from tests.train.checkpoint.test_model_checkpoint import losses_as
from wholestep.errors import CheckpointError
from wholestep.train.checkpoint.folder import checkpoints_in

Arrays = dict[str, np.ndarray[Any, Any]]


def same(loaded: ws.nn.Module, expected: Arrays) -> bool:
    return all(np.array_equal(a, expected[name]) for name, a in loaded.state_dict().items())


def load(path: Path) -> ws.nn.Module:
    loaded = model()
    loaded.load(path)
    return loaded


NAMES = ("best.keras", "best_model.mojo", "best.pt", "best.pth", "best.ckpt", "best.bin", "best.h5", "best", "a.b/c.pt")


@pytest.mark.parametrize("name", NAMES)
def test_any_name_that_a_user_gives(tmp_path: Path, name: str) -> None:
    trained, path = model(), tmp_path / name
    path.parent.mkdir(exist_ok=True)
    fit(trained, epochs=1, callbacks=[ws.ModelCheckpoint(path, "loss")])
    assert same(load(path), trained.state_dict())
    file = tmp_path / f"saved-{path.name}"
    trained.save(file)
    assert same(load(file), trained.state_dict())


@pytest.mark.parametrize("legacy", [False, True])
def test_a_file_of_torch_under_any_name(tmp_path: Path, legacy: bool) -> None:
    trained = model()
    tensors = {name: torch.tensor(a) for name, a in trained.state_dict().items()}
    for name in ("weights.pt", "weights.tar"):
        torch.save(tensors, tmp_path / name, _use_new_zipfile_serialization=not legacy)
        assert same(load(tmp_path / name), trained.state_dict())


def test_the_folder_of_a_run_is_its_newest_checkpoint(tmp_path: Path) -> None:
    trained = model()
    fit(trained, epochs=3, validation=data(), checkpoint=tmp_path / "run.d")
    assert same(load(tmp_path / "run.d"), trained.state_dict())
    assert same(load(checkpoints_in(tmp_path / "run.d")[-1].path), trained.state_dict())


def test_where_the_best_are_kept_alone_it_is_the_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted run leaves a later checkpoint than the best."""
    losses_as(monkeypatch, [1.0, 0.5, 0.9])
    keeper = ws.ModelCheckpoint(tmp_path / "best.keras", every=5)
    fit(model(), epochs=3, validation=data(), callbacks=[keeper])
    assert keeper.best_path is not None
    newest, best = ws.load_checkpoint(tmp_path / "best.keras"), ws.load_checkpoint(keeper.best_path)
    assert newest.step > best.step
    assert same(load(tmp_path / "best.keras"), dict(best.arrays))
    assert same(load(keeper.best_path), dict(best.arrays))


def test_a_damaged_one_is_refused_and_the_one_before_it_is_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fit(model(), epochs=2, checkpoint=tmp_path)
    before, newest = (f.path for f in checkpoints_in(tmp_path))
    file = newest / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match=r"is damaged: the checksum of weights\.safetensors does not match"):
        load(newest)
    assert same(load(tmp_path), dict(ws.load_checkpoint(before).arrays))
    assert "The checkpoint before it is used" in caplog.text


def test_a_folder_without_weights_says_what_it_looked_for(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors\.index\.json, .*nor checkpoints"):
        load(tmp_path)


def test_printing_a_checkpoint_is_a_line(tmp_path: Path) -> None:
    fit(model(), epochs=2, checkpoint=tmp_path)
    stored = ws.load_checkpoint(tmp_path)
    text = f"{stored}"
    assert text == repr(stored)
    assert text.startswith(
        f"<Checkpoint {stored.path}: {stored.step} updates, epoch 2, {len(stored.arrays)} arrays of "
    )
    assert ", loss 0" in text or ", loss 1" in text
    assert "\n" not in text
    assert len(text) < 400
