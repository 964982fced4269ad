"""Mutually authenticated connections between processes that share a secret.

Both ends prove that they know the secret before any other byte is read:

    server -> client    GREETING, 32 random bytes
    client -> server    GREETING, its rank, 32 random bytes, HMAC-SHA256 of all of these and of the server's name
    server -> client    HMAC-SHA256 of the same, under another label

A proof covers random bytes of both ends, so none can be replayed; labels differ, so none can be reflected.  Each
direction of the connection has its own key, derived from the same values.  Contents are authenticated, not encrypted.
"""

from __future__ import annotations

import hmac
import logging
import os
import selectors
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from wholestep.errors import WorkerError

log = logging.getLogger("wholestep")

SECRET_BYTES = 32
GREETING = b"wholestep ranks, 1\n"
RANDOM, TAG, RANK = 32, 32, struct.Struct("!I")
HELLO = len(GREETING) + RANK.size + RANDOM + TAG  # bytes of a client's first message
DEADLINE = 10.0  # seconds that a peer has to authenticate
PENDING = 64  # unauthenticated peers at a time; a further one replaces the oldest
ATTEMPTS, PAUSE = 5, 0.2  # attempts of a client whose connection was closed; seconds of the first pause
POLL = 0.1  # seconds between two checks of a listener whether to continue
MAX_MESSAGE = 1 << 26  # bytes of an authenticated message
Address = tuple[str, int]


def new_secret() -> bytes:
    """A secret for one job."""
    return os.urandom(SECRET_BYTES)


def _tag(secret: bytes, label: bytes, *parts: bytes) -> bytes:
    return hmac.digest(secret, b"\0".join([label, *parts]), "sha256")


