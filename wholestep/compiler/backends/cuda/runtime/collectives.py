"""Collectives on GPUs: transfers between ranks through NCCL, and sums in a fixed order by our kernels.

The tensors of a collective are treated as one concatenated vector, of which each rank owns a part.  An all-reduce is a
reduce-scatter and an all-gather: every rank receives its part from all others, adds it in the order of
`ir/type_rules/collectives.py` and sends the sum to all.  Small vectors are sent whole to everyone, who add them
themselves.  A single rank sends to itself, so that the same code runs.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable
from weakref import WeakSet

from wholestep.compiler.backends.cuda.driver.driver import CudaModule
from wholestep.compiler.backends.cuda.libraries.nccl import Communicator, PeerBytes
from wholestep.compiler.backends.gpu.grids.choose import EXCHANGE_ROOM
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.bodies import Exchange
from wholestep.compiler.plan.model.kernel import Kernel
from wholestep.compiler.runtime.process_group import RankGroup, rows_of_rank
from wholestep.errors import PlanError

if TYPE_CHECKING:
    from wholestep.compiler.backends.gpu.launch_order import Order, Resource

RANKS = "ranks"  # resource: all ranks run their collectives in the same order
LITTLE = 4 << 10  # bytes up to which everyone receives everything, if all ranks' vectors fit into the extra room
ALIGNMENT = 16  # bytes; alignment of the data that one rank sends
MOST_PIECES = 100  # pieces per summing launch: `ws_given<400>` of native/ranks.h
THREADS, MOST_BLOCKS = 256, 1056  # threads per block, and the largest grid


class GraphOwner(Protocol):
    """An object whose captured graphs contain collectives."""

    def forget_graphs(self) -> None:
        """Releases the graphs."""


@runtime_checkable
class GpuProcessGroup(RankGroup, Protocol):
    """A process group with one GPU per rank, seen from one rank."""

    communicator: Communicator
    step: int  # current step, which errors name
    users: WeakSet[GraphOwner]  # owners of graphs, which are released before it closes

    def along(self, axis: str) -> tuple[int, Sequence[int]]:
        """This rank's position along a mesh axis, and the ranks of all positions."""


@dataclass(frozen=True)
class CollectiveOperand:
    """Source and destination addresses of a tensor, and the elements of the smaller one."""

    source: int
    to: int
    count: int


@dataclass(frozen=True)
class TransferGroup:
    """Transfers of one group."""

    sends: list[PeerBytes]
    receives: list[PeerBytes]


@dataclass(frozen=True)
class Sum:
    """Addresses of this rank's elements, of the destination and of the first other rank's elements, and their count."""

    own: int
    to: int
    others: int
    count: int


@dataclass(frozen=True)
class RankSums:
    """Sums over ranks; the elements of consecutive ranks are `apart` elements from each other."""

    sums: list[Sum]
    apart: int
    place: int
    ranks: int


Phase = TransferGroup | RankSums


