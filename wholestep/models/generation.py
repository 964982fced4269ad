"""Text generation with language models, one token after the other: a cache stores keys and values of earlier tokens.

One program serves the prompt and every token after it: the cache has a fixed capacity, the number of tokens at once is
a symbolic dimension.  Tokens are drawn from the scores on the host.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.functions.primitives import arange, iota, write_rows
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.layers.composites import evaluation_mode
from wholestep.compiler.frontend.step import Spec, step
from wholestep.compiler.frontend.tensor import Tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import Dim
from wholestep.errors import DTypeError, OptionError, ShapeError
from wholestep.nn.module.module import Module

if TYPE_CHECKING:
    from wholestep.session.session import Session

ROUNDED_TO = 64  # capacities are multiples of it, so that texts of similar lengths share a compiled program
AT_ONCE = 64  # the most tokens of a prompt that one step reads


class KeyValueCache:
    """The cache of keys and values of every layer, inside a step that is being recorded.

    Layers call `extend` in their order; each call has a separate state.
    """

    def __init__(self, graph: Graph, start: Tensor, capacity: int) -> None:
        self._graph, self.start, self.capacity = graph, start, capacity
        self._calls = 0
        self._states: dict[str, Tensor] = {}

    def positions(self, time: int | Dim) -> Tensor:
        """The positions of this step's tokens in the whole text."""
        return arange(time) + self.start

    def mask(self, time: int | Dim) -> Tensor:
        """The causal mask (time, capacity): a token attends to itself and to earlier tokens."""
        return iota((time, self.capacity), 1) <= self.positions(time).reshape((time, 1))

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values (batch, heads, time, d); return all so far, (batch, heads, capacity, d)."""
        self._calls += 1
        return self._cache_entry(f"cache.{self._calls - 1}.k", k), self._cache_entry(f"cache.{self._calls - 1}.v", v)

    def carried_value(self, name: str, shape: tuple[int | Dim, ...], dtype: object) -> Tensor:
        """The value that `carry` stored in the step before; zeros at the start of a text."""
        state = self._graph.state(f"cache.{name}", shape, 0.0, dtype)
        self._states[name] = state
        return where(self.start == 0, 0.0, state)

    def carry(self, name: str, value: Tensor) -> None:
        """Store a value for the next step."""
        self._graph.update(self._states[name], value)

    def _cache_entry(self, name: str, rows: Tensor) -> Tensor:
        batch, heads, _, width = rows.shape
        state = self._graph.state(name, (self.capacity, batch, heads, width), 0.0, rows.dtype)
        whole = write_rows(state, rows.permute(2, 0, 1, 3), self.start)
        self._graph.update(state, whole)
        return whole.permute(1, 2, 0, 3)


@dataclass(frozen=True)
class Sampling:
    """The options for drawing a token from its scores."""

    temperature: float
    top_k: int | None
    top_p: float | None

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            fail(OptionError, f"generate: temperature is 0, the likeliest token, or more; {self.temperature!r}.")
        if self.top_k is not None and self.top_k < 1:
            fail(OptionError, f"generate: top_k must be an integer of at least 1; received {self.top_k!r}.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            fail(OptionError, f"generate: top_p must be above 0 and at most 1; received {self.top_p!r}.")

    def draw(self, scores: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Draw a token for each row of scores."""
        if self.temperature == 0:
            return np.asarray(scores.argmax(-1), np.int32)
        likely = scores.astype(np.float64) / self.temperature
        if self.top_k is not None and self.top_k < likely.shape[-1]:
            least = np.partition(likely, -self.top_k, -1)[:, -self.top_k, None]
            likely = np.where(likely < least, -np.inf, likely)
        shares = np.exp(likely - likely.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        if self.top_p is not None:
            shares = self._nucleus(shares, self.top_p)
        ends = shares.cumsum(-1)
        points = rng.random((len(shares), 1)) * ends[:, -1:]
        return np.asarray((ends <= points).sum(-1).clip(max=shares.shape[-1] - 1), np.int32)

    @staticmethod
    def _nucleus(shares: np.ndarray[Any, Any], p: float) -> np.ndarray[Any, Any]:
        """Nucleus sampling (arXiv:1904.09751): the most probable tokens that together reach p; the others are 0."""
        order = np.argsort(-shares, -1, kind="stable")
        ranked = np.take_along_axis(shares, order, -1)
        outside = ranked.cumsum(-1) - ranked >= p
        nucleus = shares.copy()
        np.put_along_axis(nucleus, order, np.where(outside, 0.0, ranked), -1)
        return nucleus


class LanguageModel(Module):
    """A model of tokens (batch, time) -> scores of the next token, whose `forward` also takes a `KeyValueCache`."""

    context: int

    def generate(
        self,
        prompt: object,
        max_new_tokens: int = 20,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        stop: int | None = None,
        device: str = "cpu",
    ) -> np.ndarray[Any, Any]:
        """The prompt, followed by the tokens that the model generates one by one.

        It is compiled once for a number of rows and a capacity, a multiple of 64 tokens; keys and values of earlier
        tokens are kept, so that a token costs as much as one token.

        Args:
            prompt: tokens, (time,) or (batch, time).
            temperature: scores are divided by it before a token is drawn; 0 takes the likeliest.
            top_k: only the k likeliest tokens are drawn.
            top_p: only the likeliest tokens that together have this probability (arXiv:1904.09751).
            seed: the same seed gives the same text.
            stop: a row ends with this token, and is filled with it; once all rows have ended, nothing more is written.

        Returns:
            int32 tokens, (time + written,) or (batch, time + written).

        Example: `model.generate(tokens, max_new_tokens=50, temperature=0.8, top_k=40)`.
        """
        how = Sampling(temperature, top_k, top_p)
        tokens = _tokens(prompt)
        text = tokens.reshape(1, -1) if tokens.ndim == 1 else tokens
        total = text.shape[1] + max_new_tokens
        if max_new_tokens < 0 or total > self.context:
            fail(
                ShapeError,
                f"generate: a prompt of {text.shape[1]} tokens and {max_new_tokens} new ones do not fit into a context "
                f"of {self.context}; cut the prompt, or ask for fewer.",
            )
        if max_new_tokens:
            text = _generate_tokens(self, text, max_new_tokens, how, seed, stop, device)
        return text[0] if tokens.ndim == 1 else text


def _tokens(prompt: object) -> np.ndarray[Any, Any]:
    tokens = np.asarray(prompt)
    if tokens.dtype.kind not in "iu":
        fail(DTypeError, f"generate takes tokens, which are integers; received {tokens.dtype}.")
    if tokens.ndim not in (1, 2) or tokens.shape[-1] == 0:
        fail(ShapeError, f"generate takes tokens (time,) or (batch, time), at least one; received {tokens.shape}.")
    return tokens.astype(np.int32)


def _generate_tokens(
    model: LanguageModel,
    text: np.ndarray[Any, Any],
    count: int,
    how: Sampling,
    seed: int,
    stop: int | None,
    device: str,
) -> np.ndarray[Any, Any]:
    rng, ended = np.random.default_rng(seed), np.zeros(len(text), bool)
    capacity = min(-(-(text.shape[1] + count) // ROUNDED_TO) * ROUNDED_TO, model.context)
    session = _session(model, len(text), capacity, device)
    scores = None
    for first in range(0, text.shape[1], AT_ONCE):
        part = text[:, first : first + AT_ONCE]
        scores = session.step(tokens=np.ascontiguousarray(part), start=np.int32(first))["scores"]
    assert scores is not None
    written = [text]
    for place in range(text.shape[1], text.shape[1] + count):
        token = how.draw(np.asarray(scores), rng)
        if stop is not None:
            token = np.where(ended, np.int32(stop), token)
            ended |= token == stop
        written.append(token[:, None])
        if ended.all() or place == text.shape[1] + count - 1:
            break
        scores = session.step(tokens=token[:, None], start=np.int32(place))["scores"]
    return np.concatenate(written, 1)


def _session(model: LanguageModel, batch: int, capacity: int, device: str) -> Session:
    """A step that reads tokens from position `start` on and returns the scores of the next token."""
    from wholestep.session.building.build import build_session
    from wholestep.steps.states import state_with_numbers, structure

    sessions: dict[object, Session] = model.__dict__.setdefault("_generators", {})
    key = (batch, capacity, device, structure(model))
    if key not in sessions:
        state_with_numbers(model)

        @step(inputs={"tokens": Spec((batch, "time"), "int32"), "start": Spec((), "int32")})
        def read(graph: Graph, tokens: Tensor, start: Tensor) -> dict[str, Tensor]:
            with evaluation_mode():
                return {"scores": model(tokens, cache=KeyValueCache(graph, start, capacity))}

        sessions[key] = build_session(read, capacity={"time": min(AT_ONCE, capacity)}, device=device)
    return sessions[key]
