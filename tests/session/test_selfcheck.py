"""Self-verified plans: right ones pass and say so, wrong ones are caught by name, and nothing is checked twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings

import wholestep as ws
from tests.compiler.ir.random_graphs import graphs
from tests.support.compilers import QUICK
from tests.support.sessions import data, mlp
from wholestep.compiler import pipeline
from wholestep.compiler.backends.cpu.layout.stored_layout import MEMORY
from wholestep.compiler.backends.cpu.target import detect_target
from wholestep.compiler.ir import build
from wholestep.compiler.ir.graph import IRGraph, Node, Update, rewrite
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.ir.types import TensorType, float32
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.model.kernel import Index, Instr, Kernel, Plan
from wholestep.compiler.plan.model.layout import pack
from wholestep.compiler.runtime.state.slot import Slot
from wholestep.errors import OptionError, VerificationError
from wholestep.session.building.arguments import SessionArguments
from wholestep.session.verify import check as selfcheck
from wholestep.session.verify.check import Subject, Verdict, check, estimate_seconds, parse_verdict
from wholestep.session.verify.expected import Demand, demand_of, evaluation
from wholestep.session.verify.random_inputs import SEED, STEP, RepeatedState, TrialDraw, small_sizes
from wholestep.session.verify.state_samples import grid, positions, sample_state
from wholestep.session.verify.trials import Trials, TrialSession, _expected_graph

ALWAYS = ws.CompileOptions(cache=False, verify=True)


def subject_of(session: ws.Session) -> Subject:
    traced = session._programs.compiled.definition.trace("train")
    return Subject(traced, session.plan, "", SessionArguments(threads=1, seed=0, options=ALWAYS).placement())


def verdict(session: ws.Session) -> Verdict:
    return session._programs.compiled.verdicts["train"]


def note(session: ws.Session) -> str:
    return str(session.report()).splitlines()[-1]


@pytest.mark.parametrize("optimizer", [ws.SGD(), ws.SGD(momentum=0.9, nesterov=True), ws.Adam(), ws.AdamW()])
def test_a_right_plan_passes_and_the_report_says_so(optimizer: ws.Optimizer) -> None:
    session = ws.build_session(mlp(), optimizer=optimizer, batch_size=16, options=ALWAYS)
    found = verdict(session)
    assert found.sizes == ({"batch": 3}, {"batch": 16})
    assert 0.0 < found.worst < 1e-5
    assert found.not_finite == {}
    assert note(session).startswith("note: checked against the interpreter at batch=3 and batch=16: worst error")


def test_the_models_numbers_are_not_touched() -> None:
    graph = mlp()
    session = ws.build_session(graph, optimizer=ws.Adam(), batch_size=16, options=ALWAYS)
    untouched = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16, options=replace(ALWAYS, verify=False))
    for name, value in untouched.state_dict().items():
        np.testing.assert_array_equal(session.state_dict()[name], value)


@settings(max_examples=12, derandomize=True, phases=(Phase.generate,))  # each is a run of the C compiler
@given(graphs(max_nodes=8))
def test_random_graphs_pass(graph: IRGraph) -> None:
    capacity = dict.fromkeys(graph.symbols, 9)
    plan, _ = Compiler().plan(graph, capacity, detect_target())
    check(Subject(graph, plan, "", SessionArguments(threads=2, seed=0, options=ALWAYS).placement()))


def test_a_relu_that_rounding_flips_is_no_bug() -> None:
    """Of 800 000 units a few are so near 0 that float32 and float64 disagree about them."""
    g = ws.Graph()
    h = g.input("x", ("batch", 64))
    for i in range(3):
        h = ws.relu(h @ g.parameter(f"w{i}", (64, 64)) + g.parameter(f"b{i}", (64,)))
    g.set_outputs({"loss": (h * h).mean()})
    assert verdict(ws.build_session(g, batch_size=4096, options=ALWAYS)).checked


def in_folder(folder: Path) -> ws.CompileOptions:
    """With a cache of its own: a compiler that a test breaks has the keys of the one that works."""
    return ws.CompileOptions(cache_dir=str(folder), verify=True)


# -- wrong plans -------------------------------------------------------------------------------------------------


def with_instr(plan: Plan, change: Callable[[Instr], Instr]) -> Plan:
    """A plan with the instructions of its kernels changed."""

    def changed(kernel: Kernel) -> Kernel:
        levels = (replace(v, row=tuple(map(change, v.row)), body=tuple(map(change, v.body))) for v in kernel.levels)
        return replace(kernel, body=replace(kernel.body, levels=tuple(levels)))

    return replace(plan, kernels=tuple(map(changed, plan.kernels)))


def wrong_index(plan: Plan) -> Plan:
    """Every column gets the first bias."""
    (bias,) = (id for name, id in plan.states if name == "b1")

    def change(instr: Instr) -> Instr:
        if instr.load is None or instr.load.buffer != bias or len(instr.load.index) != 1:
            return instr
        return replace(instr, load=replace(instr.load, index=(Index(),)))

    return with_instr(plan, change)


def wrong_constant(plan: Plan) -> Plan:
    """Adam's 1 - beta from another 1."""
    return replace(plan, host=tuple(replace(h, const=1.01) if h.const == 1.0 else h for h in plan.host))


