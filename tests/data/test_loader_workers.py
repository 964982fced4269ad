"""Processes of a loader: the batches of `num_workers=0` in every way of reading, errors, lost processes, Ctrl-C."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.data.order import RankRows
from wholestep.errors import InputError, UsageError, WorkerError


class Rows:
    """Examples that a process computes; `ends` is a row that kills the process, `fails` one that raises."""

    def __init__(self, count: int = 60, ends: int | None = None, fails: int | None = None) -> None:
        self.count, self.ends, self.fails = count, ends, fails

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, row: int) -> Any:
        if row == self.ends:
            os.kill(os.getpid(), signal.SIGKILL)
        if row == self.fails:
            raise LookupError(f"row {row} cannot be read")
        return np.sin(np.arange(4) + row).astype(np.float32), np.float32([row % 7])


class Noisy(Rows):
    def __getitem__(self, row: int) -> Any:
        return np.random.normal(size=3).astype(np.float32), np.float32([row])


class Sentences(Rows):
    def __getitem__(self, row: int) -> Any:
        return np.full(1 + row % 5, row, np.int32), row % 2


def pad(examples: list[Any]) -> Any:
    width = max(len(x) for x, _ in examples)
    return np.stack([np.pad(x, (0, width - len(x))) for x, _ in examples]), np.array([y for _, y in examples], np.int32)


def short(examples: list[Any]) -> Any:
    return np.stack([x for x, _ in examples[:1]])


def batches(loader: ws.DataLoader) -> list[list[bytes]]:
    return [[a.tobytes() + str(a.shape).encode() for a in batch.named().values()] for batch in loader]


def processes() -> list[Any]:
    return [p for p in multiprocessing.active_children() if p.name.startswith("wholestep-loader")]


@pytest.fixture(autouse=True)
def _no_loaders_of_other_tests() -> None:
    gc.collect()  # the processes of a loader end with it


def test_the_batches_of_processes_are_those_of_none_in_every_epoch() -> None:
    how: dict[str, Any] = {"batch_size": 7, "seed": 3, "transform": ws.data.Noise(0.1)}
    alone, parallel = ws.DataLoader(Rows(), **how), ws.DataLoader(Rows(), num_workers=2, **how)
    first = batches(alone)
    assert batches(parallel) == first
    pids = [p.pid for p in processes()]
    assert batches(parallel) == batches(alone) != first, "the second epoch"
    assert [p.pid for p in processes()] == pids, "the processes of the first epoch read the second one"
    alone.seek(4, 5)
    parallel.seek(4, 5)
    assert batches(parallel) == batches(alone)
    del parallel
    assert processes() == []


def test_a_rank_reads_its_own_rows_by_processes_too() -> None:
    loaders = [ws.DataLoader(Rows(), batch_size=8, num_workers=n) for n in (0, 1)]
    for loader in loaders:
        loader.own = RankRows(rank=1, ranks=3, part=8)
    first, second = map(batches, loaders)
    assert first == second
    assert first != batches(ws.DataLoader(Rows(), batch_size=8)), "rows of other ranks are zeros"


def test_a_collate_function_makes_the_batches() -> None:
    how: dict[str, Any] = {"batch_size": 4, "collate_fn": pad}
    first = batches(ws.DataLoader(Sentences(), **how))
    assert len({shape for batch in first for shape in batch}) > 1
    assert batches(ws.DataLoader(Sentences(), num_workers=2, **how)) == first, "batches of several sizes"
    with pytest.raises(InputError, match=r"received 4 examples and returned a batch of 1 rows"):
        next(iter(ws.DataLoader(Rows(), batch_size=4, collate_fn=short)))


def test_a_data_set_that_draws_numbers_is_deterministic() -> None:
    one, same, other = (ws.DataLoader(Noisy(), num_workers=n, seed=s) for n, s in ((2, 0), (1, 0), (1, 1)))
    first = batches(one)
    assert first == batches(same)
    assert len({batch[0] for batch in first}) == len(first), "each batch draws its own numbers"
    assert batches(other) != first


@pytest.mark.parametrize("sampler", [None, "hard"])
def test_training_and_resuming_have_equal_bits(tmp_path: Path, sampler: str | None) -> None:
    def train(workers: int, folder: str | None, epochs: int, resume: bool = False) -> dict[str, Any]:
        model = ws.nn.Linear(4, 1)
        model.load_state_dict({"weight": np.ones((1, 4), np.float32), "bias": np.zeros(1, np.float32)})
        chosen = None if sampler is None else ws.data.Hard()
        loader = ws.DataLoader(Rows(), batch_size=8, num_workers=workers, sampler=chosen)
        ws.fit(
            model,
            loader,
            loss="mse",
            optimizer=ws.Adam(lr=0.01),
            epochs=epochs,
            progress=False,
            checkpoint=None if folder is None else str(tmp_path / folder),
            resume=resume,
        )
        return model.state_dict()

    alone = train(0, None, 4)
    train(2, "run", 2)
    assert processes() == [], "the end of a run ends them"
    resumed = train(2, "run", 4, resume=True)
    for name, weight in alone.items():
        assert np.array_equal(weight, resumed[name]), name
    loader = ws.DataLoader(Rows(), num_workers=1)
    assert np.isfinite(ws.nn.Linear(4, 1).evaluate(loader, loss="mse")["loss"])
    assert loader.pools is not None
    loader.pools.close()


def test_an_error_of_a_row_arrives_with_its_type_and_place() -> None:
    with pytest.raises(LookupError, match="row 9 cannot be read") as caught:
        batches(ws.DataLoader(Rows(fails=9), num_workers=2, batch_size=5))
    assert "in __getitem__" in caught.value.__notes__[0]
    assert processes() == []


def test_a_killed_process_is_an_error_and_none_is_left() -> None:
    with pytest.raises(WorkerError, match=r"wholestep-loader-\d of the loader was ended by SIGKILL before batch \d"):
        batches(ws.DataLoader(Rows(ends=17), num_workers=2, batch_size=5))
    assert processes() == []


def test_a_loop_that_stops_early_leaves_no_process() -> None:
    loader = ws.DataLoader(Rows(), num_workers=2, batch_size=5)
    for _ in loader:
        assert len(processes()) == 2
        break
    assert processes() == []
    assert len(batches(loader)) == 12


def test_what_cannot_be_sent_or_needs_no_process_is_refused() -> None:
    class Local(Rows):
        pass

    with pytest.raises(UsageError, match=r"cannot be sent: .*Define its class and functions at the top level"):
        batches(ws.DataLoader(Local(), num_workers=1))
    x = np.ones((4, 2), np.float32)
    with pytest.raises(UsageError, match="arrays are gathered by the native loop"):
        ws.DataLoader(x, num_workers=1)
    with pytest.raises(UsageError, match="an iterable makes its own batches"):
        ws.DataLoader(iter([x]), num_workers=1)


SCRIPT = """
import sys, time
import numpy as np
import wholestep as ws

