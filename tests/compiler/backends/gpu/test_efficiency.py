"""No kernel of a network is scheduled far slower than the price of its work: thirty-odd networks, planned only."""

from __future__ import annotations

import pytest

from tests.compiler.backends.gpu.networks import NETWORKS
from wholestep.compiler.backends.gpu.efficiency.advice import slow_kernels
from wholestep.compiler.plan.model.kernel import Plan

TARGETS = ("cuda/sm_90", "cuda/sm_80")
QUICK = ("batch norm", "group norm", "layer norm of channels", "bilinear upsampling", "max pool", "Swin-like", "GRU",
         "2 embeddings")  # fmt: skip
# Networks with a kernel that is slow for its work, and why.
PENDING = {
    "segmentation head": "weight gradients of convolutions with few outputs",
    "two classes of pixels": "weight gradients of convolutions with few outputs",
    "pixel shuffle": "channels become pixels in another layout",
    "ConvNeXt-like": "weight gradients of depthwise convolutions of 7 x 7 pixels are bound by arithmetic",
    "U-Net": "weight gradients of convolutions with few outputs; large weights are transposed element by element",
    "LSTM": "products of half types with an epilogue, in loops, use no tensor cores",
    "3-d convolutions": "norms of volumes are computed in another layout than convolutions",
}


def slow(plan: Plan) -> dict[str, str]:
    kernels = {k.id: k for k in plan.kernels}
    return {f"{id}: {', '.join(kernels[id].origin)} {kernels[id].axes}": why for id, why in slow_kernels(plan).items()}


def marks(name: str) -> list[pytest.MarkDecorator]:
    pending = [pytest.mark.xfail(reason=PENDING[name], strict=True)] if name in PENDING else []
    return pending + [pytest.mark.long] * (name not in QUICK)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=marks(n)) for n in NETWORKS])
def test_no_kernel_of_a_network_is_slow_for_its_work(name: str, target: str) -> None:
    assert not slow(NETWORKS[name].plan(target))
