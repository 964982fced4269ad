"""`shards=n`: the steps of n workers in one process equal one worker's, through `fit`; unsupported options raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.compilers import quick
from wholestep.compiler.plan.model.bodies import Exchange
from wholestep.compiler.plan.model.kernel import Kind
from wholestep.errors import GraphError, InputError, OptionError

ROWS = 29  # in batches of 8: the last one has 5, which 2, 3 and 4 ranks divide unevenly
RNG = np.random.default_rng(7)
IMAGES = RNG.standard_normal((ROWS, 3, 6, 6)).astype(np.float32)
VECTORS = RNG.standard_normal((ROWS, 6)).astype(np.float32)
WEIGHTS = RNG.uniform(0.5, 2, ROWS).astype(np.float32)
LABELS = RNG.integers(0, 3, ROWS).astype(np.int32)
TOKENS = RNG.integers(0, 11, (ROWS, 7)).astype(np.int32)
MASKED = np.where(RNG.random((ROWS, 6)) < 0.4, -100, TOKENS[:, 1:]).astype(np.int32)


def perceptron() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(6, 9), ws.nn.ReLU(), ws.nn.Dropout(0.3), ws.nn.Linear(9, 3))


def convolutions() -> ws.nn.Module:
    return ws.nn.Sequential(
        ws.nn.Conv2d(3, 4, 3, padding=1, bias=False), ws.nn.BatchNorm2d(4), ws.nn.ReLU(), ws.nn.MaxPool2d(2),
        ws.nn.Flatten(), ws.nn.Linear(36, 3),
    )  # fmt: skip


class Recurrent(ws.nn.Module):
    def __init__(self) -> None:
        self.table, self.lstm, self.head = ws.nn.Embedding(11, 5), ws.nn.LSTM(5, 6), ws.nn.Linear(6, 11)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.head(self.lstm(self.table(x).transpose(0, 1))[0].transpose(0, 1))


def transformer() -> ws.nn.Module:
    return ws.models.gpt2(layers=1, width=8, heads=2, vocabulary=11, context=6)


CASES: dict[str, tuple[Callable[[], ws.nn.Module], Any, dict[str, Any]]] = {
    "dropout, weights of rows, metrics, clipping": (
        perceptron,
        (VECTORS, LABELS, WEIGHTS),
        {"loss": "cross_entropy", "metrics": ["accuracy"], "clip_norm": 0.5},
    ),
    "batch norm": (convolutions, (IMAGES, LABELS), {"loss": "cross_entropy"}),
    "a recurrent network": (Recurrent, (TOKENS[:, :-1], TOKENS[:, 1:]), {"loss": "cross_entropy"}),
    "tied weights, positions that do not count": (
        transformer,
        (TOKENS[:, :-1], MASKED),
        {"loss": lambda p, t: ws.losses.cross_entropy(p, t, ignore_index=-100)},
    ),
    "micro-batches": (
        perceptron,
        (VECTORS, LABELS),
        {"loss": "cross_entropy", "metrics": ["accuracy"], "accumulate": 2, "clip_norm": 0.5},
    ),
    "a function around a mean": (perceptron, (VECTORS, VECTORS[:, :3]), {"loss": "rmse"}),
}


def trained(
    case: str, shards: int | tuple[int, int] | None, **more: Any
) -> tuple[dict[str, np.ndarray], ws.TrainHistory]:
    make, data, settings = CASES[case]
    model = make()
    optimizer = ws.SGD(lr=0.05, momentum=0.9)
    told = {
        "epochs": 2,
        "batch_size": 8,
        "seed": 3,
        "progress": False,
        "validation": 0.2,
        "optimizer": optimizer,
        "options": quick(),
    }
    history = ws.fit(model, data, shards=shards, **{**told, **settings, **more})
    return {name: np.asarray(value) for name, value in model.state_dict().items()}, history


@pytest.mark.parametrize("case", CASES)
def test_shards_make_the_steps_of_one_process(case: str) -> None:
    alone, history = trained(case, None)
    first: dict[str, np.ndarray] = {}
    for shards in (2, 3):
        weights, told = trained(case, shards)
        for name in alone:
            np.testing.assert_allclose(weights[name], alone[name], rtol=2e-5, atol=2e-6, err_msg=f"{shards}: {name}")
        for key in (name for name in history.scalars if not name.endswith("seconds")):
            np.testing.assert_allclose(told[key], history[key], rtol=2e-5, err_msg=key)
        first = first or weights
    again, _ = trained(case, 2, threads=1)
    assert all(np.array_equal(again[name], first[name]) for name in alone), "the same bits in every run"


@pytest.mark.parametrize("case", ["batch norm", "a recurrent network", "micro-batches"])
def test_a_rank_may_have_no_rows(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 17 rows in batches of 8 the last has one row, for four ranks."""
    make, data, settings = CASES[case]
    monkeypatch.setitem(CASES, case, (make, tuple(a[:17] for a in data), settings))
    alone, _ = trained(case, None, validation=None)
    weights, _ = trained(case, 4, validation=None)
    for name in alone:
        np.testing.assert_allclose(weights[name], alone[name], rtol=2e-5, atol=2e-6, err_msg=name)


