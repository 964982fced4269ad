"""`precision="tf32"`: an option of products in float32 on a GPU, named wherever one looks, refused elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.support.sessions import data, mlp
from wholestep.compiler.backends.gpu.grids import gemm_library
from wholestep.errors import OptionError

CHECKED = ws.CompileOptions(verify=True, cache=False, egraph=False)


def trained(precision: str, device: str = "cuda", **options: Any) -> tuple[ws.Session, list[float]]:
    session = ws.build_session(
        mlp(), optimizer=ws.SGD(lr=0.1), batch_size=24, seed=3, device=device, precision=precision, **options
    )
    return session, [float(session.step(**data(24, seed=i))) for i in range(3)]


def test_products_multiply_in_tf32_where_that_was_asked_for(
    gpu: FakeDriver | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library makes every product: the same bits twice, near float32, and not float32."""
    monkeypatch.setattr(gemm_library, "least_flops", lambda target: {"float32": 1})
    session, losses = trained("tf32", options=CHECKED)
    plain, expected = trained("float32", options=CHECKED)
    assert losses == trained("tf32", options=CHECKED)[1]
    assert losses != expected
    np.testing.assert_allclose(losses, expected, rtol=2e-3)
    assert (session.precision, plain.precision) == ("tf32", "float32")
    assert "target cuda/sm_90+tf32" in str(session.report())
    assert "note: checked against the interpreter" in str(session.report())
    assert "tf32" not in str(plain.report())


@pytest.mark.parametrize("device", ["cpu", "reference", "null:cpu/portable"])
def test_elsewhere_it_is_refused(device: str) -> None:
    text = (
        f"precision='tf32' is for products on an NVIDIA GPU; device='{device}' has no such products. Leave precision="
    )
    with pytest.raises(OptionError, match=text):
        ws.build_session(mlp(), batch_size=4, device=device, precision="tf32")


def test_a_plan_can_be_looked_at_without_a_gpu() -> None:
    plan = ws.estimate(mlp(), batch_size=8, device="null:cuda/sm_80", precision="tf32").plan
    assert plan.target == "cuda/sm_80+tf32"
