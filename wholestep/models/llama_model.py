"""Llama: "LLaMA: Open and efficient foundation language models", Touvron et al. 2023 (arXiv:2302.13971): RMS norms
before attention and MLP, rotary positions, SwiGLU, and grouped-query attention (arXiv:2305.13245).

Parameters are named and shaped as in the published checkpoints: `model.layers.0.self_attn.q_proj.weight`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.functions.primitives import silu
from wholestep.compiler.frontend.layers.composites import attention
from wholestep.compiler.frontend.shape.sequences import rotary, rotary_frequencies
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, ShapeError
from wholestep.models.generation import KeyValueCache, LanguageModel
from wholestep.nn import Embedding, Linear, Module, RMSNorm
from wholestep.nn.layers.linear import positive
from wholestep.records import dataclass

SIZES = {  # name: layers, width, heads, heads of keys and values, inner width, vocabulary, context, base of rotary, eps
    "llama-7b": (32, 4096, 32, 32, 11008, 32000, 2048, 10000.0, 1e-6),
    "llama-3-8b": (32, 4096, 32, 8, 14336, 128256, 8192, 500000.0, 1e-5),
    "tinyllama-1.1b": (22, 2048, 32, 4, 5632, 32000, 2048, 10000.0, 1e-5),
}


def llama(
    size: str = "llama-7b",
    *,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    hidden: int | None = None,
    vocabulary: int | None = None,
    context: int | None = None,
    base: float | None = None,
    eps: float | None = None,
    tied: bool = False,
    dtype: object = "float32",
    split: bool = False,
    scaling: RotaryScaling | None = None,
) -> Llama:
    """Llama of a published size ("llama-7b", "llama-3-8b", "tinyllama-1.1b") or of any other.

    Args:
        kv_heads: heads of keys and values; by default equal to `heads`.
        hidden: width of the inner layer; 8/3 of the width, rounded up to a multiple of 8, if only the width is given.
        base: the base of the frequencies of rotary positions.
        tied: the token embedding is also the output layer.
        split: workers that divide layers, `ws.Workers(model=2)`, have some of the heads, of those of keys and of the
            inner layer's features each.
        scaling: the scaling of rotary positions for a context longer than in pre-training, as in Llama 3.1.

    Example: `ws.models.llama(layers=2, width=64, heads=4, kv_heads=2, vocabulary=65, context=64)`.
    """
    if size not in SIZES:
        fail(OptionError, f"llama: the sizes are {', '.join(SIZES)}; received {size!r}.")
    preset = SIZES[size]
    shared = kv_heads or (heads if heads is not None else preset[3])
    inner = hidden or (preset[4] if width is None else -(-8 * width // 3 // 8) * 8)
    return Llama(
        layers or preset[0], width or preset[1], heads or preset[2], shared, inner, vocabulary or preset[5],
        context or preset[6], base or preset[7], eps or preset[8], tied, dtype, split, scaling,
    )  # fmt: skip


@dataclass(frozen=True)
class RotaryScaling:
    """The scaling of rotary positions, with which a model reads longer texts than in its pre-training.

    Without `context` every frequency is divided by `factor`.  With it, as in Llama 3.1, frequencies of more than `high`
    turns in the `context` of pre-training are unchanged, of less than `low` turns divided, and in between mixed.
    """

    factor: float
    context: float | None = None
    low: float = 1.0
    high: float = 4.0

    def applied(self, frequencies: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The scaled frequencies of the rotary embedding."""
        if self.context is None:
            return np.asarray(frequencies / self.factor)
        turns = self.context * frequencies / (2 * np.pi)
        share = np.clip((turns - self.low) / (self.high - self.low), 0.0, 1.0)  # the weight of the unscaled frequency
        return np.asarray((1 - share) * frequencies / self.factor + share * frequencies)