def test_a_batch_norm_of_each_workers_rows_is_torchs_that_is_not_synchronised() -> None:
    norm = ws.nn.Sequential(ws.nn.Linear(6, 5), ws.nn.BatchNorm1d(5, per_worker=True), ws.nn.Linear(5, 3))
    theirs = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    inputs, targets = ws.Spec(("batch", 6)), ws.Spec(("batch",), "int32")
    session = ws.build_session(
        norm, inputs=inputs, targets=targets, loss="cross_entropy", optimizer=ws.SGD(lr=0.5), batch_size=8, shards=2,
        options=quick(),
    )  # fmt: skip
    names = ("0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias")
    with torch.no_grad():
        for name in names:
            theirs.get_parameter(name).copy_(torch.from_numpy(np.array(norm.state_dict()[name])))
    given = dict(zip((i for i, _ in session.plan.inputs), (VECTORS[:8], LABELS[:8]), strict=True))
    session.step(**given)
    halves = [slice(0, 4), slice(4, 8)]
    x, y = torch.from_numpy(VECTORS), torch.from_numpy(LABELS).long()
    loss = sum(torch.nn.functional.cross_entropy(theirs(x[h]), y[h], reduction="sum") for h in halves) / 8
    loss.backward()
    for name in names:
        ours, parameter = norm.state_dict()[name], theirs.get_parameter(name)
        expected = (parameter - 0.5 * parameter.grad).detach().numpy()
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6, err_msg=name)
    assert "per_worker=True are over each rank's own rows" in str(session.report())


def test_indices_that_all_rows_share_are_looked_at_too() -> None:
    """An input without rows is every rank's own; an index in it, or in rows of another rank, is refused by all."""
    g = ws.Graph()
    x, at, labels = g.input("x", ("batch", 6)), g.input("at", (2,), "int32"), g.input("labels", ("batch",), "int32")
    table = g.parameter("table", (5, 6), init=ws.init.normal(1.0))
    scores = x @ ws.take(table, at).T
    g.set_outputs({"loss": ws.losses.cross_entropy(scores, labels)})
    given = {"x": VECTORS[:8], "at": np.array([4, 1], np.int32), "labels": LABELS[:8] % 2}
    found = {}
    for shards in (None, 2):
        session = ws.build_session(g, batch_size=8, shards=shards, options=quick())
        session.set("table", np.linspace(-1, 1, 30, dtype=np.float32).reshape(5, 6))
        found[shards] = float(session.step(given).loss)
        for name, bad in (("at", np.array([5, 1], np.int32)), ("labels", np.r_[LABELS[:7] % 2, 2].astype(np.int32))):
            with pytest.raises(InputError, match=name):
                session.step({**given, name: bad})
        assert np.isfinite(float(session.step(given).loss)), "nobody was left waiting"
    np.testing.assert_allclose(found[2], found[None], rtol=1e-6)


# -- plans -------------------------------------------------------------------------------------------------------


