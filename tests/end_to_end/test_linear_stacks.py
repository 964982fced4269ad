"""Linear layers without an activation between: low-rank factors, probes, and stacks of any depth."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.compiler.targets import HERE, make_plan
from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.pipeline import Compiler
from wholestep.compiler.plan.check.soundness import check_file
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.spans import OptimizeReport
from wholestep.steps.train import train_graph


def stack(widths: list[int], bias: bool = True) -> ws.nn.Sequential:
    return ws.nn.Sequential(*(ws.nn.Linear(a, b, bias=bias) for a, b in pairwise(widths)))


def training_step(widths: list[int], bias: bool = True) -> IRGraph:
    g = ws.Graph()
    x, y = g.input("x", ("batch", widths[0])), g.input("y", ("batch", widths[-1]))
    g.set_outputs({"loss": ws.losses.mse_loss(stack(widths, bias)(x), y)})
    return train_graph(g, ws.SGD())


def planned(widths: list[int], bias: bool = True) -> tuple[Plan, OptimizeReport]:
    return Compiler().plan(training_step(widths, bias), {"batch": 4}, HERE)


FOUND = [[8, 8, 8, 2], [64, 64, 4, 3], [2, 2, 2, 1], [100, 50, 10, 2]]
DRAWN = [[int(w) for w in np.random.default_rng(i).choice([1, 2, 3, 8, 17, 64, 100], 4 + i % 3)] for i in range(16)]


@pytest.mark.parametrize("widths", [*FOUND, *DRAWN], ids=str)
def test_stacks_of_any_width_are_planned_with_every_rule(widths: list[int]) -> None:
    assert planned(widths, bias=len(widths) % 2 == 0)[1].complete


def test_three_layers_train_as_in_torch() -> None:
    rng = np.random.default_rng(0)
    ours = stack([8, 8, 8, 2])
    theirs = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    session = ws.build_session(
        ours,
        inputs=ws.Spec(("batch", 8)),
        targets=ws.Spec(("batch", 2)),
        loss="mse",
        optimizer=ws.SGD(lr=0.1),
        batch_size=4,
    )
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    for _ in range(5):
        x, y = rng.normal(size=(4, 8)).astype(np.float32), rng.normal(size=(4, 2)).astype(np.float32)
        loss = torch.nn.functional.mse_loss(theirs(torch.from_numpy(x)), torch.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(session.step(x=x, labels=y).loss, loss.item(), rtol=1e-5)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(session.get(name), value.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def test_the_orders_of_a_long_run_do_not_fill_the_e_graph() -> None:
    """Catalan's number of them: 20 layers made 29,000 e-nodes, and seconds of work to choose none."""
    _, report = planned([8] * 21)
    assert report.complete
    assert max(r.enodes for r in report.egraph) < 3 * max(r.nodes_before for r in report.egraph)


def test_a_long_plan_is_split_piece_by_piece() -> None:
    """The work of a whole search grows with the square of the plan: a thousand layers took minutes."""
    graph = Compiler().run_stages(training_step([8] * 13), HERE)
    whole = make_plan(graph, {"batch": 4}, target=HERE)
    pieces = make_plan(graph, {"batch": 4}, target=HERE, settings=Settings(piece=20))
    check_file(pieces)
    assert len(pieces.kernels) == len(whole.kernels) > 40
    assert pieces.flops == whole.flops
