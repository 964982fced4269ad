"""Text that language models write: with the cache it is what the whole forward pass says; drawing; no recompiling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.errors import DTypeError, OptionError, ShapeError
from wholestep.models.generation import LanguageModel, Sampling

RNG = np.random.default_rng(0)
VOCABULARY, CONTEXT = 13, 80
PROMPT = RNG.integers(0, VOCABULARY, (2, 66))  # more than is read at once


def gpt2() -> LanguageModel:
    return ws.models.gpt2(layers=2, width=16, heads=2, vocabulary=VOCABULARY, context=CONTEXT, dropout=0.3)


def llama() -> LanguageModel:
    return ws.models.llama(layers=2, width=16, heads=4, kv_heads=2, vocabulary=VOCABULARY, context=CONTEXT, tied=True)


def lstm() -> LanguageModel:
    return ws.models.lstm_lm(VOCABULARY, width=16, layers=2, dropout=0.3)


def spread(model: LanguageModel) -> LanguageModel:
    """Scores that are far apart, so that rounding decides nothing."""
    model.load_state_dict({n: 8 * a if a.ndim > 1 else a for n, a in model.state_dict().items()})
    return model


@pytest.fixture(scope="module")
def compiled() -> LanguageModel:
    return spread(llama())


def whole(model: LanguageModel, tokens: np.ndarray) -> np.ndarray:
    return np.asarray(model.predict(tokens.astype(np.int32), device="reference"))


def test_greedy_text_is_the_argmax_of_the_whole_forward_pass(compiled: LanguageModel) -> None:
    for model, device in ((compiled, "cpu"), (spread(gpt2()), "reference"), (spread(lstm()), "reference")):
        text = model.generate(PROMPT, max_new_tokens=6, temperature=0, device=device)
        assert text.shape == (2, 72)
        assert text.dtype == np.int32
        np.testing.assert_array_equal(text[:, :66], PROMPT)
        np.testing.assert_array_equal(whole(model, text[:, :-1]).argmax(-1)[:, 65:], text[:, 66:])


def test_it_is_compiled_once_and_takes_weights_as_they_are(
    compiled: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiled.generate(PROMPT, max_new_tokens=6, temperature=0)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr("wholestep.session.building.build.build_session", refuse)
    np.testing.assert_array_equal(compiled.generate(PROMPT, max_new_tokens=6, temperature=0), first)
    longer = compiled.generate(PROMPT[:, :65], max_new_tokens=14, temperature=0)
    np.testing.assert_array_equal(longer[:, :65], PROMPT[:, :65])
    before = compiled.state_dict()
    compiled.load_state_dict(
        {"model.embed_tokens.weight": before["model.embed_tokens.weight"][::-1].copy()}, strict=False
    )
    try:
        text = compiled.generate(PROMPT, max_new_tokens=3, temperature=0)
        np.testing.assert_array_equal(whole(compiled, text[:, :-1]).argmax(-1)[:, 65:], text[:, 66:])
        assert not np.array_equal(text, first[:, :69])
    finally:
        compiled.load_state_dict(before)


def test_what_is_drawn_follows_from_the_seed_and_the_options(compiled: LanguageModel) -> None:
    greedy = compiled.generate(PROMPT, max_new_tokens=6, temperature=0)
    for options in ({"top_k": 1}, {"top_p": 1e-9}, {"temperature": 1e-6}):
        np.testing.assert_array_equal(compiled.generate(PROMPT, max_new_tokens=6, seed=3, **options), greedy)
    drawn = [compiled.generate(PROMPT, max_new_tokens=6, temperature=50.0, seed=seed) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    stop = int(greedy[0, 67])
    ended = compiled.generate(PROMPT[:1].repeat(2, 0), max_new_tokens=6, temperature=0, stop=stop)
    np.testing.assert_array_equal(ended[0], greedy[0, : ended.shape[1]])
    assert ended[0, -1] == stop
    assert ended.shape[1] <= 68


@pytest.mark.parametrize(
    ("options", "allowed"),
    [
        ({}, [0, 1, 2, 3]),
        ({"temperature": 2.0}, [0, 1, 2, 3]),
        ({"top_k": 2}, [1, 3]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_k": 3, "top_p": 0.999}, [1, 2, 3]),
    ],
)
def test_tokens_are_drawn_as_often_as_their_probabilities_say(options: dict[str, Any], allowed: list[int]) -> None:
    scores = np.log(np.array([0.05, 0.4, 0.15, 0.4])) + 3.0
    how = Sampling(**{"temperature": 1.0, "top_k": None, "top_p": None, **options})
    drawn = how.draw(np.tile(scores, (20_000, 1)), np.random.default_rng(0))
    shares = np.where(np.isin(np.arange(4), allowed), np.exp(scores / how.temperature), 0.0)
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / len(drawn), shares / shares.sum(), atol=0.012)


def test_a_row_alone_and_nothing_new() -> None:
    model = gpt2()
    assert model.generate(PROMPT[0, :4], max_new_tokens=2, device="reference").shape == (6,)
    np.testing.assert_array_equal(model.generate([1, 2, 3], max_new_tokens=0), [1, 2, 3])


@pytest.mark.parametrize(
    ("prompt", "options", "error", "text"),
    [
        (PROMPT, {"max_new_tokens": 20}, ShapeError, "66 tokens and 20 new ones do not fit into a context of 80"),
        ([0.5], {}, DTypeError, "tokens, which are integers; received float64"),
        (np.zeros((2, 0), int), {}, ShapeError, "at least one; received"),
        ([1], {"temperature": -1.0}, OptionError, "temperature is 0, the likeliest token, or more"),
        ([1], {"top_k": 0}, OptionError, "top_k must be an integer of at least 1"),
        ([1], {"top_p": 0.0}, OptionError, "top_p must be above 0 and at most 1"),
    ],
)
def test_what_does_not_fit_is_said(
    prompt: Any, options: dict[str, Any], error: type[Exception], text: str, compiled: LanguageModel
) -> None:
    with pytest.raises(error, match=text):
        compiled.generate(prompt, **options)