def planned(model: ws.nn.Module, **arguments: Any) -> ws.Session:
    inputs, targets = ws.Spec(("batch", 6)), ws.Spec(("batch",), "int32")
    told = {"loss": "cross_entropy", "batch_size": 8, "device": "null", **arguments}
    return ws.build_session(model, inputs=inputs, targets=targets, **told)


def test_every_gradient_crosses_once_and_in_one_exchange() -> None:
    model = perceptron()
    plan = planned(model, shards=4, optimizer=ws.AdamW(), clip_norm=1.0, metrics=["accuracy"]).plan
    kernels = [k for k in plan.kernels if isinstance(k.body, Exchange)]
    assert {k.body.collective for k in kernels} == {"all_reduce"}
    floats = [k for k in kernels if k.body.dtype.name == "float32"]
    counts = [load.shape[0] for k in floats for load in k.body.operands]
    parameters = sum(value.size for value in model.state_dict().values())
    assert sum(counts) == parameters + 1, "all gradients, and the sum of the losses"
    assert len(floats) == 1
    assert (plan.divided, plan.whole, plan.sizes["batch"]) == ("batch", 8, 2)


def test_a_report_counts_what_crosses_and_a_profile_has_it() -> None:
    model = perceptron()
    session = planned(model, shards=2, device="cpu", options=quick())
    parameters = sum(value.size for value in model.state_dict().values())
    report = session.report()
    assert report.wire_bytes == 4 * (parameters + 1) * 2 * (2 - 1) // 2
    assert f"of which each rank sends {report.wire_bytes:,} per step" in str(report)
    names = [i for i, _ in session.plan.inputs]
    profile = session.profile(**dict(zip(names, (VECTORS[:8], LABELS[:8]), strict=True)))
    assert "exchange" in str(profile)


def test_a_report_says_what_fusion_exchanges_cost() -> None:
    """In one process the update of every weight is part of the kernel that makes its gradient."""
    alone, divided = (planned(perceptron(), optimizer=ws.SGD(lr=0.1), **more) for more in ({}, {"shards": 4}))
    sums = [k for k in alone.plan.kernels if k.kind in (Kind.DOT, Kind.COLUMNS)]
    weights = {id for name, id in alone.plan.states}
    fused = [k for k in sums if weights & {load.buffer for load in k.body.stores()}]
    count, size = divided.report().parted
    assert (count, size) == (len(fused), 4 * sum(a.size for a in perceptron().state_dict().values())) == (4, 372)
    said = f"they send the results of {count} sums and products, into which no update can be fused: {size:,} bytes are"
    assert said in str(divided.report())
    assert alone.report().parted == (0, 0)
    assert "sums and products" not in str(alone.report())


def test_a_plan_of_shards_is_read_back_and_checked(tmp_path: Any) -> None:
    from wholestep.compiler.plan.io.serialize import dump, load

    plan = planned(perceptron(), shards=3).plan
    assert load(dump(plan)) == plan


# -- what is refused ---------------------------------------------------------------------------------------------


class Contrast(ws.nn.Module):
    """Compares every row with every other."""

    def __init__(self) -> None:
        self.layer = ws.nn.Linear(6, 3)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        y = self.layer(x)
        return y - (y @ y.T).max(1).reshape(-1, 1)


def test_what_cannot_be_divided_is_refused_with_the_reason() -> None:
    with pytest.raises(GraphError, match=r"cannot be divided among workers, since `matmul`.*other rows.*one process"):
        planned(Contrast(), shards=2)
    with pytest.raises(OptionError, match=r"workers=4: workers are processes .*workers=ws.Workers\(4\)"):
        planned(perceptron(), workers=4)
    with pytest.raises(OptionError, match="shards=0: expected an integer from 1"):
        planned(perceptron(), shards=0)
    g = ws.Graph()
    x, w = g.input("x", (4, 3)), g.parameter("w", (3,))
    g.set_outputs({"loss": ((x * w) ** 2).mean()})
    with pytest.raises(GraphError, match="a step of several workers needs a first input whose first axis is the batch"):
        ws.build_session(g, shards=2, device="null")
