"""Ranks on two machines that are namespaces of this one, and the bytes that went over the cable."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.distributed.support.hosts import ADDRESSES, Hosts, reason_against, two_hosts
from tests.distributed.support.ranks import SCRIPTS, run
from tests.distributed.support.training import trained


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if reason := reason_against():
        pytest.skip(reason)
    with two_hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def run_on(hosts: Hosts, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`wholestep launch -n 2 --hosts ... script`, run on the first of them."""
    path = os.fspath(SCRIPTS / script)
    launch = [sys.executable, "-m", "wholestep.cli", "launch", "-n", "2", "--hosts", ",".join(ADDRESSES), path]
    return run(["ip", "netns", "exec", hosts.names[0], *launch, *arguments], hosts.variables)


def launch_on(hosts: Hosts, script: str, *arguments: str) -> str:
    """What a job that ends well wrote."""
    done = run_on(hosts, script, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_rank_that_is_lost_on_the_other_machine_is_named(hosts: Hosts) -> None:
    done = run_on(hosts, "job.py", "killed")
    assert done.returncode == 137, done.stdout + done.stderr
    told = r"wholestep: rank 1 of 2 \(process \d+ on \S+\) was killed by SIGKILL; it was last heard of at step 0"
    assert re.fullmatch(told, done.stderr.splitlines()[-1]), done.stderr


def test_workers_on_two_machines_train_to_the_bits_of_shards(hosts: Hosts) -> None:
    before = hosts.sent()
    said = launch_on(hosts, "../support/training.py", "digits")
    first = next(line for line in said.splitlines() if line.startswith("{"))
    assert json.loads(first) == {"digits": trained("digits", shards=2)}
    steps, parameters = 2 * 11, 64 * 32 + 32 + 32 * 10 + 10
    assert hosts.sent() - before >= steps * 4 * parameters  # half of the gradients, and half of their sums


def test_sums_over_a_cable_have_the_bits_of_the_tree_and_its_bytes(hosts: Hosts) -> None:
    before = hosts.sent()
    said = launch_on(hosts, "exchange.py").split()
    sent = int(said[said.index("sent") + 1])
    assert sent == 4 * 4 * (1 << 20)  # 4 sums of 4 MiB, 2 (n - 1) / n of each
    assert sent <= hosts.sent() - before <= 1.1 * sent + 200_000  # and headers; and what it takes to start
