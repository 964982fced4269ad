"""No kernel of a network is scheduled far slower than the price of its work: thirty-odd networks, planned only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.compiler.backends.gpu.networks import NETWORKS
from wholestep.compiler.backends.gpu.efficiency.advice import slow_kernels
from wholestep.compiler.plan.model.kernel import Plan

TARGETS = ("cuda/sm_90", "cuda/sm_80")
QUICK = ("batch norm", "group norm", "layer norm of channels", "bilinear upsampling", "max pool", "Swin-like", "GRU",
         "2 embeddings", "DenseNet-like")  # fmt: skip
# Networks with a kernel that is slow for its work: on which targets, and why.
PENDING = {
    "ConvNeXt-like": (TARGETS, "weight gradients of depthwise convolutions of 7 x 7 pixels are bound by arithmetic"),
    "LSTM": (TARGETS, "products of half types with an epilogue, in loops, use no tensor cores"),
    "3-d convolutions": (TARGETS[:1], "norms of volumes are computed in another layout than convolutions"),
    "batch norm in float32": (TARGETS[1:], "the weight gradient of three channels has no tensor cores"),
    "EfficientNet-like": (TARGETS[1:], "sums over the pixels of 40 channels are 49 blocks"),
}


def slow(plan: Plan) -> dict[str, str]:
    kernels = {k.id: k for k in plan.kernels}
    return {f"{id}: {', '.join(kernels[id].origin)} {kernels[id].axes}": why for id, why in slow_kernels(plan).items()}


def cases() -> Iterator[Any]:
    for name in NETWORKS:
        targets, reason = PENDING.get(name, ((), ""))
        for target in TARGETS:
            marks = [pytest.mark.xfail(reason=reason, strict=True)] * (target in targets)
            yield pytest.param(name, target, marks=marks + [pytest.mark.long] * (name not in QUICK))


@pytest.mark.parametrize(("name", "target"), list(cases()))
def test_no_kernel_of_a_network_is_slow_for_its_work(name: str, target: str) -> None:
    assert not slow(NETWORKS[name].plan(target))