def broken(monkeypatch: pytest.MonkeyPatch, breaking: Callable[[Plan], Plan]) -> None:
    """Make the planner's results wrong."""
    real = pipeline.planner_of(detect_target())

    def make_plan(*args: Any, **kw: Any) -> Plan:
        plan = real(*args, **kw)
        wrong = breaking(plan)
        assert wrong != plan
        return wrong

    monkeypatch.setattr(pipeline, "planner_of", lambda target: make_plan)


@pytest.mark.parametrize("breaking", [wrong_index, wrong_constant])
def test_a_wrong_plan_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, breaking: Callable[[Plan], Plan]
) -> None:
    broken(monkeypatch, breaking)
    with pytest.raises(
        VerificationError, match=r"does not compute what the graph means. At batch=3, the (state|output)"
    ):
        ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16, options=in_folder(tmp_path))


def test_the_error_names_state_position_values_and_the_way_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def freeze(graph: IRGraph) -> IRGraph:
        states = graph.states()
        updates = tuple(Update(u.name, states["b1"] if u.name == "b1" else u.node) for u in graph.updates)
        return IRGraph(graph.outputs, updates, graph.inputs)

    stages = (*pipeline.STAGES, pipeline.Stage("broken", (freeze,)))
    monkeypatch.setattr(pipeline, "STAGES", stages)
    with pytest.raises(VerificationError) as caught:
        ws.build_session(mlp(), batch_size=16, options=in_folder(tmp_path))
    text = str(caught.value)
    assert "the state 'b1' is " in text
    assert " at position " in text
    assert ", and should be " in text
    assert "Also wrong" not in text
    assert "options=ws.CompileOptions(optimize=False)" in text


