"""Which ports the processes of a job listen on, as a port scan of the machine would find them."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

LISTENS = "0A"  # in /proc/net/tcp


def below(process: int) -> Iterator[int]:
    """The processes that one has started, and theirs."""
    for file in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # it may be gone by now
            for pid in map(int, file.read_text().split()):
                yield pid
                yield from below(pid)


def listening(process: int) -> set[tuple[str, int]]:
    """Addresses and ports that a process, and those below it, listen on."""
    return {address for pid in (process, *below(process)) for address in _of_one(pid)}


def _of_one(pid: int) -> set[tuple[str, int]]:
    own = set()
    with suppress(OSError):
        for file in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                own.add(str(file.readlink()))
    found = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == LISTENS and f"socket:[{words[9]}]" in own:
                    found.add(_address(words[1]))
    return found


def _address(text: str) -> tuple[str, int]:
    host, port = text.split(":")
    words = b"".join(bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8))  # of this machine's order
    family = socket.AF_INET if len(words) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, words), int(port, 16)
