"""`ws.Workers(engine="ray")`: what it refuses, what it shows; with Ray (long), runs on its workers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import wholestep as ws
from tests.distributed.support.hosts import ADDRESSES, Hosts, reason_against, two_hosts
from tests.distributed.support.ranks import ROOT, SCRIPTS
from wholestep.distributed.launch import ray
from wholestep.errors import UsageError


def workers(folder: Path) -> ws.Workers:
    return ws.Workers(2, engine="ray", checkpoint=folder)


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"needs ray, which is not installed: pip install 'wholestep\[ray\]'"):
        ray.run_on_ray(workers(tmp_path))


def test_a_number_of_workers_and_a_folder_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "find_spec", lambda name: True)
    with pytest.raises(UsageError, match=r"needs the number of workers: ws.Workers\(4, engine='ray', ...\)"):
        ray.this_program(ws.Workers(engine="ray", checkpoint="runs/a"))
    with pytest.raises(UsageError, match=r"a folder that all machines see, ws.Workers\(4, .*checkpoint='runs/a'\)"):
        ray.this_program(ws.Workers(2, engine="ray"))


def test_a_program_without_a_script_is_refused(tmp_path: Path) -> None:
    said = (
        "import wholestep as ws; from wholestep.distributed.launch import ray; ray.find_spec = lambda name: True; "
        "ray.this_program(ws.Workers(2, engine='ray', checkpoint='a'))"
    )
    done = subprocess.run([sys.executable, "-c", said], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "starts this program's script again on every worker, but it has no file" in done.stderr


def test_ranks_are_started_as_this_program_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray, "find_spec", lambda name: True)
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--width", "3"])
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "train.py", raising=False)
    monkeypatch.chdir(tmp_path)
    program = ray.this_program(ws.Workers(2, engine="ray", checkpoint="runs/a", restarts=3))
    assert program.command == (sys.executable, "train.py", "--width", "3")
    assert (program.folder, program.restarts) == (str(tmp_path), 3)
    assert program.logs == str(tmp_path / "runs" / "a" / "ray")


def test_what_ranks_write_is_shown_line_by_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = ray.log_of(tmp_path, 0), ray.log_of(tmp_path, 1)
    first.write_text("of an earlier run\n")
    with ray.show_rank_output(tmp_path):
        with first.open("a") as file:
            file.write("epoch 1\nepo")
        second.write_text("a warning\n")
        with first.open("a") as file:
            file.write("ch 2\n")
    shown = capsys.readouterr().out.splitlines()
    assert sorted(shown) == ["[1] a warning", "epoch 1", "epoch 2"]


# -- with Ray --------------------------------------------------------------------------------------------------------

SCRIPT = str(SCRIPTS / "on_ray.py")
SECONDS = 400  # a run takes 15 on an idle machine


def need_ray() -> None:
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'wholestep[ray]'")


def train(how: str, folder: Path, before: tuple[str, ...] = (), **variables: str) -> tuple[str, bytes]:
    """What a run said, and its weights."""
    weights = folder / f"{how}.safetensors"
    done = subprocess.run(
        [*before, sys.executable, SCRIPT, how, str(folder / how), str(weights)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, weights.read_bytes()


def after_fit(said: str) -> list[str]:
    return [line for line in said.splitlines() if "after fit" in line]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    return train("shards", tmp_path_factory.mktemp("shards"))


@pytest.mark.long
def test_workers_of_ray_train_to_the_bits_of_shards(expected: tuple[str, bytes], tmp_path: Path) -> None:
    need_ray()
    said, weights = train("whole", tmp_path)
    assert weights == expected[1]
    assert after_fit(said) == after_fit(expected[0])  # once: scripts of workers end with fit
    assert "starting again" not in said


@pytest.mark.long
@pytest.mark.parametrize("lost", ["rank", "worker"])
def test_a_lost_worker_is_started_again_and_the_run_ends_with_the_same_bits(
    expected: tuple[str, bytes], tmp_path: Path, lost: str
) -> None:
    need_ray()
    said, weights = train(lost, tmp_path)
    assert "starting again from the last checkpoint (1 of 2 restarts)" in said
    assert weights == expected[1]
    assert after_fit(said) == after_fit(expected[0])


@pytest.mark.long
def test_a_mistake_of_the_script_is_told_and_not_tried_again(tmp_path: Path) -> None:
    need_ray()
    with pytest.raises(AssertionError, match=r"WorkerError: the run failed on Ray's workers: rank \d of 2 ended with"):
        train("error", tmp_path)
    said = "".join(path.read_text() for path in (tmp_path / "error" / "ray").glob("rank-*.log"))
    assert said.count("ValueError: a mistake of the script") <= 2  # of each rank, once
    assert "starting again" not in said


@pytest.mark.long
def test_two_nodes_of_a_cluster_train_to_the_same_bits(expected: tuple[str, bytes], tmp_path: Path) -> None:
    """Two machines that are namespaces of this one, a rank on each; one is killed on the way."""
    need_ray()
    if reason := reason_against():
        pytest.skip(reason)
    with two_hosts(tmp_path) as hosts, cluster(hosts, tmp_path) as address:
        before = hosts.sent()
        inside = ("ip", "netns", "exec", hosts.names[0])
        said, weights = train("rank", tmp_path, inside, RAY_ADDRESS=address)
        crossed = hosts.sent() - before
    assert weights == expected[1]
    assert "starting again" in said
    steps, parameters = 3 * 29, 64 * 32 + 32 + 32 * 10 + 10
    assert crossed > steps * 4 * parameters


@contextmanager
def cluster(hosts: Hosts, folder: Path) -> Iterator[str]:
    """A node of Ray on each machine; the address of the first."""
    program, port = str(Path(sys.executable).with_name("ray")), "6390"
    own_files = tempfile.mkdtemp(prefix="ws-ray-", dir="/tmp")  # sockets have short names; others look in /tmp/ray
    address = f"{ADDRESSES[0]}:{port}"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "token"}
    subprocess.run([program, "get-auth-token", "--generate"], env=variables, capture_output=True, check=False)
    joining = (("--head", f"--port={port}", f"--temp-dir={own_files}"), (f"--address={address}",))
    nodes = []
    try:
        for name, own, how in zip(hosts.names, ADDRESSES, joining, strict=True):
            command = [
                "ip",
                "netns",
                "exec",
                name,
                program,
                "start",
                "--block",
                "--num-cpus=1",
                f"--node-ip-address={own}",
            ]
            with (folder / f"{own}.log").open("wb") as log:
                nodes.append(subprocess.Popen([*command, *how], env=variables, stdout=log, stderr=log))
            waited = time.monotonic() + SECONDS
            while "Ray runtime started" not in (folder / f"{own}.log").read_text():
                assert time.monotonic() < waited, (folder / f"{own}.log").read_text()
                time.sleep(0.2)
        yield address
    finally:
        for node in nodes[::-1]:
            node.terminate()
            node.wait()
        shutil.rmtree(own_files, ignore_errors=True)