def test_a_gradient_far_smaller_than_its_parameter_is_seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A gradient of 1e-6 is lost in a weight of 1 unless the learning rate brings it out."""
    g = ws.Graph()
    x, w = g.input("x", ("batch", 4)), g.parameter("w", (4,), init=ws.init.ones())
    g.set_outputs({"loss": (x * w).sum() * 1e-6})

    def drop(graph: IRGraph) -> IRGraph:
        return IRGraph(graph.outputs, (Update("w", graph.states()["w"]),), graph.inputs)

    monkeypatch.setattr(pipeline, "STAGES", (*pipeline.STAGES, pipeline.Stage("broken", (drop,))))
    with pytest.raises(VerificationError, match="the state 'w' is"):
        ws.build_session(g, batch_size=4, options=in_folder(tmp_path))


def test_a_wrong_plan_leaves_nothing_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ws.CompileOptions(cache_dir=str(tmp_path))
    with monkeypatch.context() as patch:
        broken(patch, wrong_index)
        with pytest.raises(VerificationError):
            ws.build_session(mlp(), batch_size=16, options=options)
    assert not [*tmp_path.rglob("*.plan"), *tmp_path.rglob("*.verdict")]
    session = ws.build_session(mlp(), batch_size=16, options=options)
    assert verdict(session).checked
    assert np.isfinite(session.step(**data(16)).loss)


# -- when to check -----------------------------------------------------------------------------------------------


def refuse(subject: Subject) -> Verdict:
    raise AssertionError("a plan was checked")


def test_a_warm_start_does_not_check_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    options = ws.CompileOptions(cache_dir=str(tmp_path))
    first = ws.build_session(mlp(), batch_size=16, options=options)
    assert "self_check" in first._programs.compiled.spans.names()
    monkeypatch.setattr(selfcheck, "check", refuse)
    second = ws.build_session(mlp(), batch_size=16, options=options)
    assert verdict(second) == verdict(first)
    assert note(second) == note(first)
    assert "self_check" not in second._programs.compiled.spans.names()


def test_every_entry_point_is_checked() -> None:
    session = ws.build_session(mlp(), batch_size=16, options=ALWAYS)
    session.predict(x=data(4)["x"])
    session.evaluate(**data(4))
    assert all(session._programs.compiled.verdicts[entry].checked for entry in ("train", "predict", "evaluate"))


def test_verify_false_skips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selfcheck, "check", refuse)
    session = ws.build_session(mlp(), batch_size=16, options=ws.CompileOptions(cache=False, verify=False))
    assert note(session) == "note: not checked against the interpreter: verify=False"


def test_a_plan_cached_unchecked_is_checked_when_asked(tmp_path: Path) -> None:
    unchecked = ws.CompileOptions(cache_dir=str(tmp_path), verify=False)
    ws.build_session(mlp(), batch_size=16, options=unchecked)
    session = ws.build_session(mlp(), batch_size=16, options=replace(unchecked, verify=True))
    assert "autodiff" not in session._programs.compiled.spans.names()
    assert verdict(session).checked


def test_small_sizes_are_always_checked_and_the_capacity_where_it_is_cheap() -> None:
    graph = mlp(inputs=784, hidden=1024)
    session = ws.build_session(graph, batch_size=256, options=ws.CompileOptions(cache=False))
    assert estimate_seconds(session.plan) > 0.05
    assert verdict(session).sizes == ({"batch": 3},)
    assert note(session).startswith("note: checked against the interpreter at batch=3: worst error")
    assert verdict(ws.build_session(graph, batch_size=256, options=ALWAYS)).sizes == ({"batch": 3}, {"batch": 256})


def test_a_check_that_takes_minutes_waits_until_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wholestep.session.verify.check.TOO_LONG", 1e-9)
    session = ws.build_session(mlp(), batch_size=16, options=ws.CompileOptions(cache=False))
    assert not verdict(session).checked
    assert "would take NumPy about 0 s; CompileOptions(verify=True) checks it" in note(session)
    assert verdict(ws.build_session(mlp(), batch_size=16, options=ALWAYS)).checked


def test_a_plan_checked_at_small_sizes_is_checked_at_capacity_when_asked(tmp_path: Path) -> None:
    graph, options = mlp(inputs=784, hidden=1024), ws.CompileOptions(cache_dir=str(tmp_path))
    assert verdict(ws.build_session(graph, batch_size=256, options=options)).sizes == ({"batch": 3},)
    asked = ws.build_session(graph, batch_size=256, options=replace(options, verify=True))
    assert {"batch": 256} in verdict(asked).sizes


class Averaged(ws.nn.Module):
    """A bias before a batch norm: its gradient is 0, and rounding is all that is left of it."""

    def __init__(self) -> None:
        self.c, self.n, self.f = ws.nn.Conv1d(3, 16, 1), ws.nn.BatchNorm1d(16), ws.nn.Linear(16, 10)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.f(self.n(self.c(x)).max(2))


@pytest.mark.parametrize("optimizer", [ws.SGD(), ws.AdamW(lr=1e-3)])
def test_terms_that_cancel_set_the_tolerance(optimizer: ws.Optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    trial = TrialDraw.trial
    monkeypatch.setattr(TrialDraw, "trial", lambda self, sizes, seed: (drawn.append(seed), trial(self, sizes, seed))[1])
    session = ws.build_session(
        Averaged(),
        inputs=ws.Spec((4, 3, 20)),
        targets=ws.Spec((4, 10)),
        loss=lambda output, target: ((output - target) * (output - target)).mean(),
        optimizer=optimizer,
        options=ALWAYS,
    )
    assert verdict(session).checked
    assert set(drawn) == {SEED}  # what rounding does is found out with the numbers that showed it


# -- large states ------------------------------------------------------------------------------------------------


def test_a_large_state_is_looked_at_on_a_grid_that_has_its_edges() -> None:
    at = positions(1000)
    assert len(at) == 64
    assert set(range(17)) | set(range(983, 1000)) <= set(at.tolist())
    type = TensorType((1000, 50), float32)
    (stored,) = MEMORY.hold([type])
    stored.fill(np.arange(65521, dtype=np.float32))
    whole = stored.read()
    np.testing.assert_array_equal(sample_state(Slot(type, stored, MEMORY.kind)), whole[np.ix_(at, positions(50))])
    assert (pack(whole, stored.layout) == stored.flat).all()  # what pads the last panel is zero


@pytest.mark.parametrize("optimizer", [ws.Adam(), ws.optim.Adafactor(), ws.optim.Muon()])
def test_updates_on_a_grid_are_those_of_the_whole(optimizer: ws.Optimizer) -> None:
    """Adafactor sums rows and columns of the gradient, Muon multiplies it: these need all of it."""
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 190)), g.input("labels", ("batch",), "int32")
    logits = ws.relu(x @ g.parameter("w", (190, 200)).T.T) @ g.parameter("u", (200, 10))
    g.set_outputs({"loss": ws.losses.cross_entropy(logits, labels)})
    session = ws.build_session(g, optimizer=optimizer, batch_size=8, options=ALWAYS)
    graph = _expected_graph(session._programs.compiled.definition.trace("train"))
    whole = Demand(frozenset(graph.nodes), frozenset())
    picked = demand_of(graph, {"batch": 3})
    assert next(u.node for u in graph.updates if u.name == "w") in picked.picked
    trial = TrialDraw(graph, session.plan.bounds).trial({"batch": 3}, 0)
    bench = TrialSession(subject_of(session))
    bench.place(trial)
    before, run = bench.looked_at(), bench.reading(graph, trial)
    some = evaluation(graph, picked, run, before).result(graph, before).state["w"]
    every = evaluation(graph, whole, run, before).result(graph, before).state["w"]
    np.testing.assert_allclose(some, every[grid((190, 200))], rtol=1e-12)


def deep(init: object = 0.0) -> ws.Graph:
    """Twelve layers whose matrices are given their numbers afterwards, as those of imported networks are."""
    g = ws.Graph()
    h, labels = g.input("x", ("batch", 64)), g.input("labels", ("batch",), "int32")
    for i in range(12):
        h = ws.relu(h @ g.parameter(f"w{i}", (64, 64), init).T + g.parameter(f"b{i}", (64,), 0.0))
    g.set_outputs({"loss": ws.losses.cross_entropy(h * 1e3, labels)})
    return g


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_the_numbers_of_a_deep_network_of_zeros_are_finite() -> None:
    session = ws.build_session(deep(), optimizer=ws.AdamW(), batch_size=8, options=ALWAYS, device="reference")
    graph = _expected_graph(session._programs.compiled.definition.trace("train"))
    drawn = TrialDraw(graph, ())
    first = drawn.trial({"batch": 3}, 0)
    seen = interpret(graph, inputs=first.inputs, state=first.state, scalars=first.scalars, sizes=first.sizes, step=STEP)
    assert seen.outputs["loss"] < 1e5
    for i in range(12):  # every layer is reached by the gradients, and none is drowned in Adam's eps
        assert np.abs(seen.state[f"w{i}.adam.m"] - first.state[f"w{i}.adam.m"]).max() > 1e-6
    wild = replace(drawn, spread=dict.fromkeys(graph.states(), 1e300))
    for name, value in wild.trial({"batch": 3}, 1).state.items():
        assert np.isfinite(value).all(), name
        assert np.isfinite(np.square(value)).all(), name


def test_a_wrong_update_of_a_large_state_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def freeze(graph: IRGraph) -> IRGraph:
        states = graph.states()
        updates = tuple(Update(u.name, states["w1"] if u.name == "w1" else u.node) for u in graph.updates)
        return IRGraph(graph.outputs, updates, graph.inputs)

    monkeypatch.setattr(pipeline, "STAGES", (*pipeline.STAGES, pipeline.Stage("broken", (freeze,))))
    with pytest.raises(VerificationError, match=r"the state 'w1' is \S+ at position \d+, \d+, and should be"):
        ws.build_session(mlp(inputs=784, hidden=100), batch_size=16, options=in_folder(tmp_path))


def lookup() -> ws.Graph:
    """A table whose rows are looked up, and all multiplied; large, as is another weight."""
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 4), "int32"), g.input("labels", ("batch", 4), "int32")
    table, w = g.parameter("table", (600, 72)), g.parameter("w", (72, 500))
    hidden = ws.relu(ws.nn.functional.embedding(x, table) @ w) @ g.parameter("u", (72, 500)).T
    g.set_outputs({"loss": ws.losses.cross_entropy(hidden @ table.T, labels)})
    return g


def test_large_states_are_read_by_rows_and_mean_what_the_interpreter_says() -> None:
    session = ws.build_session(lookup(), optimizer=ws.AdamW(), batch_size=8, options=ALWAYS)
    graph = _expected_graph(session._programs.compiled.definition.trace("train"))
    trial = TrialDraw(graph, session.plan.bounds).trial({"batch": 3}, 0)
    bench = TrialSession(subject_of(session))
    bench.place(trial)
    before, run = bench.looked_at(), bench.reading(graph, trial)
    found = evaluation(graph, demand_of(graph, {"batch": 3}), run, before).result(graph, before)
    whole = {name: bench._state.get(name) for name in bench._state.names}
    oracle = interpret(
        graph, inputs=trial.inputs, state=whole, scalars=trial.scalars, sizes=trial.sizes, seed=SEED, step=STEP
    )
    np.testing.assert_allclose(found.outputs["loss"], oracle.outputs["loss"], rtol=1e-6)
    for name in ("table", "w", "u", "table.adam.m", "table.adam.v"):
        moved = oracle.state[name][grid(whole[name].shape)] - before[name]
        np.testing.assert_allclose(found.state[name] - before[name], moved, rtol=0, atol=1e-5 * np.abs(moved).max())


def reads(node: Node, name: str) -> bool:
    return any(i.op == "parameter" and i.attrs.name == name for i in node.inputs)  # type: ignore[attr-defined]


WRONG: dict[str, Callable[[Node], bool]] = {
    "rows that are added": lambda n: n.op == "scatter_add",
    "rows that are looked up": lambda n: n.op == "gather" and reads(n, "table"),
    "a product with a table": lambda n: n.op == "matmul" and reads(n, "table"),
    "a product with a weight": lambda n: n.op == "matmul" and reads(n, "w"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_large_state_is_caught(
    wrong: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A hundredth more than it should be."""
    changed: list[Node] = []

    def grow(node: Node) -> Node:
        if not WRONG[wrong](node):
            return node
        changed.append(node)
        return build.scale(node, 1.01)

    broken = pipeline.Stage("broken", (lambda graph: rewrite(graph, grow),))
    monkeypatch.setattr(pipeline, "STAGES", (*pipeline.STAGES, broken))
    options = replace(in_folder(tmp_path), compiler=QUICK)
    with pytest.raises(VerificationError, match=r"the state '\S+' is \S+ at position \d+, \d+, and should be"):
        ws.build_session(lookup(), optimizer=ws.SGD(), batch_size=4, options=options)
    assert changed


