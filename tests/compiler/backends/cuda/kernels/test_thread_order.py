"""Copies between layouts: consecutive threads read adjacent elements; values do not depend on their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import emulated_device
from wholestep.compiler.backends.gpu.grids import thread_order
from wholestep.compiler.backends.gpu.kernel_schedule import schedule_of
from wholestep.compiler.plan.model.bodies import Nest
from wholestep.compiler.plan.model.kernel import Kernel

ANEW = ws.CompileOptions(verify=False, egraph=False, cache=False)
BATCH = 3
# A view of images in another layout: the shape of an image, and the view.
COPIES: dict[str, tuple[tuple[int, ...], Callable[[ws.Tensor], ws.Tensor]]] = {
    "channels last": ((128, 6, 7), lambda x: x.permute(0, 2, 3, 1)),
    "channels second": ((32, 8, 128), lambda x: x.permute(0, 3, 1, 2)),
    "heads": ((128, 2, 40), lambda x: x.permute(2, 0, 3, 1)),
    "reversed": ((32, 5, 64), lambda x: x.permute(0, 3, 2, 1)),
}


def session_on(device: str, name: str, batch: int = BATCH) -> ws.Session:
    shape, view = COPIES[name]
    g = ws.Graph()
    x = g.input("x", ("batch", *shape))
    loss = (g.parameter("other", (4,)) ** 2).mean()
    g.set_outputs({"loss": loss, "copy": view(ws.exp(x)) * 2.0})
    return ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=batch, device=device, options=ANEW)


def copies(session: ws.Session) -> list[Kernel]:
    """Those whose threads are ordered by their loads."""
    return [k for k in session.plan.kernels if isinstance(k.body, Nest) and schedule_of(k).order]


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("rows", [BATCH, 2])
def test_a_copy_has_the_values_of_the_reference(name: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_order, "LEAST_ELEMENTS", 1)
    given: Any = {"x": np.random.default_rng(0).standard_normal((rows, *COPIES[name][0])).astype(np.float32)}
    with emulated_device():
        ours, reference = session_on("emulated", name), session_on("reference", name)
        assert len(copies(ours)) == 1
        np.testing.assert_allclose(ours.step(given)["copy"], reference.step(given)["copy"], rtol=1e-6)


def test_the_fastest_threads_run_along_the_axis_that_is_contiguous_in_memory() -> None:
    (kernel,) = copies(session_on("null:cuda/sm_90", "channels last", batch=200))
    schedule, (load, *_) = schedule_of(kernel), [i.load for level in kernel.levels for i in level.body if i.load]
    assert schedule.vector == 4
    assert thread_order.stride_of(load, schedule.order[-1]) == 1
    assert schedule.order[-1] != kernel.vector


def test_a_small_copy_and_one_without_strides_keep_the_order_of_their_elements() -> None:
    assert not copies(session_on("null:cuda/sm_90", "channels last"))
    g = ws.Graph()
    x = g.input("x", ("batch", 4096))
    g.set_outputs({"loss": (g.parameter("other", (4,)) ** 2).mean(), "scaled": x * 2.0})
    plan = ws.build_session(g, optimizer=ws.SGD(lr=0.1), batch_size=1024, device="null:cuda/sm_90", options=ANEW).plan
    assert not any(schedule_of(k).order for k in plan.kernels)
