"""`ws.find_lr` against torch's loop, and `ws.find_batch_size` against what sessions really map."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from wholestep.errors import OptionError, OutOfMemoryError, UsageError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype("f")
Y = (X @ RNG.normal(size=(3, 2)) + 1.0).astype("f")
SPECS: dict[str, Any] = {"inputs": ws.Spec(("batch", 3)), "targets": ws.Spec(("batch", 2)), "loss": "mse"}


def linear() -> ws.nn.Linear:
    return ws.nn.Linear(3, 2)


def search(model: ws.nn.Module | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"batch_size": 8, "shuffle": False, "device": "reference", "loss": "mse", **options}
    return ws.find_lr(model or linear(), (X, Y), **given)


# -- the learning rate -----------------------------------------------------------------------------------------------


def test_every_loss_is_that_of_torchs_loop_and_the_model_stays_as_it_was() -> None:
    model = linear()
    before = {name: np.array(a) for name, a in model.state_dict().items()}
    found = search(model, start=1e-3, end=1.0, steps=18, optimizer=ws.SGD(momentum=0.5))
    theirs = torch.nn.Linear(3, 2)
    theirs.load_state_dict({name: torch.tensor(a) for name, a in before.items()})
    sgd = torch.optim.SGD(theirs.parameters(), lr=1e-3, momentum=0.5)
    losses = []
    for step in range(18):
        sgd.param_groups[0]["lr"] = found.lrs[step]
        rows = slice(step % 5 * 8, step % 5 * 8 + 8)
        loss = torch.nn.functional.mse_loss(theirs(torch.tensor(X[rows])), torch.tensor(Y[rows]))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        losses.append(loss.item())
    np.testing.assert_allclose(found.lrs, np.geomspace(1e-3, 1.0, 18), rtol=1e-12)
    np.testing.assert_allclose(found.losses, losses, rtol=1e-4)
    for name, value in before.items():
        np.testing.assert_array_equal(model.state_dict()[name], value)


def test_the_suggestion_trains_and_the_search_ends_where_the_loss_explodes(tmp_path: Path) -> None:
    model = linear()
    found = search(model, optimizer=ws.SGD(), start=1e-4, end=1e4, steps=60)
    assert len(found.lrs) < 60  # long before 1e4
    assert 0.01 < found.suggestion < found.lrs[-1] / 3
    history = ws.fit(
        model, (X, Y), loss="mse", optimizer=ws.SGD(lr=found.suggestion), epochs=10, batch_size=8, progress=False,
        device="reference",
    )  # fmt: skip
    assert history["loss"][-1] < 0.01 * history["loss"][0]
    assert found.plot().count("•") == len(found.lrs)
    assert "0.0001" in found.plot().splitlines()[-1]
    with Path(found.plot(tmp_path / "lr.png")).open("rb") as image:
        assert image.read(4) == b"\x89PNG"


def test_groups_keep_the_ratio_of_their_rates() -> None:
    grouped = ws.SGD(lr=0.1, groups=[ws.Group("bias", lr=0.0)])
    model = linear()
    model.load_state_dict({"bias": np.zeros(2, "f")}, strict=False)
    frozen = search(model, optimizer=grouped, start=1e-3, end=0.1, steps=15)
    other = linear()
    other.load_state_dict(model.state_dict())
    other.freeze("bias")
    np.testing.assert_allclose(
        frozen.losses, search(other, optimizer=ws.SGD(), start=1e-3, end=0.1, steps=15).losses, rtol=1e-6
    )


# -- the batch size --------------------------------------------------------------------------------------------------


def test_the_batch_that_is_found_fits_and_one_row_more_does_not() -> None:
    options, limit = {**SPECS, "optimizer": ws.Adam(), "threads": 2}, 150_000
    found = ws.find_batch_size(linear(), memory=limit, **options)
    fits, too_many = (ws.estimate(linear(), batch_size=n, **options).peak_bytes for n in (found, found + 1))
    assert fits <= limit < too_many


def test_of_micro_batches_it_is_what_a_session_maps() -> None:
    options, limit = {**SPECS, "optimizer": ws.SGD(), "threads": 2, "accumulate": 3}, 150_000
    found = ws.find_batch_size(linear(), memory=limit, **options)
    assert limit - 4096 < ws.build_session(linear(), batch_size=found, **options).peak_bytes <= limit


def test_it_is_solved_for_any_target_and_limit() -> None:
    big = ws.find_batch_size(linear(), memory="4 GiB", device="null:cuda/sm_90", **SPECS)
    assert big > 10_000_000 > ws.find_batch_size(linear(), memory="1MB", device="null:cpu/avx2", **SPECS) > 1000
    assert ws.find_batch_size(linear(), memory="4GB", most=77, **SPECS) == 77
    assert ws.find_batch_size(linear(), (X, Y), loss="mse") == len(X)  # of what is free
    small = ws.find_batch_size(linear(), (X, Y), loss="mse", memory=25_000, threads=1)
    described = ws.estimate(linear(), **SPECS, optimizer=ws.AdamW(), threads=1, batch_size=small)
    assert small == len(X) or described.peak_bytes <= 25_000


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a schedule": (
        lambda: search(schedule=ws.schedules.cosine()),
        UsageError,
        "find_lr sets the rate itself and stores nothing of its run; leave schedule= out",
    ),
    "backwards": (
        lambda: search(start=1.0, end=0.1),
        OptionError,
        r"find_lr goes from start up to end, both above 0, in at least 12 steps; received start=1\.0, end=0\.1",
    ),
    "too few steps": (lambda: search(steps=3), OptionError, "in at least 12 steps; received .*steps=3"),
    "a loss that never falls": (
        lambda: ws.train.RateSearch((0.1, 1.0, 10.0), (1.0, 2.0, 3.0)).suggestion,
        UsageError,
        "the loss fell at none of 3 rates, so that none can be suggested. Begin with a smaller rate, start=1e-8",
    ),
    "no memory": (
        lambda: ws.find_batch_size(linear(), memory=1000, **SPECS),
        OutOfMemoryError,
        r"a step of one row needs [\d,]+ bytes, and the limit is 1,000\. Its largest tensors: .*float32\[",
    ),
    "memory in words": (
        lambda: ws.find_batch_size(linear(), memory="plenty", **SPECS),
        OptionError,
        "memory='plenty': expected a number of bytes, or a text such as '2GB' or '512MiB'",
    ),
    "a batch size": (
        lambda: ws.find_batch_size(linear(), batch_size=4, **SPECS),
        UsageError,
        r"find_batch_size finds the batch_size; leave it out, and give memory='2GB'",
    ),
    "a fixed batch": (
        lambda: ws.find_batch_size(linear(), inputs=ws.Spec((4, 3)), targets=ws.Spec((4, 2)), loss="mse", memory="1GB"),
        UsageError,
        r"the first axis of the first input is a number.*ws\.Spec\(\('batch', 784\)\)",
    ),
    "data twice": (
        lambda: ws.find_batch_size(linear(), (X, Y), memory="1GB", **SPECS),
        UsageError,
        "inputs= and data specify the same thing; pass one of them",
    ),
    "nowhere": (
        lambda: ws.find_batch_size(linear(), device="null", **SPECS),
        UsageError,
        "runs nothing, so its memory is not known; give memory='16GB'",
    ),
    "most": (
        lambda: ws.find_batch_size(linear(), most=0, **SPECS),
        OptionError,
        "most must be an integer of at least 1; received 0",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(what: str) -> None:
    call, kind, text = REFUSED[what]
    with pytest.raises(kind, match=text):
        call()
