"""Rendezvous server: a thread of the launcher to which all ranks connect, and through which they all-gather messages.

It listens until every rank has joined, and accepts only processes that know the job's secret.  Ranks set up their data
transport through it (`transport/sockets.py`); no data passes through it.
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
    """The rendezvous server; ranks can join while its context is open.

    Args:
        count: the number of ranks.
        secret: the secret of the job.
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
        """Host and port for ranks that reach this machine by one of its addresses."""
        return self._listeners[host].address

    def open(self) -> None:
        """Open the sockets and listen."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Close the server and all connections, including connections to ranks that still wait."""
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
        """Accept ranks; the thread that accepts the last one serves all of them."""
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
        """Receive one message of every rank and send all of them to every rank, until a rank ends."""
        channels = [self._channels[rank] for rank in range(self.count)]
        try:
            while not self._closing.is_set():
                messages = [channel.receive() for channel in channels]
                reply = b"".join(LENGTH.pack(len(message)) + message for message in messages)
                for channel in channels:
                    channel.send(reply)
        except OSError:  # a rank has ended: unblock the ranks that wait for it
            for channel in channels:
                channel.shut()


def join(address: Address, secret: bytes, rank: int, timeout: float) -> Channel:
    """Connect a rank to the server."""
    channel = connect(address, secret, SERVER, rank, timeout)
    channel.connection.settimeout(timeout)
    return channel


def gather(channel: Channel, data: bytes) -> list[bytes]:
    """All-gather: the messages of all ranks, by rank; every rank calls it."""
    channel.send(data)
    reply, messages, offset = channel.receive(), list[bytes](), 0
    while offset < len(reply):
        (length,) = LENGTH.unpack_from(reply, offset)
        messages.append(reply[offset + LENGTH.size : offset + LENGTH.size + length])
        offset += LENGTH.size + length
    return messages
