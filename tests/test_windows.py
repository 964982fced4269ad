"""accumulate=k: a step over several batches equals the step over all their rows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.sessions import Array, mlp
from wholestep.compiler.runtime.compiler import compile_counter
from wholestep.errors import GraphError, InputError, OptionError, UsageError

Loss = Callable[[ws.Tensor, ws.Tensor, dict[str, ws.Tensor]], ws.Tensor]

LOSSES: dict[str, Loss] = {
    "cross entropy": lambda o, y, p: ws.losses.cross_entropy(o, y),
    "ignored labels": lambda o, y, p: ws.losses.cross_entropy(o, y, ignore_index=2),
    "a function of a mean": lambda o, y, p: ws.losses.rmse_loss(o, ws.one_hot(y, 3).astype(o.dtype)),
    "a term without data": lambda o, y, p: ws.losses.cross_entropy(o, y) + 0.1 * (p["w1"] * p["w1"]).sum(),
    "two terms": lambda o, y, p: 0.3 * ws.losses.cross_entropy(o, y, ignore_index=1) + (o * o).mean() - 0.01 * o.sum(),
    "outer and parameters": lambda o, y, p: ws.losses.rmse_loss(o, o * 0.0 + 1.0) * (p["w2"] * p["w2"]).sum(),
}
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}


def network(loss: Loss, dtype: str = "float32") -> ws.Graph:
    g = ws.Graph()
    x, y = g.input("x", ("batch", 6), dtype), g.input("labels", ("batch",), "int32")
    p = {"w1": g.parameter("w1", (6, 20), dtype=dtype), "w2": g.parameter("w2", (20, 3), dtype=dtype)}
    hidden = ws.dropout(ws.relu(x @ p["w1"]), 0.4)
    out = hidden @ p["w2"]
    g.set_outputs({"loss": loss(out, y, p), "scores": out})
    return g


def rows(count: int, dtype: str = "float32", seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(count, 6)).astype(dtype), "labels": rng.integers(0, 3, count).astype(np.int32)}


def train(graph: ws.Graph, counts: tuple[int, ...], dtype: str, **options: Any) -> tuple[list[float], ws.Session]:
    session = ws.build_session(graph, optimizer=ws.Adam(lr=1e-2), **options)
    return [float(session.step(**rows(n, dtype, i))) for i, n in enumerate(counts)], session


# Every loss in float64, where the bound is sharp, and the one with all three programs in float32.
CASES = [*((name, "float64") for name in LOSSES), ("ignored labels", "float32")]


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_a_window_is_the_large_batch(name: str, dtype: str) -> None:
    """With dropout on, clipping, metrics, full and incomplete windows, and the same bits on one and two threads."""
    counts, options = (24, 17, 8, 3), {"clip_norm": 0.5, "metrics": ["accuracy"]}
    losses, whole = train(network(LOSSES[name], dtype), counts, dtype, batch_size=24, **options)
    found, cut = train(network(LOSSES[name], dtype), counts, dtype, batch_size=8, accumulate=3, threads=2, **options)
    np.testing.assert_allclose(found, losses, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    for weight in ("w1", "w2"):
        np.testing.assert_allclose(cut.get(weight), whole.get(weight), rtol=0, atol=TOLERANCE[dtype])
    assert cut.metrics() == whole.metrics()
    assert cut.state_dict().keys() == whole.state_dict().keys()
    _, single = train(network(LOSSES[name], dtype), counts, dtype, batch_size=8, accumulate=3, threads=1, **options)
    assert all(single.state_dict()[k].tobytes() == v.tobytes() for k, v in cut.state_dict().items())


def test_dropout_is_on() -> None:
    """Else the test above would prove nothing about random numbers: without the offset the parts would agree."""
    g = ws.Graph()
    x, w = g.input("x", ("batch", 64)), g.parameter("w", (64,), init=0.0)
    g.set_outputs([(ws.dropout(x, 0.5) * w).sum(1).mean()])
    session = ws.build_session(g, optimizer=ws.SGD(lr=1.0), batch_size=1, accumulate=2)
    session.step(x=np.ones((2, 64), np.float32))
    kept = -np.array(session.get("w"))
    assert set(kept.tolist()) == {0.0, 1.0, 2.0}  # in no part, in one of two, in both


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_run_is_the_run_over_large_batches(shuffle: bool) -> None:
    sessions = []
    for options in ({"batch_size": 24}, {"batch_size": 8, "accumulate": 3}):
        session = ws.build_session(
            network(LOSSES["ignored labels"]), optimizer=ws.Adam(), metrics=["accuracy"], **options
        )
        losses = session.run(**rows(100), epochs=2, shuffle=shuffle)
        sessions.append((losses, session))
    (expected, whole), (found, cut) = sessions
    assert len(found) == 2 * 5
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    np.testing.assert_allclose(cut.get("w1"), whole.get("w1"), atol=1e-5)
    assert (cut.state.step, cut.state.epoch) == (10, 2)
    assert cut.metrics() == whole.metrics()


def test_steps_between_two_slices() -> None:
    """A run in slices goes on over its own rows, whatever was stepped or evaluated in between."""
    straight, sliced = (
        ws.build_session(network(LOSSES["ignored labels"]), optimizer=ws.SGD(lr=0.1), batch_size=4, accumulate=2)
        for _ in range(2)
    )
    straight.run(**rows(40))
    for part in sliced.run_in_slices(rows(40), every=1):
        assert len(part.losses) == 1
        sliced.set_learning_rate(0.0)
        before, step = sliced.state_dict(), sliced.state.step
        sliced.step(**rows(7, seed=5))
        sliced.evaluate(**rows(30, seed=6))
        sliced.load_state_dict({**before, "session/optimizer.lr": 0.1})
        assert sliced.state.step == step
    assert sliced.get("w1").tobytes() == straight.get("w1").tobytes()


def test_restored_half_way_the_bits_are_the_same() -> None:
    graph = LOSSES["a term without data"]
    _, straight = train(network(graph), (24, 20, 24, 9), "float32", batch_size=8, accumulate=3)
    _, first = train(network(graph), (24, 20), "float32", batch_size=8, accumulate=3)
    second = ws.build_session(network(graph), optimizer=ws.Adam(lr=1e-2), batch_size=8, accumulate=3)
    second.load_state_dict(first.state_dict())
    for i, n in enumerate((24, 9), start=2):
        second.step(**rows(n, seed=i))
    assert all(second.state_dict()[k].tobytes() == v.tobytes() for k, v in straight.state_dict().items())


def test_a_window_is_one_native_call_and_compiles_nothing() -> None:
    session = ws.build_session(network(LOSSES["ignored labels"]), batch_size=8, accumulate=3)
    library = session._main.program._library  # type: ignore[attr-defined]
    calls: list[int] = []
    original = library._run_windows
    library._run_windows = lambda w: calls.append(1) or original(w)
    compiles = compile_counter.value
    try:
        for n in (24, 5, 9):
            session.step(**rows(n))
    finally:
        library._run_windows = original
    assert len(calls) == 3
    assert compile_counter.value == compiles


def test_the_model_is_the_same_for_all_entry_points() -> None:
    graph = network(LOSSES["cross entropy"])
    session = ws.build_session(graph, optimizer=ws.SGD(lr=0.5), batch_size=8, accumulate=3)
    batch = rows(8)
    first = session.evaluate(**batch).loss
    for _ in range(20):
        session.step(**rows(24))
    assert session.evaluate(**batch).loss != first
    plain = ws.build_session(graph, optimizer=ws.SGD(lr=0.5), batch_size=8)
    assert plain.evaluate(**batch).loss == session.evaluate(**batch).loss
    assert not any(name.startswith("accumulate/") for name in plain.state_dict())
    assert session.step(**rows(24)).outputs.keys() == {"loss"}
    assert "runs once" in str(session.report())
    assert session.source.count("ws_prologue") >= 2


def test_inputs_that_are_not_cut_and_arrays_that_are_converted() -> None:
    g = ws.Graph()
    x, scale = g.input("x", ("batch", 3)), g.input("scale", (3,))
    w = g.parameter("w", (3, 1), init=1.0)
    g.set_outputs([((x * scale) @ w).mean()])
    session = ws.build_session(g, optimizer=ws.SGD(lr=1.0), batch_size=2, accumulate=4)
    x0, s0 = np.arange(21.0).reshape(7, 3), np.array([1.0, 2.0, 3.0])
    assert float(session.step(x=x0, scale=s0)) == pytest.approx((x0 * s0).sum(1).mean())
    np.testing.assert_allclose(session.get("w")[:, 0], 1 - (x0 * s0).mean(0), rtol=1e-6)


def test_states_of_the_user() -> None:
    def counting(value: Callable[[ws.Tensor, ws.Tensor], ws.Tensor]) -> ws.Graph:
        g = ws.Graph()
        x, w = g.input("x", ("batch", 2)), g.parameter("w", (2, 1))
        seen = g.state("seen", (), 0.0)
        g.update(seen, value(seen, x))
        g.set_outputs([(x @ w).mean()])
        return g

    batch = np.ones((6, 2), np.float32)
    once = ws.build_session(counting(lambda s, x: s + 1.0), batch_size=2, accumulate=3)
    once.step(x=batch)
    assert once.get("seen") == 1.0
    summing = counting(lambda s, x: s + x.sum())
    with pytest.raises(GraphError, match="new value of the state 'seen' depends on the batch, and a step has several"):
        ws.build_session(summing, batch_size=2, accumulate=3)
    each = ws.build_session(summing, batch_size=2, accumulate=3, per_micro_batch=True)
    each.step(x=batch)
    assert each.get("seen") == 12.0


@pytest.mark.parametrize("name", ["ignored labels", "a term without data"])
def test_evaluating_any_number_of_rows(name: str) -> None:
    many = rows(61)
    small, large = (
        ws.build_session(network(LOSSES[name]), batch_size=n, metrics=["accuracy"], optimizer=ws.SGD(lr=0.1))
        for n in (8, 64)
    )
    expected = large.evaluate(**many)
    for _ in range(2):
        found = small.evaluate(**many)
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.metrics == small.metrics("evaluate") == expected.metrics
    assert small.state.step == 0
    small.step(**rows(8))
    assert small.metrics() != found.metrics
    converted = {"x": many["x"].astype(np.float64)[:, ::-1], "labels": many["labels"].astype(np.int64)}
    large.step(**rows(8))
    assert small.evaluate(**converted).loss == pytest.approx(large.evaluate(**converted).loss, rel=1e-6)
    if name == "a term without data":
        with pytest.raises(InputError, match="holds indices from 0 to 2; received 3"):
            small.evaluate(x=many["x"], labels=np.full(61, 3))


# -- what cannot be cut ------------------------------------------------------------------------------------------


def normalised() -> ws.Graph:
    """A loss that divides by the mean over the batch, as batch norm does."""
    g = ws.Graph()
    x, w = g.input("x", ("batch", 2)), g.parameter("w", (2, 1), init=1.0)
    y = x @ w
    g.set_outputs([(y / y.mean(0)).abs().mean() + (y * y).mean()])
    return g


def test_a_loss_that_cannot_be_cut_names_the_node() -> None:
    text = (
        r"accumulate=2: the loss cannot be cut into batches, since `\w+` .*\(made at .*test_windows.py:\d+\) "
        r".* Train with accumulate=1, or accept the mean of the batches' losses: per_micro_batch=True"
    )
    with pytest.raises(GraphError, match=text):
        ws.build_session(normalised(), batch_size=2, accumulate=2)


def test_the_mean_of_the_parts_where_it_is_accepted() -> None:
    x = np.random.default_rng(0).uniform(1, 2, (4, 2)).astype(np.float32)
    cut = ws.build_session(normalised(), optimizer=ws.SGD(lr=1.0), batch_size=2, accumulate=2, per_micro_batch=True)
    loss = float(cut.step(x=x))
    parts = []
    for half in (x[:2], x[2:]):
        part = ws.build_session(normalised(), optimizer=ws.SGD(lr=1.0), batch_size=2)
        value = float(part.step(x=half))
        parts.append((value, 1 - part.get("w")))
    assert loss == pytest.approx(np.mean([p[0] for p in parts]), rel=1e-6)
    np.testing.assert_allclose(1 - cut.get("w"), np.mean([p[1] for p in parts], axis=0), rtol=1e-5)


def test_draws_that_cannot_be_numbered() -> None:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 2)), g.parameter("w", (2, 3))
    g.set_outputs([ws.dropout((x @ w).T, 0.5).mean()])
    with pytest.raises(
        GraphError, match=r"`dropout` .*draws random numbers of shape \(3, batch\), whose first axis is not"
    ):
        ws.build_session(g, batch_size=2, accumulate=2)
    assert np.isfinite(
        float(ws.build_session(g, batch_size=2, accumulate=2, per_micro_batch=True).step(x=np.ones((3, 2))))
    )


def fixed() -> ws.Graph:
    return mlp(batch=4)


def sideways() -> ws.Graph:
    g = ws.Graph()
    x, y, w = g.input("x", ("batch", 2)), g.input("y", (2, "batch")), g.parameter("w", (2, 2))
    g.set_outputs([((x @ w).sum() + y.sum()) * 1.0])
    return g


def test_evaluating_more_rows_of_a_loss_that_cannot_be_cut(caplog: pytest.LogCaptureFixture) -> None:
    session = ws.build_session(normalised(), batch_size=2)
    with pytest.raises(GraphError, match="evaluating more rows than the capacity: the loss cannot be cut into batches"):
        session.evaluate(x=np.ones((3, 2), np.float32))
    with caplog.at_level("WARNING", logger="wholestep"):
        found = session.evaluate_all({"x": np.ones((3, 2), np.float32)})
    assert "evaluate_all averages the losses of batches" in caplog.text
    assert found["loss"] == pytest.approx(session.evaluate(x=np.ones((1, 2), np.float32)).loss)


REFUSED: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "zero": (
        lambda: ws.build_session(mlp(), batch_size=2, accumulate=0),
        OptionError,
        "accumulate=0: expected a whole",
    ),
    "half": (lambda: ws.build_session(mlp(), batch_size=2, accumulate=1.5), OptionError, "accumulate=1.5: expected"),  # type: ignore[arg-type]
    "fixed": (
        lambda: ws.build_session(fixed(), accumulate=2),
        GraphError,
        r"first axis is the batch, e.g. .* received 'x' of shape \(4, 20\)",
    ),
    "sideways": (
        lambda: ws.build_session(sideways(), batch_size=2, accumulate=2),
        GraphError,
        r"cuts inputs along 'batch', their first axis; 'y' has shape \(2, batch\)",
    ),
    "sam": (
        lambda: ws.build_session(mlp(), optimizer=ws.optim.SAM(ws.SGD()), batch_size=2, accumulate=2),
        UsageError,
        "follows the gradient of the loss; SAM takes one elsewhere",
    ),
    "no data": (
        lambda: ws.build_session(without_data(), batch_size=2, accumulate=2),
        GraphError,
        "accumulate=2: the loss does not depend on the batch",
    ),
    "cached": (
        lambda: ws.build_session_cached(mlp(), "plan", batch_size=2, accumulate=2),
        UsageError,
        "keeps one plan, and accumulate needs several",
    ),
    "too many rows": (
        lambda: ws.build_session(mlp(), batch_size=2, accumulate=2).step(
            x=np.ones((5, 20), np.float32), labels=np.zeros(5, np.int32)
        ),
        InputError,
        "'batch' is 5, but this session was built for at most 4",
    ),
    "labels": (
        lambda: ws.build_session(mlp(), batch_size=2, accumulate=2).step(
            x=np.ones((4, 20), np.float32), labels=np.array([0, 0, 0, 5], np.int32)
        ),
        InputError,
        "holds indices from 0 to 4; received 5 at position 3",
    ),
}


def without_data() -> ws.Graph:
    g = ws.Graph()
    g.input("x", ("batch", 2))
    w = g.parameter("w", (2,))
    g.set_outputs([(w * w).sum()])
    return g


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    call, kind, text = REFUSED[what]
    with pytest.raises(kind, match=text):
        call()


def test_a_bad_label_after_a_good_window_changes_nothing() -> None:
    session = ws.build_session(mlp(), batch_size=2, accumulate=2)
    good = {"x": np.ones((4, 20), np.float32), "labels": np.zeros(4, np.int32)}
    session.step(**good)
    before = session.get("w1")
    bad = {**good, "labels": np.array([0, 0, 0, 9], np.int32)}
    with pytest.raises(InputError, match="received 9 at position 3"):
        session.step(**bad)
    assert session.get("w1").tobytes() == before.tobytes()
