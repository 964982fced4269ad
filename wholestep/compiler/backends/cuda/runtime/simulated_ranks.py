"""`shards=n` on a GPU: simulates n ranks on one GPU, in one graph, with the bits that n GPUs would compute.

Each rank has its own states, scratch memory and kernels.  Where real ranks would send and receive, a kernel copies all
pieces at once, after all kernels that produce them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

from wholestep.compiler.backend import Launch, LoadContext, do_nothing
from wholestep.compiler.backends.common.program import CombinedProgram
from wholestep.compiler.backends.cuda.driver.cuda_graph import CudaGraph, Nodes
from wholestep.compiler.backends.cuda.driver.memory import CudaMemory
from wholestep.compiler.backends.cuda.driver.staging_ring import StagingSlot
from wholestep.compiler.backends.cuda.libraries.nccl import PeerBytes
from wholestep.compiler.backends.cuda.runtime.collectives import RANKS, Collectives, GraphOwner, RankSums, Sum
from wholestep.compiler.backends.cuda.runtime.launch_handles import CudaLaunch
from wholestep.compiler.backends.cuda.runtime.program import CudaProgram, ProgramDevice
from wholestep.compiler.backends.gpu.launch_order import LIBRARIES, MULTIPROCESSORS, Order, Resource
from wholestep.compiler.ir.mesh import Mesh
from wholestep.compiler.plan.model.kernel import Kernel, Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.process_group import InProcessRank, Shards
from wholestep.compiler.runtime.state.slot import SlotFamily

COMMON = (RANKS, LIBRARIES, MULTIPROCESSORS)  # resources that the ranks of one GPU share
WORD = 4  # bytes: the size of a transfer is a multiple of a word, so one kernel copies all transfers as words


class TransferRecorder:
    """Stands in for a communicator: records what a rank would send and receive."""

    def __init__(self) -> None:
        self.noted: tuple[Sequence[PeerBytes], Sequence[PeerBytes]] = ((), ())

    def exchange(self, sends: Sequence[PeerBytes], receives: Sequence[PeerBytes], stream: int) -> None:
        """Records the pieces, which `match_transfers` pairs."""
        self.noted = sends, receives


class GpuRank(InProcessRank):
    """One of the simulated ranks, as its programs see it."""

    def __init__(self, rank: int, grid: Mesh) -> None:
        super().__init__(rank, grid)
        self.communicator, self.step = TransferRecorder(), 0
        self.users: WeakSet[GraphOwner] = WeakSet()

    def along(self, axis: str) -> tuple[int, Sequence[int]]:
        """This rank's position along a mesh axis, and the ranks of all positions."""
        return self.grid.coordinate(axis, self.rank), self.grid.group(axis, self.rank)


class GpuRanks:
    """The simulated ranks of a session, with their state and scratch memory; the first uses the session's own."""

    def __init__(self, device: ProgramDevice, scratch: Callable[[], Any], grid: Mesh) -> None:
        self.members = [GpuRank(rank, grid) for rank in range(grid.size)]
        self._memories = [CudaMemory(device.gpu, f", shard {rank}") for rank in range(1, grid.size)]
        self._scratches = [scratch() for _ in self._memories]
        self.programs: WeakSet[GpuRanksProgram] = WeakSet()  # all programs over these states

    def places(self, place: LoadContext, plan: Plan) -> list[LoadContext]:
        """Load contexts of the ranks' programs."""
        wheres = [replace(place.where, group=member) for member in self.members]
        for scratch in self._scratches:
            scratch.reserve(plan, place.where.threads)
        others = zip(wheres[1:], self._scratches, self._memories, strict=True)
        return [
            replace(place, where=wheres[0]),
            *(replace(place, where=w, scratch=s, memory=m) for w, s, m in others),
        ]

    def catch_up(self) -> None:
        """Copies external state changes to every rank, for all programs.

        A program may then change a state on each rank separately, as its share of a sum, and the next program reads it.
        """
        for program in list(self.programs):
            program.catch_up()

    def invalidate(self, family: SlotFamily) -> None:
        """Notes that a program has updated the states, equally on every rank."""
        family.version += 1
        for program in list(self.programs):
            program.seen = family.version


