"""Checkpoints of workers that have divided the optimizer's state: each writes what it owns, readers have the whole."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from safetensors import safe_open

from tests.distributed.scripts import sharded
from tests.distributed.support.ranks import launch
from wholestep.compiler.ir.mesh import Mesh
from wholestep.compiler.runtime.state.state_pieces import StatePiece, join_pieces
from wholestep.errors import CheckpointError
from wholestep.train.checkpoint import load_checkpoint
from wholestep.train.checkpoint import sharded_write as together
from wholestep.train.checkpoint.folder import checkpoints_in
from wholestep.train.checkpoint.format import shard_file_name
from wholestep.train.checkpoint.sharded_write import ShardedWrite, meet

OWNED = [f"training-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What three workers have written; each says that it never had more of a divided state than its part."""
    folder = tmp_path_factory.mktemp("owners")
    done = launch("-n", "3", sharded.__file__, str(folder))
    assert done.returncode == 0, done.stdout + done.stderr
    said = sorted(line.split(" ", 1)[-1] if line.startswith("[") else line for line in done.stdout.splitlines())
    # Of two matrices Adam has two moments each; where there is no folder that all see, they are gathered at two saves.
    assert said == ["gathered 0"] * 3 + ["then 8"] * 3, done.stdout
    return folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray[Any, Any]]:
    return sharded.train(str(tmp_path_factory.mktemp("shards")), shards=3, shard="optimizer")


@pytest.fixture
def together_run(runs: Path, tmp_path: Path) -> Path:
    """A copy to do things to."""
    return Path(shutil.copytree(runs / "together", tmp_path / "run"))


def test_each_worker_writes_its_parts_and_readers_put_them_together(
    runs: Path, expected: dict[str, np.ndarray[Any, Any]]
) -> None:
    newest = checkpoints_in(runs / "together")[-1].path
    names = ["manifest.json", *OWNED, "training.safetensors", "weights.safetensors"]
    assert sorted(path.name for path in newest.iterdir()) == names
    together, alone = load_checkpoint(newest).arrays, load_checkpoint(runs / "machine-0" / "alone").arrays
    assert together["0.weight.adam.m"].shape == (65, 12)
    for found in (together, alone):
        assert {n: np.asarray(a).tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in expected.items()}


def test_without_a_folder_that_all_see_the_first_worker_gathers_and_writes(runs: Path) -> None:
    assert not any(list((runs / f"machine-{rank}").iterdir()) for rank in (1, 2))
    assert not list(checkpoints_in(runs / "machine-0" / "alone")[-1].path.glob("training-*"))


def test_a_run_goes_on_from_parts_with_other_workers_and_without(together_run: Path) -> None:
    unbroken = sharded.train(str(together_run.parent / "unbroken"), epochs=3, shards=3, shard="optimizer")
    again = Path(shutil.copytree(together_run, together_run.parent / "again"))
    exact = sharded.train(str(again), epochs=3, shards=3, shard="optimizer", resume=again, exact=True)
    alone = sharded.train(str(together_run), epochs=3, resume=together_run)
    for name, array in unbroken.items():
        assert exact[name].tobytes() == array.tobytes(), name
        np.testing.assert_allclose(alone[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def changed(path: Path) -> None:
    """One byte of the numbers in it."""
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))


