"""`wholestep runs`, `checkpoint` and `cache`, over runs on the disk; `--json` prints what the tables show."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import wholestep as ws
from wholestep.cli import app
from wholestep.compiler.runtime.cache.content_store import ContentStore, cache_entries, evict, key_of
from wholestep.train.checkpoint.lock import FolderLock, Owner


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    return done.exit_code, done.output


def parse(*arguments: object) -> Any:
    """The JSON that a command prints."""
    code, text = run(*arguments, "--json")
    assert code in (0, 1), text
    return json.loads(text)


def trained(folder: Path, lr: float, epochs: int = 4) -> ws.TrainHistory:
    x, y = ws.datasets.digits()
    keep = ws.ModelCheckpoint(folder, best=0, last=9)
    return ws.fit(
        ws.nn.Linear(64, 10), (x[:200], y[:200]), validation=0.2, loss="cross_entropy", metrics=["accuracy"], seed=0,
        optimizer=ws.SGD(lr=lr), epochs=epochs, callbacks=[keep], device="reference", progress=False,
    )  # fmt: skip


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, dict[str, ws.TrainHistory]]:
    folder = tmp_path / "runs"
    return folder, {name: trained(folder / name, lr) for name, lr in (("slow", 0.01), ("group/fast", 0.3))}


def test_runs_are_listed_tagged_and_removed(runs: Any, tmp_path: Path) -> None:
    folder, histories = runs
    rows = {row["run"]: row for row in parse("runs", "ls", folder)}
    assert rows.keys() == histories.keys()
    for name, history in histories.items():
        assert rows[name]["last"]["val_loss"] == history["val_loss"][-1]
        assert rows[name]["best"]["val_accuracy"] == max(history["val_accuracy"])
        assert (rows[name]["epochs"], rows[name]["updates"]) == (4, 20)
    assert [row["run"] for row in parse("runs", "ls", folder, "--sort", "val_loss")] == ["group/fast", "slow"]
    assert parse("runs", "tag", folder / "slow", "keep", "a b") == ["a b", "keep"]
    assert [row["run"] for row in parse("runs", "ls", folder, "--tag", "keep")] == ["slow"]
    assert parse("runs", "tag", folder / "slow", "--remove", "a b") == ["keep"]
    assert run("runs", "tag", folder / "slow", "--remove", "x")[0] == 1
    shown = parse("runs", "show", folder / "slow")
    assert shown["config"]["optimizer"]["lr"] == 0.01
    assert shown["tags"] == ["keep"]
    assert "val_accuracy" in run("runs", "show", folder / "slow")[1]
    (folder / "slow" / "notes.txt").write_text("mine")
    assert run("runs", "rm", folder / "slow")[0] == 1  # it asks, and nobody answers
    assert len(parse("runs", "ls", folder)) == 2
    (left,) = parse("runs", "rm", folder / "slow", "--yes")
    assert left["left"] == ["notes.txt"]
    assert [path.name for path in (folder / "slow").iterdir()] == ["notes.txt"]
    assert parse("runs", "rm", folder / "group" / "fast", "--yes")[0]["left"] == []
    assert not (folder / "group" / "fast").exists()
    assert parse("runs", "ls", folder) == []
    code, text = run("runs", "rm", tmp_path, "--yes")
    assert code == 1
    assert "there is no checkpoint in" in text
    assert "there is no folder" in run("runs", "ls", tmp_path / "nothing")[1]


def test_a_run_that_is_written_is_not_removed(runs: Any) -> None:
    folder, _ = runs
    owner = Owner()
    lock = FolderLock(folder / "slow", owner)
    try:
        code, text = run("runs", "rm", folder / "slow", "--yes")
        assert code == 1
        assert "another run" in text
    finally:
        lock.release()
    link = folder / "link"
    link.symlink_to(folder / "slow")
    assert "is a link" in run("runs", "rm", link, "--yes")[1]
    assert len(parse("checkpoint", "ls", folder / "slow")) == 4


def test_checkpoints_are_listed_inspected_and_compared(runs: Any) -> None:
    folder, histories = runs
    slow, fast = folder / "slow", folder / "group" / "fast"
    rows = parse("checkpoint", "ls", slow)
    assert [row["val_loss"] for row in rows] == histories["slow"]["val_loss"]
    assert run("checkpoint", "ls", slow)[1].count("step-") == 4
    inspected = parse("checkpoint", "inspect", slow)
    stored = ws.load_checkpoint(slow)
    assert {a["name"]: a["shape"] for a in inspected["arrays"]} == {n: list(a.shape) for n, a in stored.arrays.items()}
    assert "weight" in run("checkpoint", "inspect", slow)[1]
    assert run("checkpoint", "diff", slow, slow) == (0, "the checkpoints have equal arrays and settings\n")
    different = {row["name"]: row["difference"] for row in parse("checkpoint", "diff", slow, fast)}
    gap = np.abs(stored.arrays["weight"] - ws.load_checkpoint(fast).arrays["weight"]).max()
    assert different["weight"] == pytest.approx(float(gap))
    assert different["setting optimizer.lr"] == "0.01 and 0.3"
    assert run("checkpoint", "diff", slow, fast)[0] == 1
    assert run("checkpoint", "verify", slow)[0] == 0
    damaged = sorted(slow.glob("step-*"))[1] / "weights.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\x01")
    states = {Path(row["checkpoint"]).name: row["state"] for row in parse("checkpoint", "verify", slow)}
    assert [name for name, state in states.items() if state != "whole"] == [damaged.parent.name]
    code, text = run("checkpoint", "verify", slow)
    assert code == 1
    assert "is damaged" in text


def test_weights_are_averaged_and_converted(runs: Any, tmp_path: Path) -> None:
    folder, _ = runs
    checkpoints = sorted((folder / "slow").glob("step-*"))
    arrays = [load_file(path / "weights.safetensors") for path in checkpoints]
    assert (
        parse("checkpoint", "average", folder / "slow", "--last", 3, "-o", tmp_path / "mean.safetensors")["arrays"] == 2
    )
    model = ws.nn.Linear(64, 10)
    model.load(tmp_path / "mean.safetensors")
    for name, value in model.state_dict().items():
        expected = np.mean([each[name].astype(np.float64) for each in arrays[1:]], axis=0)
        np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-6)
    run("checkpoint", "convert", folder / "slow", tmp_path / "w.npz")
    with np.load(tmp_path / "w.npz") as stored:
        assert {name: stored[name].tobytes() for name in stored} == {n: a.tobytes() for n, a in arrays[-1].items()}
    assert parse("checkpoint", "convert", checkpoints[0], tmp_path / "all.safetensors", "--all")["arrays"] > 2
    assert "needs at least two checkpoints" in run("checkpoint", "average", checkpoints[0])[1]
    for wrong, message in (
        (("convert", folder / "slow", tmp_path / "w.pt"), "ends in .safetensors or .npz"),
        (("average", *checkpoints, "--last", 2), "--last is for one run"),
    ):
        code, text = run("checkpoint", *wrong)
        assert code == 1
        assert message in text


def test_checkpoints_are_pruned(runs: Any) -> None:
    folder, histories = runs
    fast = folder / "group" / "fast"
    names = [path.name for path in sorted(fast.glob("step-*"))]
    best = names[int(np.argmax(histories["group/fast"]["val_accuracy"]))]
    arguments = ("checkpoint", "prune", fast, "--last", 1, "--best", 1, "--monitor", "val_accuracy")
    planned = [Path(row["checkpoint"]).name for row in parse(*arguments, "--dry-run")]
    assert planned == [name for name in names if name not in (best, names[-1])]
    assert run("checkpoint", "prune", fast)[0] == 1  # it asks, and nobody answers
    assert len(list(fast.glob("step-*"))) == 4
    parse(*arguments, "--yes")
    assert {path.name for path in fast.glob("step-*")} == {best, names[-1]}
    assert ws.load_checkpoint(fast).step == 20
    assert "has the number 'nothing'" in run(*arguments[:-1], "nothing")[1]


def test_the_cache_fits_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHOLESTEP_CACHE_DIR", str(tmp_path / "cache"))
    store, now = ContentStore(tmp_path / "cache"), time.time()
    for number in range(6):
        path = store.put(key_of(str(number)), b"x" * 1000, ".run" if number == 0 else ".so")
        hours = 0 if number == 5 else 10 - number  # number 5 is of now
        os.utime(path, (now - 3600 * hours, now - 3600 * hours))
    (tmp_path / "cache" / "mine.txt").write_text("not an entry")
    listed = parse("cache", "ls")
    assert (listed["entries"], listed["bytes"]) == (6, 6000)
    assert {kind["kind"]: kind["entries"] for kind in listed["kinds"]} == {".run": 1, ".so": 5}
    assert parse("cache", "gc", "--limit", "4500") == {"removed": 2, "bytes": 2000, "left": 4000}
    left = [number for number in range(6) if (tmp_path / "cache" / key_of(str(number))).exists()]
    assert left == [0, 3, 4, 5]  # the two oldest that may go went
    assert parse("cache", "gc", "--limit", "0") == {"removed": 2, "bytes": 2000, "left": 2000}
    assert len(cache_entries(store)) == 2  # the record of a run, and what was used a moment ago
    assert evict(store, 0) == []
    assert (tmp_path / "cache" / "mine.txt").exists()
    assert "expected a number of bytes" in run("cache", "gc", "--limit", "much")[1]
    assert run("cache", "ls")[0] == 0
