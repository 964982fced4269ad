"""Groups of processes, over our sockets and over MPI: bits of collectives, in memory and by messages; lost ranks."""

from __future__ import annotations

import re

import pytest

from tests.distributed.support.ranks import mpiexec, start

BY = pytest.mark.parametrize("by", ["launch", "mpiexec"])


@BY
@pytest.mark.parametrize("count", [3, pytest.param(2, marks=pytest.mark.long), pytest.param(4, marks=pytest.mark.long)])
def test_collectives_have_the_bits_of_the_tree(count: int, by: str) -> None:
    done = start(by, count, "tests.distributed.scripts.collectives")
    assert done.stdout.count("ok") == count, done.stdout + done.stderr


@pytest.mark.long
def test_the_same_over_tcp_of_mpi() -> None:
    pytest.importorskip("mpi4py", reason="MPI is an extra: pip install 'wholestep[mpi]'")
    done = mpiexec(2, "tests.distributed.scripts.collectives", "messages", MPIR_CVAR_NOLOCAL="1", UCX_TLS="tcp,self")
    assert done.stdout.count("ok") == 2, done.stdout + done.stderr


@BY
@pytest.mark.parametrize("how", ["hangs", "leaves"])
def test_a_rank_that_is_lost_is_named_with_its_last_step(how: str, by: str) -> None:
    done = start(by, 3, "tests.distributed.scripts.faults", how, "memory")
    said = {
        "hangs": r"did not come within 2 s: it hangs, or is slower than that. Its last step was 41. Look at",
        "leaves": r"is gone: it was killed, or an error ended it. Its last step was 41. Look at what it printed last;",
    }
    told = re.findall(rf"after \d+\.\d s: rank 2 of 3 \(process \d+ on [^)]+\) {said[how]}", done.stdout)
    assert len(told) == 2, done.stdout + done.stderr
    assert done.returncode == 0


@BY
def test_collectives_along_the_axes_of_a_grid(by: str) -> None:
    done = start(by, 4, "tests.distributed.scripts.grid_collectives")
    assert done.stdout.count("ok") == 4, done.stdout + done.stderr


@BY
@pytest.mark.parametrize("how", ["hangs", pytest.param("leaves", marks=pytest.mark.long)])
def test_in_a_grid_everyone_names_who_is_lost_and_not_who_waits_for_it(how: str, by: str) -> None:
    done = start(by, 4, "tests.distributed.scripts.grid_faults", how, "memory")
    said = {"hangs": "did not come within 2 s: it hangs, or is slower", "leaves": "is gone: it was killed, or an error"}
    told = re.findall(rf"rank (\d) says: rank 3 of 4 \([^)]*\) {said[how]}[^.]*\. Its last step was 41\.", done.stdout)
    assert sorted(told) == ["0", "1", "2"], done.stdout + done.stderr


@pytest.mark.long
def test_by_messages_of_mpi_a_rank_names_whom_it_waits_for() -> None:
    pytest.importorskip("mpi4py", reason="MPI is an extra: pip install 'wholestep[mpi]'")
    done = mpiexec(4, "tests.distributed.scripts.grid_faults", "hangs", "messages")
    assert "rank 1 says: rank 3 of 4" in done.stdout, done.stdout + done.stderr
    assert re.search(
        r"rank 0 says: rank 1 of 4 \([^)]*\) did not come within 2 s: it hangs, waits for another", done.stdout
    )


@BY
def test_a_rank_that_hangs_is_found_by_messages_too(by: str) -> None:
    done = start(by, 3, "tests.distributed.scripts.faults", "hangs", "messages")
    assert done.stdout.count("rank 2 of 3") == 2, done.stdout + done.stderr


def test_a_rank_that_leaves_is_found_at_once_by_sockets() -> None:
    done = start("launch", 3, "tests.distributed.scripts.faults", "leaves", "messages")
    told = re.findall(r"after 0\.\d s: rank 2 of 3 \([^)]*\) is gone: .* Its last step was 41\.", done.stdout)
    assert len(told) == 2, done.stdout + done.stderr


def test_by_sockets_whoever_leaves_says_whom_it_missed() -> None:
    """Rank 0 waits for ranks 1 and 2, which miss rank 3: all three name it."""
    done = start("launch", 4, "tests.distributed.scripts.grid_faults", "leaves", "messages")
    told = re.findall(r"rank (\d) says: rank 3 of 4 \([^)]*\) is gone", done.stdout)
    assert sorted(told) == ["0", "1", "2"], done.stdout + done.stderr