class SimulatedRankProgram(CudaProgram):
    """The program of one rank, whose launches are part of a common graph."""

    def __init__(
        self,
        device: ProgramDevice,
        plan: Plan,
        place: LoadContext,
        meanwhile: Callable[[], None] = do_nothing,
        like: SimulatedRankProgram | None = None,
    ) -> None:
        """`like`: the program of another rank, whose compiled kernels are reused."""
        self._like, self.forgotten = like, do_nothing
        super().__init__(device, plan, place, meanwhile)

    def _compile_kernels(self, meanwhile: Callable[[], None]) -> Mapping[str, Any]:
        return super()._compile_kernels(meanwhile) if self._like is None else self._like.functions

    @property
    def is_first(self) -> bool:
        """Does this rank use the session's own states?"""
        return self._place.memory is None

    def sync_states(self) -> None:
        """Copies external state changes; the other ranks of this process do the same."""
        if self._state.family.spread:
            for name, _ in self.plan.states:
                self._state.slot(name).sync_to(self._memory_of(name).kind, self.is_first and name in self.plan.updated)

    def renew_copies(self) -> None:
        """Recomputes half-precision copies if states have changed externally since its last launch."""
        if self._seen != self._state.family.version:
            self._copies.renew(lambda: self._device.copies(self._place.where.options))

    def begin(self, sizes: Mapping[str, int]) -> tuple[int, StagingSlot]:
        """Prepares a launch except for its graph; returns its staging slot."""
        if sizes is not self._sizes:
            self._resize(sizes)
        self.renew_copies()
        number, turn = self._exchange.next()
        state, inputs = self._state, {name: self.share.of(name, array) for name, array in self._inputs.items()}
        row = self._records.row(self._own_sizes, state.step, state.epoch)
        self._exchange.give(turn, row, inputs, self._own_sizes)
        return number if self._exchange.fetches else -1, turn

    def end(self, turn: StagingSlot, sizes: Mapping[str, int]) -> CudaLaunch:
        """Finishes a launch after its graph was launched."""
        self._exchange.take(turn)
        ticket = self._last = CudaLaunch(self, turn, sizes)
        turn.ticket = weakref.ref(ticket)
        self._seen = self._state.family.version
        return ticket

    def check(self, sizes: Mapping[str, int]) -> None:
        """IndexRefusedError if any row of an input has an index outside its bound."""
        if sizes is not self._sizes:
            self._resize(sizes)
        if self._limits:
            self._check_indices()

    def forget_graphs(self) -> None:
        super().forget_graphs()
        self.forgotten()

    @property
    def collectives(self) -> Collectives:
        """The program's collectives, whose sum kernel also copies transfers."""
        return self._launches.collectives


class GpuRanksProgram(CombinedProgram):
    """The programs of all ranks as one: all get the same inputs, and the first rank's outputs are the result."""

    synchronous = False

    def __init__(
        self, device: ProgramDevice, plan: Plan, place: LoadContext, team: GpuRanks, meanwhile: Callable[[], None]
    ) -> None:
        places = team.places(place, plan)
        first = SimulatedRankProgram(device, plan, places[0], meanwhile)
        self.team, self.seen = team, -1  # seen: version of the states that all ranks have
        others = [SimulatedRankProgram(device, plan, place, like=first) for place in places[1:]]
        super().__init__(first.plan, [first, *others], first)
        self._first, self._gpu, self._state, self._rank_plan = first, device.gpu, places[0].state, plan
        self.recorder, self._staging = first.recorder, first._staging
        self._carriers = [member.communicator for member in team.members]
        self._graphs: dict[tuple[tuple[int, ...], tuple[int, ...]], CudaGraph] = {}
        for program in self.programs:
            program.forgotten = self._graphs.clear
        self.count_steps(bool(plan.updated))
        team.programs.add(self)

    def catch_up(self) -> None:
        """Copies external state changes to every rank."""
        if self.seen != self._state.family.version:
            for program in self.programs:
                program.sync_states()
            self.seen = self._state.family.version

    @property
    def source(self) -> str:
        """Source text of the kernels, which all ranks share."""
        return self._first.source

    def bind(self, name: str, array: AnyArray) -> None:
        """Sets an input of the next launch, of which each rank takes its rows."""
        for program in self.programs:
            program.bind(name, array)

    def is_in_parts(self) -> None:
        """Marks the program's steps as micro-batches of one update."""
        for program in self.programs:
            program.share.is_in_parts()

    def launch(self, sizes: Mapping[str, int]) -> Launch:
        """Gives each rank its rows and enqueues the step of all ranks."""
        self._first.check(sizes)
        self._gpu.enter()
        self.team.catch_up()
        begun = [program.begin(sizes) for program in self.programs]
        self._graph(tuple(number for number, _ in begun), sizes).launch()
        if self.plan.updated:
            self.team.invalidate(self._state.family)
        tickets: list[CudaLaunch] = [
            program.end(turn, sizes) for program, (_, turn) in zip(self.programs, begun, strict=True)
        ]
        self._state.step += self.counts(tickets[0])
        return tickets[0]

    def _graph(self, turns: tuple[int, ...], sizes: Mapping[str, int]) -> CudaGraph:
        key = turns, self._first.graph_key(sizes)
        if key not in self._graphs:

            def build(nodes: Nodes) -> None:
                logs = [Log() for _ in self.programs]
                for program, turn, log in zip(self.programs, turns, logs, strict=True):
                    program.add_launch(log, None if turn < 0 else turn, sizes)
                merge_rank_launches(self._order(nodes), logs, self._carriers, self._first.collectives)

            self._graphs[key] = self._first.new_graph(build)
        return self._graphs[key]

    def _order(self, nodes: Nodes) -> Order:
        if self.recorder is None:
            return SimulatedRanksOrder(nodes, self._rank_plan, len(self.programs))
        return self._first.order_of(nodes)  # profiled: one launch after the other


# -- one graph -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RankLaunch:
    """A launch or library call that a rank adds to its graph."""

    kernels: Sequence[Kernel]
    reads: set[Resource]
    writes: set[Resource]
    add: Callable[[Order, set[Resource], set[Resource]], None]
    record: Callable[[int], None] | None = None  # function that enqueues a library call

    @property
    def is_exchange(self) -> bool:
        """Is the entry a transfer between ranks?"""
        return RANKS in self.writes


class Log(Order):
    """Records launches instead of adding them to a graph."""

    def __init__(self) -> None:
        self.entries: list[RankLaunch] = []
        self.current: Sequence[Kernel] = ()

    def kernel(
        self,
        function: Any,
        grid: tuple[int, int],
        threads: int,
        arguments: Sequence[Any],
        reads: set[Resource],
        writes: set[Resource],
        *more: Any,
    ) -> None:
        def add(order: Order, reads: set[Resource], writes: set[Resource]) -> None:
            order.kernel(function, grid, threads, arguments, reads, writes, *more)

        self.entries.append(RankLaunch(self.current, reads, writes, add))

    def library(self, record: Callable[[int], None], reads: set[Resource], writes: set[Resource]) -> None:
        def add(order: Order, reads: set[Resource], writes: set[Resource]) -> None:
            order.library(record, reads, writes)

        self.entries.append(RankLaunch(self.current, reads, writes, add, record))

    def until_exchange(self) -> Iterator[RankLaunch]:
        """Removes and yields the entries before the next transfer, which is then the first entry."""
        while self.entries and not self.entries[0].is_exchange:
            yield self.entries.pop(0)


class SimulatedRanksOrder(Order):
    """A launch order in which the resources of different ranks have different names."""

    def __init__(self, nodes: Nodes, plan: Plan, ranks: int) -> None:
        super().__init__(nodes, plan)
        self._overlapping = {
            of_rank(rank, a): tuple(of_rank(rank, b) for b in others)
            for a, others in self._overlapping.items()
            for rank in range(ranks)
        }


def of_rank(rank: int, resource: Resource) -> Resource:
    """The rank's name of a resource; shared resources keep their name."""
    return resource if resource in COMMON else f"{resource} of rank {rank}"


def merge_rank_launches(
    order: Order, logs: Sequence[Log], carriers: Sequence[TransferRecorder], collectives: Collectives
) -> None:
    """Merges the launches of all ranks into one graph, with a common copy kernel for each transfer."""
    while any(log.entries for log in logs):
        for rank, log in enumerate(logs):
            for entry in log.until_exchange():
                order.current = entry.kernels if rank == 0 else ()
                entry.add(order, *_resources_of(rank, entry))
        exchanges = [log.entries.pop(0) for log in logs if log.entries]
        if exchanges:
            assert len(exchanges) == len(logs), "all ranks have the same sequence of transfers"
            order.current = exchanges[0].kernels
            resources = [_resources_of(rank, entry) for rank, entry in enumerate(exchanges)]
            reads = set[Resource]().union(*(reads for reads, _ in resources))
            writes = set[Resource]().union(*(writes for _, writes in resources))
            for entry in exchanges:
                assert entry.record is not None
                entry.record(0)  # the stand-in for the rank's communicator records the pieces
            collectives.add_sums(order, RankSums(match_transfers(carriers), 0, 0, 1), "int32", reads, writes)


def match_transfers(carriers: Sequence[TransferRecorder]) -> list[Sum]:
    """Pairs sends with receives: between two ranks, pieces match in order."""
    sent_between: dict[tuple[int, int], list[PeerBytes]] = {}
    for rank, carrier in enumerate(carriers):
        for piece in carrier.noted[0]:
            sent_between.setdefault((rank, piece.peer), []).append(piece)
    copies = []
    for rank, carrier in enumerate(carriers):
        for piece in carrier.noted[1]:
            sent = sent_between[piece.peer, rank].pop(0)
            assert sent.bytes == piece.bytes, "the sizes of a matching send and receive are equal"
            assert sent.bytes % WORD == 0, "a transfer is a multiple of a word"
            copies.append(Sum(sent.address, piece.address, sent.address, sent.bytes // WORD))
    return copies


def _resources_of(rank: int, entry: RankLaunch) -> tuple[set[Resource], set[Resource]]:
    reads, writes = ({of_rank(rank, r) for r in used} for used in (entry.reads, entry.writes))
    return reads, writes


def team_of(shards: Shards, device: ProgramDevice, scratch: Callable[[], Any]) -> GpuRanks:
    """The simulated ranks of a session, created once."""
    if shards.team is None:
        shards.team = GpuRanks(device, scratch, shards.grid)
    assert isinstance(shards.team, GpuRanks)
    return shards.team
