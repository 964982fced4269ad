"""One table of losses, the same tests for each: torch, dtypes, partial batches, extremes, parts, no recompile."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import wholestep as ws
from tests.losses.cases import CASES
from tests.losses.compiled import CAPACITY, case_data, results, run, torch_says
from tests.support.recording import value
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.compiler.passes.distribute.separability import separate_loss
from wholestep.losses import LOSSES

TOLERANCE = {"float32": 2e-5, "float64": 1e-10}


def test_every_loss_of_the_table_has_a_case() -> None:
    assert {case.loss for case in CASES.values()} == set(LOSSES), "add a case to CASES of tests/losses/cases.py"


def test_every_exported_loss_is_in_the_table() -> None:
    """Except those of pairs and triplets, which compare embeddings, and of truth values, which have no target."""
    others = {"triplet_margin_loss", "triplet_margin", "margin_ranking_loss", "margin_ranking"}
    others |= {"soft_and", "soft_or", "soft_not", "soft_implies", "constraint_loss"}
    others |= {"cross_entropy_with_logits_loss", "get", "value_and_grad"}
    exported = {name: getattr(ws.losses, name) for name in ws.losses.__all__}
    functions = {entry.function for entry in LOSSES.values()}
    lacking = {n for n, f in exported.items() if inspect.isfunction(f) and f not in functions} - others
    assert sorted(lacking) == [], "add a row to LOSSES of wholestep/losses/table.py"


@pytest.mark.parametrize("kind", LOSSES)
def test_a_loss_takes_class_numbers_where_its_row_says_so(kind: str) -> None:
    g = ws.Graph()
    scores, labels = g.input("p", ("batch", 3)), g.input("labels", ("batch",), dtype="int32")
    if LOSSES[kind].takes_classes:
        assert ws.losses.get(kind)(scores, labels).shape == ()
    else:
        with pytest.raises(ws.errors.WholestepError, match=r"labels|target|shape|dtype"):
            ws.losses.get(kind)(scores, labels)


@pytest.mark.parametrize("rows", [5, CAPACITY])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_torchs(name: str, dtype: str, rows: int) -> None:
    ours, theirs = results(dtype, rows)[name], torch_says(name, rows)
    assert ours.value.dtype == dtype
    np.testing.assert_allclose(ours.value, theirs.value, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    for mine, other in zip(ours.grads, theirs.grads, strict=True):
        np.testing.assert_allclose(mine, other, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", CASES)
def test_a_partial_batch_has_the_bits_of_the_same_rows_alone(name: str) -> None:
    partial, alone = results("float32", 5)[name], results("float32", 5, capacity=5)[name]
    assert partial.value.tobytes() == alone.value.tobytes()
    for a, b in zip(partial.grads, alone.grads, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.fixture(scope="module")
def at_extremes():
    """Scores of ±1e4 in float32, where a loss takes raw scores."""
    data = {name: case_data(name, CAPACITY, "float32") for name in CASES}
    for name, arrays in data.items():
        if name != "poisson of rates":  # rates are positive by definition
            arrays["p"] = np.where(arrays["p"] > 0, 1e4, -1e4).astype(np.float32)
    return run("float32", data)


@pytest.mark.parametrize("name", CASES)
def test_extreme_scores_have_finite_values_and_gradients(name: str, at_extremes) -> None:
    assert np.isfinite(at_extremes[name].value)
    assert all(np.isfinite(grad).all() for grad in at_extremes[name].grads)


def recorded(name: str) -> tuple[ws.Graph, ws.Tensor]:
    """A case whose prediction depends on a parameter."""
    g = ws.Graph()
    arrays = case_data(name, 2, "float32")
    tensors = {k: g.input(k, ("batch", *a.shape[1:]), a.dtype) for k, a in arrays.items()}
    tensors["p"] = tensors["p"] * g.parameter("w", arrays["p"].shape[1:])
    loss = CASES[name].ours(*tensors.values())
    g.set_outputs([loss])
    return g, loss


@pytest.mark.parametrize("name", CASES)
def test_separability_is_what_the_table_says(name: str) -> None:
    g, loss = recorded(name)
    found = separate_loss(g.to_ir(), loss.node)
    assert found.separable == LOSSES[CASES[name].loss].separable, found.reason


def test_sums_of_weighted_losses_stay_separable() -> None:
    g = ws.Graph()
    p = g.input("x", ("batch", 4)) * g.parameter("w", (4,))
    labels, numbers = g.input("labels", ("batch",), "int32"), g.input("y", ("batch", 4))
    parts = [
        0.3 * ws.losses.cross_entropy(p, labels, -100, label_smoothing=0.1),
        0.7 * ws.losses.huber_loss(p, numbers),
        g.scalar("share", 0.5) * ws.losses.kl_div(p, numbers),
    ]
    loss = parts[0] + parts[1] - parts[2]
    g.set_outputs([loss])
    found = separate_loss(g.to_ir(), loss.node)
    assert found.separable, found.reason
    assert len(found.terms) == 3


# rmse is a root of a mean and has no other reduction; third arguments are not the same for every loss.
PLAIN = [name for name, case in CASES.items() if case.loss != "rmse" and len(case_data(name, 1, "float64")) == 2]


@pytest.mark.parametrize("name", PLAIN)
def test_none_adds_up_to_sum(name: str) -> None:
    """The reduction is the loss's last step: "sum" is the sum of "none"."""
    arrays, entry = case_data(name, 5, "float64").values(), LOSSES[CASES[name].loss].function
    parts = value(lambda *t: entry(*t, reduction="none"), *arrays)
    total = value(lambda *t: entry(*t, reduction="sum"), *arrays)
    np.testing.assert_allclose(np.sum(parts), total, rtol=1e-12)


def test_options_change_without_a_recompile() -> None:
    g = ws.Graph()
    p, t = g.input("p", ("batch", 4)), g.input("t", ("batch", 4))
    labels = g.input("labels", ("batch",), "int32")
    g.set_outputs(
        {
            "huber": ws.losses.huber_loss(p, t, 1.0),
            "second": ws.losses.huber_loss(p, t, 2.0),
            "smoothed": ws.losses.cross_entropy(p, labels, label_smoothing=ws.runtime(0.0)),
        }
    )
    session = ws.build_inference_session(g, batch_size=4)
    data = {"p": np.ones((2, 4), np.float32), "t": np.full((2, 4), 4.0, np.float32), "labels": np.zeros(2, np.int32)}
    before = session.step(data)
    assert [float(before["huber"]), float(before["second"])] == [2.5, 4.0]
    count = compile_counter.value
    session.scalars["huber_loss.delta"] = 2.0
    session.scalars["huber_loss2.delta"] = 1.0
    session.scalars["cross_entropy.label_smoothing"] = 0.1
    after = session.step(data)
    assert [float(after["huber"]), float(after["second"])] == [4.0, 2.5]
    np.testing.assert_allclose(after["smoothed"], np.log(4.0), rtol=1e-6)  # equal scores: smoothing changes nothing
    assert compile_counter.value == count
