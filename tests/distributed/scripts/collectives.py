"""Run by every rank of test_processes.py: collectives against NumPy.  `ok` is the last word."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from tests.distributed.support.ranks import transport
from tests.distributed.support.trees import tree_sum
from wholestep.distributed.transport import native
from wholestep.distributed.transport.process_group import ProcessGroup

Array = np.ndarray[Any, Any]
SIZES = [(1,), (7, 0, 300), (0, 5), (1024,), (3000, 1, 1500, 0), (200_004, 17, 1), (400_000,)]


def parts(shape: int, dtype: str, ranks: int, seed: int) -> list[Array]:
    """What each rank gives; every rank knows all of them."""
    generator = np.random.default_rng(seed)
    return [(generator.standard_normal(shape) * 10.0 ** (r - 1)).astype(dtype) for r in range(ranks)]


def check_all_reduce(group: ProcessGroup, counts: tuple[int, ...], dtype: str, in_place: bool) -> None:
    given = [parts(count, dtype, group.size, at) for at, count in enumerate(counts)]
    own = [each[group.rank].copy() for each in given]
    to = own if in_place else [np.zeros_like(each) for each in own]
    sent = group.bytes_sent
    assert native.run(group.native, "all_reduce", [(a, b, a.size) for a, b in zip(own, to)]) == 0
    for found, each in zip(to, given):
        assert found.tobytes() == tree_sum(each).tobytes(), (counts, dtype, in_place)
    bytes_ = sum(each.nbytes for each in own)
    if bytes_ > 4096 and sum(counts) % group.size == 0:  # all ranks have parts of equal size
        assert group.bytes_sent - sent == 2 * (group.size - 1) * bytes_ // group.size


def check_others(group: ProcessGroup, counts: tuple[int, ...], dtype: str) -> None:
    ranks, rank = group.size, group.rank
    given = [parts(count * ranks, dtype, ranks, at) for at, count in enumerate(counts)]
    to = [np.zeros(count, dtype) for count in counts]
    assert native.run(group.native, "reduce_scatter", [(g[rank], t, t.size) for g, t in zip(given, to)]) == 0
    for found, each, count in zip(to, given, counts):
        assert found.tobytes() == tree_sum(each)[rank * count : (rank + 1) * count].tobytes()
    given = [parts(count, dtype, ranks, at) for at, count in enumerate(counts)]
    to = [np.zeros(count * ranks, dtype) for count in counts]
    assert native.run(group.native, "all_gather", [(g[rank], t, g[rank].size) for g, t in zip(given, to)]) == 0
    for found, each in zip(to, given):
        assert found.tobytes() == np.concatenate(each).tobytes()
    own = [each[rank].copy() for each in given]
    assert native.run(group.native, "broadcast", [(a, a, a.size) for a in own]) == 0
    for found, each in zip(own, given):
        assert found.tobytes() == each[0].tobytes()


def main() -> None:
    carrier = transport()
    for memory in (True, False):
        group = ProcessGroup(carrier, timeout=60.0, memory=memory)
        assert group.memory == (memory and "messages" not in sys.argv)
        assert group.broadcast(f"from {group.rank}".encode()) == b"from 0"
        assert group.broadcast(b"") == b""
        names = [b"x" * rank * 9 for rank in range(group.size)]
        assert group.gather(names[group.rank]) == names
        for counts in SIZES:
            check_all_reduce(group, counts, "float32", in_place=True)
            check_others(group, counts, "float32")
        for dtype in ("float64", "int32", "int64"):
            check_all_reduce(group, (5000, 3), dtype, in_place=False)
            check_others(group, (700, 3), dtype)
        group.check()
    print("ok", flush=True)


if __name__ == "__main__":
    main()
