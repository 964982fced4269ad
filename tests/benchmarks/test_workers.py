"""The comparison of ranks with one process: its arithmetic, and the protocol with several processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import workers
from benchmarks.cases import CASES
from benchmarks.frameworks import OURS, OURS_RANKS, PEERS
from benchmarks.harness import Measurements

CASE = CASES["bigmlp"]
(CELL,) = CASE.cells


def test_ratios_are_medians_within_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "predicted", lambda case, ranks: {"step_us": float(ranks)})
    times = {OURS: [80.0, 70.0, 900.0], OURS_RANKS: [100.0, 100.0, 1000.0], "torch_ddp": [150.0, 300.0, 2000.0]}
    found = workers.summary(CASE, Measurements("bigmlp", {name: {CELL.name: t} for name, t in times.items()}))
    assert found["of_one_process"] == 0.8
    assert found["ahead_of"] == {"torch_ddp": 2.0}
    assert (found["target"], found["least"]) == (0.7, 0.55)
    assert found["predicted"][4] == {"step_us": 4.0}


def test_what_is_asked_of_ranks_is_in_the_goals_and_they_are_no_peers_of_one_process() -> None:
    assert {name: (g.target, g.least) for name, g in workers.GOALS.items()} == {
        "gpt": (0.9, 0.8),
        "bigmlp": (0.7, 0.55),
    }
    assert not {OURS_RANKS, *workers.PEERS} & set(PEERS)


def test_descendants_are_found() -> None:
    child = subprocess.Popen(["sh", "-c", "sleep 60 & wait"])
    try:
        while len(found := workers.descendants(child.pid)) < 2:
            pass
        assert found[0] == child.pid
    finally:
        subprocess.run(["kill", *map(str, workers.descendants(child.pid)[::-1])], check=True)
        child.wait()


# A rank that answers with what it was asked, and writes it down.
RANK = """
import sys, json, os, pathlib
rank = int(os.environ["RANK"])
folder = pathlib.Path(sys.argv[sys.argv.index("--requests") + 1])
source = (folder / str(rank)).open() if rank else sys.stdin
for line in source:
    (folder / f"heard-{rank}").open("a").write(line)
    if rank == 0:
        print(json.dumps({"heard": json.loads(line)["do"]}), flush=True)
"""


def wait_for_lines(path: Path, count: int) -> str:
    """The text of a file that another process writes."""
    deadline = time.monotonic() + 60
    while (text := path.read_text() if path.exists() else "").count("\n") < count:
        assert time.monotonic() < deadline, f"{path.name}: {text}"
        time.sleep(0.01)
    return text


def test_every_rank_hears_every_request_and_the_first_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    start = subprocess.Popen

    def redirected(command: list[str], **how: object) -> subprocess.Popen[str]:
        at = command.index("benchmarks.rank_worker")
        return start([sys.executable, str(script), *command[at + 1 :]], **how)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(subprocess, "Popen", redirected)
    ranked = workers.Ranked("torch_ddp", "gpt", tmp_path, ranks=3)
    try:
        assert [ranked.ask(do)["heard"] for do in ("start", "measure")] == ["start", "measure"]
        assert ranked.cpu_seconds() > 0
        heard = [wait_for_lines(tmp_path / "torch_ddp-gpt" / f"heard-{rank}", 2) for rank in range(3)]
    finally:
        ranked.close()
    assert heard[0] == heard[1] == heard[2] != ""
