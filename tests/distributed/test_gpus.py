"""Workers on GPUs: processes that train together, each on a GPU that is none, over an NCCL that is none."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.compiler.backends.cuda.emulation import emulated
from tests.distributed.scripts import on_gpus
from tests.distributed.support.ranks import launch


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """With the emulation's header, compiled: ranks would each compile it."""
    emulated.header()
    return emulated.folder()


def ranks(count: int, folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    return launch("-n", str(count), on_gpus.__file__, str(folder), what)


def test_two_gpus_train_as_one_process(folder: Path) -> None:
    """Clipping, metrics, weights of rows, dropout, batch norm, validation, an uneven last batch; micro-batches."""
    done = ranks(2, folder, "train")
    assert done.returncode == 0, done.stderr
    for case in on_gpus.CASES:
        first, second = (dict(np.load(folder / f"{case}-{rank}.npz")) for rank in range(2))
        alone = on_gpus.trained(case, device="reference")
        assert first.keys() == alone.keys()
        for name, value in alone.items():
            assert np.array_equal(first[name], second[name]), f"ranks agree to the bit: {case}, {name}"
            np.testing.assert_allclose(first[name], value, rtol=2e-5, atol=1e-6, err_msg=f"{case}, {name}")


def test_three_gpus_hold_and_send_what_the_plan_says_until_one_is_killed(folder: Path) -> None:
    """Also a batch of one row, of which two of them have nothing.  Those that are left name the one that is gone."""
    done = ranks(3, folder, "count")
    for said in ("rank 2 of 3", "is gone: it was killed", "All had made 4 steps."):
        assert said in done.stderr, done.stderr
    assert done.returncode == 128 + signal.SIGKILL
    told = [json.loads((folder / f"count-{rank}.json").read_text()) for rank in range(3)]
    steps = len(told[0]["losses"])
    ((collective, size),) = told[0]["collectives"]
    assert (collective, size) == ("all_reduce", 4 * (64 * 20 + 20 + 20 * 3 + 3) + 4)
    assert sum(each["sent"] for each in told) == steps * 2 * 2 * size
    assert all(each["wire"] == -(-4 * size // 3) for each in told)
    assert all(each["held"] == each["told"] for each in told)
    alone = on_gpus.losses(on_gpus.built(device="reference"))
    for each in told:
        assert each["losses"] == told[0]["losses"]
        np.testing.assert_allclose(each["losses"], alone, rtol=1e-5)
