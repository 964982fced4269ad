"""Workers that would train differently: each of them raises an error before the first step."""

from __future__ import annotations

import os
import platform

import numpy as np

import wholestep as ws
from tests.distributed.support.ranks import SCRIPTS, launch


def test_what_differs_between_workers_is_named_with_its_rank() -> None:
    done = launch("-n", "2", os.fspath(SCRIPTS / "unlike.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    own = [line for line in done.stdout.splitlines() if not line.startswith("[1] ")]
    assert own == [line.removeprefix("[1] ") for line in done.stdout.splitlines() if line.startswith("[1] ")]
    differs = "the workers do not train the same: rank 1 differs from rank 0 in"
    expected = [
        "trained",
        f"{differs} data.seed, which is 1 there and 0 on rank 0. All workers are given all rows, in the same order;",
        f"{differs} data.rows, which is 41 there and 40 on rank 0. All workers are given all rows,",
        f"{differs} data of the validation.rows, which is 10 there and 9 on rank 0. All workers are given all rows,",
        f"{differs} weights of '2.weight', which is ",
        f"{differs} settings.optimizer.lr, which is 0.2 there and 0.1 on rank 0. Start all of them alike.",
        f"{differs} plan, which is ",
        f"{differs} wholestep, which is 0.0.1 there and {ws.__version__} on rank 0. Install the same version",
        f"{differs} python, which is 3.99.1 there and {platform.python_version()} on rank 0. Use the same version of",
        f"{differs} numpy, which is 1.0 there and {np.__version__} on rank 0. Install the same version everywhere.",
        "the workers disagree on the device mesh: rank 1 has ws.Workers(model=2), and rank 0 model=1. Give all of them",
        "ws.Workers(model=3): 2 processes were started, which is not a multiple of 3. Start a multiple of it: whole",
        "trained",
        # They look at what spoilt a loss together, from a copy that they made at the same step.
        "the loss of step 1 of epoch 0 (both counted from 0) is inf: mul in the loss computed the first value that is",
        f"  at {SCRIPTS / 'unlike.py'}:",
    ]
    for line, text in zip(own, expected, strict=True):
        assert line.startswith(text)


def test_ranks_draw_the_same_weights_whatever_else_one_of_them_has_built() -> None:
    done = launch("-n", "2", os.fspath(SCRIPTS / "other_models.py"))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    first = [line for line in lines if not line.startswith("[1] ")]
    assert len(first) == 2
    assert first == [line.removeprefix("[1] ") for line in lines if line.startswith("[1] ")]