def test_a_device_that_does_not_run_checks_nothing() -> None:
    session = ws.build_session(mlp(), batch_size=16, device="null", options=ALWAYS)
    assert f"not checked against the interpreter: device='{session.device}' does not run plans" in note(session)


def test_a_session_made_from_a_plan_alone_says_so() -> None:
    plan, _ = ws.compile_training_graph(mlp(), batch_size=16)
    assert "not checked against the interpreter: the session was built from a plan alone" in note(ws.Session(plan))


def test_verify_is_a_bool_or_none() -> None:
    with pytest.raises(OptionError, match="verify='yes': expected True, False, or None"):
        ws.CompileOptions(verify="yes")  # type: ignore[arg-type]


# -- what it is tried on -----------------------------------------------------------------------------------------


def test_positions_that_are_finite_in_neither_are_reported() -> None:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 3)), g.parameter("w", (3,))
    below = ws.log(x * 0.0 - 1.0)
    g.set_outputs({"loss": (x * w).mean(), "odd": below})
    session = ws.build_session(g, batch_size=8, options=ALWAYS)
    assert verdict(session).not_finite == {"the output 'odd'": 3 * (3 + 8)}
    assert "33 positions of the output 'odd' are not finite in both" in note(session)


def test_inputs_between_0_and_1_where_the_graph_needs_them() -> None:
    g = ws.Graph()
    x, w = g.input("x", ("batch", 3)), g.parameter("w", (3,))
    g.set_outputs({"loss": (ws.log(x) * w).mean()})
    assert verdict(ws.build_session(g, batch_size=8, options=ALWAYS)).not_finite == {}


