"""Weight gradients of convolutions run after the second pass over a batch norm's images, without a barrier."""

from __future__ import annotations

import wholestep as ws
from tests.compiler.native import lower
from tests.compiler.targets import make_plan
from wholestep.compiler.backends.cpu.cost_model import Settings
from wholestep.compiler.plan.check.soundness import check_file as check
from wholestep.compiler.plan.model.kernel import Kernel, Plan
from wholestep.steps.train import train_graph


def plan(batch: int, convolutions: int = 3, delay: int = Settings.delay) -> Plan:
    """Convolutions with batch norms behind them, 8 x 16 x 16 pixels of 16 channels each."""
    g = ws.Graph()
    h = g.input("x", ("batch", 16, 16, 16))
    for i in range(convolutions):
        gain = g.parameter(f"gain{i}", (16,), 1.0)
        h = ws.relu(ws.batch_norm(ws.conv2d(h, g.parameter(f"w{i}", (16, 16, 3, 3)), padding=1), gain))
    g.set_outputs({"loss": (h * h).mean()})
    made = make_plan(lower(train_graph(g, ws.SGD(lr=0.1))), {"batch": batch}, settings=Settings(delay=delay))
    check(made)
    return made


def weight_gradients(made: Plan) -> list[Kernel]:
    return [k for k in made.kernels if getattr(k.body, "op", "") == "conv2d_grad_weight"]


def passes_after_sums(made: Plan) -> list[bool]:
    """For each norm's gradient dx: does no weight gradient stand between its sums and it?"""
    found, between = [], False
    for k in made.kernels:
        if k in weight_gradients(made):
            between = True
        elif k.kind.value == "columns" and any("gradient of batch_norm" in o for o in k.origin) and k.rows:
            between = False
        elif k.kind.value == "nest" and "gradient of batch_norm" in k.origin:
            found.append(not between)
    return found


def test_two_passes_over_large_images_follow_each_other() -> None:
    made = plan(batch=64)
    assert passes_after_sums(made) == [True] * 3


def test_no_barrier_is_added_and_small_images_stay() -> None:
    late = plan(batch=64)
    small = plan(batch=8)
    never = plan(batch=64, delay=1 << 60)
    assert late.regions <= never.regions + 1
    assert passes_after_sums(never) != [True] * 3
    assert [k.origin for k in small.kernels] == [k.origin for k in plan(batch=8, delay=1 << 60).kernels]
