"""Norms, pools and resampling between convolutions: two training steps, emulated, against the reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import emulated_device
from tests.compiler.backends.gpu.networks import LastNorm, Squeeze
from wholestep import nn
from wholestep.compiler.backends.gpu.grids.gemm_library import product_of
from wholestep.compiler.ir.types import float32
from wholestep.compiler.plan.model.bodies import Dot

ANEW = ws.CompileOptions(verify=False, egraph=False, cache=False)


class SignalNorm(nn.Module):
    """A batch norm of the rows of an image, as a signal."""

    def __init__(self) -> None:
        self.norm = nn.BatchNorm1d(8)

    def __call__(self, x: ws.Tensor) -> ws.Tensor:
        n, c, h, w = x.shape
        return self.norm(x.reshape((n, c, h * w))).reshape(x.shape)  # type: ignore[operator]


MIDDLES: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(8),
    "group": lambda: nn.GroupNorm(4, 8),
    "instance": lambda: nn.InstanceNorm2d(8, affine=True),
    "layer": lambda: LastNorm(8),
    "signal": SignalNorm,
    "squeeze": lambda: Squeeze(8, 4),
    "nearest": lambda: nn.Upsample(scale=2),
    "bilinear": lambda: nn.UpsamplingBilinear2d(scale_factor=2),
    "bicubic": lambda: nn.Upsample(scale=3, mode="bicubic"),
    "adaptive": lambda: nn.AdaptiveAvgPool2d(3),
    "max": lambda: nn.MaxPool2d(3, 2, 1),
    "transposed": lambda: nn.ConvTranspose2d(8, 8, 2, 2),
}


def session_on(device: str, middle: str, precision: str = "float32") -> ws.Session:
    body = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), MIDDLES[middle](), nn.SiLU(), nn.Conv2d(8, 8, 1))
    g = ws.Graph()
    x = g.input("x", ("batch", 3, 8, 8))
    g.set_outputs({"loss": (body(x) ** 2).mean()})
    return ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=5, device=device, options=ANEW, seed=0,
                            precision=precision)  # fmt: skip


@pytest.mark.parametrize("middle", MIDDLES)
def test_two_steps_are_those_of_the_reference(middle: str) -> None:
    rng = np.random.default_rng(0)
    with emulated_device():
        ours, reference = session_on("emulated", middle), session_on("reference", middle)
        for rows in (5, 3):
            x = rng.standard_normal((rows, 3, 8, 8)).astype(np.float32)
            losses = [float(session.step(x=x).loss) for session in (ours, reference)]
            np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
        for name, value in ours.state_dict().items():
            np.testing.assert_allclose(value, reference.state_dict()[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("middle", ["bilinear", "adaptive", "nearest", "group", "max", "transposed"])
def test_losses_in_bfloat16_are_those_of_float32_but_for_rounding(middle: str) -> None:
    x = np.random.default_rng(0).standard_normal((5, 3, 8, 8)).astype(np.float32)
    with emulated_device():
        losses = [float(session_on("emulated", middle, p).step(x=x).loss) for p in ("bfloat16", "float32")]
    np.testing.assert_allclose(losses[0], losses[1], rtol=2e-2)


def test_a_library_rounds_no_product_of_float32() -> None:
    """cuBLASLt refuses float32 operands with a result of a half type: the kernel after it rounds."""
    g = ws.Graph()
    x, w = g.input("x", ("batch", 1024)), g.parameter("w", (1024, 1024))
    hidden = (x @ w).astype("bfloat16")
    g.set_outputs({"loss": (hidden @ w.astype("bfloat16")).astype("float32").sum()})
    plan = ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=1024, device="null:cuda/sm_90", options=ANEW).plan
    products = [k for k in plan.kernels if isinstance(k.body, Dot) and k.schedule.form == "library"]
    assert len(products) > 2
    for kernel in products:
        product = product_of(plan, kernel, plan.sizes)
        assert product.c.dtype == product.a.dtype or product.c.dtype == float32
