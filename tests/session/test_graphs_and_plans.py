"""Section G of the conformance page: graph, plan, sessions."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import wholestep as ws
from tests.support.sessions import data, mlp
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.compiler.runtime.cache.content_store import CacheWarning
from wholestep.errors import PlanError, UnknownNameError, UsageError


def small(*, rows: int = 4, name: str = "w", columns: int = 2, scale: float = 1.0, dtype: str = "float32") -> ws.Graph:
    """x @ w, averaged: the graph of G01."""
    g = ws.Graph()
    x = g.input("x", (rows, 3), dtype=dtype)
    w = g.parameter(name, (3, columns), dtype=dtype)
    y = g.matmul(x, w)
    g.set_outputs([g.mean_all(y if scale == 1.0 else y * g.constant(np.full(columns, scale), dtype))])
    return g


def seed_mlp() -> ws.Graph:
    """The graph of G02: three parameters, labels as probabilities."""
    g = ws.Graph()
    x = g.input("x", (4, 784))
    w1, b1 = g.parameter("w1", (784, 128)), g.parameter("b1", (128,))
    w2 = g.parameter("w2", (128, 10))
    labels = g.input("labels", (4, 10))
    logits = g.matmul(g.relu(g.bias_add(g.matmul(x, w1), b1)), w2)
    g.set_outputs([g.cross_entropy_loss(logits, labels)])
    return g


def small_input() -> dict[str, np.ndarray]:
    return {"x": np.arange(12, dtype=np.float32).reshape(4, 3)}


def test_g01_compile_training_graph() -> None:
    plan, report = ws.compile_training_graph(small())
    assert plan.dispatches
    assert plan.loss_buffer is not None
    assert len(plan.param_grad_pairs) == len(plan.param_buffers) == len(plan.input_buffers) == 1
    assert report.nodes_before > 0


def test_g02_compile_an_mlp() -> None:
    plan, _ = ws.compile_training_graph(seed_mlp())
    assert len(plan.param_grad_pairs) == len(plan.param_buffers) == 3
    assert len(plan.input_buffers) == 2
    assert plan.loss_buffer is not None


def test_g03_without_the_e_graph_no_rewrites_are_reported() -> None:
    _, report = ws.compile_training_graph(seed_mlp(), options=ws.CompileOptions(optimize=False))
    assert not report.fusions_applied


def test_g04_a_gradient_that_is_consumed_at_once_has_no_buffer_unless_asked_for() -> None:
    plan, _ = ws.compile_training_graph(small())
    assert [gradient for _, gradient in plan.param_grad_pairs] == [None]
    g = small()
    g.parameters["w"].keep()
    session = ws.build_session(g)
    session.step(**small_input())
    expected = np.repeat(small_input()["x"].sum(axis=0)[:, None] / 8, 2, axis=1)
    np.testing.assert_allclose(session.get("w.grad"), expected, rtol=1e-6)
    ((_, gradient),) = session.plan.param_grad_pairs
    assert gradient is not None


def test_g05_a_plan_needs_no_compiler_and_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = ws.compile_training_graph(small())
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "no-such-compiler")
    plan, _ = ws.compile_training_graph(small())
    assert plan == expected


def test_g06_build_session_with_report_and_the_log_of_build_session(caplog: pytest.LogCaptureFixture) -> None:
    session, report = ws.build_session_with_report(mlp(), batch_size=4)
    assert isinstance(session, ws.Session)
    assert report.nodes_before > 0
    assert report.nodes_after > 0
    assert report.fusions_applied == ()
    assert f"nodes: {report.nodes_before} -> {report.nodes_after}" in str(report)
    with caplog.at_level(logging.INFO, "wholestep"):
        ws.build_session(mlp(), batch_size=4)
    assert "rewrites: none" in caplog.text


def test_g07_unoptimized_skips_the_whole_graph_pass_only() -> None:
    fresh = ws.CompileOptions(cache=False)
    with_pass, report = ws.build_session_with_report(mlp(), batch_size=4, options=fresh)
    without = ws.build_session_unoptimized(mlp(), batch_size=4, options=fresh)
    names = without._programs.compiled.spans.names()
    assert "optimize_forward" in names
    assert "optimize_full" not in names
    assert "optimize_full" in [s.name for s in report.spans]
    with_pass.step(**data(4))
    without.step(**data(4))
    np.testing.assert_allclose(with_pass.get("w1"), without.get("w1"), rtol=1e-6)


def test_g08_an_inference_session_has_no_backward_pass() -> None:
    training = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=8)
    session = ws.build_inference_session(mlp(), batch_size=8)
    assert session.plan.param_grad_pairs == ()
    assert session.plan.updated == ()
    assert set(session.state.names) == {"w1", "b1", "w2", "b2"}
    assert len(session.plan.kernels) < len(training.plan.kernels)
    ours, theirs = session.step(**data(8)), training.step(**data(8))
    assert session.read_loss() == ours.loss == theirs.loss
    np.testing.assert_array_equal(ours["logits"], theirs["logits"])
    np.testing.assert_array_equal(session.predict(x=data(8)["x"]), ours["logits"])


def test_g08_inference_without_a_loss() -> None:
    g = ws.Graph()
    x = g.input("x", ("batch", 3))
    g.input("labels", ("batch",), dtype="int32")
    g.set_outputs({"y": x @ g.parameter("w", (3, 2))})
    session = ws.build_inference_session(g, batch_size=4)
    y = session.predict(x=np.ones((4, 3), np.float32))
    np.testing.assert_allclose(y, np.ones((4, 3)) @ session.get("w"), rtol=1e-5)
    with pytest.raises(UsageError, match="no loss"):
        session.read_loss()


@pytest.mark.parametrize("count", [1, 3])
def test_g09_a_group_norm_and_its_silu_are_one_kernel(count: int) -> None:
    """Each normalises other groups than the one before, so that none could share its kernel."""
    g = ws.Graph()
    x = h = g.input("x", ("batch", 24, 4, 4))
    for i in range(count):
        weight, bias = g.parameter(f"w{i}", (24,), init=1.0), g.parameter(f"b{i}", (24,))
        h = ws.silu(ws.group_norm(h, 2 + i, weight, bias))
    g.set_outputs({"y": h})
    session = ws.build_inference_session(g, batch_size=2)
    report = session.report()
    assert len(session.plan.kernels) == count
    assert report.fusions == {"group_norm + silu": count}
    assert f"in one kernel: group_norm + silu: {count}" in str(report)
    import torch  # here: the second process of G11 loads this file, and has no use for it

    rows = np.random.default_rng(0).normal(size=(2, *x.shape[1:])).astype(np.float32)
    expected = torch.tensor(rows)
    for i in range(count):
        expected = torch.nn.functional.silu(torch.nn.functional.group_norm(expected, 2 + i))
    np.testing.assert_allclose(session.predict(x=rows), expected, atol=1e-5)


def test_g10_toposort() -> None:
    graph = mlp()
    nodes = graph.toposort()
    position = {n: i for i, n in enumerate(nodes)}
    assert all(position[i] < position[n] for n in nodes for i in n.inputs)
    assert set(nodes) == set(graph.to_ir().nodes)


SECOND_PROCESS = """
import json, sys
sys.path[:0] = {paths!r}
import wholestep as ws
from tests.session.test_graphs_and_plans import small, small_input
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
session = ws.build_session_cached(small(), {path!r}, options=ws.CompileOptions(cache_dir={cache!r}))
loss = session.step(**small_input()).loss
print(json.dumps([session._programs.compiled.spans.names(), compile_counter.value, loss]))
"""


def test_g11_a_cached_session_skips_every_stage_in_a_new_process(tmp_path) -> None:
    path, cache = str(tmp_path / "small.plan"), str(tmp_path / "cache")
    session = ws.build_session_cached(small(), path, options=ws.CompileOptions(cache_dir=cache))
    assert "autodiff" in session._programs.compiled.spans.names()
    loss = session.step(**small_input()).loss
    script = textwrap.dedent(SECOND_PROCESS).format(path=path, cache=cache, paths=sys.path)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    names, compiled, again = json.loads(done.stdout)
    assert names == ["device_init"]
    assert compiled == 0
    assert again == loss


def test_g12_cached_and_uncached_plans_are_equal(tmp_path) -> None:
    uncached = ws.build_session(small(), options=ws.CompileOptions(cache=False)).plan
    for _ in range(2):
        assert ws.build_session_cached(small(), tmp_path / "p").plan == uncached
    for _ in range(2):
        assert ws.build_session(small(), options=ws.CompileOptions(cache_dir=str(tmp_path / "c"))).plan == uncached


@pytest.mark.parametrize(
    "change", [{"columns": 5}, {"name": "v"}, {"scale": 2.0}, {"scale": 3.0}, {"dtype": "float64"}, {"rows": 6}]
)
def test_g13_a_changed_graph_is_a_miss_and_replaces_the_file(tmp_path, change) -> None:
    path = tmp_path / "p"
    ws.build_session_cached(small(scale=2.5) if change == {"scale": 3.0} else small(), path)
    before = path.read_bytes()
    session = ws.build_session_cached(small(**change), path)
    assert session.plan == ws.compile_training_graph(small(**change))[0]
    assert path.read_bytes() != before
    assert ws.load_plan(small(**change), path) == session.plan


def test_g13_a_changed_argument_is_a_miss(tmp_path) -> None:
    path = tmp_path / "p"
    ws.build_session_cached(mlp(), path, batch_size=4)
    assert ws.build_session_cached(mlp(), path, batch_size=8).plan.capacity == (8,)
    adam = ws.build_session_cached(mlp(), path, batch_size=8, optimizer=ws.Adam())
    assert "w1.adam.m" in adam.state


def test_g14_a_file_that_cannot_be_read_or_written_only_warns(tmp_path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"\x00 not a plan")
    with pytest.warns(CacheWarning, match="is not used: this is not a plan file"):
        session = ws.build_session_cached(small(), damaged)
    assert np.isfinite(session.step(**small_input()).loss)
    assert ws.load_plan(small(), damaged) == session.plan  # it was replaced
    with pytest.warns(CacheWarning, match="could not be written"):
        session = ws.build_session_cached(small(), tmp_path / "no" / "such" / "folder" / "p")
    assert np.isfinite(session.step(**small_input()).loss)


def test_g15_save_and_load(tmp_path) -> None:
    plan, _ = ws.compile_training_graph(small())
    ws.save_plan(plan, small(), tmp_path / "p")
    loaded = ws.load_plan(small(), tmp_path / "p")
    assert loaded == plan
    assert ws.load_plan(small(), tmp_path / "nothing") is None
    assert ws.load_plan(small(columns=7), tmp_path / "p") is None
    (tmp_path / "p").write_bytes((tmp_path / "p").read_bytes().replace(b'"capacity"', b'"Capacity"'))
    with pytest.raises(PlanError, match="damaged"):
        ws.load_plan(small(), tmp_path / "p")


def test_g16_a_session_from_a_plan_alone(tmp_path) -> None:
    built = ws.build_session(small())
    ws.save_plan(built.plan, small(), tmp_path / "p")
    loaded = ws.load_plan(small(), tmp_path / "p")
    assert loaded is not None
    session = ws.Session(loaded)  # the plan knows how its states begin: same seed, same bits
    for _ in range(3):
        assert session.step(**small_input()).loss == built.step(**small_input()).loss
    with pytest.raises(UsageError, match="built from a plan alone"):
        session.predict(**small_input())


def test_g17_set_input_step_wait_read_loss() -> None:
    by_hand, at_once = (ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16) for _ in range(2))
    with pytest.raises(UsageError, match="no loss yet"):
        by_hand.read_loss()
    for i in range(3):
        batch = data(16 if i else 9, seed=i)
        for name, value in batch.items():
            by_hand.set_input(name, value)
            value_given, batch[name] = value, value.copy()
            value_given.fill(0)  # it was copied
        by_hand.step()
        by_hand.wait()
        assert by_hand.read_loss() == at_once.step(**batch).loss
    by_hand.step()  # inputs hold until they are given again
    at_once.step(**batch)
    np.testing.assert_array_equal(by_hand.get("w1"), at_once.get("w1"))


@pytest.mark.parametrize("optimizer", [ws.SGD(lr=0.5), ws.Adam(lr=0.5)])
def test_g18_set_learning_rate_changes_the_rate_only(optimizer) -> None:
    session = ws.build_session(mlp(), optimizer=optimizer, batch_size=4)
    other = ws.build_session(mlp(), optimizer=type(optimizer)(lr=0.01), batch_size=4)
    count = compile_counter.value
    session.set_learning_rate(0.01)
    for i in range(3):
        assert session.step(**data(4, seed=i)).loss == other.step(**data(4, seed=i)).loss
    assert compile_counter.value == count


def test_g19_the_default_is_sgd_and_set_adam_recompiles_once(caplog: pytest.LogCaptureFixture, tmp_path) -> None:
    options = ws.CompileOptions(cache_dir=str(tmp_path))  # an empty cache: every compile is counted
    session = ws.build_session(mlp(hidden=19), batch_size=8, options=options)
    assert session.optimizer.lr == 0.01
    assert not any("adam" in name for name in session.state.names)
    session.step(**data(8))
    parameters = {name: session.get(name) for name in ("w1", "b1", "w2", "b2")}
    count = compile_counter.value
    with caplog.at_level(logging.INFO, "wholestep"):
        session.set_adam(0.002, 0.8, 0.99, 1e-7)
        session.set_adam(0.003, 0.8, 0.99, 1e-7)
    assert caplog.text.count("recompiling") == 1
    assert compile_counter.value == count + 1
    fresh = ws.build_session(mlp(hidden=19), optimizer=ws.Adam(lr=0.003, betas=(0.8, 0.99), eps=1e-7), batch_size=8)
    for name, value in parameters.items():
        np.testing.assert_array_equal(session.get(name), value)
        fresh.set(name, value)
    for i in range(3):
        assert session.step(**data(8, seed=i)).loss == fresh.step(**data(8, seed=i)).loss


def test_g20_outputs_and_kept_tensors_are_read_by_name() -> None:
    g = ws.Graph()
    a = g.named_tensor("a", 2)
    b = g.constant(3.0)
    w = g.parameter("w", (2,), init=1.0)
    product = (a * b).keep("product")
    hidden = product * w
    g.set_outputs([hidden.sum(), hidden * 2])
    session = ws.build_session(g)
    result = session.step(a=np.array([1, 2], np.float32))
    assert result.loss == 9.0
    np.testing.assert_array_equal(session.get("product"), [3, 6])
    np.testing.assert_array_equal(result["output1"], [6, 12])
    with pytest.raises(UnknownNameError, match=r"nothing named 'hidden'.*tensor\.keep"):
        session.get("hidden")


def test_g21_text_of_a_graph_and_log_of_a_build(caplog: pytest.LogCaptureFixture) -> None:
    graph = mlp()
    assert len(str(graph).strip().splitlines()) >= len(graph.toposort())
    with caplog.at_level(logging.INFO, "wholestep"):
        ws.build_session(graph, batch_size=4, options=ws.CompileOptions(cache=False))
    for word in ("nodes", "buffers", "dispatches"):
        assert word in caplog.text
