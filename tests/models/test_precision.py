"""The model suite in half precision, compared with torch's autocast.

Autocast rounds the result of every product to half; ours stays float32 until the next product reads it.  So the two
differ by roundings of a half type, and the tolerances are multiples of its eps: gradients by the norm of each
parameter's, losses relatively.  Ours are also no farther from float32's gradients than autocast's are.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import wholestep as ws
from tests.models.test_training import MODELS, Pair
from tests.support.compilers import quick
from wholestep.compiler.ir.types import DType, bfloat16, float16, float32

pytestmark = pytest.mark.filterwarnings("ignore:TF32")  # torch's own, whenever its flags are read

HALVES = (bfloat16, float16)
STEPS, LR = 10, 0.05
SCALE = 1024.0  # of the loss, so that float16's small gradients are not lost; divided out again
# In units of the half type's eps.  Of gradients: the relative error of a parameter's, after up to eight products in a
# row.  Where a rounding flips the choice of a max pool or of a relu, a gradient jumps, in autocast as in ours, and of
# four images one jump is much: these models have more room, and must still be no farther from float32 than autocast.
GRADIENTS = {"mlp": 4.0, "lenet5": 64.0, "resnet8": 24.0, "gpt2": 4.0, "lstm_lm": 4.0}
LOSSES = 1.0  # along the steps, relative to the first loss

RNG = np.random.default_rng(0)


class Mlp(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 5))


def mlp() -> ws.nn.Module:
    return ws.nn.Sequential(ws.nn.Linear(12, 32), ws.nn.ReLU(), ws.nn.Linear(32, 16), ws.nn.Tanh(), ws.nn.Linear(16, 5))


SUITE: dict[str, Pair] = {
    "mlp": Pair(mlp, Mlp, RNG.normal(size=(8, 12)).astype(np.float32), RNG.integers(0, 5, 8).astype(np.int32)),
    **MODELS,
}


@cache
def start_of(name: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {n: t.clone() for n, t in SUITE[name].theirs().state_dict().items()}


@cache
def by_torch(name: str, half: DType) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses of some steps, and the gradients of the first."""
    pair, twin = SUITE[name], SUITE[name].theirs()
    twin.load_state_dict(start_of(name))
    optimizer, losses, first = torch.optim.SGD(twin.parameters(), lr=LR), [], {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # of small models, threads of torch's wait for each other
    x, labels = torch.tensor(pair.x), torch.tensor(pair.labels).long()
    for _ in range(STEPS):
        optimizer.zero_grad()
        has_half = half == bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported()  # an LSTM, that is
        plain = torch.backends.mkldnn.flags(enabled=half == float32 or has_half)
        with plain, torch.autocast("cpu", getattr(torch, half.name), enabled=half != float32):
            scores = twin(x)
            loss = F.cross_entropy(scores.reshape(-1, scores.shape[-1]).float(), labels.reshape(-1))
        (loss * SCALE).backward()
        for p in twin.parameters():
            p.grad /= SCALE
        first = first or {n: p.grad.numpy().copy() for n, p in twin.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
    torch.set_num_threads(threads)
    return losses, first


def by_session(name: str, half: DType) -> tuple[list[float], dict[str, np.ndarray]]:
    pair, model = SUITE[name], SUITE[name].ours()
    model.load_state_dict(start_of(name))
    inputs, targets = (ws.Spec(("batch", *a.shape[1:]), a.dtype.name) for a in (pair.x, pair.labels))
    session = ws.build_session(
        model,
        inputs=inputs,
        targets=targets,
        loss="cross_entropy",
        optimizer=ws.SGD(lr=LR),
        batch_size=len(pair.x),
        precision=half.name,
        loss_scale=ws.LossScale(init=SCALE) if half == float16 else None,
        options=quick(),
    )
    before = {n: a.copy() for n, a in model.state_dict().items()}
    losses, first = [], {}
    for _ in range(STEPS):
        losses.append(session.step(x=pair.x, labels=pair.labels).loss)
        first = first or {n: (before[n] - model.state_dict()[n]) / LR for n in model.parameters()}
    assert session.skipped_steps == 0
    return losses, first


def off(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(b), 1e-30))


@pytest.mark.parametrize("half", HALVES, ids=str)
@pytest.mark.parametrize("name", SUITE)
def test_gradients_and_ten_steps_beside_autocast(name: str, half: DType):
    exact_losses, exact = by_torch(name, float32)
    their_losses, theirs = by_torch(name, half)
    our_losses, ours = by_session(name, half)
    assert ours.keys() == theirs.keys()
    largest = max(np.linalg.norm(g) for g in exact.values())
    for parameter, gradient in theirs.items():
        if np.linalg.norm(exact[parameter]) < 1e-3 * largest:  # nothing but rounding: the bias of a normalised layer
            continue
        assert off(ours[parameter], gradient) <= GRADIENTS[name] * half.eps, parameter
        assert off(ours[parameter], exact[parameter]) > 1e-3 * half.eps, f"{parameter} was not rounded"
    whole = [np.concatenate([g[p].ravel() for p in exact]) for g in (ours, theirs, exact)]
    assert off(whole[0], whole[2]) <= 1.5 * off(whole[1], whole[2]) + half.eps
    room = LOSSES * half.eps * exact_losses[0]
    np.testing.assert_allclose(our_losses, their_losses, rtol=0, atol=room)
    np.testing.assert_allclose(our_losses, exact_losses, rtol=0, atol=room)
    assert our_losses[-1] < our_losses[0]
