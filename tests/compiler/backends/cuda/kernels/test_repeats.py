"""What levels of a row make again is made once: by whom it is kept, and that numbers stay what they were."""

from __future__ import annotations

import re
from collections.abc import Container

import numpy as np
import pytest

import wholestep as ws
from tests.compiler.backends.cuda.emulation.emulated import emulated_device
from wholestep.compiler.backends.gpu.render import row_reduction
from wholestep.compiler.backends.gpu.render.row_reduction import eliminate_common_subexpressions
from wholestep.compiler.backends.gpu.render.source import render
from wholestep.compiler.plan.model.bodies import Nest

ANEW = ws.CompileOptions(verify=False, egraph=False, cache=False)
WIDTH = 256


def normed() -> ws.Graph:
    """A norm of a sum, as behind a layer with a bias: cheap enough for each level to make it again."""
    g = ws.Graph()
    a, b = (g.input(name, ("batch", WIDTH)) for name in "ab")
    bias, gain, shift = (g.input(name, (WIDTH,)) for name in ("bias", "gain", "shift"))
    loss = (g.parameter("other", (4,)) ** 2).mean()
    g.set_outputs({"loss": loss, "made": ws.layer_norm(a + (b + bias), gain, shift)})
    return g


def session_on(device: str) -> ws.Session:
    return ws.build_session(normed(), optimizer=ws.SGD(lr=0.1), batch_size=12, device=device, options=ANEW)


def adds(nest: Nest, without: Container[int] = ()) -> list[int]:
    """Of each level, how many sums of elements it makes."""
    return [sum(i.op == "add" and i.id not in without for i in level.body) for level in nest.levels if level.body]


def test_a_sum_that_three_levels_need_is_made_once() -> None:
    plan = session_on("null:cuda/sm_90").plan
    nest = next(k.body for k in plan.kernels if isinstance(k.body, Nest) and len(k.body.levels) > 2)
    assert adds(nest) == [2, 2, 3], "the plan has it in every level, and the shift in the last"
    once, found = eliminate_common_subexpressions(nest, 1)
    assert adds(once, found) == [2, 0, 1]
    assert len(set(found.values())) == 1, "one value is kept"
    assert eliminate_common_subexpressions(nest, 0) == (nest, {}), "there is no room"
    assert len(re.findall(r"\.read\(x\d+ \+ base\)", render(plan).text)) == 4, "bias, gain, shift, and `other`"


@pytest.mark.parametrize("keeps", [True, False])
def test_numbers_are_those_of_the_reference(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not keeps:
        monkeypatch.setattr(row_reduction, "eliminate_common_subexpressions", lambda nest, most: (nest, {}))
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((12, WIDTH)).astype(np.float32) for name in "ab"}
    columns = {name: rng.standard_normal(WIDTH).astype(np.float32) for name in ("bias", "gain", "shift")}
    with emulated_device():
        ours, reference = session_on("emulated"), session_on("reference")
        for count in (12, 7):
            rows_of = {name: array[:count] for name, array in given.items()}
            made = [session.step(**rows_of, **columns)["made"] for session in (ours, reference)]
            np.testing.assert_allclose(made[0], made[1], rtol=1e-5, atol=1e-5)
