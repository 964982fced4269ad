"""Cross entropy with every option against torch: values and gradients of all combinations, in one program."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch

import wholestep as ws
from tests.support.compilers import quick

F = torch.nn.functional
ROWS, CLASSES, IGNORED = 7, 4, -100
RNG = np.random.default_rng(11)
LOGITS = RNG.normal(size=(ROWS, CLASSES)) * 2
INDICES = np.array([0, 1, 2, 3, 0, 2, 1], np.int32)
SOME = np.where(np.arange(ROWS) % 3 == 1, IGNORED, INDICES).astype(np.int32)
PROBABILITIES = RNG.dirichlet(np.ones(CLASSES), ROWS)
WEIGHTS = np.array([0.0, 1.0, 2.0, 0.5])  # class 0 counts nothing
SAMPLES = np.array([1.0, 0.0, 2.0, 0.5, 1.5, 1.0, 3.0])
UPSTREAM = RNG.normal(size=ROWS)


@pytest.mark.parametrize("shape", [(ROWS, 1, CLASSES), (ROWS, CLASSES, 1)])
def test_an_axis_of_size_one_is_not_one_of_classes(shape: tuple[int, ...]) -> None:
    """Probabilities have the shape of the scores: classes are on the other axis, and nobody has to say so."""
    found = ws.losses.cross_entropy(LOGITS.reshape(shape), PROBABILITIES.reshape(shape))
    expected = F.cross_entropy(torch.tensor(LOGITS), torch.tensor(PROBABILITIES))
    np.testing.assert_allclose(float(found), float(expected), rtol=1e-6)


@dataclass(frozen=True)
class Case:
    smoothing: float
    weighted: bool
    target: str  # "indices", "some": of them ignored, "probabilities"
    reduction: str
    samples: bool

    def options(self) -> dict[str, object]:
        out: dict[str, object] = {"reduction": self.reduction, "label_smoothing": self.smoothing}
        if self.weighted:
            out["class_weight"] = WEIGHTS
        if self.target == "some":
            out["ignore_index"] = IGNORED
        return out


CASES = [
    Case(*chosen)
    for chosen in product(
        (0.0, 0.1), (False, True), ("indices", "some", "probabilities"), ("mean", "sum", "none"), (False, True)
    )
]


@functools.cache
def ours() -> dict[str, np.ndarray]:
    g = ws.Graph()
    given = {"indices": INDICES, "some": SOME, "probabilities": PROBABILITIES, "samples": SAMPLES, "up": UPSTREAM}
    inputs = {name: g.input(name, ("batch", *a.shape[1:]), a.dtype) for name, a in given.items()}
    logits = g.input("logits", ("batch", CLASSES), "float64")
    outputs = {}
    for i, case in enumerate(CASES):
        weight = inputs["samples"] if case.samples else None
        loss = ws.losses.cross_entropy(logits, inputs[case.target], **case.options(), sample_weight=weight)  # type: ignore[arg-type]
        outputs[f"{i}"] = loss
        outputs[f"{i}.grad"] = ws.gradients((loss * inputs["up"]).sum() if loss.ndim else loss, [logits])[0]
    g.set_outputs(outputs)
    session = ws.build_inference_session(g, batch_size=ROWS, options=quick())
    return session.step({**given, "logits": LOGITS}).outputs


def torch_says(case: Case) -> tuple[np.ndarray, np.ndarray]:
    logits = torch.tensor(LOGITS, requires_grad=True)
    target = {"indices": INDICES, "some": SOME, "probabilities": PROBABILITIES}[case.target]
    t = torch.tensor(target) if target.dtype.kind == "f" else torch.tensor(target).long()
    each = torch.tensor(WEIGHTS) if case.weighted else None
    plain = {"weight": each, "label_smoothing": case.smoothing}
    if not case.samples:
        loss = F.cross_entropy(logits, t, reduction=case.reduction, **plain)
    else:
        w = torch.tensor(SAMPLES)
        rows = F.cross_entropy(logits, t, reduction="none", **plain) * w
        own = 1.0 if each is None or t.dtype.is_floating_point else each[t.clamp(min=0)]
        counted = (t != IGNORED) if not t.dtype.is_floating_point else 1.0
        loss = rows if case.reduction == "none" else rows.sum()
        if case.reduction == "mean":
            loss = loss / (w * own * counted).sum()
    ((loss * torch.tensor(UPSTREAM)).sum() if loss.ndim else loss).backward()
    return loss.detach().numpy(), logits.grad.numpy()


@pytest.mark.parametrize("index", range(len(CASES)), ids=[str(c).removeprefix("Case") for c in CASES])
def test_every_combination_of_options_is_torch(index: int) -> None:
    value, grad = torch_says(CASES[index])
    np.testing.assert_allclose(ours()[f"{index}"], value, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ours()[f"{index}.grad"], grad, rtol=1e-9, atol=1e-12)


def test_the_gradient_of_a_class_that_counts_nothing_is_finite() -> None:
    z, y = RNG.normal(size=(6, 3)), np.arange(6, dtype="int32") % 3
    weights = np.array([0.0, 1.0, 2.0])
    loss, grad = ws.losses.value_and_grad("cross_entropy", z, y, label_smoothing=0.1, class_weight=weights)
    expected = F.cross_entropy(torch.tensor(z), torch.tensor(y).long(), torch.tensor(weights), label_smoothing=0.1)
    np.testing.assert_allclose(loss, expected, rtol=1e-12)
    assert np.isfinite(grad).all()