class Channel:
    """An authenticated connection: messages of bytes, numbered and tagged in each direction."""

    def __init__(self, connection: socket.socket, sending: bytes, receiving: bytes) -> None:
        self.connection, self.sending, self.receiving = connection, sending, receiving
        self._sent = self._received = 0

    def send(self, data: bytes) -> None:
        """Send one message."""
        tag = _tag(self.sending, b"message", RANK.pack(self._sent), data)
        self.connection.sendall(RANK.pack(len(data)) + data + tag)
        self._sent += 1

    def receive(self) -> bytes:
        """The next message; OSError if the connection has ended, or if the bytes are not the peer's next message."""
        (length,) = RANK.unpack(_read(self.connection, RANK.size))
        if length > MAX_MESSAGE:
            raise ConnectionError(f"a message of {length} bytes; expected at most {MAX_MESSAGE}")
        data, tag = _read(self.connection, length), _read(self.connection, TAG)
        if not hmac.compare_digest(tag, _tag(self.receiving, b"message", RANK.pack(self._received), data)):
            raise ConnectionError("a message was altered on its way")
        self._received += 1
        return data

    def shut(self) -> None:
        """Shut the connection down, also if another thread waits for a message."""
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket."""
        self.connection.close()


def _read(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return data


@dataclass
class _Proof:
    """The proofs of both ends that they know the secret, and the keys of their connection."""

    secret: bytes
    parts: tuple[bytes, ...]  # the server's name, the client's rank, random bytes of both

    def of(self, end: bytes) -> bytes:
        return _tag(self.secret, b"proof of the " + end, *self.parts)

    def channel(self, connection: socket.socket, own: bytes, other: bytes) -> Channel:
        keys = {end: _tag(self.secret, b"key of the " + end, *self.parts) for end in (own, other)}
        return Channel(connection, keys[own], keys[other])


# -- the end that connects ---------------------------------------------------------------------------------------------


def connect(address: Address, secret: bytes, server: str, rank: int, timeout: float) -> Channel:
    """An authenticated connection to a listener; WorkerError if there is none, or if it has another secret.

    A server that is flooded by strangers may drop us with them, so a closed connection is retried.
    """
    deadline, place = time.monotonic() + timeout, f"{address[0]}:{address[1]}"
    for attempt in range(ATTEMPTS):
        try:
            return _connect_once(address, secret, server, rank, max(0.1, deadline - time.monotonic()))
        except ConnectionRefusedError as error:
            raise WorkerError(
                f"rank {rank} cannot reach {place}, the {server} of its job: the job has started without it, or is "
                "over. Start all ranks anew."
            ) from error
        except TimeoutError as error:
            raise WorkerError(
                f"rank {rank} got no answer from {place}, the {server} of its job, within {timeout:g} s. Can this "
                "machine reach that address, or does a firewall keep it from it?"
            ) from error
        except ConnectionError:
            time.sleep(PAUSE * attempt)
        except OSError as error:
            raise WorkerError(
                f"rank {rank} cannot reach {place}, the {server} of its job: {error.strerror}."
            ) from error
    raise WorkerError(
        f"{place}, the {server} of the job, refused rank {rank}: the two have different secrets, or a rank of that "
        "number has joined already. Start all ranks by one `wholestep launch`, and let none take WHOLESTEP_SECRET from "
        "another job."
    )


def _connect_once(address: Address, secret: bytes, server: str, rank: int, timeout: float) -> Channel:
    connection = socket.create_connection(address, timeout)
    try:
        greeting = _read(connection, len(GREETING) + RANDOM)
        if not greeting.startswith(GREETING):
            raise WorkerError(
                f"what listens at {address[0]}:{address[1]} is not the {server} of a job of this version of wholestep. "
                "Install the same version on all machines."
            )
        random = os.urandom(RANDOM)
        proof = _Proof(secret, (server.encode(), RANK.pack(rank), greeting[len(GREETING) :], random))
        connection.sendall(GREETING + RANK.pack(rank) + random + proof.of(b"client"))
        if not hmac.compare_digest(_read(connection, TAG), proof.of(b"server")):
            raise WorkerError(
                f"what listens at {address[0]}:{address[1]} does not know the secret of this job: it is not its "
                f"{server}. Rank {rank} has sent it nothing. Start all ranks by one `wholestep launch`."
            )
        return proof.channel(connection, b"client", b"server")
    except BaseException:
        connection.close()
        raise


# -- the end that listens ----------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Pending:
    """A peer that has not authenticated itself yet."""

    connection: socket.socket
    random: bytes
    deadline: float
    data: bytes = b""


@dataclass
class Listener:
    """A listening socket that accepts authenticated connections only; strangers are dropped.

    Args:
        host: the only address to listen on.
        secret: the secret of the job.
        server: the name of this server, which is part of the proofs.
        backlog: the number of expected clients.
    """

    host: str
    secret: bytes
    server: str
    backlog: int
    refused: int = 0  # the number of dropped peers
    _pending: list[_Pending] = field(default_factory=list)

    def __post_init__(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        self._socket = socket.create_server((self.host, 0), family=family, backlog=self.backlog + PENDING)
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)

    @property
    def address(self) -> Address:
        """Host and port for clients."""
        host, port = self._socket.getsockname()[:2]
        return host, port

    def accept(self, goes_on: Callable[[], bool]) -> Iterator[tuple[int, Channel]]:
        """The ranks and their connections in the order of arrival, while `goes_on` returns true."""
        while goes_on():
            for key, _ in self._selector.select(POLL):
                if key.data is None:
                    self._greet()  # it may drop a peer that was selected in the same round
                elif key.data in self._pending and (joined := self._read(key.data)) is not None:
                    yield joined
            for late in [peer for peer in self._pending if time.monotonic() > peer.deadline]:
                self._drop(late)

    def close(self) -> None:
        """Close the socket; no further connections are accepted."""
        for peer in list(self._pending):
            self._forget(peer)
            peer.connection.close()
        self._selector.close()
        self._socket.close()

    def _greet(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:  # the peer is gone, or no file descriptor is free at the moment
            return
        connection.setblocking(False)
        peer = _Pending(connection, os.urandom(RANDOM), time.monotonic() + DEADLINE)
        if len(self._pending) >= PENDING:
            self._drop(self._pending[0])
        self._pending.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        with suppress(OSError):  # it fits into the buffer; the next read notices if the peer is gone
            connection.send(GREETING + peer.random)

    def _read(self, peer: _Pending) -> tuple[int, Channel] | None:
        """The rank and its connection, once its proof is complete and correct."""
        try:
            part = peer.connection.recv(HELLO - len(peer.data))
        except BlockingIOError:
            return None
        except OSError:
            part = b""
        peer.data += part
        if not part or not GREETING.startswith(peer.data[: len(GREETING)]):
            self._drop(peer)
            return None
        if len(peer.data) < HELLO:
            return None
        rank, random, tag = (
            peer.data[len(GREETING) :][:4],
            peer.data[len(GREETING) + 4 :][:RANDOM],
            peer.data[-TAG:],
        )
        proof = _Proof(self.secret, (self.server.encode(), rank, peer.random, random))
        if not hmac.compare_digest(tag, proof.of(b"client")):
            self._drop(peer)
            return None
        self._forget(peer)
        peer.connection.setblocking(True)
        try:
            peer.connection.sendall(proof.of(b"server"))
        except OSError:
            peer.connection.close()
            return None
        return RANK.unpack(rank)[0], proof.channel(peer.connection, b"server", b"client")

    def _forget(self, peer: _Pending) -> None:
        self._selector.unregister(peer.connection)
        self._pending.remove(peer)

    def _drop(self, peer: _Pending) -> None:
        self._forget(peer)
        if not self.refused:
            with suppress(OSError):
                host, port = peer.connection.getpeername()[:2]
                log.warning(
                    "a peer at %s:%s tried to join the job without its secret and was refused; others are not reported",
                    host,
                    port,
                )
        self.refused += 1
        peer.connection.close()
