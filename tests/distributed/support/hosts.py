"""Two machines for tests: network namespaces with a cable between them, which only root may lay."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ADDRESSES = ("10.77.0.1", "10.77.0.2")
AGENT = """#!/bin/sh
# In the place of ssh: agent host command
case "$1" in {address}) there={first};; *) there={second};; esac
shift
exec ip netns exec "$there" sh -c "$*"
"""


@dataclass(frozen=True)
class Hosts:
    """Two namespaces, by name, and what `wholestep launch` is told to reach them and to send over the cable."""

    names: tuple[str, str]
    variables: dict[str, str]

    def sent(self) -> int:
        """Bytes that the first has sent over the cable."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(_ip("netns", "exec", self.names[0], "cat", path))


def reason_against() -> str:
    """Why there can be no namespaces here; "" where there can."""
    if os.geteuid() != 0:
        return "network namespaces are root's"
    if shutil.which("ip") is None:
        return "there is no `ip`"
    name = f"ws-try-{os.getpid()}"
    done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return "" if done.returncode == 0 else f"no network namespace can be made: {done.stderr.strip()}"


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """They are there inside of the context."""
    first, second = names = (f"ws-a-{os.getpid()}", f"ws-b-{os.getpid()}")
    try:
        for name in names:
            _ip("netns", "add", name)
        _ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for name, address in zip(names, ADDRESSES):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "link", "set", "lo", "up")
        for name in names:
            _wait_for_cable(name)
        agent = folder / "agent"
        agent.write_text(AGENT.format(address=ADDRESSES[0], first=first, second=second))
        agent.chmod(0o755)
        yield Hosts(names, {"WHOLESTEP_SSH": os.fspath(agent)})
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _wait_for_cable(name: str) -> None:
    """A link that was set up is there a moment later."""
    for _ in range(3000):
        if "state UP" in _ip("-n", name, "link", "show", "eth0"):
            return
        time.sleep(0.02)
    raise AssertionError(f"the cable of {name} does not come up")


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=True).stdout
