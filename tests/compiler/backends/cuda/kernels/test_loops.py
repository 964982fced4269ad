"""Loops over steps that are one kernel: which ones, that they compute what launches do, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation import random_cells
from tests.compiler.backends.cuda.emulation.emulated import Emulated, LaunchMemory, emulated_device
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.compiler.backends.cuda.emulation.targets import set_costs
from tests.compiler.backends.cuda.kernels.test_machine_code import compiled
from tests.compiler.backends.cuda.kernels.test_pitches import compute_all_products
from wholestep.compiler.backends.cuda.driver import driver
from wholestep.compiler.backends.gpu.fusion.launches import check_launches
from wholestep.compiler.backends.gpu.kernel_schedule import Form, schedule_of
from wholestep.compiler.backends.gpu.persistent import scan
from wholestep.compiler.backends.gpu.render.source import render
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.errors import PlanError

PLAIN = ws.CompileOptions(verify=False, egraph=False)
WORDS, LENGTH = 7, 5
Array = np.ndarray[Any, Any]


class Words(ws.nn.Module):
    """Words, a recurrent layer over them, scores of words."""

    def __init__(self, layer: Callable[[], ws.nn.Module], wide: int) -> None:
        super().__init__()
        self.table, self.layer = ws.nn.Embedding(WORDS, 16), layer()
        self.scores = ws.nn.Linear(wide, WORDS)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.scores(self.layer(self.table(x))[0])


class Gated(ws.nn.Module):
    """A cell of one's own: a product of what a gate lets through, which lives for one step only."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.next = ws.nn.Linear(16, 16), ws.nn.Linear(16, 16)

    def after(self, h: ws.Tensor, x: ws.Tensor) -> ws.Tensor:
        open = ws.sigmoid(self.gate(h) + x)
        return ws.tanh(self.next(open * h) + x) * 0.5 + h * 0.5

    def forward(self, x: ws.Tensor) -> tuple[ws.Tensor, ...]:
        def step(h: ws.Tensor, x: ws.Tensor) -> tuple[ws.Tensor, ws.Tensor]:
            h = self.after(h, x)
            return h, h

        rows = x.permute(1, 0, 2)
        return (ws.scan(step, rows[0] * 0.0, rows)[1].permute(1, 0, 2),)


LAYERS: dict[str, tuple[Callable[[], ws.nn.Module], int]] = {
    "lstm": (lambda: ws.nn.LSTM(16, 16, batch_first=True), 16),
    "two layers": (lambda: ws.nn.LSTM(16, 12, 2, batch_first=True), 12),
    "gru": (lambda: ws.nn.GRU(16, 20, batch_first=True), 20),
    "rnn": (lambda: ws.nn.RNN(16, 8, batch_first=True), 8),
    "both directions": (lambda: ws.nn.LSTM(16, 8, batch_first=True, bidirectional=True), 16),
    "deep": (lambda: ws.nn.RNN(16, 132, batch_first=True), 132),
    "long": (lambda: ws.nn.RNN(16, 576, batch_first=True), 576),  # rows come in two halves
    "a cell of one's own": (Gated, 16),
}
SINGLE = [name for name in LAYERS if name not in ("two layers", "long")]


def session_of(name: str, device: str, batch: int = 9, length: int | str = LENGTH, **more: Any) -> ws.Session:
    g = ws.Graph()
    x, labels = (g.input(n, ("batch", length), "int32") for n in ("x", "labels"))
    g.set_outputs({"loss": ws.losses.cross_entropy(Words(*LAYERS[name])(x), labels)})
    sizes = {"batch": batch} | ({} if isinstance(length, int) else {length: LENGTH})
    given = {"optimizer": ws.SGD(lr=0.1, momentum=0.9), "capacity": sizes, "seed": 3, "options": PLAIN, **more}
    return ws.build_session(g, device=device, **given)


def words(rows: int, length: int = LENGTH) -> dict[str, Array]:
    rng = np.random.default_rng(rows)
    return {n: rng.integers(0, WORDS, (rows, length)).astype(np.int32) for n in ("x", "labels")}


def trained(session: ws.Session) -> dict[str, Array]:
    for rows in (9, 9, 3):
        session.step(**words(rows))
    return {name: session.get(name) for name in session.state.names}


def assert_same(found: dict[str, Array], other: dict[str, Array]) -> None:
    for name, value in found.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)


HALVES = [("lstm", "bfloat16"), ("rnn", "float16"), ("long", "bfloat16"), ("a cell of one's own", "bfloat16")]


