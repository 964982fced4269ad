"""The integers of plans for a GPU are golden: kernels, launches, flops, bytes that move, bytes that are allocated.

After an intended change run this file with `--update-golden`, then read the diff.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import wholestep as ws
from wholestep.compiler.backends.gpu.fusion.launches import by_launch
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.ir.types import evaluate
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.plan.model.target_formats import footprint

GOLDEN = Path(__file__).parents[3] / "golden" / "cuda_plans.json"
TOKENS, IMAGES = ws.Spec(("batch", 64), "int32"), ws.Spec(("batch", 3, 32, 32))
CLASSES = ws.Spec(("batch",), "int32")


def perceptron() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(784, 128), ws.nn.ReLU(), ws.nn.Linear(128, 10))


def gpt() -> ws.nn.Module:
    return ws.models.gpt2(layers=2, width=128, heads=4, vocabulary=65, context=64)


# name: (model, inputs, targets, batch, precision)
CASES = {
    "mlp 784-128-10, 32": (perceptron, ws.Spec(("batch", 784)), CLASSES, 32, "float32"),
    "mlp 784-128-10, 128": (perceptron, ws.Spec(("batch", 784)), CLASSES, 128, "float32"),
    "lenet-5, 64": (ws.models.lenet5, ws.Spec(("batch", 1, 28, 28)), CLASSES, 64, "float32"),
    "resnet-20, 256": (ws.models.resnet20, IMAGES, CLASSES, 256, "float32"),
    "gpt 2 x 128, 16": (gpt, TOKENS, TOKENS, 16, "float32"),
    "gpt 2 x 128, 16, bfloat16": (gpt, TOKENS, TOKENS, 16, "bfloat16"),
    "lstm 2 x 256, 32": (lambda: ws.models.lstm_lm(65, width=256, layers=2), TOKENS, TOKENS, 32, "float32"),
}


def launches(plan: Plan) -> int:
    """Of a step: kernels may share one, and those of a loop that is not one kernel run for every step of it."""
    loops = [None if schedule_of(launch[0]).owns else launch[0].loop for launch in by_launch(plan.kernels)]
    return sum(1 if n is None else evaluate(plan.loops[n].length, plan.sizes) for n in loops)


def integers(name: str) -> dict[str, int]:
    model, inputs, targets, batch, precision = CASES[name]
    plan = ws.build_session(
        model(),
        inputs=inputs,
        targets=targets,
        loss="cross_entropy",
        optimizer=ws.AdamW(lr=1e-3),
        batch_size=batch,
        precision=precision,
        device="null:cuda/sm_90",
        options=ws.CompileOptions(egraph=False, cache=False),
    ).plan
    parts = footprint(plan, 1)
    return {
        "kernels": len(plan.kernels),
        "launches": launches(plan),
        "flops": plan.flops,
        "bytes_moved": plan.bytes_moved,
        "state_bytes": parts.state,
        "arena_bytes": parts.arena,
        "peak_bytes": parts.peak_bytes,
    }


@pytest.mark.parametrize("name", CASES)
def test_integers_of_a_plan_are_the_golden_ones(name: str, request: pytest.FixtureRequest) -> None:
    ours = integers(name)
    known = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    if request.config.getoption("--update-golden"):
        GOLDEN.write_text(json.dumps({**known, name: ours}, indent=2) + "\n")
        return
    assert ours == known[name], "the plan has changed: --update-golden, and read the diff"


def test_updates_that_wait_for_one_norm_are_kernels_of_their_own() -> None:
    """As one kernel, which has all of their operands, they would keep NVRTC busy for half a minute."""
    layers = [layer for _ in range(12) for layer in (ws.nn.Linear(16, 16), ws.nn.Tanh())]
    kinds = {"inputs": ws.Spec(("batch", 16)), "targets": ws.Spec(("batch", 16)), "loss": "mse"}
    how = {"optimizer": ws.AdamW(lr=1e-3), "clip_norm": 1.0, "batch_size": 8, "device": "null:cuda/sm_90"}
    options = ws.CompileOptions(egraph=False)
    plan = ws.build_session(ws.nn.Sequential(*layers), **kinds, **how, options=options).plan
    touched = [len({load.buffer for load, _ in kernel.body.reads()}) for kernel in plan.kernels]
    assert max(touched) <= 40
    assert launches(plan) < len(plan.kernels)