class Slow:
    def __len__(self): return 1000
    def __getitem__(self, row):
        time.sleep(0.01)
        return np.float32([row]), np.float32([row])

def main():
    for number, batch in enumerate(ws.DataLoader(Slow(), num_workers=2, batch_size=4)):
        if number == 0:
            import multiprocessing
            print(*(p.pid for p in multiprocessing.active_children()), flush=True)

GUARD
"""


def script(tmp_path: Path, guard: str) -> subprocess.Popen[str]:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.replace("GUARD", guard))
    return subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    parent = script(tmp_path, "if __name__ == '__main__': main()")
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 2
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=60)
    assert parent.returncode == -signal.SIGINT
    assert errors.count("Traceback") == 1, "the processes say nothing"
    for _ in range(100):
        if not any(Path(f"/proc/{pid}").exists() for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError("a process is left")


def test_processes_end_with_a_killed_parent(tmp_path: Path) -> None:
    parent = script(tmp_path, "if __name__ == '__main__': main()")
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    parent.kill()
    parent.communicate(timeout=60)
    for _ in range(200):
        if all(_has_ended(pid) for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError("a process is left")


def _has_ended(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z"


def test_a_script_without_a_guard_is_told_so(tmp_path: Path) -> None:
    _, errors = script(tmp_path, "main()").communicate(timeout=120)
    assert "WorkerError" in errors
    assert "if __name__ == '__main__'" in errors.splitlines()[-1]