@pytest.mark.parametrize(("name", "precision"), [*((name, "float32") for name in LAYERS), *HALVES])
def test_a_loop_computes_what_its_launches_do(
    name: str, precision: str, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums in the same order; with a smaller last batch, and rows of blocks that are not there."""
    session = session_of(name, "cuda", precision=precision)
    assert all(schedule_of(k).owns for k in session.plan.kernels if k.loop is not None)
    before = 0 if gpu is None else gpu.together
    found = trained(session)
    assert gpu is None or gpu.together > before
    reference = trained(session_of(name, "reference", precision=precision))
    within = {"rtol": 2e-5, "atol": 2e-6} if precision == "float32" else {"rtol": 1e-2, "atol": 5e-4}
    for parameter, value in reference.items():
        np.testing.assert_allclose(found[parameter], value, err_msg=parameter, **within)
    monkeypatch.setattr(driver.gpu(0), "multiprocessors", 1)
    launched = trained(session_of(name, "cuda", precision=precision))
    if gpu is not None:
        assert_same(found, launched)
    for parameter, value in launched.items():  # NVIDIA's compiler may contract the same formula otherwise
        np.testing.assert_allclose(found[parameter], value, err_msg=parameter, rtol=1e-5, atol=1e-6)


def test_cells_that_nobody_wrote_train_as_on_the_reference() -> None:
    in_one = 0
    with emulated_device():
        for seed in (2, 24, 25, 27, 29, 125, 126, 129):
            ours, other = (random_cells.session_of(seed, device) for device in ("emulated", "reference"))
            in_one += any(schedule_of(k).owns for k in ours.plan.kernels)
            for batch in random_cells.batches(seed):
                losses = [float(s.step(**batch).loss) for s in (ours, other)]
                assert losses[0] == pytest.approx(losses[1], rel=1e-5), seed
            for name in other.state.names:
                value = other.get(name)
                scale = np.abs(value).max()
                np.testing.assert_allclose(
                    ours.get(name), value, atol=1e-5 * scale, rtol=1e-4, err_msg=f"{seed} {name}"
                )
    assert in_one >= 4


def test_a_shorter_sentence_ends_its_loop_earlier(gpu: FakeDriver | None) -> None:
    session, reference = (session_of("lstm", device, length="time") for device in ("cuda", "reference"))
    for rows, length in ((9, 5), (4, 2), (9, 1)):
        losses = [float(s.step(**words(rows, length)).loss) for s in (session, reference)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("name", SINGLE)
def test_no_order_of_threads_and_blocks_changes_a_bit(name: str) -> None:
    """A barrier that is missing shows; counters are zero again behind the loop, which runs twice."""
    plan, rng = session_of(name, "null:cuda/sm_90").plan, np.random.default_rng(0)
    start = [
        rng.integers(0, WORDS, size).astype(dtype)
        if np.dtype(dtype).kind == "i"
        else rng.standard_normal(size).astype(dtype)
        for size, dtype in ((b.bytes // b.type.dtype.size, b.type.dtype.numpy) for b in plan.buffers)
    ]
    emulated, found = Emulated(plan), []
    for orders in product((0, 1, 2), (0, 1)):
        arrays = {b.id: start[b.id].copy() for b in plan.buffers}
        for _ in range(2):
            emulated.run(LaunchMemory(plan, arrays, plan.sizes, [1e-3] * plan.slots, 1, 1), *orders)
        found.append(arrays)
    for other in found[1:]:
        for b in plan.buffers:
            np.testing.assert_array_equal(found[0][b.id], other[b.id], err_msg=f"buffer {b.id}")


def test_epochs_of_fit_have_the_bits_of_a_run_that_was_resumed(tmp_path: Any, gpu: FakeDriver | None) -> None:
    data = tuple(words(20).values())

    def fitted(epochs: int, folder: str, resume: bool = False) -> ws.nn.Module:
        model = Words(*LAYERS["gru"])
        where = {"checkpoint": tmp_path / folder, "resume": resume, "device": "cuda", "seed": 1}
        ws.fit(model, data, loss="cross_entropy", batch_size=8, epochs=epochs, progress=False, **where)
        return model

    whole, _ = fitted(2, "whole"), fitted(1, "parts")
    resumed = fitted(2, "parts", resume=True)
    assert_same(*({name: np.asarray(v) for name, v in m.state_dict().items()} for m in (whole, resumed)))


def noted(session: ws.Session) -> list[str]:
    return [line for line in str(session.report()).splitlines() if "loop 0," in line]


def test_the_report_says_which_loops_are_one_kernel_and_why_not(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (line,) = noted(session_of("lstm", "null:cuda/sm_90"))
    assert line == (
        "note: loop 0, 5 steps of 2 kernels, runs as one persistent kernel of 32 blocks, each with 8 rows, 1 units and "
        "1 barriers per step: 4,096 bytes of weights stay in shared memory"
    )
    session = session_of("lstm", "cuda")
    monkeypatch.setattr(driver.gpu(0), "multiprocessors", 20)
    why = "it would need 32 co-resident blocks, and this GPU has 20 multiprocessors"
    assert noted(session) == [f"note: loop 0, 5 steps of 2 kernels, runs with one launch per kernel and step: {why}"]


class Normed(Gated):
    """Each step normalises a row, which no block has all of."""

    def __init__(self) -> None:
        ws.nn.Module.__init__(self)
        self.next = ws.nn.Linear(16, 16)

    def after(self, h: ws.Tensor, x: ws.Tensor) -> ws.Tensor:
        return ws.softmax(self.next(h) + x, axis=-1)


class Shifted(Normed):
    """A unit needs its neighbour."""

    def after(self, h: ws.Tensor, x: ws.Tensor) -> ws.Tensor:
        return ws.tanh(self.next(ws.tanh(h)) + ws.concat([h[:, 1:], h[:, :1]], axis=1) + x)


REFUSED: dict[str, tuple[Callable[[], ws.nn.Module], int, int, str, str]] = {
    "a norm": (Normed, 16, 9, "float32", "it has kernels that are not elementwise over rows and units"),
    "neighbours": (Shifted, 16, 9, "float32", "an element depends on other rows or units than its own"),
    "threes": (
        *(lambda: ws.nn.RNN(16, 9, batch_first=True), 9, 9, "float32"),
        "its products have dynamic sizes, or sizes that are not multiples of 16 bytes",
    ),
    "fours of half numbers": (
        *(lambda: ws.nn.RNN(16, 12, batch_first=True), 12, 9, "bfloat16"),
        "its products have dynamic sizes, or sizes that are not multiples of 16 bytes",
    ),
    "a large batch": (
        *(lambda: ws.nn.LSTM(16, 256, batch_first=True), 256, 4096, "float32"),
        "its products are so large that a library computes them",
    ),
    "a middling batch": (
        *(lambda: ws.nn.LSTM(16, 256, batch_first=True), 256, 512, "float32"),
        "its products are too large for co-resident blocks",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_loops_are_launches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, wide, batch, precision, why = REFUSED[name]
    monkeypatch.setitem(LAYERS, name, (layer, wide))
    session = session_of(name, "null:cuda/sm_90", batch, precision=precision)
    assert noted(session)[0].endswith(f"runs with one launch per kernel and step: {why}")
    assert not any(schedule_of(k).owns for k in session.plan.kernels)


def test_a_file_cannot_say_that_a_block_owns_more_or_less() -> None:
    plan = session_of("lstm", "null:cuda/sm_90").plan
    check_launches(plan)
    for owns in ((16, 1, 1, 16), (8, 2, 2, 8), (8, 1, 2)):
        kernels = [replace(k, schedule=replace(schedule_of(k), owns=owns)) if k.loop == 0 else k for k in plan.kernels]
        with pytest.raises(PlanError, match="are not a loop that runs as one persistent kernel"):
            check_launches(replace(plan, kernels=tuple(kernels)))


@pytest.mark.parametrize("kind", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", ["lstm", "gru", "a cell of one's own"])
def test_loops_become_machine_code_without_spills(name: str, kind: str) -> None:
    plan: Plan = session_of(name, f"null:cuda/{kind}", 64).plan
    names = {launch.function for launch in render(plan).launches if launch.together}
    found = [used for used in compiled(plan, kind) if used.function in names]
    assert found
    assert all(used.stores == used.loads == 0 for used in found)


def test_shared_memory_is_what_the_plan_says() -> None:
    for name in LAYERS:
        plan = session_of(name, "null:cuda/sm_90").plan
        for kernels in scan.loops_of(plan):
            found = scan.find_persistent_scan(plan, kernels)
            assert isinstance(found, scan.PersistentScan)
            assert 0 < found.bytes <= 227 << 10


@pytest.mark.parametrize("name", ["lstm", "both directions"])
def test_large_products_of_a_loop_are_a_librarys(
    name: str, gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call for each step of the loop, forwards and backwards; none behind the end of a shorter sequence."""
    compute_all_products(monkeypatch)
    set_costs(monkeypatch, "gemm", loop_flops=1)
    sessions = [session_of(name, device, length="length", precision="bfloat16") for device in ("cuda", "reference")]
    inside = [k for k in sessions[0].plan.kernels if k.loop is not None]
    assert {schedule_of(k).form for k in inside if k.kind.value == "dot"} == {Form.LIBRARY}
    for rows, length in ((9, LENGTH), (4, LENGTH), (9, LENGTH - 2)):
        losses = [float(session.step(**words(rows, length))) for session in sessions]
        assert losses[0] == pytest.approx(losses[1], rel=1e-2)
    for parameter in sessions[0].state.names:
        ours, other = (session.get(parameter) for session in sessions)
        np.testing.assert_allclose(ours, other, rtol=2e-2, atol=2e-3, err_msg=parameter)
