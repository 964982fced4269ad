"""What kernels cost by a target's table: products by the dtype of what they multiply."""

from __future__ import annotations

from typing import Any

import pytest

import wholestep as ws
from wholestep.compiler.backends.cuda.target import TARGETS
from wholestep.compiler.ir.types import bfloat16, float32
from wholestep.compiler.plan.io.traffic import gemm_dtype, price_kernel
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Plan
from wholestep.distributed.estimate import compute_seconds

SM_90 = TARGETS["cuda/sm_90"]


def plan_of(device: str = "null:cuda/sm_90", **told: Any) -> Plan:
    tokens, images = ws.Spec(("batch", 16), "int32"), ws.Spec(("batch", 8, 8, 8))
    network = ws.nn.Sequential(ws.nn.Conv2d(8, 16, 3), ws.nn.ReLU(), ws.nn.GlobalAvgPool2d(), ws.nn.Linear(16, 10))
    of_words = ws.models.gpt2(layers=1, width=32, heads=2, vocabulary=64, context=16), tokens, tokens
    of_images = network, images, ws.Spec(("batch",), "int32")
    model, inputs, targets = of_images if told.pop("images", False) else of_words
    return ws.build_session(
        model,
        inputs=inputs,
        targets=targets,
        loss="cross_entropy",
        batch_size=8,
        device=device,
        options=ws.CompileOptions(egraph=False, cache=False),
        **told,
    ).plan


def kernels_of(plan: Plan, kind: Kind) -> list[Kernel]:
    found = [k for k in plan.kernels if k.kind is kind]
    assert found
    return found


@pytest.mark.parametrize(("kind", "images"), [(Kind.DOT, False), (Kind.CALL, False), (Kind.WINDOW, True)])
def test_products_are_priced_by_what_they_multiply(kind: Kind, images: bool) -> None:
    for precision, price in (("bfloat16", SM_90.costs.half_product), ("float32", SM_90.costs.product)):
        plan, dtype = plan_of(precision=precision, images=images), bfloat16 if precision == "bfloat16" else float32
        own = [k for k in kernels_of(plan, kind) if gemm_dtype(k, plan.buffers) == dtype]
        assert own
        for kernel in own:
            expected = kernel.flops * price / 2, kernel.bytes * SM_90.costs.byte
            assert price_kernel(kernel, plan.buffers, SM_90.costs) == pytest.approx(expected)


def test_other_kernels_are_priced_by_their_operations() -> None:
    plan = plan_of(precision="bfloat16")
    for kernel in kernels_of(plan, Kind.NEST):
        assert gemm_dtype(kernel, plan.buffers) is None
        assert price_kernel(kernel, plan.buffers, SM_90.costs)[0] == pytest.approx(kernel.flops * SM_90.costs.operation)


def test_a_target_with_tf32_expects_less_of_the_same_kernels() -> None:
    plan = plan_of("null:cuda/sm_90+tf32", precision="tf32")
    rounding = TARGETS["cuda/sm_90+tf32"]
    kernel = max(kernels_of(plan, Kind.DOT), key=lambda k: k.flops)
    assert price_kernel(kernel, plan.buffers, rounding.costs)[0] == pytest.approx(
        kernel.flops * SM_90.costs.tf32_product / 2
    )
    assert compute_seconds(plan, rounding, 1) < compute_seconds(plan, SM_90, 1)
