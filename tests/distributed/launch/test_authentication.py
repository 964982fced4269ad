"""Messages on authenticated connections: what is altered, repeated or forged is not taken, in Python and in C."""

from __future__ import annotations

import ctypes
import errno
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from wholestep.distributed.launch.authentication import GREETING, PENDING, TAG, Channel, Listener, connect, new_secret
from wholestep.distributed.transport import native

HEADER = 32  # bytes of a frame's header in group_sockets.c
FLOATS, INTEGERS = 0x10, 0x13  # what ranks exchange: an all-reduce of float32, of int64


# -- in Python -------------------------------------------------------------------------------------------------------


@pytest.fixture
def secret() -> bytes:
    return new_secret()


def connected(secret: bytes) -> tuple[Channel, Channel]:
    """Both ends of an authenticated connection."""
    listener = Listener("127.0.0.1", secret, "rendezvous", backlog=1)
    ends: list[Channel] = []
    client = threading.Thread(target=lambda: ends.append(connect(listener.address, secret, "rendezvous", 3, 60.0)))
    client.start()
    rank, server = next(listener.accept(lambda: True))
    client.join()
    listener.close()
    assert rank == 3
    return server, ends[0]


def close(*channels: Channel) -> None:
    for channel in channels:
        channel.close()


def test_messages_go_both_ways_under_keys_of_their_own(secret: bytes) -> None:
    server, client = connected(secret)
    for data in (b"", b"one", bytes(100_000)):
        sender = threading.Thread(target=client.send, args=(data,))
        sender.start()
        assert server.receive() == data
        sender.join()
        server.send(data[:9])
        assert client.receive() == data[:9]
    assert (server.sending, server.receiving) == (client.receiving, client.sending)
    assert server.sending != server.receiving
    other = connected(secret)
    assert other[0].sending != server.sending  # of every connection others
    close(server, client, *other)


@pytest.mark.parametrize(
    "changed",
    [
        lambda frames: frames[0][:4] + b"X" + frames[0][5:] + frames[1],  # altered
        lambda frames: frames[0] + frames[0],  # repeated
        lambda frames: frames[1],  # left out
        lambda frames: frames[1] + frames[0],  # in another order
        lambda frames: frames[0] + b"\xff\xff\xff\xff",  # longer than any message
        lambda frames: frames[0] + struct.pack("!I", 6) + b"forged" + bytes(TAG),
    ],
    ids=["altered", "repeated", "left out", "reordered", "endless", "forged"],
)
def test_a_message_that_is_not_the_next_one_of_the_peer_ends_the_connection(
    changed: Callable[[list[bytes]], bytes], secret: bytes
) -> None:
    (ours, theirs), (own, wire) = socket.socketpair(), socket.socketpair()
    sender, receiver = Channel(ours, secret, b""), Channel(own, b"", secret)
    frames = []
    for data in (b"first!", b"second"):
        sender.send(data)
        frames.append(theirs.recv(4096))
    wire.sendall(changed(frames))
    wire.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionError):  # at the latest where the second should be
        list(iter(receiver.receive, b"second"))
    for each in (ours, theirs, own, wire):
        each.close()


def test_a_client_of_another_server_of_the_same_job_is_refused(secret: bytes) -> None:
    """A proof is for one server: what is meant for rank 1 is not taken by rank 2."""
    listener = Listener("127.0.0.1", secret, "rank 2", backlog=1)
    errors: list[str] = []

    def join() -> None:
        try:
            connect(listener.address, secret, "rank 1", 3, 60.0)
        except Exception as error:
            errors.append(str(error))

    client = threading.Thread(target=join)
    client.start()
    assert list(listener.accept(client.is_alive)) == []
    listener.close()
    assert "refused rank 3" in errors[0]


def test_a_flood_keeps_nobody_from_joining(secret: bytes) -> None:
    """A stranger that is dropped for another one, while both wait to be looked at, is looked at no more."""
    listener = Listener("127.0.0.1", secret, "rendezvous", backlog=1)
    strangers = [socket.create_connection(listener.address) for _ in range(PENDING)]
    clients: list[threading.Thread] = []

    def goes_on() -> bool:
        if len(listener._pending) == PENDING and not clients:
            clients.append(
                threading.Thread(target=lambda: connect(listener.address, secret, "rendezvous", 3, 60.0).close())
            )
            strangers.append(socket.create_connection(listener.address))
            for stranger in strangers[:PENDING]:
                stranger.sendall(GREETING)
            clients[0].start()
        return True

    rank, channel = next(listener.accept(goes_on))
    assert rank == 3
    clients[0].join()
    listener.close()
    for each in (channel, *strangers):
        each.close()


# -- in C ------------------------------------------------------------------------------------------------------------


