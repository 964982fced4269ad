"""No kernel of a network is scheduled far slower than the price of its work: thirty-odd networks, planned only."""

from __future__ import annotations

import pytest

from tests.compiler.backends.gpu.networks import NETWORKS
from wholestep.compiler.backends.gpu.efficiency.advice import slow_kernels
from wholestep.compiler.plan.model.kernel import Kernel, Plan

TARGETS = ("cuda/sm_90", "cuda/sm_80")
QUICK = ("batch norm of 144 channels", "group norm", "layer norm of channels", "adaptive pool", "two classes of pixels",
         "Swin-like", "GRU")  # fmt: skip
# Labels of nodes -> why kernels that compute them may still be slow.
SLOW_YET = {
    "conv2d": "convolutions in groups, and those that no library computes, have a general loop nest",
    "matmul": "products of half types with an epilogue, in loops, use no tensor cores",
}
PENDING = {
    "bilinear upsampling": "images are interpolated in another layout",
    "pixel shuffle": "channels become pixels in another layout",
    "U-Net": "large weights are transposed element by element",
    "3-d convolutions": "norms of volumes are computed in another layout than convolutions",
}


def excuse(kernel: Kernel) -> str | None:
    return next((why for label, why in SLOW_YET.items() if any(label in origin for origin in kernel.origin)), None)


def unexcused(plan: Plan) -> dict[str, str]:
    kernels = {k.id: k for k in plan.kernels}
    slow = {kernels[id]: why for id, why in slow_kernels(plan).items()}
    return {f"{k.id}: {', '.join(k.origin)} {k.axes}": why for k, why in slow.items() if excuse(k) is None}


def marks(name: str) -> list[pytest.MarkDecorator]:
    pending = [pytest.mark.xfail(reason=PENDING[name], strict=True)] if name in PENDING else []
    return pending + [pytest.mark.long] * (name not in QUICK)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=marks(n)) for n in NETWORKS])
def test_no_kernel_of_a_network_is_slow_for_its_work(name: str, target: str) -> None:
    assert not unexcused(NETWORKS[name].plan(target))
