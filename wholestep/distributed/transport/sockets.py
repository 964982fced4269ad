"""Transport of ranks that `wholestep launch` or Ray has started: shared memory or authenticated sockets."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wholestep.distributed.launch import rendezvous
from wholestep.distributed.launch.authentication import Address, Channel, Listener, connect
from wholestep.distributed.transport import native
from wholestep.distributed.transport.process_group import machine
from wholestep.errors import WorkerError

log = logging.getLogger("wholestep")

KEY = 16  # bytes of a key for the authentication tags of frames
# Detects a machine that is switched off: after 60 seconds of silence, six probes within 60 seconds.
KEEP_ALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 6))


@dataclass(frozen=True)
class Meeting:
    """The data with which a rank joins its job."""

    address: Address  # address of the rendezvous
    secret: bytes
    node: str  # the launcher's name of this machine: only ranks with the same name share memory


class SocketTransport:
    """The ranks of a job, or some of them.

    Args:
        rank, size: this rank, and the number of all ranks.
        meeting: the rendezvous of the ranks.
        timeout: seconds to wait for the others.
    """

    engine = "sockets"

    def __init__(self, rank: int, size: int, meeting: Meeting, timeout: float) -> None:
        self.rank, self.size, self._meeting, self._timeout = rank, size, meeting, timeout
        self._channel = rendezvous.join(meeting.address, meeting.secret, rank, timeout)
        self._host = self._channel.connection.getsockname()[0]
        self._mesh: int | None = None  # handle of group_sockets.c
        self._subsets = 0
        self.members: Sequence[int] = range(size)
        self._windows: list[mmap.mmap] = []

    def subset(self, members: Sequence[int]) -> Subset:
        """The transport of some ranks, this one included.  All ranks call it, each for its own subset."""
        self._subsets += 1
        return Subset(self, members, self._subsets)

    def gather(self, data: bytes) -> list[bytes]:
        """All-gather bytes through the rendezvous."""
        try:
            return rendezvous.gather(self._channel, data)
        except TimeoutError as error:
            raise WorkerError(
                f"not all of the {self.size} ranks have joined within {self._timeout:g} s: one of them has not come so "
                "far, or hangs. Look at what each printed last, or wait longer: ws.Workers(timeout=...)."
            ) from error
        except OSError as error:
            raise WorkerError(
                f"the rendezvous of the {self.size} ranks ended before all had joined: one of them is gone, or the "
                "launcher. Look at what each printed last."
            ) from error

    def windows(self, size: int) -> list[int] | None:
        """Addresses of `size` zeroed bytes of shared memory for each rank; None if ranks are on several machines."""
        return self._map(self.members, size)

    def messages(self) -> native.Messages:
        """Native functions that send and receive messages among all ranks."""
        return self._messages_of(self.members, 0)

    def leave(self, missed: tuple[int, int] | None) -> None:
        """Tell the others that this rank leaves, and why: an error number, and the rank that it lost."""
        if self._mesh is not None:
            reason = 0 if missed is None else missed[0] | (missed[1] + 1) << 8
            native.sockets().ws_sockets_leave(self._mesh, reason)

    def end_together(self, seconds: float, is_one_gone: Callable[[], bool]) -> bool:
        """Does nothing: the others keep the shared memory, and sockets deliver what a process has sent."""
        return True

    # -- memory ------------------------------------------------------------------------------------------------------

    def _map(self, members: Sequence[int], size: int) -> list[int] | None:
        """The shared memory of members.  Ranks of several machines call it, too, since it gathers over all ranks."""
        window = os.memfd_create("wholestep-window")  # an anonymous file, freed with the last process that maps it
        os.ftruncate(window, size)
        places = self.gather(f"{self._meeting.node} {machine()}\n{os.getpid()} {window}".encode())
        nodes, files = zip(*(place.decode().split("\n") for place in places), strict=True)
        is_one_machine = len({nodes[rank] for rank in members}) == 1
        mapped, problem = list[mmap.mmap](), ""
        try:
            for rank in members if is_one_machine else ():
                mapped.append(_map_window(files[rank], size))
        except OSError as error:
            problem = f"rank {self.rank}: {error}"
        problems = [text.decode() for text in self.gather(problem.encode()) if text]
        os.close(window)
        if problems and self.rank == 0:
            log.warning("ranks cannot map each other's memory and send messages, which are slower (%s)", problems[0])
        if problems or not is_one_machine:
            return None
        self._windows += mapped
        return [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in mapped]

    # -- messages ----------------------------------------------------------------------------------------------------

    def _messages_of(self, members: Sequence[int], number: int) -> native.Messages:
        self._mesh = self._mesh or self._connect()
        library = native.sockets()
        group = library.ws_sockets_group(self._mesh, number, (ctypes.c_int * len(members))(*members), len(members))
        if not group:
            raise MemoryError("no memory for a group of ranks")
        named = {name: getattr(library, f"ws_sockets_{name}") for name in ("isend", "irecv", "test")}
        return native.Messages(
            **{name: ctypes.cast(call, ctypes.c_void_p).value for name, call in named.items()}, comm=group
        )

    def _connect(self) -> int:
        """Connect to all lower ranks, then accept all higher ones: this order cannot deadlock."""
        channels, is_highest = dict[int, Channel](), self.rank == self.size - 1
        listener = None if is_highest else Listener(self._host, self._meeting.secret, _server(self.rank), self.size)
        try:
            host, port = ("", 0) if listener is None else listener.address
            places = [text.decode().rsplit(" ", 1) for text in self.gather(f"{host} {port}".encode())]
            for rank in range(self.rank):
                address = places[rank][0], int(places[rank][1])
                channels[rank] = connect(address, self._meeting.secret, _server(rank), self.rank, self._timeout)
            if listener is not None:
                self._accept(listener, channels)
        finally:
            if listener is not None:
                listener.close()
        return _open_mesh([channels.get(rank) for rank in range(self.size)])

    def _accept(self, listener: Listener, channels: dict[int, Channel]) -> None:
        deadline = time.monotonic() + self._timeout
        for rank, channel in listener.accept(lambda: len(channels) < self.size - 1 and time.monotonic() < deadline):
            if self.rank < rank < self.size and rank not in channels:
                channels[rank] = channel
            else:
                channel.close()
        missing = next((rank for rank in range(self.rank + 1, self.size) if rank not in channels), None)
        if missing is not None:
            raise WorkerError(
                f"rank {missing} of {self.size} did not connect to rank {self.rank} at {listener.address[0]} within "
                f"{self._timeout:g} s. Can its machine reach that address, or does a firewall keep it from it?",
                missing,
            )


class Subset:
    """The transport between some ranks of a job."""

    engine = SocketTransport.engine

    def __init__(self, of: SocketTransport, members: Sequence[int], number: int) -> None:
        self._of, self.members, self._number = of, members, number
        self.rank, self.size = members.index(of.rank), len(members)

    def gather(self, data: bytes) -> list[bytes]:
        """The bytes of these ranks; all ranks of the job call it."""
        messages = self._of.gather(data)
        return [messages[rank] for rank in self.members]

    def windows(self, size: int) -> list[int] | None:
        """The shared memory of these ranks; all ranks of the job call it."""
        return self._of._map(self.members, size)

    def messages(self) -> native.Messages:
        """Native functions that send and receive messages among these ranks."""
        return self._of._messages_of(self.members, self._number)

    def subset(self, members: Sequence[int]) -> Subset:
        """The transport of some ranks of the job."""
        return self._of.subset(members)

    def leave(self, missed: tuple[int, int] | None) -> None:
        """Nothing to do: the group of all ranks closes the connections."""

    def end_together(self, seconds: float, is_one_gone: Callable[[], bool]) -> bool:
        """Does nothing, as for the group of all ranks."""
        return True


def _server(rank: int) -> str:
    return f"rank {rank}"


def _map_window(place: str, size: int) -> mmap.mmap:
    """Map the shared memory of a rank, by its process number and file descriptor."""
    pid, file = map(int, place.split())
    opened = os.open(f"/proc/{pid}/fd/{file}", os.O_RDWR | os.O_CLOEXEC)
    try:
        if os.fstat(opened).st_size != size:
            raise OSError(f"/proc/{pid}/fd/{file} is not the window of a rank")
        return mmap.mmap(opened, size)
    finally:
        os.close(opened)


def _open_mesh(channels: Sequence[Channel | None]) -> int:
    """Hand the connections to native code, which uses them alone from then on."""
    files, keys = list[int](), bytearray()
    for channel in channels:
        if channel is None:  # this rank
            files.append(-1)
            keys += bytes(2 * KEY)
            continue
        connection = channel.connection
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEP_ALIVE:
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        files.append(connection.detach())
        keys += channel.sending[:KEY] + channel.receiving[:KEY]
    words = (ctypes.c_uint64 * (len(keys) // 8)).from_buffer(keys)
    mesh: int | None = native.sockets().ws_sockets_open(len(files), (ctypes.c_int * len(files))(*files), words)
    if not mesh:
        raise MemoryError("no memory for the connections of a rank")
    return mesh
