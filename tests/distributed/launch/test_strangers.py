"""Strangers at the ports of a job: which ports there are, and that nobody joins, or disturbs, without the secret."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.distributed.scripts import gated
from tests.distributed.support.hosts import ADDRESSES, reason_against, two_hosts
from tests.distributed.support.ports import below, listening
from tests.distributed.support.ranks import ROOT
from wholestep.distributed.launch.authentication import GREETING, HELLO, RANDOM, RANK, TAG, _Proof, new_secret
from wholestep.distributed.launch.rendezvous import Rendezvous
from wholestep.options import rank_variables

SECONDS = 60.0
ONE_MACHINE, HOSTS = (), ("--hosts", "localhost,127.0.0.1")  # the second: two names, so that ranks send messages
Address = tuple[str, int]


@pytest.fixture(scope="module")
def undisturbed() -> str:
    return gated.train(shards=2)


@contextmanager
def job(
    folder: Path, stage: str, *options: str, before: Sequence[str] = (), **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """`wholestep launch -n 2` under way, its ranks waiting in a stage."""
    launch = [sys.executable, "-m", "wholestep.cli", "launch", "-n", "2", *options]
    command = [*before, *launch, gated.__file__, str(folder), stage]
    variables = {**os.environ, "PYTHONPATH": os.fspath(ROOT), **environment}
    with subprocess.Popen(
        command, cwd=ROOT, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as launcher:
        try:
            wait_until(lambda: (folder / f"{stage}-1").exists() or launcher.poll() is not None)
            assert launcher.poll() is None, launcher.communicate()
            yield launcher
        finally:
            for pid in below(launcher.pid) if launcher.poll() is None else ():
                os.kill(pid, signal.SIGKILL)
            launcher.kill()


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_true():
        assert time.monotonic() < deadline, "it did not come so far"
        time.sleep(0.01)


# -- what strangers do: each returns an open connection --------------------------------------------------------------


def garbage(address: Address, secret: bytes) -> socket.socket:
    return sends(address, os.urandom(4096))


def web_request(address: Address, secret: bytes) -> socket.socket:
    return sends(address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")


def pmi_abort(address: Address, secret: bytes) -> socket.socket:
    """What ends a job of MPICH's launcher."""
    return sends(address, b"cmd=initack pmiid=0\ncmd=abort exitcode=1\n")


def hello_without_secret(address: Address, secret: bytes) -> socket.socket:
    return sends(address, GREETING + RANK.pack(1) + os.urandom(RANDOM + TAG))


def hello_of_another_job(address: Address, secret: bytes) -> socket.socket:
    return answers(address, new_secret())


def replayed_hello(address: Address, secret: bytes) -> socket.socket:
    """A hello that was right on an earlier connection, whose random bytes of the server were others."""
    proof = _Proof(secret, (b"rendezvous", RANK.pack(1), os.urandom(RANDOM), bytes(RANDOM)))
    return sends(address, GREETING + RANK.pack(1) + bytes(RANDOM) + proof.of(b"client"))


def reflected_proof(address: Address, secret: bytes) -> socket.socket:
    """The server's own random bytes and nothing else that it does not know."""
    connection = socket.create_connection(address, SECONDS)
    greeting = connection.recv(len(GREETING) + RANDOM)
    connection.sendall(GREETING + RANK.pack(1) + greeting[-RANDOM:] + greeting[-TAG:])
    return connection


