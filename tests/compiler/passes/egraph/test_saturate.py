"""The worker may die in any way: the program stays as it was, and the reason is told."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.compiler.passes.common import graph_of, leaf
from tests.compiler.passes.egraph.support.common import example, saturated
from tests.compiler.targets import optimize
from wholestep.compiler.ir import build as b
from wholestep.compiler.passes.egraph import worker
from wholestep.compiler.passes.egraph.encode import encode
from wholestep.compiler.passes.egraph.rules.rule import Exactness, FamilyRows
from wholestep.compiler.passes.egraph.rules.rule_set import rules_for
from wholestep.compiler.passes.egraph.saturate import Budget, SaturationError, Worker, saturate, shared_worker

GRAPH = graph_of(example("gelu"), example("softmax"))


NONSENSE: dict[str, Any] = {
    "laws": [],
    "program": ["(nonsense"],
    "terms": [],
    "equal": [],
    "tables": {},
    "certificates": {},
    "rulesets": {},
    "rounds": 1,
    "nodes": 1,
    "grown": 1,
}


def worker_that(does: str) -> Worker:
    return Worker((sys.executable, "-S", "-c", does))


FAILURES = {
    "killed": ("import os, signal; input(); os.kill(os.getpid(), signal.SIGKILL)", "status -9"),
    "crashing": ("input(); raise MemoryError('too much')", "status 1: MemoryError: too much"),
    "dead at once": ("import sys; sys.exit(3)", "status 3"),
    "aborting": ("import os; input(); os.abort()", "status -6"),
    "hung": ("import time; time.sleep(60)", "no answer within 0.3 s"),
    "stammering": ("import time; print('{\"no', end='', flush=True); time.sleep(60)", "no answer within 0.3 s"),
    "failing": ('input(); input(); print(\'{"error": "PanicException: no"}\')', "egglog failed: PanicException: no"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_without_an_answer_the_program_stays(name: str) -> None:
    does, reason = FAILURES[name]
    with worker_that(does) as worker:
        rewritten, report = optimize(
            GRAPH, {"n": 8}, worker=worker, budget=Budget(seconds=0.3 if "0.3" in reason else 20)
        )
    assert rewritten is GRAPH
    assert reason in report.failure
    assert "is unchanged" in str(report)


def test_a_missing_program_is_told() -> None:
    with Worker(("/nowhere/python",)) as worker:
        _, report = optimize(GRAPH, {"n": 8}, worker=worker)
    assert "could not be started" in report.failure


def test_too_many_nodes_are_a_reason_too() -> None:
    rewritten, report = optimize(GRAPH, {"n": 8}, budget=Budget(nodes=20))
    assert rewritten is GRAPH
    assert "grew beyond 20 nodes" in report.failure


def test_spent_rounds_are_reported_and_what_was_found_is_used() -> None:
    _, report = optimize(graph_of(example("silu")), {"n": 8}, budget=Budget(rounds=1))
    assert (report.rounds, report.stopped, report.failure) == (1, "rounds", "")


def test_where_rules_go_on_for_ever_the_busiest_are_set_aside_and_what_was_found_is_used() -> None:
    endless = FamilyRows("endless")
    for name, factor in (("twice", 2.0), ("more", 2.5)):
        law = f"x * const(c) = (x * const(c * {factor})) * const({1 / factor!r})"
        endless.rule(name, law, "for ever", Exactness.REASSOCIATING)
    encoded = encode(graph_of(b.scale(leaf("x", ("n", 5)), 0.7), example("silu")))
    rules = rules_for(GRAPH, Exactness.REASSOCIATING, encoded.tables, before_autodiff=False)
    with Worker() as worker:
        found = saturate(encoded, [*endless.rows, *rules], Budget(), worker)
        with pytest.raises(SaturationError, match="grew beyond 900 nodes"):
            saturate(encoded, [*endless.rows, *rules], Budget(nodes=900), worker)
    assert found.paused
    assert found.egraph.size < Budget().nodes / 4
    silu = found.egraph.classes[found.egraph.roots[1]]
    assert "silu" in {n.head for n in silu}


def test_a_worker_serves_several_requests_and_starts_again_after_a_failure() -> None:
    with Worker() as worker:
        first = saturated(GRAPH, worker)[1]
        assert saturated(GRAPH, worker)[1] == first
        worker.close()
        assert saturated(GRAPH, worker)[1] == first


def test_a_worker_that_has_gone_home_is_started_again() -> None:
    """One that just went, when the request was on its way, too: its end with status 0 is no failure."""
    script = Path(worker.__file__).read_text().replace("IDLE = 20.0", "IDLE = 0.0")
    assert "IDLE = 0.0" in script
    (folder,) = importlib.util.find_spec("egglog").submodule_search_locations  # type: ignore[union-attr,misc]
    with Worker((sys.executable, "-I", "-S", "-c", script, folder)) as impatient, Worker() as usual:
        for _ in range(2):
            assert saturated(GRAPH, impatient)[1] == saturated(GRAPH, usual)[1]
            time.sleep(0.01)
    with worker_that("input()") as gone, pytest.raises(SaturationError, match="ended without an answer, twice"):
        saturated(GRAPH, gone)


def test_what_a_request_declares_ends_with_it() -> None:
    """After other programs, and after a failure, the same e-graph is found."""
    others = [graph_of(example(name)) for name in ("silu", "softmax")]
    with Worker() as process:
        alone = saturated(GRAPH, process)[1]
        for other in others:
            saturated(other, process)
            assert saturated(GRAPH, process)[1] == alone
        with pytest.raises(SaturationError, match="egglog failed"):
            process.ask(NONSENSE, 20)
        assert saturated(GRAPH, process)[1] == alone


def test_builds_share_a_worker_and_a_forked_process_has_its_own() -> None:
    mine = shared_worker()
    assert shared_worker() is mine
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"own" if shared_worker() is not mine else b"its parent's")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"own"
    assert shared_worker() is mine


FORKS = """
import gc, os, sys
from wholestep.compiler.passes.egraph.saturate import shared_worker
shared_worker().start()
child = os.fork()
if child == 0:
    gc.collect()
    os._exit(0)
