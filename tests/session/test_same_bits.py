"""The same bits whatever the threads, the capacity, the fusion, the process, and the way a session is driven.

`test_session.py` says so of a small relu classifier; here the networks are large enough that threads share out rows,
columns and products, and hold softmax, norms, random numbers and sums over both dimensions.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.ops.compiled_ops import group_graph
from tests.ops.table import GROUPS
from tests.support.sessions import assert_same_bits

Array = np.ndarray[Any, Any]
ROWS, STEPS = 13, 4


def wide() -> ws.Graph:
    """A relu classifier whose layers are split among threads."""
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 150)), g.input("labels", ("batch",), "int32")
    w1, b1 = g.parameter("w1", (150, 130)), g.parameter("b1", (130,))
    w2, b2 = g.parameter("w2", (130, 70)), g.parameter("b2", (70,))
    w3, b3 = g.parameter("w3", (70, 10)), g.parameter("b3", (10,))
    logits = ws.relu(ws.relu(x @ w1 + b1) @ w2 + b2) @ w3 + b3
    g.set_outputs({"loss": ws.losses.cross_entropy(logits, labels), "logits": logits})
    return g


def noisy() -> ws.Graph:
    """gelu, tanh, a norm, dropout by random numbers, and a mean written by hand."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 150)), g.input("y", ("batch", 3))
    w1, w2, w3 = g.parameter("w1", (150, 67)), g.parameter("w2", (67, 41)), g.parameter("w3", (3, 41))
    gain = g.parameter("gain", (67,), init=1.0)
    hidden = ws.layer_norm(ws.gelu(x @ w1)) * gain
    kept = (ws.random_uniform(g, hidden.shape) < 0.8).astype("float32") / 0.8
    p = ws.tanh((hidden * kept) @ w2 + ws.random_normal(g, ("batch", 41), std=0.1)) @ w3.T
    g.set_outputs({"loss": ((p - y) ** 2).mean(), "p": p})
    return g


