"""`@ws.step`: several gradients and optimizers in one step."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.recording import initial_state, run
from wholestep.errors import UsageError

RNG = np.random.default_rng(0)
SOFTPLUS = torch.nn.functional.softplus


@ws.step(inputs={"real": ws.Spec(("batch", 2), "float64"), "noise": ws.Spec(("batch", 3), "float64")})
def adversaries(g, real, noise):
    """A small GAN: both players move at once, from the values at the start of the step."""
    made = noise @ g.parameter("generator", (3, 2), dtype="float64")
    judge = g.parameter("judge", (2, 1), dtype="float64")
    bce = ws.losses.binary_cross_entropy_with_logits_loss
    d_loss = bce(real @ judge, 1.0) + bce(ws.stop_gradient(made) @ judge, 0.0)
    g_loss = bce(made @ judge, 1.0)
    params = g.parameters
    ws.Adam(lr=0.01, name="d").update(g, [judge], ws.gradients(d_loss, [judge]))
    ws.SGD(lr=0.1, name="g").update(g, params["generator"], ws.gradients(g_loss, params["generator"]))
    return {"d_loss": d_loss, "g_loss": g_loss}


def test_a_gan_equals_its_torch_twin():
    graph = adversaries.trace()
    state = initial_state(graph)
    judge, maker = (torch.nn.Parameter(torch.tensor(state[n])) for n in ("judge", "generator"))
    d_opt, g_opt = torch.optim.Adam([judge], lr=0.01), torch.optim.SGD([maker], lr=0.1)
    for step in range(20):
        real, noise = RNG.normal(size=(5, 2)), RNG.normal(size=(5, 3))
        result = run(graph, {"real": real, "noise": noise}, state=state, step=step)
        state = result.state
        made = torch.tensor(noise) @ maker
        d_loss = SOFTPLUS(-torch.tensor(real) @ judge).mean() + SOFTPLUS(made.detach() @ judge).mean()
        g_loss = SOFTPLUS(-(made @ judge)).mean()
        (judge.grad,), (maker.grad,) = torch.autograd.grad(d_loss, [judge]), torch.autograd.grad(g_loss, [maker])
        d_opt.step()
        g_opt.step()
        np.testing.assert_allclose(result.outputs["d_loss"], d_loss.item(), rtol=1e-9)
        np.testing.assert_allclose(result.outputs["g_loss"], g_loss.item(), rtol=1e-9)
    np.testing.assert_allclose(state["judge"], judge.detach(), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(state["generator"], maker.detach(), rtol=1e-8, atol=1e-10)


def test_a_step_without_inputs_that_returns_its_loss():
    @ws.step
    def shrink(g):
        w = g.parameter("w", (), init=1.0)
        loss = w * w
        g.update(w, w - 0.25 * ws.gradients(loss, w)[0])
        return loss

    result = run(shrink.trace())
    assert result.outputs["loss"] == 1.0
    assert result.state["w"] == 0.5


def test_tracing_again_gives_a_fresh_graph():
    assert adversaries.trace().states().keys() == adversaries.trace().states().keys()
    assert adversaries.__name__ == "adversaries"
    assert "small GAN" in adversaries.__doc__


def test_mistakes():
    with pytest.raises(UsageError, match=r"adversaries is recorded, not called"):
        adversaries(None, None)
    with pytest.raises(UsageError, match=r"the input 'x' needs a ws\.Spec\(shape, dtype\); received \(3,\)"):
        ws.step(inputs={"x": (3,)})(lambda g, x: x)
    with pytest.raises(UsageError, match="must return a tensor or a dict of tensors; it returned None"):
        ws.step(lambda g: None).trace()
