"""GPT-2 as a training graph, written twice: with named functions, and from primitives only.

Parameters are named as in the published checkpoints; the token embedding is also the output layer.
"Language models are unsupervised multitask learners", Radford et al. 2019.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import wholestep as ws

EPS = 1e-5


@dataclass(frozen=True)
class Config:
    layers: int = 12
    width: int = 768
    heads: int = 12
    vocabulary: int = 50257
    context: int = 1024


class Words(Protocol):
    """What a transformer is made of, beside products and sums."""

    def layer_norm(self, x: ws.Tensor, weight: ws.Tensor, bias: ws.Tensor) -> ws.Tensor: ...

    def gelu(self, x: ws.Tensor) -> ws.Tensor: ...

    def attention(self, q: ws.Tensor, k: ws.Tensor, v: ws.Tensor) -> ws.Tensor: ...

    def cross_entropy(self, logits: ws.Tensor, labels: ws.Tensor) -> ws.Tensor: ...


class Named:
    """Every function by its name."""

    def layer_norm(self, x: ws.Tensor, weight: ws.Tensor, bias: ws.Tensor) -> ws.Tensor:
        return ws.layer_norm(x, weight, bias, eps=EPS)

    def gelu(self, x: ws.Tensor) -> ws.Tensor:
        return ws.gelu(x, approximate="tanh")

    def attention(self, q: ws.Tensor, k: ws.Tensor, v: ws.Tensor) -> ws.Tensor:
        return ws.attention(q, k, v, causal=True)

    def cross_entropy(self, logits: ws.Tensor, labels: ws.Tensor) -> ws.Tensor:
        return ws.losses.cross_entropy(logits, labels)


class Primitive:
    """The same by means, maxima, exponentials and comparisons."""

    def layer_norm(self, x: ws.Tensor, weight: ws.Tensor, bias: ws.Tensor) -> ws.Tensor:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred / ws.sqrt(variance + EPS) * weight + bias

    def gelu(self, x: ws.Tensor) -> ws.Tensor:
        return 0.5 * x * (1.0 + ws.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))

    def attention(self, q: ws.Tensor, k: ws.Tensor, v: ws.Tensor) -> ws.Tensor:
        time, width = q.shape[-2:]
        scores = (q @ k.transpose(-1, -2)) * (1.0 / math.sqrt(width))  # (batch, heads, time, time)
        visible = ws.iota((time, time), 1) <= ws.iota((time, time), 0)
        scores = ws.where(visible, scores, -math.inf)
        exponentials = ws.exp(scores - scores.max(-1, keepdims=True))
        return (exponentials / exponentials.sum(-1, keepdims=True)) @ v

    def cross_entropy(self, logits: ws.Tensor, labels: ws.Tensor) -> ws.Tensor:
        shifted = logits - logits.max(-1, keepdims=True)
        logarithms = shifted - ws.log(ws.exp(shifted).sum(-1, keepdims=True))
        is_label = labels.reshape((*labels.shape, 1)) == ws.arange(logits.shape[-1])
        return -ws.where(is_label, logarithms, 0.0).sum(-1).mean()


NAMED, PRIMITIVE = Named(), Primitive()


@dataclass(frozen=True)
class GPT2:
    """The model being recorded in a graph."""

    config: Config
    words: Words
    graph: ws.Graph
    dtype: str

    def loss(self, tokens: ws.Tensor, labels: ws.Tensor) -> ws.Tensor:
        c = self.config
        embedding = self._matrix("wte.weight", c.vocabulary, c.width)
        positions = self._matrix("wpe.weight", c.context, c.width)
        if tokens.shape[1] != c.context:
            positions = positions[ws.arange(tokens.shape[1])]
        x = embedding[tokens] + positions
        for i in range(c.layers):
            with self.graph.scope(f"h.{i}"):
                x = x + self._attend(self._norm("ln_1", x))
                x = x + self._transform(self._norm("ln_2", x))
        logits = self._norm("ln_f", x) @ embedding.T  # (batch, time, vocabulary)
        return self.words.cross_entropy(logits, labels)

    def _attend(self, x: ws.Tensor) -> ws.Tensor:
        batch, time, width = x.shape
        heads = self.config.heads

        def split(y: ws.Tensor) -> ws.Tensor:
            return y.reshape(batch, time, heads, width // heads).transpose(1, 2)  # (batch, heads, time, width / heads)

        together = self._linear("attn.c_attn", x, 3 * width)
        q, k, v = (split(together[..., i * width : (i + 1) * width]) for i in range(3))
        mixed = self.words.attention(q, k, v).transpose(1, 2).reshape(batch, time, width)
        return self._linear("attn.c_proj", mixed, width)

    def _transform(self, x: ws.Tensor) -> ws.Tensor:
        width = x.shape[-1]
        return self._linear("mlp.c_proj", self.words.gelu(self._linear("mlp.c_fc", x, 4 * width)), width)

    def _linear(self, name: str, x: ws.Tensor, outputs: int) -> ws.Tensor:
        bias = self.graph.parameter(f"{name}.bias", (outputs,), dtype=self.dtype)
        return x @ self._matrix(f"{name}.weight", x.shape[-1], outputs) + bias

    def _norm(self, name: str, x: ws.Tensor) -> ws.Tensor:
        weight = self.graph.parameter(f"{name}.weight", (x.shape[-1],), init=1.0, dtype=self.dtype)
        bias = self.graph.parameter(f"{name}.bias", (x.shape[-1],), dtype=self.dtype)
        return self.words.layer_norm(x, weight, bias)

    def _matrix(self, name: str, rows: int, columns: int) -> ws.Tensor:
        return self.graph.parameter(name, (rows, columns), init=ws.init.normal(0.0, 0.02), dtype=self.dtype)


def gpt2(config: Config, words: Words = NAMED, dtype: str = "float32", time: int | str | None = None) -> ws.Graph:
    """The forward graph: tokens and labels of shape (batch, time) -> the loss; `time` is the context unless given."""
    g = ws.Graph()
    shape = ("batch", config.context if time is None else time)
    tokens, labels = g.input("tokens", shape, "int32"), g.input("labels", shape, "int32")
    g.set_outputs({"loss": GPT2(config, words, g, dtype).loss(tokens, labels)})
    return g
