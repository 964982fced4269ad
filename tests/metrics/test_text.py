"""Metrics of generated sequences: known values, the definitions written out, and a corpus in parts."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep import metrics as M
from wholestep.errors import InputError, OptionError

Array = np.ndarray[Any, Any]
TEXTS = ["the cat is on the mat", "there is a cat on the mat", "a cat sat on a mat and slept", "it rained"]
GENERATED = ["the the cat on the mat", "there is a cat on a mat", "a cat sat", "it rained today"]


def levenshtein(a: str, b: str) -> int:
    """The recursive definition."""

    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return distance(len(a), len(b))


def test_the_edit_distance_is_the_recursive_definition() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        a, b = ("".join(rng.choice(list("abc"), rng.integers(0, 9))) for _ in range(2))
        assert M.edit_distance(a, b) == levenshtein(a, b)
    assert M.edit_distance(np.array([1, 2, 3]), [1, 3]) == 1


@pytest.mark.parametrize("unit", ["words", "characters"])
def test_error_rates_divide_once(unit: str) -> None:
    metric = M.WER(unit)
    assert np.isnan(metric.compute())
    metric.update(GENERATED[:1], TEXTS[:1])
    metric.update(GENERATED[1:], TEXTS[1:])
    pairs = [(g, t) if unit == "characters" else (g.split(), t.split()) for g, t in zip(GENERATED, TEXTS, strict=True)]
    wrong, length = sum(M.edit_distance(g, t) for g, t in pairs), sum(len(t) for _, t in pairs)
    assert metric.compute() == pytest.approx(wrong / length)
    metric.reset()
    assert np.isnan(metric.compute())


def bleu(hypothesis: list[str], references: list[list[str]], n: int) -> float:
    """Papineni et al. of one sentence, each n-gram counted in turn."""
    logs = []
    for size in range(1, n + 1):
        grams = [tuple(hypothesis[i : i + size]) for i in range(len(hypothesis) - size + 1)]
        refs = [[tuple(r[i : i + size]) for i in range(len(r) - size + 1)] for r in references]
        clipped = sum(min(grams.count(g), max(r.count(g) for r in refs)) for g in set(grams))
        logs.append(np.log(clipped / len(grams)))
    nearest = min(references, key=lambda r: (abs(len(r) - len(hypothesis)), len(r)))
    return float(np.exp(min(0.0, 1 - len(nearest) / len(hypothesis)) + np.mean(logs)))


def test_bleu_of_the_paper() -> None:
    """Its first example, 2 of 7 words; and two sentences with several references."""
    references = ["the cat is on the mat", "there is a cat on the mat"]
    metric = M.BLEU(n=1)
    metric.update(["the the the the the the the"], [references])
    assert metric.compute() == pytest.approx(2 / 7)
    for n in (2, 3, 4):
        metric = M.BLEU(n)
        metric.update([GENERATED[1]], [references])
        assert metric.compute() == pytest.approx(bleu(GENERATED[1].split(), [r.split() for r in references], n))
        tokens = M.BLEU(n)
        tokens.update([GENERATED[1].split()], [[r.split() for r in references]])
        assert tokens.compute() == metric.compute()


def test_bleu_of_a_corpus_adds_counts_before_it_divides() -> None:
    """The numbers of torchmetrics 1.9; sentences without a 4-gram count with the others."""
    for smooth, known in ((False, 0.4209841), (True, 0.4650286)):
        metric = M.BLEU(smooth=smooth)
        metric.update(GENERATED[:2], TEXTS[:2])
        metric.update(GENERATED[2:], [[t] for t in TEXTS[2:]])
        assert metric.compute() == pytest.approx(known, abs=1e-6)
    none = M.BLEU()
    none.update(["it rained"], ["it rained"])
    assert none.compute() == 0.0


def token_error_rate(scores: Array, tokens: Array) -> float:
    metric = M.WER()
    metric.update(list(scores.argmax(-1)), list(tokens))
    return metric.compute()


def test_tokens_of_a_model_through_fit() -> None:
    """A metric of sequences is a function of all rows of an epoch."""
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 7, (13, 4)).astype(np.int32), rng.integers(0, 3, (13, 4)).astype(np.int32)
    model = ws.nn.Sequential(ws.nn.Embedding(7, 5), ws.nn.Linear(5, 3))
    history = ws.fit(
        model, (x, y), loss="cross_entropy", metrics=M.OverEpoch(token_error_rate), optimizer=ws.SGD(lr=0.0),
        batch_size=5, epochs=1, progress=False, device="reference",
    )  # fmt: skip
    assert history["token_error_rate"] == [pytest.approx(token_error_rate(model.predict(x, device="reference"), y))]


def test_what_is_refused() -> None:
    with pytest.raises(OptionError, match=r"unit='bytes': expected one of 'words', 'characters'"):
        M.WER("bytes")
    with pytest.raises(OptionError, match=r"n=0: expected an integer of at least 1, the longest n-gram"):
        M.BLEU(0)
    with pytest.raises(InputError, match=r"a list of predictions and a list of targets .* update\(\[prediction\]"):
        M.WER().update("a b", "a c")
