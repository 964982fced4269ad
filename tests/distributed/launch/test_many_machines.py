"""docs/guides/many-machines.md: its scripts and commands, run as they stand where one machine can."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import wholestep as ws
from tests.distributed.support.ranks import ROOT

PAGE = (ROOT / "docs/guides/many-machines.md").read_text()
SCRIPTS: dict[str, str] = dict(re.findall(r"^```text\n# (\w+\.py)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
COMMANDS = [
    line.split("  #")[0].strip()
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]
HERE = (
    "wholestep launch -n 2 train.py",
    "wholestep launch -n 2 train_layers.py",
    "wholestep train experiment.py --workers 2 --folder runs/two",
)
WITH_RAY = ("python train_ray.py", "wholestep train experiment.py --workers 2 --engine ray --folder runs/ray2")
ELSEWHERE = {  # how a command begins: why it is not run
    "pip install": "it changes the environment of the tests",
    "wholestep doctor --workers 2": "tests/distributed/launch/test_launch.py runs it",
    "wholestep launch -n 4 --hosts": "machines that ssh reaches; tests/distributed/launch/test_hosts.py has two",
    "wholestep doctor --workers 2 --hosts": "machines that ssh reaches",
    "srun": "a cluster of Slurm",
    "export RAY_AUTH_MODE": "tests/distributed/launch/test_ray.py makes a cluster of two nodes",
    "ray start": "tests/distributed/launch/test_ray.py makes a cluster of two nodes",
    "RAY_ADDRESS=": "tests/distributed/launch/test_ray.py makes a cluster of two nodes",
}


def test_every_command_is_run_or_has_a_reason() -> None:
    left = [c for c in COMMANDS if c not in (*HERE, *WITH_RAY) and not c.startswith(tuple(ELSEWHERE))]
    assert left == []
    assert set(COMMANDS) >= {*HERE, *WITH_RAY}
    assert all(any(c.startswith(begin) for c in COMMANDS) for begin in ELSEWHERE)
    assert set(SCRIPTS) == {"train.py", "train_layers.py", "experiment.py", "train_ray.py"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = tmp_path_factory.mktemp("guide")
    for name, text in SCRIPTS.items():
        (made / name).write_text(text)
    return made


def run(command: str, folder: Path, seconds: int = 300) -> str:
    program, *words = shlex.split(command)
    started = {"wholestep": [sys.executable, "-m", "wholestep.cli"], "python": [sys.executable]}[program]
    done = subprocess.run(
        [*started, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_of_one_machine_run_and_give_the_bits_of_shards(folder: Path) -> None:
    for command in HERE:
        run(command, folder)
    trained = ws.load_checkpoint(folder / "runs/digits")
    assert trained.position.epoch == 3
    program: dict[str, object] = {}
    exec(
        SCRIPTS["train.py"].replace('checkpoint="runs/digits", workers=ws.Workers(2)', "shards=2, progress=False"),
        program,
    )
    model = program["model"]
    assert isinstance(model, ws.nn.Module)
    for name, array in model.state_dict().items():
        assert (array == trained.arrays[name]).all(), name
    for kept in ("runs/two", "runs/layers"):
        assert ws.load_checkpoint(folder / kept).position.epoch == 3


@pytest.mark.long
@pytest.mark.parametrize("command", WITH_RAY)
def test_commands_with_ray_run(command: str, folder: Path) -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'wholestep[ray]'")
    run(command, folder, seconds=400)
    kept = command.partition("--folder ")[2] or "runs/ray"
    assert ws.load_checkpoint(folder / kept).position.epoch == 3
