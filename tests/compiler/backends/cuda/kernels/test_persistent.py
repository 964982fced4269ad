"""One persistent kernel for many steps: which plans have one, and that its steps equal launched steps bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.targets import set_costs, set_limits
from wholestep.compiler.backends.cuda.driver import driver
from wholestep.compiler.backends.cuda.driver.nvrtc import compile_text, translation_unit
from wholestep.compiler.backends.cuda.runtime.program import CudaProgram
from wholestep.compiler.backends.gpu.persistent import eligibility
from wholestep.compiler.backends.gpu.render.persistent_step import render_persistent_step
from wholestep.compiler.backends.gpu.render.source import native

PLAIN = ws.CompileOptions(verify=False, egraph=False)
FEATURES, COLUMNS, CLASSES = 852, 20, 5  # more than 64 KB of weights, and the last of each does not fill its block
Found = tuple[np.ndarray, dict[str, np.ndarray]]


def network(turned: bool = False, features: int = FEATURES) -> ws.Graph:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", features)), g.input("labels", ("batch",), "int32")
    w = g.parameter("w1", (COLUMNS, features) if turned else (features, COLUMNS))
    hidden = ws.relu(x @ (w.T if turned else w) + g.parameter("b1", (COLUMNS,)))
    logits = hidden @ g.parameter("w2", (COLUMNS, CLASSES)) + g.parameter("b2", (CLASSES,))
    g.set_outputs({"loss": ws.losses.cross_entropy(logits, labels)})
    return g


def rows(count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, FEATURES)).astype(np.float32)
    return {"x": x, "labels": rng.integers(0, CLASSES, count).astype(np.int32)}


def build(device: str, batch: int, turned: bool = False, features: int = FEATURES) -> ws.Session:
    graph, adam = network(turned, features), ws.Adam(lr=1e-2)
    return ws.build_session(graph, optimizer=adam, batch_size=batch, device=device, options=PLAIN, seed=3)


def trained(batch: int, turned: bool, data: dict[str, np.ndarray]) -> Found:
    session = build("cuda", batch, turned)
    losses = np.asarray(session.run(data, epochs=2)).ravel()
    return losses, {name: session.get(name) for name in session.state.names}


def assert_equal(found: Found, other: Found) -> None:
    np.testing.assert_array_equal(found[0], other[0])
    for name, value in found[1].items():
        np.testing.assert_array_equal(value, other[1][name], err_msg=name)


def counted(gpu: FakeDriver | None) -> tuple[int, int]:
    """Launches of kernels whose blocks are all there at once, and of graphs."""
    return (0, 0) if gpu is None else (gpu.together, gpu.launched)


def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of GPU with few multiprocessors."""
    set_limits(monkeypatch, threads=28)


@pytest.mark.parametrize(("batch", "turned"), [(20, False), (70, True)])
def test_steps_of_one_kernel_have_the_bits_of_those_of_a_graph(
    batch: int, turned: bool, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shuffled epochs with a smaller last batch; several launches; blocks that have more than one row."""
    few(monkeypatch)
    set_costs(monkeypatch, "run", persistent_steps=3)
    data, before = rows(3 * batch + 7), counted(gpu)
    found = trained(batch, turned, data)
    if gpu is not None:
        assert counted(gpu) == (before[0] + 4, before[1]), "two launches of an epoch, and no graph"
    with monkeypatch.context() as patch:
        patch.setattr(CudaProgram, "persistent", lambda self: None)
        assert_equal(trained(batch, turned, data), found)


def test_data_that_is_streamed_and_launches_of_one_kernel(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    few(monkeypatch)
    data = rows(43)
    found = trained(20, False, data)
    set_costs(monkeypatch, "run", resident_share=0.0)
    assert_equal(trained(20, False, data), found)
    other = build("reference", 20)
    losses = np.asarray(other.run(data, epochs=2)).ravel()
    np.testing.assert_allclose(found[0], losses, rtol=1e-4)


def test_a_gpu_without_room_for_all_blocks_launches_a_graph(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver.gpu(0), "multiprocessors", 20)
    before, session = counted(gpu), build("cuda", 20)
    session.run(rows(20), epochs=1)
    if gpu is not None:
        assert counted(gpu) == (before[0], before[1] + 1)
    why = "a persistent kernel would need 27 co-resident blocks, and this GPU has 20"
    assert f"run as the launches of several steps in one graph: {why} multiprocessors" in str(session.report())
    assert "run as one persistent kernel" not in str(session.report())
    monkeypatch.setattr(driver.gpu(0), "multiprocessors", 132)
    assert "run as one persistent kernel" in str(session.report())


def test_the_report_says_how_epochs_run_and_why() -> None:
    said = (
        "run as one persistent kernel for several steps: 204,480 bytes of weights and their optimizer states stay on "
        "21 multiprocessors"
    )
    assert f"epochs over data on the GPU {said}" in str(build("null:cuda/sm_90", 20).report())
    for batch, features, why in (
        (20, 850, "the number of input features is not a multiple of four"),
        (20, 64, "the first launch of a step is not a single matrix product"),
        (129, FEATURES, "its batch has more than 128 rows"),
    ):
        found = build("null:cuda/sm_90", batch, features=features).report()
        assert f"epochs over data on the GPU run as the launches of several steps in one graph: {why}" in str(found)
    found = build("null:cuda/sm_80", 128).report()
    assert "in one graph: a block would need 196,736 bytes of shared memory" in str(found)


@pytest.mark.parametrize("kind", ["sm_80", "sm_90"])
def test_the_kernel_becomes_machine_code(kind: str) -> None:
    plan = build(f"null:cuda/{kind}", 40).plan
    found = eligibility.find_persistent_step(plan)
    assert not isinstance(found, str)
    rendered = render_persistent_step(plan, found)
    assert rendered.bytes <= found.most_bytes
    body = "\n".join([native("gather.h"), native("persistent_step.h"), rendered.text])
    assert b"many_steps" in compile_text(translation_unit(body), kind)