def attentive() -> ws.Graph:
    """Rows attend to one another: softmax and products along the batch itself."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 150)), g.input("y", ("batch", 3))
    query, key, value = (g.parameter(n, (150, 20)) for n in ("query", "key", "value"))
    out = g.parameter("out", (20, 3))
    scores = ws.softmax((x @ query) @ (x @ key).T / 20**0.5)
    p = ws.silu(scores @ (x @ value)) @ out
    spread = ws.log_softmax(p, 0).max(0).sum()
    g.set_outputs({"loss": ws.losses.rmse_loss(p, y) - 0.01 * spread, "p": p})
    return g


NETWORKS: dict[str, Callable[[], ws.Graph]] = {"wide": wide, "noisy": noisy, "attentive": attentive}


def data(graph: ws.Graph, rows: int, seed: int) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    made = {
        "x": rng.normal(size=(rows, 150)).astype(np.float32),
        "y": rng.normal(size=(rows, 3)).astype(np.float32),
        "labels": rng.integers(0, 10, rows).astype(np.int32),
    }
    return {name: made[name] for name in graph.inputs}


def session_of(graph: ws.Graph, **arguments: Any) -> ws.Session:
    return ws.build_session(graph, **{"optimizer": ws.Adam(lr=1e-2), "batch_size": 64, "threads": 2, **arguments})


def trained(network: str, rows: int = ROWS, **arguments: Any) -> dict[str, Array]:
    """Everything that a few steps leave behind: losses, outputs, weights, moments."""
    graph = NETWORKS[network]()
    session = session_of(graph, **arguments)
    results = [session.step(data(graph, rows, i)) for i in range(STEPS)]
    outputs = {f"{name} of step {i}": v for i, r in enumerate(results) for name, v in r.outputs.items()}
    return {**outputs, **session.state_dict()}


@functools.cache
def reference(network: str, rows: int = ROWS) -> dict[str, Array]:
    return trained(network, rows, threads=1)


def digest(arrays: dict[str, Array]) -> str:
    whole = hashlib.sha256()
    for name in sorted(arrays):
        whole.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return whole.hexdigest()


def test_the_reference_learns_and_is_finite() -> None:
    """What follows compares bits: they must be those of a training run."""
    for network, build in NETWORKS.items():
        start = session_of(build()).state_dict()
        after = reference(network)
        assert all(np.isfinite(a).all() for a in after.values())
        assert all((after[name] != start[name]).any() for name in build().parameters)


@pytest.mark.parametrize("rows", [ROWS, 64])
@pytest.mark.parametrize("threads", [2, 3, 7])
@pytest.mark.parametrize("network", NETWORKS)
def test_threads(network: str, threads: int, rows: int) -> None:
    assert_same_bits(trained(network, rows, threads=threads), reference(network, rows))


@pytest.mark.parametrize("network", NETWORKS)
def test_capacity(network: str) -> None:
    assert_same_bits(trained(network, batch_size=ROWS), reference(network))


def test_unfused_plans_differ() -> None:
    """The comparison below is of two plans, not of one with itself."""
    fused, unfused = (
        ws.compile_training_graph(wide(), batch_size=64, options=ws.CompileOptions(fuse=f))[0] for f in (True, False)
    )
    assert len(unfused.kernels) > 3 * len(fused.kernels)


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("group", GROUPS)
def test_every_op_fused_and_unfused_on_any_number_of_threads(group: str, dtype: str) -> None:
    def values(fuse: bool, threads: int) -> dict[str, Array]:
        g, inputs = group_graph(group, dtype)
        options = ws.CompileOptions(fuse=fuse)
        session = ws.build_session(g, optimizer=ws.SGD(lr=0.1), threads=threads, options=options)
        return {**session.step(inputs).outputs, **session.state_dict()}

    expected = values(True, 1)
    for fuse, threads in ((True, 3), (False, 1), (False, 7)):
        assert_same_bits(values(fuse, threads), expected)


@pytest.mark.parametrize("rows", [ROWS, 64])
@pytest.mark.parametrize("network", NETWORKS)
def test_fusion(network: str, rows: int) -> None:
    assert_same_bits(trained(network, rows, options=ws.CompileOptions(fuse=False)), reference(network, rows))


def test_another_process() -> None:
    script = "from tests.session.test_same_bits import digest, trained\nprint(digest(trained('noisy')))"
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest(reference("noisy"))


@pytest.mark.parametrize("network", NETWORKS)
def test_two_sessions_over_one_model(network: str) -> None:
    """Of different capacity and threads, in turn: the numbers are the model's, not the session's."""
    graph = NETWORKS[network]()
    pair = session_of(graph, threads=1), session_of(graph, threads=3, batch_size=ROWS)
    for i in range(STEPS):
        pair[i % 2].step(data(graph, ROWS, i))
    expected = reference(network)
    for name in graph.parameters:
        assert pair[0].get(name).tobytes() == expected[name].tobytes(), name


@pytest.mark.parametrize("network", NETWORKS)
def test_run_against_steps(network: str) -> None:
    """In order, with a smaller last batch, so that random numbers too are those of the same step and element."""
    by_run, by_step = NETWORKS[network](), NETWORKS[network]()
    everything = data(by_run, 150, 0)
    running, stepping = session_of(by_run), session_of(by_step, threads=3)
    losses = running.run(everything, shuffle=False)
    batches = [{n: a[i : i + 64] for n, a in everything.items()} for i in range(0, 150, 64)]
    assert losses.tolist() == [stepping.step(b).loss for b in batches]
    for name in (*by_run.parameters, "w1.adam.v" if network != "attentive" else "query.adam.v"):
        assert running.get(name).tobytes() == stepping.get(name).tobytes(), name


@pytest.mark.parametrize("network", NETWORKS)
def test_a_state_dict_in_the_middle(network: str) -> None:
    """Saved after two steps, loaded into a session that had gone elsewhere."""
    first, second = NETWORKS[network](), NETWORKS[network]()
    session, other = session_of(first), session_of(second, threads=3)
    for i in range(2):
        session.step(data(first, ROWS, i))
    other.step(data(second, 64, 99))
    other.load_state_dict(session.state_dict())
    for i in range(2, STEPS):
        other.step(data(second, ROWS, i))
    expected = reference(network)
    assert_same_bits(other.state_dict(), {n: expected[n] for n in other.state_dict()})


def test_shuffled_epochs_from_a_state_dict() -> None:
    graph, again = noisy(), noisy()
    everything = data(graph, 200, 1)
    whole, resumed = session_of(graph), session_of(again, threads=1)
    losses = whole.run(everything, epochs=1)
    saved = whole.state_dict()
    later = whole.run(everything, epochs=2)
    resumed.load_state_dict(saved)
    np.testing.assert_array_equal(resumed.run(everything, epochs=2), later)
    assert_same_bits(resumed.state_dict(), whole.state_dict())
    assert len(losses) == 4
