"""Convolution and pooling as a user sees them: networks against torch, the same bits, random shapes, and errors.

Each op with each option is a line of cases/windows.py, which test_ops.py runs.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import wholestep as ws
from tests.support.lenet import SHAPES, Array, batch, lenet, torch_gradients
from tests.support.sessions import assert_same_bits
from wholestep.errors import OptionError, ShapeError

# -- LeNet-5 -----------------------------------------------------------------------------------------------------


@functools.cache
def session(dtype: str) -> ws.Session:
    """Plain descent at lr 1: what a step changes is the gradient."""
    return ws.build_session(lenet(dtype), optimizer=ws.SGD(lr=1.0), batch_size=16, threads=2)


@pytest.mark.parametrize("rows", [16, 5, 1])
@pytest.mark.parametrize(("dtype", "within"), [("float32", 1e-4), ("float64", 1e-9)])
def test_lenet_has_the_loss_and_every_gradient_of_its_torch_twin(dtype: str, within: float, rows: int) -> None:
    s, given_batch = session(dtype), batch(rows, dtype, seed=rows)
    expected_loss, expected = torch_gradients(given_batch, dtype)
    before = s.state_dict()
    loss = float(s.step(given_batch))
    after = s.state_dict()
    s.load_state_dict(before)
    assert abs(loss - expected_loss) <= within * abs(expected_loss)
    largest = max(np.abs(g).max() for g in expected.values())
    for name in SHAPES:
        gradient = before[name].astype("float64") - after[name]
        scale = max(np.abs(expected[name]).max(), 1e-4 * largest)
        rounding = np.abs(before[name]).max() * np.finfo(dtype).eps  # of the subtraction that recovers it
        np.testing.assert_allclose(gradient, expected[name], rtol=0, atol=within * scale + rounding)


def trained(**options: object) -> dict[str, Array]:
    arguments = {"optimizer": ws.Adam(lr=1e-2), "batch_size": 40, "threads": 1, **options}
    s = ws.build_session(lenet(), **arguments)  # type: ignore[arg-type]
    losses = [float(s.step(batch(rows, seed=i))) for i, rows in enumerate((40, 13, 21))]
    return {"losses": np.array(losses), **s.state_dict()}


@functools.cache
def reference() -> dict[str, Array]:
    return trained()


@pytest.mark.parametrize("options", [{"threads": 2}, {"threads": 3}, {"batch_size": 64, "threads": 2}], ids=str)
def test_lenet_has_the_same_bits(options: dict[str, object]) -> None:
    assert_same_bits(trained(**options), reference())


def test_lenet_has_the_same_bits_without_fusion() -> None:
    assert_same_bits(trained(threads=2, options=ws.CompileOptions(fuse=False)), reference())


def test_lenet_learns() -> None:
    s = ws.build_session(lenet(), optimizer=ws.Adam(lr=1e-3), batch_size=8, threads=2)
    losses = [float(s.step(batch(8))) for _ in range(20)]
    assert losses[-1] < 0.2 * losses[0]


# -- random shapes -----------------------------------------------------------------------------------------------


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, object]]:
    """Shapes of images and weight, and options, that fit."""
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels, outputs = (groups * draw(st.integers(1, 9)) for _ in range(2))
    kernel = [draw(st.integers(1, 4)) for _ in range(2)]
    options = {n: tuple(draw(st.integers(1, 3)) for _ in range(2)) for n in ("stride", "dilation")}
    options["padding"] = tuple(draw(st.integers(0, 3)) for _ in range(2))
    size = [d * (k - 1) + 1 + draw(st.integers(0, 9)) for d, k in zip(options["dilation"], kernel, strict=True)]
    return (
        (draw(st.integers(1, 9)), channels, *size),
        (outputs, channels // groups, *kernel),
        {**options, "groups": groups},
    )


@settings(max_examples=4, deadline=None)
@given(convolutions(), st.integers(0, 99))
def test_any_convolution_equals_torch(
    shapes: tuple[tuple[int, ...], tuple[int, ...], dict[str, object]], seed: int
) -> None:
    images, kernel, options = shapes
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=images), rng.normal(size=kernel)
    tx, tw = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    (F.conv2d(tx, tw, **options) ** 2).sum().backward()  # type: ignore[arg-type]
    g = ws.Graph()
    a, b = g.parameter("x", images, init=x, dtype="float64"), g.parameter("w", kernel, init=w, dtype="float64")
    g.set_outputs({"loss": (ws.conv2d(a, b, **options) ** 2).sum()})  # type: ignore[arg-type]
    s = ws.build_session(g, optimizer=ws.SGD(lr=1.0), threads=2)
    s.step({})
    for name, start, t in (("x", x, tx), ("w", w, tw)):
        assert t.grad is not None
        expected = t.grad.numpy()
        np.testing.assert_allclose(start - s.get(name), expected, rtol=0, atol=1e-12 * max(1.0, np.abs(expected).max()))


# -- values that are special -------------------------------------------------------------------------------------


def test_a_pool_keeps_not_a_number_as_torch_does() -> None:
    x = np.arange(32.0, dtype=np.float32).reshape(1, 2, 4, 4)
    x[0, 0, 1, 1], x[0, 1, 2, 3] = np.nan, -np.inf
    g = ws.Graph()
    g.set_outputs([ws.max_pool2d(g.input("x", (1, 2, 4, 4)), 2)])
    got = ws.build_inference_session(g).step(x=x).outputs
    np.testing.assert_array_equal(next(iter(got.values())), F.max_pool2d(torch.tensor(x), 2).numpy())


# -- errors ------------------------------------------------------------------------------------------------------

CONV_ERRORS = {
    "channels": ({"weight": (4, 2, 3, 3)}, ShapeError, r"has 3 channels, but the weight \(4, 2, 3, 3\) takes 2; make"),
    "kernel": ({"images": (2, 3, 2, 8)}, ShapeError, "a window of 3 x 3 is larger than the image of 2 x 8"),
    "groups": ({"groups": 2}, ShapeError, "groups=2 must divide the 3 channels of the input and the 4"),
    "rank": ({"images": (3, 8, 8)}, ShapeError, r"needs images of shape \(N, C, H, W\); received \(3, 8, 8\)"),
    "weight": ({"weight": (3, 3, 3)}, ShapeError, r"conv2d needs a weight of shape \(O, C / groups, KH, KW\)"),
    "bias": ({"bias": np.zeros(3, "f4")}, ShapeError, "a bias needs 4 values, one per channel"),
    "same": (
        {"images": (2, 3, "height", 8), "stride": 2, "padding": "same"}, ShapeError,
        'padding="same" with stride 2 needs a fixed image size; received height',
    ),
    "padding": ({"padding": "full"}, OptionError, 'a pair, "same" or "valid"; received .full'),
    "stride": ({"stride": (1, 2, 3)}, OptionError, r"stride must be an integer or a pair .* received \(1, 2, 3\)"),
}  # fmt: skip


@pytest.mark.parametrize("what", CONV_ERRORS)
def test_errors_of_convolution(what: str) -> None:
    changes, kind, text = CONV_ERRORS[what]
    options = {"images": (2, 3, 8, 8), "weight": (4, 3, 3, 3), **changes}
    g = ws.Graph()
    x, w = g.input("x", options.pop("images")), g.parameter("w", options.pop("weight"))  # type: ignore[arg-type]
    with pytest.raises(kind, match=text) as raised:
        ws.conv2d(x, w, **options)  # type: ignore[arg-type]
    assert "test_windows.py:" in str(raised.value), "it names the user's line"


POOL_ERRORS = {
    "signal": (lambda x: ws.conv1d(x, np.ones((1, 3, 2), "f4")), ShapeError, r"needs signals of shape \(N, C, L\)"),
    "window": (lambda x: ws.max_pool2d(x, 9), ShapeError, "a window of 9 x 9 is larger than the image of 8 x 8"),
    "padding": (lambda x: ws.max_pool2d(x, 3, padding=2), OptionError, "more than half of the window"),
    "average": (lambda x: ws.avg_pool2d(x, 0), OptionError, "the window must be at least 1; received 0"),
    "global": (lambda x: ws.global_avg_pool2d(x[0]), ShapeError, r"global_avg_pool2d needs images"),
}


@pytest.mark.parametrize("what", POOL_ERRORS)
def test_errors_of_pools(what: str) -> None:
    call, kind, text = POOL_ERRORS[what]
    with pytest.raises(kind, match=text) as raised:
        call(ws.Graph().input("x", (2, 3, 8, 8)))
    assert "test_windows.py:" in str(raised.value), "it names the user's line"
