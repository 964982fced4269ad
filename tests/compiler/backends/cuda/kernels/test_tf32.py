"""`precision="tf32"`: an option of products in float32 on a GPU, named wherever one looks, refused elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.fake_gpu import FakeDriver
from tests.support.sessions import data, mlp
from wholestep.compiler.backends.cuda.target import TARGETS
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


def convolution(channels: int = 32) -> ws.Graph:
    """A convolution that the library computes if it may round to tf32, and a product that it computes too."""
    g = ws.Graph()
    x, labels = g.input("x", ("batch", channels, 6, 6)), g.input("labels", ("batch",), "int32")
    body = ws.nn.Sequential(
        ws.nn.Conv2d(channels, channels, 3, padding=1), ws.nn.ReLU(), ws.nn.Flatten(), ws.nn.Linear(36 * channels, 4)
    )
    g.set_outputs([ws.losses.cross_entropy(body(x), labels)])
    return g


SAID = "of these round float32 operands to tf32, as PyTorch does by default; precision='float32' is exact"


@pytest.mark.parametrize(
    ("precision", "target", "rounds"),
    [(None, "+tf32conv", True), ("tf32", "+tf32", True), ("float32", "", False), ("bfloat16", "", False)],
)
def test_convolutions_are_as_in_pytorch_unless_float32_is_asked_for(
    precision: str | None, target: str, rounds: bool
) -> None:
    report = ws.estimate(convolution(), batch_size=8, device="null:cuda/sm_90", precision=precision)
    assert report.plan.target == f"cuda/sm_90{target}"
    assert (SAID in str(report)) == rounds
    assert TARGETS[report.plan.target].tf32 == (precision == "tf32"), "products round only where that was asked for"


def test_a_network_without_convolutions_is_exact_by_default() -> None:
    plans = [ws.estimate(mlp(), batch_size=8, device="null:cuda/sm_90", precision=p).plan for p in (None, "float32")]
    assert [plan.target for plan in plans] == ["cuda/sm_90"] * 2
    assert ws.estimate(convolution(), batch_size=8, device="null:cpu/portable").plan.target == "cpu/portable"


def test_a_convolution_in_a_loop_is_seen() -> None:
    g = ws.Graph()
    g.set_outputs([ws.nn.ConvLSTM2d(2, 4, 3)(g.input("x", ("batch", 3, 2, 6, 6)))[0].mean()])
    assert ws.estimate(g, batch_size=2, device="null:cuda/sm_90").plan.target == "cuda/sm_90+tf32conv"


def test_default_convolutions_train_near_float32_with_the_same_bits(gpu: FakeDriver | None) -> None:
    def losses(precision: str | None) -> list[float]:
        session = ws.build_session(
            convolution(),
            optimizer=ws.SGD(lr=0.1),
            batch_size=4,
            seed=3,
            device="cuda",
            precision=precision,
            options=CHECKED,
        )
        rng = np.random.default_rng(0)
        batch = {"x": rng.standard_normal((4, 32, 6, 6), dtype=np.float32), "labels": np.arange(4, dtype=np.int32)}
        return [float(session.step(batch).loss) for _ in range(3)]

    rounded, exact = losses(None), losses("float32")
    assert rounded == losses(None)
    assert rounded != exact
    np.testing.assert_allclose(rounded, exact, rtol=2e-3)


def test_a_plan_can_be_looked_at_without_a_gpu() -> None:
    plan = ws.estimate(mlp(), batch_size=8, device="null:cuda/sm_80", precision="tf32").plan
    assert plan.target == "cuda/sm_80+tf32"
