"""`ws.save_checkpoint` by hand, in workers that have divided what is saved: all of them call it, or are told to."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.distributed.scripts import saved
from tests.distributed.support.ranks import launch
from wholestep.train.checkpoint import load_checkpoint


@pytest.mark.parametrize("model", [False, True])
def test_all_workers_save_one_checkpoint(model: bool, tmp_path: Path) -> None:
    done = launch("-n", "2", saved.__file__, str(tmp_path), "all", *(["model"] if model else []))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.split("\n")) == ["", "[1] saved step-00000003", "saved step-00000003"]
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000003"]
    where = {"shards": (1, 2)} if model else {"shards": 2, "shard": "optimizer"}
    expected = saved.built(**where).state_dict()
    found = load_checkpoint(tmp_path).arrays
    assert {"0.weight", "0.weight.adam.m"} <= found.keys() <= expected.keys()
    for name, value in found.items():
        np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.parametrize(
    ("how", "told"),
    [pytest.param("ends", "is gone", marks=pytest.mark.long), ("steps", "exchanges something else: it is at another")],
)
def test_one_that_saves_alone_is_told_who_is_missing(how: str, told: str, tmp_path: Path) -> None:
    """At once, and nothing is mixed up with what the other one exchanges."""
    done = launch("-n", "2", saved.__file__, str(tmp_path), how)
    assert done.returncode != 0
    assert "error: ws.save_checkpoint: rank 1 of 2 (process " in done.stderr, done.stderr
    assert told in done.stderr
    assert "With divided states or layers all workers must call it, since each has a part of them." in done.stderr
    assert not list(tmp_path.glob("step-*"))