os.waitpid(child, 0)
"""


def test_a_forked_process_drops_the_worker_without_a_warning() -> None:
    run = subprocess.run(
        [sys.executable, "-W", "always::ResourceWarning", "-c", FORKS], capture_output=True, text=True, check=True
    )
    assert run.stderr == ""


def test_every_process_finds_the_same_e_graph() -> None:
    """Classes are numbered by content: nothing of the process is left in the result."""
    found = []
    for _ in range(2):
        with Worker() as worker:
            found.append(saturated(GRAPH, worker)[1])
    assert found[0] == found[1]


UNDER_A_LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_AS, ({limit}, {limit}))  # ulimit -v: a child can lower it, and never raise it
import wholestep as ws
g = ws.Graph()
x, w = g.input("x", ("batch", 4)), g.parameter("w", (4, 3), init=0.5)
g.set_outputs({{"loss": (ws.relu(x @ w) ** 2).mean()}})
_, report = ws.build_session_with_report(g, batch_size=8, device="reference", options=ws.CompileOptions(cache=False))
print(report)
"""


@pytest.mark.parametrize("limit", [3 << 30, 6 << 30], ids=["below the worker's own", "above it"])
def test_under_a_limit_of_the_address_space_the_step_is_optimised(limit: int) -> None:
    command = [sys.executable, "-c", UNDER_A_LIMIT.format(limit=limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "is unchanged" not in done.stdout
    assert "e-graph" in done.stdout


def test_egglog_is_not_imported_here() -> None:
    optimize(GRAPH, {"n": 8})
    assert not [m for m in sys.modules if m == "egglog" or m.startswith("egglog.")]


def test_an_error_of_egglog_is_an_answer() -> None:
    with Worker() as process, pytest.raises(SaturationError, match="egglog failed"):
        process.ask(NONSENSE, 20)


PROGRAM = """
import wholestep as ws
from tests.compiler.targets import HERE
from tests.models.gpt2 import PRIMITIVE, Config, gpt2
from wholestep.compiler.ir.printer import print_graph
from wholestep.compiler.passes.egraph.outline import outline
from wholestep.compiler.pipeline import Compiler
from wholestep.steps.train import train_graph
step = train_graph(gpt2(Config(layers=2, width=8, heads=2, vocabulary=11, context=5), PRIMITIVE), ws.AdamW())
assert outline(step) is not None
print(print_graph(Compiler(ws.CompileOptions(egraph=True)).run_stages(step, HERE, until="optimize_full")))
"""


def test_the_program_does_not_depend_on_the_order_of_sets() -> None:
    """Two interpreters that hash strings differently choose the same nodes in the same order."""
    root = str(Path(__file__).parents[4])
    texts = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert b"attention" in texts[0]
    assert texts[0] == texts[1]
