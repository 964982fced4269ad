"""Where the ranks of a job meet: a thread of the launcher, which all of them connect to, hands their messages around.

It listens until every rank has joined, and reads from processes alone that know the job's secret.  Ranks use it to
agree how they exchange data (`transport/sockets.py`), not to exchange it.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from typing import Self

from wholestep.distributed.launch.authentication import Address, Channel, Listener, connect

SERVER = "rendezvous"
LOOPBACK = "127.0.0.1"
LENGTH = struct.Struct("!I")


class Rendezvous:
    """The server.  Inside of its context ranks can join.

    Args:
        count: of ranks.
        secret: that they know.
        hosts: the addresses to listen on, one for each network that ranks come from.
    """

    def __init__(self, count: int, secret: bytes, hosts: Sequence[str] = (LOOPBACK,)) -> None:
        self.count, self._secret = count, secret
        self._listeners = {host: Listener(host, secret, SERVER, count) for host in dict.fromkeys(hosts)}
        self._channels: dict[int, Channel] = {}
        self._closing = threading.Event()
        self._joining = threading.Lock()
        self._threads = [threading.Thread(target=self._accept, args=(each,)) for each in self._listeners.values()]

    def address(self, host: str = LOOPBACK) -> Address:
        """Where ranks connect to that reach this machine by one of its addresses."""
        return self._listeners[host].address

    def open(self) -> None:
        """Let ranks join."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End it, under whoever has not met."""
        self._closing.set()
        for channel in list(self._channels.values()):
            channel.shut()
        for thread in self._threads:
            thread.join()
        for channel in self._channels.values():
            channel.close()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _accept(self, listener: Listener) -> None:
        """Let ranks join; whoever sees the last one join hands messages around."""
        for rank, channel in listener.accept(lambda: not self._closing.is_set() and len(self._channels) < self.count):
            with self._joining:
                if rank >= self.count or rank in self._channels:
                    channel.close()
                    continue
                self._channels[rank] = channel
                is_last = len(self._channels) == self.count
            if is_last:
                listener.close()
                self._serve()
                return
        listener.close()

    def _serve(self) -> None:
        """One message of every rank, then all of them to every rank; until a rank ends."""
        channels = [self._channels[rank] for rank in range(self.count)]
        try:
            while not self._closing.is_set():
                messages = [channel.receive() for channel in channels]
                reply = b"".join(LENGTH.pack(len(message)) + message for message in messages)
                for channel in channels:
                    channel.send(reply)
        except OSError:  # a rank has ended: those that wait for it hear of it
            for channel in channels:
                channel.shut()


def join(address: Address, secret: bytes, rank: int, timeout: float) -> Channel:
    """A rank's connection to the server."""
    channel = connect(address, secret, SERVER, rank, timeout)
    channel.connection.settimeout(timeout)
    return channel


def gather(channel: Channel, data: bytes) -> list[bytes]:
    """The messages of all ranks, by rank; all of them call it."""
    channel.send(data)
    reply, messages, at = channel.receive(), list[bytes](), 0
    while at < len(reply):
        (length,) = LENGTH.unpack_from(reply, at)
        messages.append(reply[at + LENGTH.size : at + LENGTH.size + length])
        at += LENGTH.size + length
    return messages