def test_tags_are_those_of_siphash() -> None:
    """The test vector of its paper: bytes 0 to 14 under the key of bytes 0 to 15."""
    data = bytes(range(15))
    key, rest = np.frombuffer(bytes(range(16)), np.uint64), np.frombuffer(data[8:], np.uint8)
    first = int.from_bytes(data[:8], "little")
    assert native.sockets().ws_sockets_tag(key.ctypes.data, first, rest.ctypes.data, 7) == 0xA129CA6149BE45E5


class Pair:
    """Two ranks of one process, and the wire between them in our hands."""

    def __init__(self) -> None:
        self.sockets = [socket.socketpair() for _ in range(2)]  # each: a rank's end, and the end of its wire
        keys = np.arange(8, dtype=np.uint64)  # two of the first rank, two of the second
        self.library, self.groups = native.sockets(), []
        for rank, (own, _) in enumerate(self.sockets):
            files = (ctypes.c_int * 2)(*(-1 if other == rank else own.fileno() for other in range(2)))
            words = np.zeros(8, np.uint64)
            at = 4 * (1 - rank)  # of the connection to the other one: to send, to receive
            words[at : at + 4] = keys[:4] if rank == 0 else np.roll(keys[:4], 2)
            mesh = self.library.ws_sockets_open(2, files, words.ctypes.data)
            self.groups.append(self.library.ws_sockets_group(mesh, 7, (ctypes.c_int * 2)(0, 1), 2))

    def start(self, call: str, rank: int, data: Any, tag: int) -> Any:
        request = ctypes.c_void_p()
        function = getattr(self.library, f"ws_sockets_{call}")
        function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int]
        function.argtypes += [ctypes.c_void_p, ctypes.c_void_p]
        group = self.groups[rank]
        error = function(data.ctypes.data, data.nbytes, None, 1 - rank, tag, group, ctypes.byref(request))
        assert error == 0
        return request

    def test(self, request: Any) -> tuple[int, bool]:
        done = ctypes.c_int()
        return self.library.ws_sockets_test(ctypes.byref(request), ctypes.byref(done), None), bool(done)

    def sent(self, data: Any, tag: int) -> bytes:
        """What rank 0 writes to send an array."""
        self.start("isend", 0, data, tag)
        return self.sockets[0][1].recv(1 << 20)

    def take(self, wire: bytes, data: Any, tag: int) -> tuple[int, bool]:
        """What rank 1 says when that comes for an array."""
        request = self.start("irecv", 1, data, tag)
        self.sockets[1][1].sendall(wire)
        return self.test(request)


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    for ends in made.sockets:
        for end in ends:
            end.close()


@pytest.mark.parametrize("tag", [FLOATS, INTEGERS])
@pytest.mark.parametrize("count", [0, 3, 5000])
def test_frames_arrive_as_they_were_sent(pair: Pair, count: int, tag: int) -> None:
    for value in (1, 2):
        data, to = np.full(count, value, np.int64), np.zeros(count, np.int64)
        wire = pair.sent(data, tag)
        request = pair.start("irecv", 1, to, tag)
        for at in range(0, len(wire), 777):  # in pieces
            assert pair.test(request) == (0, False)
            pair.sockets[1][1].sendall(wire[at : at + 777])
        assert pair.test(request) == (0, True)
        assert np.array_equal(to, data)


def flipped(wire: bytes, at: int) -> bytes:
    return wire[:at] + bytes([wire[at] ^ 1]) + wire[at + 1 :]


@pytest.mark.parametrize("at", [0, 8, 16, 24, HEADER, -9, -1], ids=str)
def test_a_bit_that_was_changed_is_found(pair: Pair, at: int) -> None:
    """Anywhere in a header, in integers, and in their tag."""
    wire = pair.sent(np.arange(900), INTEGERS)
    error, done = pair.take(flipped(wire, at % len(wire)), np.zeros(900, np.int64), INTEGERS)
    assert (error, done) == (-errno.EBADMSG, False)


def test_a_frame_that_is_repeated_is_refused(pair: Pair) -> None:
    wire, to = pair.sent(np.arange(9), INTEGERS), np.zeros(9, np.int64)
    assert pair.take(wire, to, INTEGERS) == (0, True)
    assert pair.take(wire, to, INTEGERS) == (-errno.EBADMSG, False)


@pytest.mark.parametrize(("count", "tag"), [(8, INTEGERS), (9, FLOATS)])
def test_ranks_that_exchange_different_things_are_told_so(pair: Pair, count: int, tag: int) -> None:
    wire = pair.sent(np.arange(9), INTEGERS)
    assert pair.take(wire, np.zeros(count, np.int64), tag) == (-errno.EPROTO, False)


def test_the_end_of_a_connection_is_that_of_its_rank(pair: Pair) -> None:
    request = pair.start("irecv", 1, np.zeros(3), FLOATS)
    pair.sockets[1][1].close()
    assert pair.test(request) == (-errno.EPIPE, False)
