"""Convolutions of 3 x 3 by tiles: which are, what they cost, who owns what, and the same numbers and bits."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import wholestep as ws
from tests.compiler.ownership import violations
from tests.compiler.targets import cpu_with
from tests.support.sessions import assert_same_bits
from wholestep.compiler.backends.cpu.convolution.winograd import block_rows, position_step, uses_winograd
from wholestep.compiler.backends.cpu.kernel_schedule import tiles_of
from wholestep.compiler.ir.types import float32, float64
from wholestep.compiler.plan.io.serialize import dump, load
from wholestep.compiler.plan.model.kernel import Kernel, Kind, Plan

Array = np.ndarray[Any, Any]
BATCH, CAPACITY = 5, 7
SHAPES = {"w0": (20, 16, 3, 3), "w1": (33, 20, 3, 3)}


def network(dtype: str = "float32") -> ws.Graph:
    """Two convolutions by tiles, one before a pool whose windows they do not fit, over images of odd size."""
    g, rng = ws.Graph(), np.random.default_rng(2)
    x, y = g.input("x", ("batch", 16, 15, 13), dtype), g.input("y", ("batch", 33, 5, 6), dtype)
    w = {n: g.parameter(n, s, init=rng.normal(size=s) / np.sqrt(9 * s[1]), dtype=dtype) for n, s in SHAPES.items()}
    scale = g.parameter("scale", (16, 1, 1), init=np.ones((16, 1, 1)), dtype=dtype)  # so that images have gradients
    h = ws.conv2d(ws.relu(ws.conv2d(x * scale, w["w0"], padding=2)), w["w1"])
    g.set_outputs({"loss": ((ws.max_pool2d(h, (3, 2)) - y) ** 2).mean()})
    return g


def torch_network(x: Array, y: Array) -> tuple[float, dict[str, Array]]:
    """The loss and its gradients in float64."""
    start = ws.build_session(network("float64"), batch_size=1).state_dict()
    p = {n: torch.tensor(start[n], dtype=torch.float64, requires_grad=True) for n in (*SHAPES, "scale")}
    h = F.conv2d(F.relu(F.conv2d(torch.tensor(x) * p["scale"], p["w0"], padding=2)), p["w1"])
    loss = ((F.max_pool2d(h, (3, 2)) - torch.tensor(y)) ** 2).mean()
    loss.backward()
    return float(loss.detach()), {n: t.grad.numpy() for n, t in p.items() if t.grad is not None}


def batch(rows: int, dtype: str = "float32") -> dict[str, Array]:
    rng = np.random.default_rng(rows)
    return {
        "x": rng.normal(size=(rows, 16, 15, 13)).astype(dtype),
        "y": rng.normal(size=(rows, 33, 5, 6)).astype(dtype),
    }


@functools.cache
def plan() -> Plan:
    return ws.compile_training_graph(network(), batch_size=CAPACITY)[0]


def by_tiles(plan: Plan) -> list[Kernel]:
    return [k for k in plan.kernels if k.kind is Kind.WINDOW and tiles_of(k).rows]


# -- which -------------------------------------------------------------------------------------------------------------

TAKEN = {
    "16 channels": ((16, 3, 3, 16), float32, (32, 32), True),
    "fewer": ((16, 3, 3, 15), float32, (32, 32), False),
    "fewer outputs": ((8, 3, 3, 16), float32, (32, 32), False),
    "another kernel": ((16, 3, 5, 16), float32, (32, 32), False),
    "outside of the cache": ((128, 3, 3, 128), float32, (32, 32), False),
    "outside of it in float64": ((128, 3, 3, 64), float64, (32, 32), False),
    "an odd size": ((16, 3, 3, 16), float32, (7, 7), True),
    "tiles that are mostly edge": ((16, 3, 3, 16), float32, (3, 3), False),
}


@pytest.mark.parametrize("what", TAKEN)
def test_which_convolutions_are_computed_by_tiles(what: str) -> None:
    weight, dtype, size, expected = TAKEN[what]
    assert uses_winograd(weight, dtype, size, (1, 1), (1, 1), 1) is expected
    assert not uses_winograd(weight, dtype, size, (2, 1), (1, 1), 1)
    assert not uses_winograd(weight, dtype, size, (1, 1), (1, 2), 1)
    assert not uses_winograd(weight, dtype, size, (1, 1), (1, 1), 2)


@pytest.mark.parametrize(
    ("size", "pool", "rows"), [((32, 32), 1, 1), ((16, 16), 1, 2), ((8, 8), 1, 4), ((12, 12), 3, 3)]
)
def test_rows_of_tiles_are_taken_together_until_they_are_enough_and_hold_whole_windows_of_a_pool(
    size: tuple[int, int], pool: int, rows: int
) -> None:
    assert block_rows(size, 16, pool) == rows


def test_positions_do_not_share_the_sets_of_a_cache() -> None:
    assert position_step(16, 64) * float32.size % 4096 == 64


# -- the plan ----------------------------------------------------------------------------------------------------------


def test_all_convolutions_and_their_adjoints_are_by_tiles_and_take_four_ninths_of_the_products() -> None:
    kernels = {k.body.op: k for k in by_tiles(plan())}
    assert set(kernels) == {"conv2d", "conv2d_grad_input", "conv2d_grad_weight"}
    adjoint = next(k for k in by_tiles(plan()) if k.body.op == "conv2d_grad_input" and k.axes[3] == 16)
    assert adjoint.body.work == 2 * CAPACITY * 8 * 7 * 16 * (16 * 20)  # images of 15 x 13


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_byte_has_one_owner(threads: int) -> None:
    assert violations(plan(), {"batch": BATCH}, threads) == []


def test_a_plan_survives_a_file() -> None:
    assert load(dump(plan())) == plan()


# -- numbers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "within"), [("float32", 2e-6), ("float64", 1e-14)])
def test_loss_and_gradients_are_those_of_torch(dtype: str, within: float) -> None:
    given = batch(BATCH, dtype)
    expected_loss, expected = torch_network(given["x"].astype("f8"), given["y"].astype("f8"))
    s = ws.build_session(network(dtype), optimizer=ws.SGD(lr=1.0), batch_size=CAPACITY, threads=2)
    before, loss, after = s.state_dict(), float(s.step(given)), s.state_dict()
    assert abs(loss - expected_loss) <= within * expected_loss
    for name, gradient in expected.items():
        rounding = np.abs(before[name]).max() * np.finfo(dtype).eps  # of the subtraction that recovers it
        error = np.abs(before[name].astype("f8") - after[name] - gradient).max()
        assert error <= within * np.abs(gradient).max() + rounding, name


def trained(**options: object) -> dict[str, Array]:
    arguments = {"optimizer": ws.SGD(lr=0.1), "batch_size": BATCH, "threads": 1, **options}
    s = ws.build_session(network(), **arguments)  # type: ignore[arg-type]
    losses = [float(s.step(batch(rows))) for rows in (BATCH, 2)]
    return {"losses": np.array(losses), **s.state_dict()}


@pytest.mark.parametrize(
    "options", [{"threads": 2}, {"threads": 3, "batch_size": 9}, {"options": ws.CompileOptions(fuse=False)}], ids=str
)
def test_the_same_bits(options: dict[str, object]) -> None:
    assert_same_bits(trained(**options), reference())


def test_fetching_ahead_is_in_the_source_of_large_steps_and_changes_no_bit() -> None:
    with cpu_with(caches=0) as device:
        source = ws.build_session(network(), optimizer=ws.SGD(lr=0.1), batch_size=BATCH, device=device).source
        fetching = trained(threads=2, device=device)
    adjoint = next(
        text for text in source.split("\n/* kernel ") if "gradient of relu" in text and "ws_winograd" in text
    )
    assert adjoint.count("ws_fetch_read(") == 2  # the next image, and what the relu's adjoint reads
    assert adjoint.count("ws_fetch_own(") == 1
    assert_same_bits(fetching, reference())


@functools.cache
def reference() -> dict[str, Array]:
    return trained()
