"""Long rows: a block reads the next one while it computes; no bit depends on that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import TARGET, Emulated, compiled_text, emulated_device
from tests.compiler.backends.cuda.emulation.fake_gpu import fake_gpu
from tests.compiler.backends.cuda.emulation.targets import set_costs, set_limits
from tests.compiler.backends.cuda.kernels.test_graphs import ORDERS, STEP, run, together
from tests.compiler.backends.cuda.kernels.test_machine_code import ARCHITECTURES
from tests.compiler.backends.cuda.kernels.test_machine_code import compiled as machine_code
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.backends.gpu.cost_model import ReductionCosts
from wholestep.compiler.backends.gpu.fusion.horizontal import may_share
from wholestep.compiler.backends.gpu.grids import gemm_library, row_loads
from wholestep.compiler.backends.gpu.kernel_schedule import GpuSchedule, schedule_of
from wholestep.compiler.backends.gpu.render.source import render
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.bodies import Nest
from wholestep.compiler.plan.model.kernel import Index, Kernel, Load, Plan, Space
from wholestep.options import CompileOptions

Array = np.ndarray[Any, Any]
MULTIPROCESSORS = 3  # of a GPU on which few rows are many
ROWS = 7  # three, two and two of them
ALL_PLAIN = replace(TARGET, fusion=replace(TARGET.fusion, plain_products=(("float32", 1), ("bfloat16", 1))))
PLAIN = ws.CompileOptions(verify=False, cache=False, egraph=False)


SHIPPED = ReductionCosts().prefetched_types


@pytest.fixture(scope="module", autouse=True)
def in_any_type() -> Iterator[None]:
    """What is read ahead is so in any type; float32 gains nothing by it, and shows bits."""
    with pytest.MonkeyPatch.context() as patch:
        set_costs(patch, "reductions", prefetched_types=tuple(dtype.name for dtype in row_loads.PACKED))
        yield


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU of few multiprocessors; products are a library's."""
    set_limits(monkeypatch, threads=MULTIPROCESSORS)
    monkeypatch.setattr(gemm_library, "least_flops", lambda target: dict.fromkeys(("float32", "bfloat16"), 1))


def is_in_place(plan: Plan, kernel: Kernel) -> bool:
    """Does a kernel write where it reads?"""
    used = [{load.buffer for load, _ in kernel.body.reads()}, {load.buffer for load in kernel.body.stores()}]
    read, written = ({plan.buffers[b].offset for b in found if plan.buffers[b].space is Space.ARENA} for found in used)
    return bool(read & written)


def ahead(plan: Plan) -> list[Kernel]:
    return [k for k in plan.kernels if schedule_of(k).ahead]


def classifier(device: str, classes: int, precision: str, keeps: bool = False, rows: int = ROWS) -> ws.Session:
    """Scores of many classes, whose gradient goes over them where they are not kept."""
    g, model = ws.Graph(), ws.nn.Linear(8, classes, bias=not keeps)
    x, labels = g.input("x", ("batch", 8)), g.input("labels", ("batch",), "int32")
    scores = model(x)
    outputs = {"loss": ws.losses.cross_entropy(scores, labels)}
    g.set_outputs({**outputs, "scores": scores} if keeps else outputs)
    how = {"device": device, "precision": precision, "options": PLAIN}
    return ws.build_session(g, optimizer=ws.SGD(lr=0.5), batch_size=rows, seed=1, **how)


def trained(session: ws.Session, classes: int) -> tuple[list[float], dict[str, Array]]:
    """Losses of batches of several sizes, of which one is a row, and the weights behind them."""
    rng, losses = np.random.default_rng(3), []
    for rows in (ROWS, 1, MULTIPROCESSORS, 5):
        x, labels = rng.standard_normal((rows, 8)).astype(np.float32), rng.integers(0, classes, rows)
        losses.append(float(session.step(x=x, labels=labels.astype(np.int32))))
    return losses, {name: np.array(value) for name, value in session.state_dict().items()}


@pytest.mark.parametrize(("classes", "keeps"), [(16_384, False), (16_392, False), (16_392, True)])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_scores_and_their_gradient(
    precision: str, classes: int, keeps: bool, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads have as many packs each, or one of them one more; the gradient goes over the scores, or beside them."""
    with emulated_device("ahead", ALL_PLAIN):
        ours = classifier("ahead", classes, precision, keeps)
        (kernel,) = ahead(ours.plan)
        assert schedule_of(kernel).ahead == classes * (2 if precision == "bfloat16" and not keeps else 4)
        assert schedule_of(kernel).blocks == MULTIPROCESSORS
        assert is_in_place(ours.plan, kernel) != keeps
        found = trained(ours, classes)
        set_costs(monkeypatch, "reductions", prefetched_row=1 << 30)
        plain = classifier("ahead", classes, precision, keeps)
        assert not ahead(plain.plan)
        losses, weights = trained(plain, classes)
    assert found[0] == losses
    for name, value in weights.items():
        np.testing.assert_array_equal(found[1][name], value)
    near = 1e-5 if precision == "float32" else 2e-2
    exact = trained(classifier("reference", classes, precision, keeps), classes)
    assert losses == pytest.approx(exact[0], rel=near)


def two_rows(columns: int = 8_192) -> IRGraph:
    """Rows of two axes, of two inputs, one of them of another dtype."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", 2, columns)), g.input("y", ("batch", 2, columns), "int32")
    shares = ws.softmax(x, -1)
    g.set_outputs(
        {"out": shares * ws.cast(y, "float32"), "best": ws.argmax(x, -1), "most": ws.cast(y, "float32").max(-1)}
    )
    return g.to_ir()


def values_of(rows: int, columns: int = 8_192) -> dict[str, Array]:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, 2, columns)).astype(np.float32)
    return {"x": x, "y": rng.integers(-9, 9, x.shape).astype(np.int32)}


@pytest.fixture
def plans(few: None, monkeypatch: pytest.MonkeyPatch) -> tuple[IRGraph, Plan, Plan]:
    """One that reads ahead, and the same without."""
    graph, compiler = two_rows(), Compiler(CompileOptions(egraph=False))
    plan, _ = compiler.plan(graph, {"batch": ROWS}, TARGET)
    assert [schedule_of(k).ahead for k in plan.kernels] == [2 * 4 * 8_192, 4 * 8_192]
    with monkeypatch.context() as patch:
        set_costs(patch, "reductions", prefetched_row=1 << 30)
        plain, _ = compiler.plan(graph, {"batch": ROWS}, TARGET)
    assert not ahead(plain)
    return graph, plan, plain


def test_two_operands_in_any_order_of_threads_and_blocks(plans: tuple[IRGraph, Plan, Plan]) -> None:
    graph, *both = plans
    ours, plain = together(list(both))
    for rows in (ROWS, 1):
        given, sizes = values_of(rows), {"batch": rows}
        want = run(plain, given, {}, sizes, 0, ORDERS[0])
        exact = interpret(graph, inputs=given, state={}, sizes=sizes, step=STEP).outputs
        for orders in ORDERS:
            found = run(ours, given, {}, sizes, 0, orders)
            for name in want:
                np.testing.assert_array_equal(found[name], want[name])
                np.testing.assert_allclose(found[name], exact[name], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("wait", ["ws_copy_wait<0>();", "ws_copy_commit();"])
def test_the_emulation_sees_what_was_not_waited_for(wait: str, plans: tuple[IRGraph, Plan, Plan]) -> None:
    _, plan, _ = plans
    source = render(plan)
    assert wait in source.text
    hasty, _ = compiled_text(source.text.replace(wait, ""), source.functions)
    given, sizes = values_of(ROWS), {"batch": ROWS}
    found = [run(Emulated(plan, source, dll), given, {}, sizes, 0, ORDERS[0]) for dll in (None, hasty)]
    assert not np.array_equal(found[0]["out"], found[1]["out"])


def test_a_launch_is_given_its_shared_memory(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a block has unless somebody asks: 65,536 bytes; profiles, too."""
    classes = 16_384
    with fake_gpu():
        ours = classifier("cuda", classes, "float32")
        assert [schedule_of(k).ahead for k in ahead(ours.plan)] == [4 * classes]
        found = trained(ours, classes)
        ours.profile(steps=1, x=np.zeros((ROWS, 8), np.float32), labels=np.zeros(ROWS, np.int32))
        set_costs(monkeypatch, "reductions", prefetched_row=1 << 30)
        losses, weights = trained(classifier("cuda", classes, "float32"), classes)
    assert found[0] == losses
    for name, value in weights.items():
        np.testing.assert_array_equal(found[1][name], value)


# -- which rows ----------------------------------------------------------------------------------------------------


def planned(rows: int, columns: int, target: str = "cuda/sm_90") -> list[GpuSchedule]:
    """A maximum over rows, which may share its launch with a smaller one."""
    g = ws.Graph()
    x, y = g.input("x", ("batch", columns)), g.input("y", ("batch", 5_000))
    g.set_outputs({"x": x.max(-1), "y": y.max(-1)})
    plan, _ = Compiler(CompileOptions(egraph=False)).plan(g.to_ir(), {"batch": rows}, TARGETS[target])
    for k in ahead(plan):
        assert not may_share(plan, k)
    return [schedule_of(k) for k in sorted(plan.kernels, key=lambda k: -k.bytes)]


@pytest.mark.parametrize(
    ("rows", "columns", "target", "reads_ahead"),
    [
        (133, 8_192, "cuda/sm_90", True),
        (132, 8_192, "cuda/sm_90", False),  # a block has one of them
        (133, 8_184, "cuda/sm_90", False),  # less than 32 KB
        (133, 32_768, "cuda/sm_90", True),
        (133, 32_776, "cuda/sm_90", False),  # more than a thread has registers for
        (133, 32_768, "cuda/sm_80+tf32", True),
        (133, 32_768, "cuda/sm_86", False),  # more than a block has of shared memory
    ],
)
def test_long_rows_of_blocks_that_have_several(rows: int, columns: int, target: str, reads_ahead: bool) -> None:
    own, other = planned(rows, columns, target)
    most = TARGETS[target].limits.threads
    assert (own.ahead, own.blocks) == ((4 * columns, most) if reads_ahead else (0, rows))
    assert other.ahead == 0
    assert (own.launch == other.launch) == (not reads_ahead and rows * columns * 4 < 8 << 20)


def test_rows_of_float32_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    set_costs(monkeypatch, "reductions", prefetched_types=SHIPPED)
    assert not any(own.ahead for own in planned(133, 8_192))


def test_a_row_that_is_written_elsewhere_is_not_read_ahead(plans: tuple[IRGraph, Plan, Plan]) -> None:
    """Where a kernel writes into what it reads, each row goes where it was: no other block has read it before."""
    _, plan, _ = plans
    kernel = plan.kernels[0]
    nest, own = kernel.body, schedule_of(kernel)
    assert isinstance(nest, Nest)
    read = next(iter(row_loads.register_loads(plan, kernel, nest, own)))

    def bytes_with(place: Load) -> int:
        (*first, last), store = nest.levels, replace(nest.levels[-1].stores[0], load=place)
        return row_loads.prefetch_bytes(
            plan, kernel, replace(nest, levels=(*first, replace(last, stores=(store,)))), own
        )

    turned = replace(read, index=(Index(((0, -1),), ROWS - 1), *read.index[1:]))
    assert (bytes_with(read), bytes_with(turned)) == (own.ahead, 0)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_machine_code_spills_nothing(architecture: str, plans: tuple[IRGraph, Plan, Plan]) -> None:
    found = machine_code(plans[1], architecture)
    assert [used.stores + used.loads for used in found] == [0, 0]


@pytest.mark.parametrize("classes", [50304, 50257])
def test_the_loss_of_long_rows_needs_no_spills(classes: int) -> None:
    """No level keeps the float32 values of another one: a row in a half type takes half of the registers."""
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 64)), g.input("labels", ("batch",), "int32")
    scores = ws.tanh(x) @ g.parameter("weight", (classes, 64)).T
    g.set_outputs({"loss": ws.losses.cross_entropy(scores, labels)})
    given: dict[str, Any] = {"batch_size": 8192, "precision": "bfloat16", "device": "null:cuda/sm_90", "options": PLAIN}
    plan = ws.build_session(g, optimizer=ws.SGD(lr=0.1), **given).plan
    assert max(schedule_of(k).ahead for k in plan.kernels) > 100_000
    assert not [used for used in machine_code(plan, "sm_90") if used.stores or used.loads]