@pytest.mark.parametrize(
    ("damage", "told"),
    [(Path.unlink, "00002-of-00003.safetensors cannot be read"), (changed, "the checksum of training-00002-of-00003")],
)
def test_a_part_that_is_lost_or_damaged_leaves_the_checkpoint_before(
    together_run: Path, damage: Callable[[Path], None], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, newest = checkpoints_in(together_run)
    damage(newest.path / OWNED[1])
    with pytest.raises(CheckpointError, match=f"{newest.path.name} is damaged: .*{told}"):
        load_checkpoint(newest.path)
    assert load_checkpoint(together_run).path == before.path
    assert "The checkpoint before it is used." in caplog.text


# -- workers that are threads, to be told what to do ----------------------------------------------------------------


class Rank:
    """One of two ranks of a group whose collectives meet at a barrier."""

    engine, size, address = "fake", 2, 0
    grid = Mesh(2)
    told: ClassVar[list[bytes]] = [b"", b""]
    meeting = threading.Barrier(2)

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def gather(self, data: bytes) -> list[bytes]:
        self.told[self.rank] = data
        self.meeting.wait(60)
        found = list(self.told)
        self.meeting.wait(60)
        return found

    def broadcast(self, data: bytes) -> bytes:
        return self.gather(data)[0]

    def check(self) -> None:
        """Nobody is lost."""


@pytest.mark.parametrize(("rank", "written"), [(0, ["rows", "layer"]), (3, ["rows"])])
def test_parts_of_layers_are_written_by_one_of_those_who_have_them(
    rank: int, written: list[str], tmp_path: Path
) -> None:
    group = Rank(rank)
    group.size, group.grid = 4, Mesh(2, 2)  # type: ignore[misc]
    numbers, about = np.zeros((2, 3), np.float32), ((2, 3), (0, 1), (2, 3), 0, (0, 1, 2), 1)
    pieces = {
        "rows": StatePiece(numbers[:1], *about),
        "layer": StatePiece(numbers, *about),
    }  # the first by shard="optimizer"
    ShardedWrite(group, tmp_path, 1, pieces, None).wait()
    with safe_open(tmp_path / shard_file_name(rank, 4), "np") as file:
        assert sorted(file.keys()) == sorted(written)


WHOLE = np.arange(15, dtype=np.float32).reshape(5, 3)


def on_both(do: Callable[[Rank], Any]) -> Iterator[Any]:
    with ThreadPoolExecutor(2) as pool:
        yield from pool.map(do, [Rank(0), Rank(1)])


def written(folder: Path, taken: Any) -> list[Any]:
    """What becomes of a checkpoint in each of two workers: its folder, or the error."""

    def do(group: Rank) -> Any:
        place = meet(group, folder, taken.step)
        assert place is not None
        first = 3 * group.rank
        piece = StatePiece(WHOLE[first : first + 3], (5, 3), (0, 1), (5, 3), first)
        made = ShardedWrite(group, place, taken.step, {"more": piece}, taken if group.rank == 0 else None)
        try:
            files = made.settle()
        except CheckpointError as error:
            made.remove()
            return str(error)
        return made.publish(files) if group.rank == 0 else None

    return list(on_both(do))


@pytest.fixture
def taken(runs: Path) -> Any:
    found = load_checkpoint(runs / "together")
    return replace(found, own=("0.weight", "0.bias", "2.weight", "2.bias"))


def test_a_worker_that_cannot_write_is_named_and_nothing_appears(
    tmp_path: Path, taken: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = written(tmp_path, taken)
    np.testing.assert_array_equal(load_checkpoint(first).arrays["more"], WHOLE)
    write = together.write_pieces

    def full(path: Path, pieces: Any) -> str:
        if "00002-of" in path.name:
            raise OSError(28, "No space left on device")
        return write(path, pieces)

    monkeypatch.setattr(together, "write_pieces", full)
    told = (
        f"the checkpoint of step {taken.step} could not be written to {tmp_path}: worker 1: .*No space left on device"
    )
    for said in written(tmp_path, taken):
        assert told.split(": .*")[0] in said
        assert "No space left on device" in said
    assert [path.name for path in tmp_path.glob("*") if path.name != "plans"] == [first.name]
    assert not list(tmp_path.glob(".*"))


def test_workers_without_a_common_folder_are_told_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "wholestep")
    found = list(on_both(lambda group: meet(group, tmp_path / str(group.rank), 3)))
    assert found == [None, None]
    assert "not all workers see" in caplog.text
    assert not list((tmp_path / "0").iterdir())
    (tmp_path / "file").write_text("")
    assert list(on_both(lambda group: meet(group, tmp_path / "file", 3))) == [None, None]


# -- pieces ---------------------------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"shape": [5, 3], "axes": [1, 0], "form": [3, 5], "first": 1, "cut": [], "model": 0}


def test_pieces_are_put_together_as_they_were_cut() -> None:
    rows = [StatePiece.at(WHOLE.T[first:last], {**GOOD, "first": first}) for first, last in ((1, 3), (0, 1), (3, 3))]
    np.testing.assert_array_equal(join_pieces([*rows, rows[0]]), WHOLE)
    flat = [StatePiece(WHOLE.reshape(-1)[a:b], (5, 3), (0, 1), (15,), a) for a, b in ((0, 8), (8, 15))]
    np.testing.assert_array_equal(join_pieces(flat), WHOLE)
    whole = StatePiece(WHOLE.T, (5, 3), (1, 0), (3, 5), 0)
    for wrong in (rows[:1], rows[1:], [rows[0], whole], [rows[0], flat[0]]):
        with pytest.raises(ValueError, match="do not"):
            join_pieces(wrong)
    wide = np.concatenate([WHOLE, 100 + WHOLE], 1)  # cut along its columns, then by rows
    models = [StatePiece(part[a:b], (5, 3), (0, 1), (5, 3), a, (1, 1, 2), model)
              for model, part in enumerate(np.split(wide, 2, 1)) for a, b in ((0, 2), (2, 5))]  # fmt: skip
    np.testing.assert_array_equal(join_pieces(models), wide)
    with pytest.raises(ValueError, match="do not"):
        join_pieces(models[:3])
    assert StatePiece.at(rows[0].array, json.loads(json.dumps(rows[0].place()))).first == 1


@pytest.mark.parametrize(
    "place",
    [
        None, {}, {**GOOD, "more": 1}, {**GOOD, "first": 2}, {**GOOD, "first": -1}, {**GOOD, "first": True},
        {**GOOD, "cut": [2, 1, 2]}, {**GOOD, "cut": [1, 1, 2], "model": 2}, {**GOOD, "cut": [1, 2, 2]},
        {**GOOD, "cut": [1]}, {**GOOD, "axes": [1, 1]}, {**GOOD, "form": [3, 4]},
        {**GOOD, "form": []}, {**GOOD, "shape": [1 << 40, 3]},
    ],
)  # fmt: skip
def test_what_is_no_place_of_a_part_is_refused(place: Any) -> None:
    with pytest.raises(ValueError, match=r"not the position|does not fit|invalid split|expected a list of integers"):
        StatePiece.at(WHOLE.T[1:], place)