class Llama(LanguageModel):
    """Tokens (batch, time) -> scores of the next token (batch, time, vocabulary); with a cache, of the last one."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        kv_heads: int,
        hidden: int,
        vocabulary: int,
        context: int,
        base: float = 10000.0,
        eps: float = 1e-6,
        tied: bool = False,
        dtype: object = "float32",
        split: bool = False,
        scaling: RotaryScaling | None = None,
    ) -> None:
        positive("llama", layers=layers, width=width, heads=heads, kv_heads=kv_heads, hidden=hidden, context=context)
        if width % heads or heads % kv_heads or (width // heads) % 2:
            fail(
                OptionError,
                f"llama: a width of {width} divides into {heads} heads of an even width, which share {kv_heads} of "
                "keys and values evenly; choose others.",
            )
        self.context = context
        frequencies = rotary_frequencies(width // heads, base)
        angles = tuple(map(float, frequencies if scaling is None else scaling.applied(frequencies)))
        self.model = Decoder(layers, width, heads, kv_heads, hidden, vocabulary, angles, eps, dtype)
        self.lm_head = None if tied else Linear(width, vocabulary, bias=False, init=init.normal(std=0.02), dtype=dtype)
        if split:
            from wholestep.nn.wrappers.tensor_parallel import split_llama  # imported here because few models are split

            split_llama(self, heads, kv_heads)

    def forward(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        time = tokens.shape[-1]
        if tokens.ndim != 2:
            fail(ShapeError, f"llama takes tokens of shape (batch, time); received {tokens!r}.")
        if isinstance(time, int) and time > self.context:
            fail(ShapeError, f"llama: {time} tokens are more than its context of {self.context}; cut the text.")
        x = self.model(tokens, cache)
        x = x if cache is None else x[:, -1]
        scores: Tensor = x @ self.model.embed_tokens.weight.T if self.lm_head is None else self.lm_head(x)
        return scores


class Decoder(Module):
    """Maps tokens to hidden vectors: an embedding, the blocks, a norm."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        kv_heads: int,
        hidden: int,
        vocabulary: int,
        angles: tuple[float, ...],
        eps: float,
        dtype: object,
    ) -> None:
        self.embed_tokens = Embedding(vocabulary, width, init.normal(std=0.02), dtype)
        self.layers = [LlamaBlock(width, heads, kv_heads, hidden, angles, eps, dtype) for _ in range(layers)]
        self.norm = RMSNorm(width, eps, dtype)

    def forward(self, tokens: Tensor, cache: KeyValueCache | None) -> Tensor:
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, cache)
        out: Tensor = self.norm(x)
        return out


class LlamaBlock(Module):
    """x + attention(norm(x)), then x + mlp(norm(x))"""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        hidden: int,
        angles: tuple[float, ...],
        eps: float,
        dtype: object,
    ) -> None:
        self.input_layernorm = RMSNorm(width, eps, dtype)
        self.self_attn = LlamaAttention(width, heads, kv_heads, angles, dtype)
        self.post_attention_layernorm = RMSNorm(width, eps, dtype)
        self.mlp = LlamaMLP(width, hidden, dtype)

    def forward(self, x: Tensor, cache: KeyValueCache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cache)
        return x + self.mlp(self.post_attention_layernorm(x))  # type: ignore[no-any-return]


class LlamaAttention(Module):
    """Causal self-attention with rotary positions."""

    def __init__(self, width: int, heads: int, kv_heads: int, angles: tuple[float, ...], dtype: object) -> None:
        self.heads, self.kv_heads, self.each, self.angles = heads, kv_heads, width // heads, angles
        start = init.normal(std=0.02)
        self.q_proj = Linear(width, heads * self.each, bias=False, init=start, dtype=dtype)
        self.k_proj = Linear(width, kv_heads * self.each, bias=False, init=start, dtype=dtype)
        self.v_proj = Linear(width, kv_heads * self.each, bias=False, init=start, dtype=dtype)
        self.o_proj = Linear(heads * self.each, width, bias=False, init=start, dtype=dtype)

    def forward(self, x: Tensor, cache: KeyValueCache | None) -> Tensor:
        batch, time, _ = x.shape
        q = self._split(self.q_proj(x), self.heads)
        k, v = (self._split(p(x), self.kv_heads) for p in (self.k_proj, self.v_proj))
        if cache is None:
            q, k = (rotary(t, frequencies=self.angles) for t in (q, k))
            mixed = attention(q, k, v, causal=True)
        else:
            q, k = (rotary(t, start=cache.start, frequencies=self.angles) for t in (q, k))
            mixed = attention(q, *cache.extend(k, v), mask=cache.mask(time))
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, time, self.heads * self.each))  # type: ignore[no-any-return]

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """(batch, time, heads · d) -> (batch, heads, time, d)"""
        batch, time, _ = x.shape
        return x.reshape(batch, time, heads, self.each).transpose(1, 2)


class LlamaMLP(Module):
    """The MLP with SwiGLU: down(silu(gate(x)) · up(x)) (arXiv:2002.05202)."""

    def __init__(self, width: int, hidden: int, dtype: object) -> None:
        start = init.normal(std=0.02)
        self.gate_proj = Linear(width, hidden, bias=False, init=start, dtype=dtype)
        self.up_proj = Linear(width, hidden, bias=False, init=start, dtype=dtype)
        self.down_proj = Linear(hidden, width, bias=False, init=start, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))  # type: ignore[no-any-return]