def half_a_hello(address: Address, secret: bytes) -> socket.socket:
    return sends(address, (GREETING + RANK.pack(1) + bytes(RANDOM + TAG))[: HELLO // 2])


def silence(address: Address, secret: bytes) -> socket.socket:
    return socket.create_connection(address, SECONDS)


def sends(address: Address, data: bytes) -> socket.socket:
    connection = socket.create_connection(address, SECONDS)
    connection.sendall(data)
    return connection


def answers(address: Address, secret: bytes, server: bytes = b"rendezvous") -> socket.socket:
    """A hello as a rank sends it, under a secret."""
    connection = socket.create_connection(address, SECONDS)
    greeting = connection.recv(len(GREETING) + RANDOM)
    proof = _Proof(secret, (server, RANK.pack(1), greeting[len(GREETING) :], bytes(RANDOM)))
    connection.sendall(GREETING + RANK.pack(1) + bytes(RANDOM) + proof.of(b"client"))
    return connection


REFUSED_AT_ONCE = (
    garbage,
    web_request,
    pmi_abort,
    hello_without_secret,
    hello_of_another_job,
    replayed_hello,
    reflected_proof,
)
STALLED = (half_a_hello, silence)


def secret_of(launcher: subprocess.Popen[str]) -> bytes:
    """As an attacker who has seen everything of a connection but the secret cannot read it: for replays alone."""
    for pid in below(launcher.pid):
        for line in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if line.startswith(b"WHOLESTEP_SECRET="):
                return bytes.fromhex(line.partition(b"=")[2].decode())
    raise AssertionError("no rank runs")


def answer_to(connection: socket.socket) -> bytes:
    """All that the other end says until it closes."""
    connection.settimeout(SECONDS)
    said = b""
    try:
        while part := connection.recv(4096):
            said += part
    except ConnectionResetError:
        pass
    return said


def attack(addresses: set[Address], secret: bytes) -> list[socket.socket]:
    """Everything at every port; connections that stall are left open."""
    stalled = []
    for address in addresses:
        for stranger in REFUSED_AT_ONCE:
            with stranger(address, secret) as connection:
                said = answer_to(connection)
                assert len(said) <= len(GREETING) + RANDOM, f"{stranger.__name__} was answered"
        stalled += [stranger(address, secret) for _ in range(40) for stranger in STALLED]  # more than may be pending
    return stalled


@pytest.mark.parametrize("options", [ONE_MACHINE, HOSTS], ids=["one machine", "hosts"])
@pytest.mark.parametrize("stage", ["before", "joining", "connecting", "training", "after"])
def test_strangers_are_refused_at_every_stage_and_the_run_has_the_same_bits(
    stage: str, options: tuple[str, ...], tmp_path: Path, undisturbed: str
) -> None:
    if stage == "connecting" and not options:
        pytest.skip("ranks of one machine share memory and do not connect to each other")
    with job(tmp_path, stage, *options) as launcher:
        ports = listening(launcher.pid)
        assert {host for host, _ in ports} <= {"127.0.0.1"}, "on one machine ports are on loopback"
        expected = 1 if stage in ("before", "joining", "connecting") else 0  # the rendezvous; then rank 0
        assert len(ports) == expected, f"{stage}: {ports}"
        stalled = attack(ports, secret_of(launcher))
        assert listening(launcher.pid) == ports
        (tmp_path / "go").touch()
        output, errors = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 0, output + errors
    for connection in stalled:  # nobody was let in
        assert len(answer_to(connection)) <= len(GREETING) + RANDOM
        connection.close()
    assert [(tmp_path / f"end-{rank}").read_text() for rank in range(2)] == [undisturbed] * 2


ATTACK = """
import ast, sys
from tests.distributed.launch.test_strangers import attack
attack(ast.literal_eval(sys.argv[1]), bytes.fromhex(sys.argv[2]))
print("refused")
"""


@pytest.mark.parametrize("stage", ["before", "connecting", "training"])
def test_between_machines_ports_are_on_one_address_and_the_same_strangers_are_refused(
    stage: str, tmp_path: Path, undisturbed: str
) -> None:
    """Two network namespaces; the strangers come from the second one, over the cable."""
    if reason := reason_against():
        pytest.skip(reason)
    with two_hosts(tmp_path) as hosts:
        inside, options = ("ip", "netns", "exec"), ("--hosts", ",".join(ADDRESSES))
        before = (*inside, hosts.names[0])
        with job(tmp_path, stage, *options, before=before, **hosts.variables) as launcher:
            ports = listening(launcher.pid)
            assert {host for host, _ in ports} == ({ADDRESSES[0]} if stage != "training" else set())
            command = [*inside, hosts.names[1], sys.executable, "-c", ATTACK, repr(ports), secret_of(launcher).hex()]
            variables = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
            done = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.stdout == "refused\n", done.stderr
            (tmp_path / "go").touch()
            output, errors = launcher.communicate(timeout=SECONDS)
    assert launcher.returncode == 0, output + errors
    assert [(tmp_path / f"end-{rank}").read_text() for rank in range(2)] == [undisturbed] * 2


def test_nothing_of_a_job_is_left_in_shared_memory_when_ranks_are_killed(tmp_path: Path) -> None:
    before = set(Path("/dev/shm").iterdir())
    for stage in ("joining", "training"):
        folder = tmp_path / stage
        folder.mkdir()
        with job(folder, stage) as launcher:
            for pid in below(launcher.pid):
                os.kill(pid, signal.SIGKILL)
            assert launcher.wait(SECONDS) == 128 + signal.SIGKILL
    assert {path for path in set(Path("/dev/shm").iterdir()) - before if "mpich" in path.name} == set()


# -- secrets that differ ---------------------------------------------------------------------------------------------

JOIN = "import wholestep as ws; ws.Workers(2, timeout=60).join(); print('joined')"


def start_rank(rank: int, address: Address, secret: bytes, script: str = JOIN) -> subprocess.Popen[str]:
    variables = {**os.environ, "PYTHONPATH": os.fspath(ROOT), "WHOLESTEP_RANKS": "2"}
    variables |= rank_variables(rank, address, secret)
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_rank_with_another_secret_is_told_so_and_the_others_join() -> None:
    secret = new_secret()
    with Rendezvous(2, secret) as rendezvous:
        output, errors = start_rank(1, rendezvous.address(), new_secret()).communicate(timeout=SECONDS)
        assert output == ""
        told = "WorkerError: 127.0.0.1:{}, the rendezvous of the job, refused rank 1: the two have different secrets"
        assert told.format(rendezvous.address()[1]) in errors
        ranks = [start_rank(rank, rendezvous.address(), secret) for rank in range(2)]
        assert [rank.communicate(timeout=SECONDS)[0] for rank in ranks] == ["joined\n"] * 2


def test_a_rank_tells_nothing_to_a_server_that_does_not_know_the_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        rank = start_rank(1, server.getsockname(), new_secret())
        with server.accept()[0] as connection:
            connection.sendall(GREETING + os.urandom(RANDOM))
            assert len(connection.recv(4096)) == HELLO  # its rank and a proof
            connection.sendall(os.urandom(TAG))
            assert connection.recv(4096) == b""
        assert "does not know the secret of this job: it is not its rendezvous" in rank.communicate(timeout=SECONDS)[1]


def test_something_else_that_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        rank = start_rank(1, server.getsockname(), new_secret())
        with server.accept()[0] as connection:
            connection.sendall(b"SSH-2.0-OpenSSH_9.6".ljust(200))
        assert "is not the rendezvous of a job of this version of wholestep" in rank.communicate(timeout=SECONDS)[1]


def test_a_rank_of_a_job_that_is_over_is_told_so() -> None:
    with Rendezvous(2, new_secret()) as rendezvous:
        address = rendezvous.address()
    told = start_rank(1, address, new_secret()).communicate(timeout=SECONDS)[1]
    assert "rank 1 cannot reach 127.0.0.1:" in told
    assert "the job has started without it, or is over" in told


def test_a_rank_whose_peers_do_not_come_says_so() -> None:
    said = (
        "import wholestep as ws; from wholestep.distributed.launch import joining as j; j.JOIN = 1; "
        "ws.Workers(timeout=1).join()"
    )
    secret = new_secret()
    with Rendezvous(2, secret) as rendezvous:
        told = start_rank(0, rendezvous.address(), secret, said).communicate(timeout=SECONDS)[1]
    assert "WorkerError: not all of the 2 ranks have joined within 1 s" in told


def test_the_secret_is_in_no_command_line(tmp_path: Path) -> None:
    with job(tmp_path, "before", *HOSTS) as launcher:
        secret = secret_of(launcher).hex().encode()
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (launcher.pid, *below(launcher.pid))]
        assert len(commands) == 5  # launcher, two agents, two ranks
        assert not any(secret in command for command in commands)