class CollectivePhases:
    """The phases of a collective on one rank; each depends on the one before."""

    def __init__(
        self, tensors: Sequence[CollectiveOperand], bytes: int, place: int, peers: Sequence[int], room: int
    ) -> None:
        self.tensors, self.size, self.place, self.peers, self.room = tensors, bytes, place, peers, room
        self.ranks = len(peers)
        self.others = [p for p in range(self.ranks) if p != place] or [place]  # a single rank sends to itself
        self.starts = [0, *accumulate(t.count for t in tensors)]

    def all_reduce(self) -> list[Phase]:
        if self.starts[-1] * self.size <= LITTLE and self._fits(self.starts[-1], EXCHANGE_ROOM):
            return self._reduce([(t, 0, start, t.count) for t, start in zip(self.tensors, self.starts, strict=False)])
        parts = [list(self._pieces(*rows_of_rank(self.starts[-1], p, self.ranks))) for p in range(self.ranks)]
        own = parts[self.place]
        phases = self._reduce(own, parts)
        if self.ranks > 1:
            sends = [self._piece(t.to + at * self.size, n, p) for p in self.others for t, at, _, n in own]
            receives = [self._piece(t.to + at * self.size, n, p) for p in self.others for t, at, _, n in parts[p]]
            phases.append(TransferGroup(sends, receives))
        return phases

    def reduce_scatter(self) -> list[Phase]:
        parts = [
            [(t, p * t.count, start, t.count) for t, start in zip(self.tensors, self.starts, strict=False)]
            for p in range(self.ranks)
        ]
        return self._reduce(parts[self.place], parts, scatters=True)

    def all_gather(self) -> list[Phase]:
        everyone, own = range(self.ranks), self.tensors
        sends = [self._piece(t.source, t.count, p) for p in everyone for t in own]
        receives = [self._piece(t.to + p * t.count * self.size, t.count, p) for p in everyone for t in own]
        return [TransferGroup(sends, receives)]

    def broadcast(self) -> list[Phase]:
        receivers = range(self.ranks if self.place == 0 else 0)
        sends = [self._piece(t.source, t.count, p) for p in receivers for t in self.tensors]
        return [TransferGroup(sends, [self._piece(t.to, t.count, 0) for t in self.tensors])]

    def _pieces(self, first: int, count: int) -> Iterator[tuple[CollectiveOperand, int, int, int]]:
        """Pieces of a range of the vector: tensor, first element in it, offset in the range, and count."""
        for tensor, start in zip(self.tensors, self.starts, strict=False):
            low, high = max(first, start), min(first + count, start + tensor.count)
            if low < high:
                yield tensor, low - start, low - first, high - low

    def _reduce(
        self,
        own: Sequence[tuple[CollectiveOperand, int, int, int]],
        parts: Sequence[Sequence[tuple[CollectiveOperand, int, int, int]]] | None = None,
        scatters: bool = False,
    ) -> list[Phase]:
        """Sends every other rank its part, or everything; adds the received copies of this rank's part."""
        count, size = sum(n for *_, n in own), self.size
        apart = self._apart(count)
        sent_parts = parts or [own] * self.ranks
        sends = [self._piece(t.source + at * size, n, p) for p in self.others for t, at, _, n in sent_parts[p]]
        receives = [
            self._piece(self.room + (k * apart + start) * size, n, p)
            for k, p in enumerate(self.others)
            for _, _, start, n in own
        ]
        alone = self.ranks == 1
        sums = [
            Sum(
                self.room + start * size if alone else t.source + at * size,
                t.to + (0 if scatters else at) * size,
                self.room + start * size,
                n,
            )
            for t, at, start, n in own
        ]
        return [TransferGroup(sends, receives), RankSums(sums, apart, self.place, self.ranks)]

    def _apart(self, count: int) -> int:
        return -(-count * self.size // ALIGNMENT) * ALIGNMENT // self.size

    def _fits(self, count: int, bytes: int) -> bool:
        return len(self.others) * self._apart(count) * self.size <= bytes

    def _piece(self, address: int, count: int, place: int) -> PeerBytes:
        return PeerBytes(address, count * self.size, self.peers[place])


def phases_of(collective: str, moves: CollectivePhases) -> list[Phase]:
    """The phases of a collective on one rank, without empty pieces."""
    algorithms: Mapping[str, Callable[[], list[Phase]]] = {
        "all_reduce": moves.all_reduce,
        "reduce_scatter": moves.reduce_scatter,
        "all_gather": moves.all_gather,
        "broadcast": moves.broadcast,
    }
    return [_without_empty_pieces(phase) for phase in algorithms[collective]()]


def _without_empty_pieces(phase: Phase) -> Phase:
    if isinstance(phase, TransferGroup):
        return TransferGroup([p for p in phase.sends if p.bytes], [p for p in phase.receives if p.bytes])
    return RankSums([s for s in phase.sums if s.count], phase.apart, phase.place, phase.ranks)


class Collectives:
    """The collectives of a program along one mesh axis; without a group, results are copies of the operands."""

    def __init__(self, line: GpuProcessGroup | None, code: Callable[[], CudaModule]) -> None:
        self.line, self._code = line, code

    def add(
        self,
        order: Order,
        kernel: Kernel,
        address: Callable[[int], int],
        workspace: tuple[int, str],
        sizes: Mapping[str, int],
        named: Callable[[set[Resource]], set[Resource]],
    ) -> None:
        """Adds a collective to a graph; `workspace` is its address and its resource name."""
        body, (room, room_name) = kernel.body, workspace
        assert isinstance(body, Exchange)
        operands, results = named({x.buffer for x in body.operands}), named({x.buffer for x in body.results})
        for phase in self._phases(body, address, room, sizes):
            if isinstance(phase, RankSums):
                self.add_sums(order, phase, body.dtype.name, {*operands, room_name}, results)
            elif phase.sends or phase.receives:
                assert self.line is not None
                run, sends, receives = self.line.communicator.exchange, phase.sends, phase.receives
                record = _record_transfers(run, sends, receives)
                order.library(record, {*operands}, {RANKS, room_name, *results})

    def _phases(
        self, body: Exchange, address: Callable[[int], int], room: int, sizes: Mapping[str, int]
    ) -> Sequence[Phase]:
        pairs = zip(body.operands, body.results, strict=True)
        counts = [(evaluate(a.shape[0], sizes), evaluate(b.shape[0], sizes)) for a, b in pairs]
        tensors = [
            CollectiveOperand(address(a.buffer), address(b.buffer), min(n))
            for a, b, n in zip(body.operands, body.results, counts, strict=True)
        ]
        if self.line is None:
            if any(a != b for a, b in counts):
                raise PlanError(f"`{body.collective}` needs several ranks, and this process has no group.")
            return [RankSums([Sum(t.source, t.to, t.source, t.count) for t in tensors if t.count], 0, 0, 1)]
        place, peers = self.line.along(body.axis)
        return phases_of(body.collective, CollectivePhases(tensors, body.dtype.size, place, peers, room))

    def add_sums(self, order: Order, phase: RankSums, dtype: str, reads: set[Resource], writes: set[Resource]) -> None:
        """Adds sums over ranks to a graph; with one rank they are copies."""
        function = self._code().function(f"ws_add_{dtype}")
        for first in range(0, len(phase.sums), MOST_PIECES):
            sums = phase.sums[first : first + MOST_PIECES]
            words = [word for s in sums for word in (s.own, s.to, s.others, s.count)]
            table = (ctypes.c_void_p * (4 * MOST_PIECES))(*words)
            arguments: list[Any] = [ctypes.c_int(len(sums)), ctypes.c_longlong(phase.apart)]
            arguments += [ctypes.c_int(phase.place), ctypes.c_int(phase.ranks)]
            longest = max(s.count for s in sums)
            grid = (max(1, min(MOST_BLOCKS, -(-longest // THREADS))), 1)
            order.kernel(function, grid, THREADS, [table, *arguments], reads, writes)


def _record_transfers(
    run: Callable[[Sequence[PeerBytes], Sequence[PeerBytes], int], None],
    sends: Sequence[PeerBytes],
    receives: Sequence[PeerBytes],
) -> Callable[[int], None]:
    return lambda stream: run(sends, receives, stream)