def test_indices_stay_in_their_bounds_and_variances_above_0() -> None:
    session = ws.build_session(mlp(), optimizer=ws.Adam(), batch_size=16, options=ALWAYS)
    trials = Trials(subject_of(session))
    trials.rehearse({"batch": 3})
    trial = trials.draw.trial({"batch": 16}, 0)
    state = {name: value for name, value in trial.state.items() if not isinstance(value, RepeatedState)}
    assert set(trial.inputs["labels"]) <= set(range(5))
    assert state["w1.adam.v"].min() > 0
    after = interpret(
        trials.graph, inputs=trial.inputs, state=state, scalars=trial.scalars, sizes=trial.sizes, seed=SEED, step=STEP
    )
    moved = np.abs(after.state["w1"] - state["w1"])
    assert 0.1 < moved.max() / np.abs(state["w1"]).max() < 100.0


def test_small_sizes_are_those_that_the_shapes_allow() -> None:
    g = ws.Graph()
    x = g.input("x", ("a", "b", "c"))
    g.set_outputs({"y": x[:, :, 1:]})
    assert small_sizes(g.to_ir(), {"a": 64, "b": 64, "c": 64}) == {"a": 4, "b": 3, "c": 2}
    assert small_sizes(mlp().to_ir(), {"batch": 2}) == {"batch": 2}


def test_a_verdict_survives_its_text() -> None:
    one = Verdict(({"batch": 3},), 1e-7, "the output 'loss'", {"the state 'w'": 2}, 0.01)
    assert parse_verdict(one.to_json()) == one
