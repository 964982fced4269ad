"""GPT-2: "Language models are unsupervised multitask learners", Radford et al. 2019.

Parameters are named and shaped as in the published checkpoints: `h.0.attn.c_attn.weight` is (width, 3·width), and the
token embedding is also the output layer.
"""

from __future__ import annotations

import math

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.functions.primitives import gelu
from wholestep.compiler.frontend.layers.composites import Switchable, attention
from wholestep.compiler.frontend.layers.segments import current_segments, positions
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, ShapeError
from wholestep.models.generation import KeyValueCache, LanguageModel
from wholestep.nn import Dropout, Embedding, LayerNorm, Module
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.parameter import parameter

SIZES = {  # name: layers, width, heads
    "gpt2": (12, 768, 12),
    "gpt2-medium": (24, 1024, 16),
    "gpt2-large": (36, 1280, 20),
    "gpt2-xl": (48, 1600, 25),
}


def gpt2(
    size: str = "gpt2",
    *,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    vocabulary: int = 50257,
    context: int = 1024,
    dropout: float | Switchable = 0.0,
    dtype: object = "float32",
    split: bool = False,
) -> GPT2:
    """GPT-2 of a published size ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl") or of any other.

    Workers that divide layers, `ws.Workers(model=2)`, have some of the heads and of the inner layers' features of each
    block, where `split` is True; embeddings and norms are whole.

    Example: `ws.models.gpt2(layers=4, width=128, heads=4, vocabulary=65, context=64)`.
    """
    if size not in SIZES:
        fail(OptionError, f"gpt2: the sizes are {', '.join(SIZES)}; received {size!r}.")
    preset = SIZES[size]
    return GPT2(layers or preset[0], width or preset[1], heads or preset[2], vocabulary, context, dropout, dtype, split)


class GPT2(LanguageModel):
    """Tokens (batch, time) -> scores of the next token (batch, time, vocabulary); with a cache, of the last one."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        vocabulary: int,
        context: int,
        dropout: float | Switchable = 0.0,
        dtype: object = "float32",
        split: bool = False,
    ) -> None:
        positive("gpt2", layers=layers, width=width, heads=heads, vocabulary=vocabulary, context=context)
        self.context = context
        self.wte = Embedding(vocabulary, width, init.normal(std=0.02), dtype)
        self.wpe = Embedding(context, width, init.normal(std=0.02), dtype)
        self.drop = Dropout(dropout)
        self.h = [GPT2Block(width, heads, layers, dropout, dtype) for _ in range(layers)]
        self.ln_f = LayerNorm(width, dtype=dtype)
        if split:
            from wholestep.nn.wrappers.tensor_parallel import split_gpt2  # imported here because few models are split

            split_gpt2(self, heads)

    def forward(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        time = tokens.shape[-1]
        if tokens.ndim != 2:
            fail(ShapeError, f"gpt2 takes tokens of shape (batch, time); received {tokens!r}.")
        if isinstance(time, int) and time > self.context:
            fail(ShapeError, f"gpt2: {time} tokens are more than its context of {self.context}; cut the text.")
        if cache is not None:
            places = self.wpe.weight[cache.positions(time)]
        elif time == self.context and current_segments() is None:
            places = self.wpe.weight
        else:
            places = self.wpe.weight[positions(tokens)]
        x = self.drop(self.wte(tokens) + places)
        for block in self.h:
            x = block(x, cache)
        x = x if cache is None else x[:, -1]
        scores: Tensor = self.ln_f(x) @ self.wte.weight.T
        return scores


class GPT2Block(Module):
    """x + attention(norm(x)), then x + mlp(norm(x))"""

    def __init__(self, width: int, heads: int, layers: int, dropout: float | Switchable, dtype: object) -> None:
        self.ln_1, self.ln_2 = LayerNorm(width, dtype=dtype), LayerNorm(width, dtype=dtype)
        self.attn, self.mlp = GPT2Attention(width, heads, layers, dtype), GPT2MLP(width, layers, dtype)
        self.drop1, self.drop2 = Dropout(dropout), Dropout(dropout)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        x = x + self.drop1(self.attn(self.ln_1(x), cache))
        return x + self.drop2(self.mlp(self.ln_2(x)))  # type: ignore[no-any-return]


class GPT2Attention(Module):
    """Causal self-attention in several heads."""

    def __init__(self, width: int, heads: int, layers: int, dtype: object) -> None:
        if width % heads:
            text = f"gpt2: a width of {width} does not divide into {heads} heads; choose a multiple of {heads}."
            fail(OptionError, text)
        self.heads = heads
        self.c_attn = Projection(width, 3 * width, 0.02, dtype)
        self.c_proj = Projection(width, width, 0.02 / math.sqrt(2 * layers), dtype)

    def forward(self, x: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        batch, time, width = x.shape
        together = self.c_attn(x)
        q, k, v = (self._split(together[..., i * int(width) : (i + 1) * int(width)]) for i in range(3))
        if cache is None:
            mixed = attention(q, k, v, causal=True)
        else:
            mixed = attention(q, *cache.extend(k, v), mask=cache.mask(time))
        return self.c_proj(mixed.transpose(1, 2).reshape(batch, time, width))  # type: ignore[no-any-return]

    def _split(self, x: Tensor) -> Tensor:
        """(batch, time, width) -> (batch, heads, time, width / heads)"""
        batch, time, width = x.shape
        return x.reshape(batch, time, self.heads, int(width) // self.heads).transpose(1, 2)


class GPT2MLP(Module):
    """The MLP of a block: a linear layer to four times the width, GELU, and a linear layer back."""

    def __init__(self, width: int, layers: int, dtype: object) -> None:
        self.c_fc = Projection(width, 4 * width, 0.02, dtype)
        self.c_proj = Projection(4 * width, width, 0.02 / math.sqrt(2 * layers), dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(gelu(self.c_fc(x), approximate="tanh"))  # type: ignore[no-any-return]


class Projection(Module):
    """The linear map x · weight + bias with the weight shaped (inputs, outputs), as the checkpoints store it."""

    weight: Tensor
    bias: Tensor

    def __init__(self, inputs: int, outputs: int, std: float, dtype: object) -> None:
        self.weight = parameter((inputs, outputs), init.normal(std=std), dtype)
        self.bias = parameter((outputs,), 0.0, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias
