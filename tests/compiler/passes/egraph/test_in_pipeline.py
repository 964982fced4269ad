"""The e-graph as two stages of the compiler: whole training steps keep their gradients and their plans get no worse."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.targets import HERE
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.semantics.interpret import interpret
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.io.traffic import bytes_moved, flops
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.cache.plan_cache import plan_key
from wholestep.errors import OptionError
from wholestep.steps.train import train_graph

CAPACITY = {"batch": 32}
Activation = Callable[[ws.Tensor], ws.Tensor]


def network(activation: Activation, *widths: int) -> ws.Graph:
    g = ws.Graph()
    h = g.input("x", ("batch", widths[0]))
    labels = g.input("labels", ("batch",), dtype="int32")
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        h = (activation(h) if i else h) @ g.parameter(f"w{i}", (fan_in, fan_out)) + g.parameter(f"b{i}", (fan_out,))
    g.set_outputs({"loss": ws.losses.cross_entropy(h, labels), "logits": h})
    return g


def gelu_by_hand(x: ws.Tensor) -> ws.Tensor:
    return 0.5 * x * (1 + ws.erf(x / 2**0.5))


def silu_by_hand(x: ws.Tensor) -> ws.Tensor:
    return x / (1 + ws.exp(-x))


ACTIVATIONS: dict[str, Activation] = {
    "relu": ws.relu,
    "tanh": ws.tanh,
    "sigmoid": ws.sigmoid,
    "gelu": ws.gelu,
    "silu": ws.silu,
    "gelu by hand": gelu_by_hand,
    "silu by hand": silu_by_hand,
    "softplus": lambda x: ws.log(1 + ws.exp(x)),
}


def step(activation: str, optimizer: Any = None) -> IRGraph:
    return train_graph(network(ACTIVATIONS[activation], 6, 8, 8, 5), optimizer or ws.Adam())


def compiled(graph: IRGraph, **options: Any) -> Plan:
    return Compiler(ws.CompileOptions(**options)).plan(graph, CAPACITY, HERE)[0]


def integers(plan: Plan) -> tuple[int, int, int]:
    """Kernels, flops and bytes at capacity."""
    work = sum(flops(k, CAPACITY) for k in plan.kernels)
    return len(plan.kernels), work, sum(bytes_moved(k, plan.buffers, CAPACITY) for k in plan.kernels)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_plans_get_no_worse(name: str) -> None:
    before, after = (integers(compiled(step(name), egraph=on)) for on in (False, True))
    assert after[0] <= before[0]
    assert after[2] <= before[2]
    if name != "softplus":  # steadiness has its price in arithmetic
        assert after[1] <= before[1]


@pytest.mark.parametrize("name", ["gelu", "silu"])
def test_by_hand_and_by_name_give_the_same_plan_integers(name: str) -> None:
    by_hand, by_name = (integers(compiled(step(n), egraph=True)) for n in (f"{name} by hand", name))
    assert by_hand == by_name


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("exactness", ["bitwise", "reassociating", "approximate"])
def test_updates_are_those_of_the_plain_program(name: str, exactness: str) -> None:
    """With a large rate of plain descent the new weights show the gradients."""
    graph = step(name, ws.SGD(lr=1e3))
    rng = np.random.default_rng(0)
    batch = {"x": rng.normal(size=(7, 6)), "labels": rng.integers(0, 5, 7).astype(np.int32)}
    state = {n: rng.normal(size=[int(e) for e in s.type.shape]) for n, s in graph.states().items()}
    results = [
        interpret(
            Compiler(ws.CompileOptions(egraph=on, exactness=exactness)).run_stages(graph, HERE),
            inputs=batch,
            state=state,
        )
        for on in (False, True)
    ]
    for kind in ("outputs", "state"):
        plain, rewritten = (getattr(r, kind) for r in results)
        for key, value in plain.items():
            assert np.isfinite(value).all()
            scale = np.abs(value).max()
            # Definitions hold constants rounded to float32, named ops exact ones.
            np.testing.assert_allclose(rewritten[key], value, rtol=0, atol=1e-6 * scale, err_msg=key)


def test_the_report_tells_both_runs() -> None:
    compiler = Compiler(ws.CompileOptions(egraph=True))
    _, report = compiler.plan(step("gelu by hand"), CAPACITY, HERE)
    assert report.complete
    assert len(report.egraph) == 2
    assert "name-gelu" in report.fusions_applied
    assert "e-graph (reassociating)" in str(report)
    assert all(r.nodes_before > 0 and r.enodes > 0 for r in report.egraph)


def test_what_is_not_chosen_is_not_applied() -> None:
    _, report = Compiler(ws.CompileOptions(egraph=True)).plan(step("relu"), CAPACITY, HERE)
    assert sum(sum(r.fired.values()) for r in report.egraph) > 0
    assert report.fusions_applied == ()


def test_without_it_nothing_is_reported() -> None:
    _, report = Compiler(ws.CompileOptions(egraph=False)).plan(step("gelu"), CAPACITY, HERE)
    assert (report.egraph, report.fusions_applied) == ((), ())
    _, skipped = Compiler(ws.CompileOptions(egraph=True, optimize=False)).plan(step("gelu"), CAPACITY, HERE)
    assert skipped.egraph == ()


def test_a_spent_budget_gives_the_plain_plan_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    compiler = Compiler(ws.CompileOptions(egraph=True, egraph_seconds=1e-9))
    with caplog.at_level(logging.WARNING, "wholestep"):
        plan, report = compiler.plan(step("gelu by hand"), CAPACITY, HERE)
    assert plan == compiled(step("gelu by hand"), egraph=False)
    assert not report.complete
    assert "saturation took more than 1e-09 s" in caplog.text


def test_a_plan_without_its_rewriting_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[str] = []
    monkeypatch.setattr("wholestep.session.building.plans.store_plan", lambda store, key, plan: kept.append(key))
    for nodes in (1, 60_000):
        options = ws.CompileOptions(egraph=True, egraph_nodes=nodes, cache_dir=str(tmp_path))
        ws.build_session(network(ws.silu, 6, 8, 5), optimizer=ws.SGD(), batch_size=8, options=options)
        assert len(kept) == (0 if nodes == 1 else 1)


def test_the_key_holds_what_the_rewriting_depends_on() -> None:
    graph = step("gelu")

    def key(**options: Any) -> str:
        return plan_key(graph, CAPACITY, ws.CompileOptions(**options), HERE)

    base = key(egraph=True)
    others = {key(egraph=False), key(egraph=True, exactness="bitwise"), key(egraph=True, egraph_rounds=3)}
    assert len({base} | others) == 4


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"exactness": "exact"}, "exactness='exact': expected one of 'bitwise'"),
        ({"egraph_seconds": 0}, "egraph_seconds=0: expected a number of seconds above 0"),
        ({"egraph_rounds": 0}, "egraph_rounds=0: expected an integer"),
        ({"egraph_nodes": 1.5}, "egraph_nodes=1.5"),
    ],
)
def test_options_are_checked(options: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        ws.CompileOptions(**options)
