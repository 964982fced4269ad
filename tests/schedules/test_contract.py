"""What every schedule keeps: torch's numbers, the same value inside the step, changeable numbers, a description."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.schedules.cases import CASES, RATE, oracle_values
from wholestep import schedules as S
from wholestep.compiler.backends.cpu.runtime.compiler import compile_counter
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.schedules.base import FormulaNumbers

every = pytest.mark.parametrize("name", CASES)


def session_with(schedule: S.Schedule, **options: object) -> ws.Session:
    """w ← w - lr: the parameter tells the learning rates that were used."""
    g = ws.Graph()
    x, w = g.input("x", ("batch",), "float64"), g.parameter("w", (), init=0.0, dtype="float64")
    g.set_outputs([(x * w).mean()])
    return ws.build_session(g, optimizer=ws.SGD(lr=RATE), schedule=schedule, batch_size=4, **options)


ONES = np.ones(4)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c.oracle is not None])
def test_torch_agrees(name: str) -> None:
    case = CASES[name]
    assert case.oracle is not None
    expected = oracle_values(case.oracle, case.steps)
    np.testing.assert_allclose([case.schedule(n) for n in range(case.steps)], expected, rtol=1e-9, atol=1e-15)


@every
def test_the_tensor_formula_is_the_number(name: str) -> None:
    """The same formula over runtime scalars, in the interpreter, for many steps."""
    schedule = CASES[name].schedule
    g = Graph()
    numbers = {k: g.scalar(k, float(v or 0.0)) for k, v in schedule.numbers().items()}
    g.set_outputs({"value": schedule.formula(g.step, FormulaNumbers(numbers)).astype("float64")})
    graph = g.to_ir()
    for n in (0, 1, 6, 7, 9, 10, 11, 24, 25, 29, 30, 69, 70, 71, 100, 199, 250):
        scalars = {name: float(n) for name in graph.leaves("scalar") if name == "step"}
        value = interpret(graph, inputs={}, state={}, scalars=scalars, sizes={}, seed=0, step=n).outputs["value"]
        np.testing.assert_allclose(value, schedule(n), rtol=1e-12, atol=1e-18)


@pytest.mark.parametrize("name", [name for name in CASES if name != "lambda"])
def test_config_round_trip(name: str) -> None:
    schedule = CASES[name].schedule
    again = S.Schedule.from_config(json.loads(json.dumps(schedule.to_config())))
    assert again == schedule
    assert [again.get_lr(n) for n in range(40)] == [schedule(n) for n in range(40)]


@every
def test_it_can_be_looked_at_before_training(name: str) -> None:
    schedule = CASES[name].schedule
    table = schedule.table(40, every=10).splitlines()
    assert len(table) == 6
    assert f"{schedule(20):.8g}" in table[3]
    plot = schedule.plot(steps=40)
    assert plot.count("•") == 41
    assert f"{max(schedule(n) for n in range(41)):.4g}" in plot


@pytest.mark.parametrize("name", ["cosine", "sgdr_growing", "warmup", "sequence", "one_cycle", "multi_step"])
def test_inside_the_step(name: str) -> None:
    schedule = CASES[name].schedule
    session = session_with(schedule)
    values = [schedule(n) for n in range(40)]
    for n in range(8):
        assert session.optimizer.lr == pytest.approx(values[n], rel=1e-14)
        session.step(x=ONES)
    session.run(x=np.ones(4 * 32), shuffle=False)
    np.testing.assert_allclose(session.get("w"), -sum(values), rtol=1e-12)


def test_numbers_change_without_a_recompile() -> None:
    session = session_with(S.Warmup(S.Cosine(None, 20), 5))
    session.step(x=ONES)
    compiles = compile_counter.value
    session.schedule.steps = 2
    session.schedule.set_numbers({"after.T_max": 50.0, "after.lr": 0.3})
    expected = S.Warmup(S.Cosine(0.3, 50), 2)
    before = float(session.get("w"))
    for n in range(1, 30):
        assert session.schedule.value == pytest.approx(expected(n))
        session.step(x=ONES)
    np.testing.assert_allclose(session.get("w"), before - sum(expected(n) for n in range(1, 30)), rtol=1e-12)
    session.set_schedule(S.Warmup(S.Cosine(0.5, 10), 3))
    assert session.schedule(1) == pytest.approx(0.5 * 2 / 3)
    assert compile_counter.value == compiles


def test_another_schedule_is_one_recompile_and_keeps_the_numbers() -> None:
    session = session_with(S.Constant(0.1))
    session.step(x=ONES)
    session.set_schedule(S.Exponential(None, 0.5))
    session.step(x=ONES)
    np.testing.assert_allclose(session.get("w"), -0.1 - RATE * 0.5)
    session.set_schedule(None)
    assert session.optimizer.lr == RATE
    session.optimizer.lr = 1.0
    session.step(x=ONES)
    np.testing.assert_allclose(session.get("w"), -1.1 - RATE * 0.5)


def test_any_runtime_scalar_can_be_scheduled() -> None:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 8)), g.parameter("w", (8, 1), init=1.0)
    loss = (ws.dropout(x, 0.5) @ w).mean()
    g.set_outputs([loss])
    schedule = {"random0.rate": S.Linear(None, 0.0, 4), "optimizer.lr": S.Constant(0.0)}
    session = ws.build_session(g, schedule=schedule, batch_size=64)
    kept = [float(session.step(x=np.ones((64, 8), np.float32))) / 8 for _ in range(5)]
    assert session.scalars["random0.rate"] == 0.0
    assert kept[4] == 1.0  # nothing is dropped any more
    assert kept[0] != 1.0


def test_an_epoch_is_a_unit() -> None:
    session = session_with(S.StepDecay(0.1, 1, 0.5, unit="epoch"))
    session.run(x=np.ones(12), epochs=2)
    np.testing.assert_allclose(session.get("w"), -0.3 - 0.15)
    session.step(x=ONES)
    session.end_epoch()
    session.step(x=ONES)
    np.testing.assert_allclose(session.get("w"), -0.45 - 0.025 - 0.0125)


def test_restored_half_way_the_bits_are_the_same() -> None:
    schedule = S.Warmup(S.Cosine(0.3, 20), 5)
    straight, first, second = (session_with(schedule) for _ in range(3))
    for _ in range(10):
        straight.step(x=ONES)
    for _ in range(5):
        first.step(x=ONES)
    second.load_state_dict(first.state_dict())
    for _ in range(5):
        second.step(x=ONES)
    assert second.get("w").tobytes() == straight.get("w").tobytes()


# -- reduce on plateau -------------------------------------------------------------------------------------------


OBSERVED = [1.0, 0.9, 0.95, 0.91, 0.9, 0.9, 0.5, 0.5, float("nan"), 0.6, 0.7, 0.8, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4]


@pytest.mark.parametrize("options", [{}, {"cooldown": 2}, {"mode": "max"}, {"threshold_mode": "abs", "threshold": 0.2}])
def test_plateau_follows_torch(options: dict[str, object]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=RATE)
    oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=2, **options)
    schedule = S.ReduceOnPlateau(RATE, 0.5, 2, **options)
    session = session_with(schedule)
    mine = S.ReduceLROnPlateau(ws.SGD(lr=RATE), factor=0.5, patience=2, **options)
    compiles = compile_counter.value
    for value in OBSERVED:
        oracle.step(value)
        mine.step(value)
        session.schedule.observe(value)
        session.step(x=ONES)
        assert session.optimizer.lr == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)
        assert mine.get_last_lr() == [pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-12)]
    assert compile_counter.value == compiles


def test_what_a_plateau_has_seen_is_saved() -> None:
    first, second = (session_with(S.ReduceOnPlateau(RATE, 0.5, 1)) for _ in range(2))
    for value in (1.0, 1.0):
        first.schedule.observe(value)
    second.load_state_dict(first.state_dict())
    second.schedule.observe(1.0)
    assert second.optimizer.lr == RATE / 2


# -- torch's names -----------------------------------------------------------------------------------------------

TORCH_NAMED = {
    "ConstantLR": lambda m, o: m.ConstantLR(o, 0.5, 7),
    "LinearLR": lambda m, o: m.LinearLR(o, 0.2, 0.9, 12),
    "PolynomialLR": lambda m, o: m.PolynomialLR(o, 30, 2.0),
    "CosineAnnealingLR": lambda m, o: m.CosineAnnealingLR(o, T_max=60, eta_min=1e-3),
    "ExponentialLR": lambda m, o: m.ExponentialLR(o, 0.9),
    "StepLR": lambda m, o: m.StepLR(o, 5),
    "MultiStepLR": lambda m, o: m.MultiStepLR(o, [3, 9]),
    "CosineAnnealingWarmRestarts": lambda m, o: m.CosineAnnealingWarmRestarts(o, 5, 2),
    "LambdaLR": lambda m, o: m.LambdaLR(o, lambda n: 0.95**n if n % 3 else 0.5),
    "LambdaLR for each": lambda m, o: m.LambdaLR(o, [lambda n: 0.95**n, lambda n: 1 / (n + 1)][: several(o)]),
    "CyclicLR": lambda m, o: m.CyclicLR(o, 0.01, 0.4, 3, 5, cycle_momentum=False),
    "CyclicLR for each": lambda m, o: m.CyclicLR(
        o, [0.01, 0.02][: several(o)], [0.4, 0.3][: several(o)], 4, None, "exp_range", 0.97, cycle_momentum=False
    ),
    "ChainedScheduler": lambda m, o: m.ChainedScheduler(
        [m.ConstantLR(o, 0.1, 4), m.ExponentialLR(o, 0.9), m.CosineAnnealingLR(o, 60)]
    ),
    "SWALR": lambda m, o: getattr(m, "SWALR", torch.optim.swa_utils.SWALR)(o, 0.03, 7),
    "SWALR for each": lambda m, o: getattr(m, "SWALR", torch.optim.swa_utils.SWALR)(
        o, [0.03, 0.2][: several(o)], 7, "linear"
    ),
}


def several(optimizer: object) -> int:
    """How many learning rates it has."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return len(optimizer.param_groups)
    return 1 + len(getattr(optimizer, "groups", ()))


@pytest.mark.parametrize("name", TORCH_NAMED)
def test_torch_named(name: str) -> None:
    from torch.optim import lr_scheduler

    expected = oracle_values(lambda o: TORCH_NAMED[name](lr_scheduler, o), 50)
    live = session_with(S.Constant(RATE))
    live.set_schedule(None)
    for optimizer in (ws.SGD(lr=RATE), live.optimizer):
        bound = TORCH_NAMED[name](S, optimizer)
        for n in range(50):
            lr = optimizer.get_lr() if isinstance(optimizer, ws.Optimizer) else optimizer.lr
            assert lr == pytest.approx(expected[n], rel=1e-9, abs=1e-15)
            assert bound(n) == bound.get_lr(n)
            bound.step()


def test_torch_named_inside_the_step() -> None:
    session = session_with(S.CosineAnnealingLR(ws.SGD(lr=RATE), T_max=10))  # type: ignore[arg-type]
    for _ in range(10):
        session.step(x=ONES)
    np.testing.assert_allclose(session.get("w"), -sum(S.Cosine(RATE, 10)(n) for n in range(10)), rtol=1e-12)


def test_two_schedules_of_one_optimizer_begin_with_its_rate() -> None:
    """As torch's `initial_lr`: the second does not take what the first has made of it, unless the user set it since."""
    from torch.optim import lr_scheduler

    def made(m: object, o: object) -> object:
        parts = [m.LinearLR(o, 0.1, total_iters=3), m.CosineAnnealingLR(o, T_max=7)]  # type: ignore[attr-defined]
        return m.SequentialLR(o, parts, [3])  # type: ignore[attr-defined]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        expected = oracle_values(lambda o: made(lr_scheduler, o), 10)
    live = session_with(S.Constant(RATE))
    live.set_schedule(None)
    for optimizer in (ws.SGD(lr=RATE), live.optimizer):
        bound = made(S, optimizer)
        np.testing.assert_allclose([bound.get_lr(n) for n in range(10)], expected, rtol=1e-9)  # type: ignore[attr-defined]
    live.optimizer.lr = 0.7
    assert S.ExponentialLR(live.optimizer, 0.5).get_lr(1) == pytest.approx(0.35)


@pytest.mark.parametrize("name", TORCH_NAMED)
def test_groups_with_a_rate_of_their_own_follow_too(name: str) -> None:
    """Torch moves the rate of every group; an option may have a value for each."""
    from torch.optim import lr_scheduler

    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    theirs = torch.optim.SGD([{"params": [w], "lr": lr} for w, lr in zip(weights, (RATE, 0.5))], lr=RATE)
    ours = ws.SGD(lr=RATE, groups=[ws.Group("head.*", lr=0.5)])
    scheduler, bound = TORCH_NAMED[name](lr_scheduler, theirs), TORCH_NAMED[name](S, ours)
    for _ in range(20):
        expected = [float(group["lr"]) for group in theirs.param_groups]
        np.testing.assert_allclose(bound.get_last_lr(), expected, rtol=1e-9, atol=1e-15)
        assert ours.get_lr() == bound.get_last_lr()[0]
        theirs.step()
        scheduler.step()
        bound.step()
    again = TORCH_NAMED[name](S, ws.SGD(lr=RATE, groups=[ws.Group("head.*", lr=0.5)]))
    again.load_state_dict(json.loads(json.dumps(bound.state_dict())))
    assert again.get_last_lr() == bound.get_last_lr()


def test_a_plateau_lowers_the_rate_of_every_group() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    theirs = torch.optim.SGD([{"params": [w], "lr": lr} for w, lr in zip(weights, (RATE, 0.5))], lr=RATE)
    oracle = torch.optim.lr_scheduler.ReduceLROnPlateau(theirs, factor=0.5, patience=1, min_lr=[0.0, 0.2])
    ours = ws.SGD(lr=RATE, groups=[ws.Group("head.*", lr=0.5)])
    mine = S.ReduceLROnPlateau(ours, factor=0.5, patience=1, min_lr=[0.0, 0.2])
    for value in OBSERVED:
        oracle.step(value)
        mine.step(value)
        np.testing.assert_allclose(mine.get_last_lr(), [g["lr"] for g in theirs.param_groups])


# -- functions ---------------------------------------------------------------------------------------------------


def test_a_formula_is_part_of_the_step_and_other_functions_are_tables() -> None:
    formula = S.Lambda(lambda n: ws.where(n < 3, 1.0, 0.5) if isinstance(n, ws.Tensor) else 1.0 if n < 3 else 0.5, RATE)
    assert not formula.why_not_traced
    branch = S.Lambda(lambda n: 1.0 if n < 3 else 0.5, RATE)
    assert "truth value" in branch.why_not_traced
    assert branch.over(10) == S.Table(RATE, (1.0, 0.5), (3.0,))
    looked_up = S.Lambda(lambda n: {0: 1.0, 1: 0.7}.get(n, 0.1), RATE)  # a tensor is no key of it
    assert "traced, it is another function: 0.1 and not 1 at 0" in looked_up.why_not_traced
    assert [looked_up.over(5)(n) for n in range(5)] == [looked_up(n) for n in range(5)]
    inside = S.Warmup(S.Lambda(lambda n: 1.0 if n < 3 else 0.5), 2)
    assert [inside.bound(RATE).tabulated(9)(n) for n in range(9)] == [inside.bound(RATE)(n) for n in range(9)]


# -- looking at it -----------------------------------------------------------------------------------------------


def test_a_plot_in_a_file(tmp_path: object) -> None:
    file = f"{tmp_path}/lr.png"
    assert S.Cosine(0.1, 100).plot(file) == file
    with open(file, "rb") as image:  # noqa: PTH123
        assert image.read(4) == b"\x89PNG"


def test_a_plot_in_a_file_without_matplotlib(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib.backends.backend_agg", None)
    with pytest.raises(
        ws.errors.UsageError, match=r"pip install matplotlib.*\.svg file needs no package; plot\(\) returns text"
    ):
        S.Cosine(0.1, 100).plot("lr.png")
    assert S.Cosine(0.1, 100).plot(f"{tmp_path}/lr.svg") == f"{tmp_path}/lr.svg"


def test_equal_structure_is_equal_programs() -> None:
    schedule = CASES["warmup"].schedule
    assert schedule.structure() == replace(schedule, steps=99).structure()  # type: ignore[call-arg]
    assert S.Constant(0.1).structure() != S.Linear(0.1, 0.0, 3).structure()
