"""Scores that a step stores: each batch is appended after the previous one, for every kind of step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws

Array = np.ndarray[Any, Any]
ROOM = 50


def session(capacity: int = ROOM, **options: Any) -> ws.Session:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 6)), g.input("labels", ("batch",), "int32")
    logits = x @ g.parameter("w", (6, 10))
    ws.metrics.RocAuc(capacity=capacity).record(g, logits, labels)
    g.set_outputs([ws.losses.cross_entropy(logits, labels)])
    return ws.build_session(g, optimizer=ws.SGD(lr=0.0), batch_size=16, **options)


def batch(rows: int, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    x, labels = rng.normal(size=(rows, 6)).astype(np.float32), rng.integers(0, 10, rows).astype(np.int32)
    return {"x": x, "labels": labels}


def kept(s: ws.Session, part: str) -> Array:
    return np.asarray(s.get(f"metrics.roc_auc.{part}"))


@pytest.mark.parametrize("threads", [1, 2])
def test_partial_batches_stand_behind_each_other_and_what_has_no_room_is_dropped(threads: int) -> None:
    s = session(threads=threads)
    batches = [batch(rows, seed) for seed, rows in enumerate([16, 7, 16, 3, 16, 16])]
    for b in batches:
        s.step(**b)
    labels, x = (np.concatenate([b[part] for b in batches]) for part in ("labels", "x"))
    assert kept(s, "rows") == len(labels) == 74
    np.testing.assert_array_equal(kept(s, "labels"), labels[:ROOM])
    np.testing.assert_allclose(kept(s, "scores"), (x @ np.asarray(s.get("w")))[:ROOM], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nonfinite", ["ignore", "skip"])
def test_the_parts_of_a_window_stand_behind_each_other(nonfinite: str) -> None:
    """With nonfinite="skip" the rows of a step wait beside the state, until it is sure that the step counts."""
    s = session(accumulate=2, per_micro_batch=True, nonfinite=nonfinite)
    windows = [batch(32, 0), batch(9, 1)]
    for b in windows:
        s.step(**b)
    labels = np.concatenate([b["labels"] for b in windows])
    assert kept(s, "rows") == len(labels) == 41
    np.testing.assert_array_equal(kept(s, "labels")[:41], labels)
    np.testing.assert_array_equal(kept(s, "labels")[41:], 0)


def test_a_step_that_is_skipped_keeps_nothing() -> None:
    s = session(nonfinite="skip")
    s.step(**batch(16, 0))
    before = {part: kept(s, part) for part in ("rows", "labels", "scores")}
    wrong = batch(16, 1)
    wrong["x"][3, 3] = np.inf
    s.step(**wrong)
    for part, value in before.items():
        np.testing.assert_array_equal(kept(s, part), value)


def test_a_step_moves_as_many_bytes_whatever_room_there_is() -> None:
    small, large = (session(capacity).plan.bytes_moved for capacity in (ROOM, 100 * ROOM))
    assert small == large
