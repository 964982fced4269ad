"""Collectives between GPUs: what each rank sends, where it goes, and the order in which it is added."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from tests.compiler.backends.cuda.emulation.fake_gpu import CODE, FakeDriver, fake_compile
from tests.compiler.backends.cuda.emulation.fake_nccl import view
from wholestep.compiler.backends.cuda.driver.nvrtc import compile_text, translation_unit
from wholestep.compiler.backends.cuda.libraries.nccl import PeerBytes
from wholestep.compiler.backends.cuda.runtime.collectives import (
    LITTLE,
    MOST_PIECES,
    THREADS,
    CollectiveOperand,
    CollectivePhases,
    Phase,
    RankSums,
    TransferGroup,
    phases_of,
)
from wholestep.compiler.backends.gpu.grids.choose import EXCHANGE_ROOM
from wholestep.compiler.backends.gpu.render.source import native, with_primitives
from wholestep.compiler.ir.type_rules.collectives import CARRIED, collective_result

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def kernels() -> FakeDriver:
    driver = FakeDriver()
    driver.module = CODE[fake_compile(with_primitives(native("ranks.h"), ""), "sm_90")]  # type: ignore[attr-defined]
    return driver


def parts(collective: str, counts: tuple[int, ...], dtype: str, ranks: int) -> list[list[Array]]:
    """What each rank gives, tensor by tensor."""
    rng = np.random.default_rng(ranks)
    more = ranks if collective == "reduce_scatter" else 1
    return [[(rng.standard_normal(n * more) * 10.0 ** (r % 5)).astype(dtype) for n in counts] for r in range(ranks)]


def run(driver: FakeDriver, phases: list[list[Phase]], dtype: str) -> int:
    """The phases of all ranks, side by side; the bytes that they send to each other."""
    sent = 0
    for of_all in zip(*phases, strict=True):
        if isinstance(of_all[0], TransferGroup):
            ways: dict[tuple[int, int], list[PeerBytes]] = {}
            for rank, phase in enumerate(of_all):
                for piece in phase.sends:
                    ways.setdefault((rank, piece.peer), []).append(piece)
            held = {way: [view(p.address, p.bytes).copy() for p in pieces] for way, pieces in ways.items()}
            sent += sum(a.size for (of, to), pieces in held.items() if of != to for a in pieces)
            for rank, phase in enumerate(of_all):
                for piece in phase.receives:
                    view(piece.address, piece.bytes)[:] = held[piece.peer, rank].pop(0)  # in order, of the same size
            assert not any(held.values()), "everything that is sent is received"
        else:
            for phase in of_all:
                add(driver, phase, dtype)
    return sent


def add(driver: FakeDriver, phase: RankSums, dtype: str) -> None:
    words = [word for s in phase.sums for word in (s.own, s.to, s.others, s.count)]
    given: list[Any] = [(ctypes.c_void_p * (4 * MOST_PIECES))(*words), ctypes.c_int(len(phase.sums))]
    given += [ctypes.c_longlong(phase.apart), ctypes.c_int(phase.place), ctypes.c_int(phase.ranks)]
    pointers = (ctypes.c_void_p * len(given))(*map(ctypes.addressof, given))
    _, function = driver.cuModuleGetFunction(driver.module, f"ws_add_{dtype}".encode())  # type: ignore[attr-defined]
    driver.call(function, (3, 1, THREADS), ctypes.addressof(pointers))()


def exchanged(driver: FakeDriver, collective: str, counts: tuple[int, ...], dtype: str, ranks: int) -> int:
    """Run a collective and compare every rank's bits; the bytes that all of them send."""
    given, size = parts(collective, counts, dtype, ranks), np.dtype(dtype).itemsize
    total = sum(a.size for a in given[0]) * size
    rooms = [np.full(total + EXCHANGE_ROOM + 64, 7, np.uint8) for _ in range(ranks)]
    more = ranks if collective == "all_gather" else 1
    results = [[np.full(n * more, 99, dtype) for n in counts] for _ in range(ranks)]
    phases = []
    for rank in range(ranks):
        pairs = zip(given[rank], results[rank], counts, strict=True)
        tensors = [CollectiveOperand(a.ctypes.data, b.ctypes.data, n) for a, b, n in pairs]
        room = -(-rooms[rank].ctypes.data // 16) * 16
        moves = CollectivePhases(
            tensors, size, rank, [r + 5 for r in range(ranks)], room
        )  # ranks have other numbers elsewhere
        found = phases_of(collective, moves)
        assert all(5 <= p.peer < 5 + ranks for phase in found if isinstance(phase, TransferGroup) for p in phase.sends)
        phases.append([renumbered(phase) for phase in found])
    sent = run(driver, phases, dtype)
    for rank in range(ranks):
        assert (rooms[rank][-40:] == 7).all(), "what comes fits the room"
        for at, found in enumerate(results[rank]):
            wanted = collective_result(rank, collective, [each[at] for each in given])
            assert found.tobytes() == np.ascontiguousarray(wanted).tobytes(), (collective, counts, ranks, rank)
    return sent


def renumbered(phase: Phase) -> Phase:
    if isinstance(phase, RankSums):
        return phase
    low = [[PeerBytes(p.address, p.bytes, p.peer - 5) for p in side] for side in (phase.sends, phase.receives)]
    return TransferGroup(*low)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90"])
def test_nvrtc_compiles_what_adds(architecture: str) -> None:
    code = compile_text(translation_unit(native("ranks.h")), architecture)
    assert all(f"ws_add_{dtype}".encode() in code for dtype in CARRIED)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 11])
def test_every_rank_has_the_bits_of_every_engine(kernels: FakeDriver, ranks: int) -> None:
    for counts in ((1,), (7, 0, 300), (3000, 1, 1500, 0, 2)):
        for collective in ("all_reduce", "reduce_scatter", "all_gather", "broadcast"):
            exchanged(kernels, collective, counts, "float32", ranks)
    for dtype in ("float64", "int32", "int64"):
        exchanged(kernels, "all_reduce", (700, 3), dtype, ranks)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_bytes_on_the_wire_are_those_of_the_plan(kernels: FakeDriver, ranks: int) -> None:
    counts = (LITTLE, 1, 700)
    assert exchanged(kernels, "all_reduce", counts, "float32", ranks) == 2 * (ranks - 1) * 4 * sum(counts)
    assert exchanged(kernels, "reduce_scatter", counts, "float32", ranks) == (ranks - 1) * ranks * 4 * sum(counts)
    little = (LITTLE // 4,)  # everybody is sent everything, at once
    assert exchanged(kernels, "all_reduce", little, "float32", ranks) == ranks * (ranks - 1) * LITTLE
