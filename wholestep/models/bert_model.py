"""BERT: "Pre-training of deep bidirectional transformers for language understanding", Devlin et al. 2018
(arXiv:1810.04805).

Parameters are named and shaped as in the published checkpoints: `bert.encoder.layer.0.attention.self.query.weight`; the
token embedding is also the output layer of the masked-language head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.functions.primitives import gelu, tanh
from wholestep.compiler.frontend.layers.composites import Switchable, attention
from wholestep.compiler.frontend.layers.segments import pool_sequences, positions
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import boolean, shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.nn import Dropout, Embedding, LayerNorm, Linear, Module
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.parameter import parameter

SIZES = {  # name: layers, width, heads, inner width
    "bert-tiny": (2, 128, 2, 512),
    "bert-base": (12, 768, 12, 3072),
    "bert-large": (24, 1024, 16, 4096),
}
HEADS = ("tokens", "classes", "token_classes", "spans", None)


def bert(
    size: str = "bert-base",
    *,
    head: str | None = "tokens",
    classes: int = 2,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    hidden: int | None = None,
    vocabulary: int = 30522,
    context: int = 512,
    segments: int = 2,
    dropout: float | Switchable = 0.1,
    eps: float = 1e-12,
    dtype: object = "float32",
) -> Bert:
    """BERT of a published size ("bert-tiny", "bert-base", "bert-large") or of any other.

    Args:
        head: "tokens" gives the scores of every token, for masked words; "classes" the scores of `classes` for the
            whole text, by its first token; "token_classes" those of `classes` for each token; "spans" the scores of an
            answer's first and last token, a tuple of two (batch, time); None the vectors (batch, time, width).
        hidden: width of the inner layer; 4·width if only the width is given.
        segments: kinds of tokens, of the first text and the second.

    Example: `ws.models.bert(head="classes", layers=2, width=64, heads=4, vocabulary=100, context=32)`.
    """
    sizes = sizes_of("bert", SIZES, size, layers, width, heads, hidden)
    return Bert(*sizes, vocabulary, context, segments, head, classes, dropout, eps, dtype)


def sizes_of(
    model: str,
    named_sizes: Mapping[str, tuple[int, int, int, int]],
    size: str,
    layers: int | None,
    width: int | None,
    heads: int | None,
    hidden: int | None,
) -> tuple[int, int, int, int]:
    """The sizes of a model (layers, width, heads, inner width): the arguments, else the published sizes."""
    if size not in named_sizes:
        fail(OptionError, f"{model}: the sizes are {', '.join(named_sizes)}; received {size!r}.")
    usual = named_sizes[size]
    inner = hidden or (usual[3] if width is None else 4 * width)
    return layers or usual[0], width or usual[1], heads or usual[2], inner


class Bert(Module):
    """Maps tokens (batch, time) to what the head computes: token scores (batch, time, vocabulary), class scores (batch,
    classes), class scores of each token (batch, time, classes), start and end scores of an answer span, two of (batch,
    time); or hidden vectors.
    """

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        vocabulary: int,
        context: int,
        segments: int,
        head: str | None,
        classes: int,
        dropout: float | Switchable,
        eps: float,
        dtype: object,
    ) -> None:
        positive("bert", layers=layers, width=width, heads=heads, hidden=hidden, vocabulary=vocabulary, context=context)
        if head not in HEADS:
            fail(OptionError, f"bert: head must be one of {', '.join(map(repr, HEADS))}; received {head!r}.")
        self.head = head
        self.bert = BertEncoder(
            BertEmbeddings(vocabulary, context, segments, width, dropout, eps, dtype),
            BertLayers([BertBlock(width, heads, hidden, dropout, eps, dtype) for _ in range(layers)]),
            Pooler(width, dtype) if head == "classes" else None,
        )
        if head == "tokens":
            self.cls = TokenHead(width, vocabulary, eps, dtype)
        elif head in ("classes", "token_classes"):
            self.dropout = Dropout(dropout)
            self.classifier = Linear(width, classes, init=init.normal(std=0.02), dtype=dtype)
        elif head == "spans":
            self.qa_outputs = Linear(width, 2, init=init.normal(std=0.02), dtype=dtype)

    def forward(
        self, tokens: Tensor, segments: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The outputs of the head.  `segments` says to which text a token belongs, 0 unless given; `mask` (batch, time)
        is 1 or True at tokens and 0 at padding.
        """
        x = self.bert(tokens, segments, mask)
        out: Tensor = x
        if self.head == "tokens":
            out = self.cls(x, self.bert.embeddings.word_embeddings.weight)
        elif self.head == "classes":
            assert self.bert.pooler is not None
            out = self.classifier(self.dropout(self.bert.pooler(x)))
        elif self.head == "token_classes":
            out = self.classifier(self.dropout(x))
        elif self.head == "spans":
            ends = self.qa_outputs(x)
            return ends[..., 0], ends[..., 1]
        return out


class BertEncoder(Module):
    """Maps tokens to hidden vectors (batch, time, width)."""

    def __init__(self, embeddings: BertEmbeddings, encoder: BertLayers, pooler: Pooler | None) -> None:
        self.embeddings, self.encoder, self.pooler = embeddings, encoder, pooler

    def forward(self, tokens: Tensor, segments: Tensor | None, mask: Tensor | None) -> Tensor:
        seen = None
        if mask is not None:
            present = mask if mask.dtype == boolean else mask != 0
            seen = present.reshape((mask.shape[0], 1, 1, mask.shape[1]))
        out: Tensor = self.encoder(self.embeddings(tokens, segments), seen)
        return out


class BertEmbeddings(Module):
    """The sum of token, position and segment embeddings, followed by a layer norm."""

    def __init__(
        self,
        vocabulary: int,
        context: int,
        segments: int,
        width: int,
        dropout: float | Switchable,
        eps: float,
        dtype: object,
    ) -> None:
        start = init.normal(std=0.02)
        self.context = context
        self.word_embeddings = Embedding(vocabulary, width, start, dtype)
        self.position_embeddings = Embedding(context, width, start, dtype)
        self.token_type_embeddings = Embedding(segments, width, start, dtype)
        self.LayerNorm, self.dropout = LayerNorm(width, eps, dtype=dtype), Dropout(dropout)

    def forward(self, tokens: Tensor, segments: Tensor | None) -> Tensor:
        time = tokens.shape[-1]
        if tokens.ndim != 2 or (isinstance(time, int) and time > self.context):
            fail(
                ShapeError,
                f"bert takes tokens (batch, time), at most {self.context} of each text; received "
                f"{shape_text(tokens.shape)}.",
            )
        kinds = self.token_type_embeddings.weight[0] if segments is None else self.token_type_embeddings(segments)
        x = self.word_embeddings(tokens) + kinds + self.position_embeddings.weight[positions(tokens)]
        out: Tensor = self.dropout(self.LayerNorm(x))
        return out


class BertLayers(Module):
    """A stack of transformer blocks, all with the same mask."""

    def __init__(self, blocks: Sequence[Module]) -> None:
        self.layer = list(blocks)

    def forward(self, x: Tensor, *mask: Tensor | None) -> Tensor:
        for layer in self.layer:
            x = layer(x, *mask)
        return x


class BertBlock(Module):
    """norm(x + attention(x)), then norm(x + mlp(x))"""

    def __init__(
        self, width: int, heads: int, hidden: int, dropout: float | Switchable, eps: float, dtype: object
    ) -> None:
        self.attention = BertAttention(width, heads, dropout, eps, dtype)
        self.intermediate = Inner(width, hidden, dtype)
        self.output = ResidualNorm(hidden, width, dropout, eps, dtype)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = self.attention(x, mask)
        return self.output(gelu(self.intermediate(x)), x)  # type: ignore[no-any-return]


class BertAttention(Module):
    """Self-attention over all tokens, without a causal mask."""

    def __init__(self, width: int, heads: int, dropout: float | Switchable, eps: float, dtype: object) -> None:
        self.self = SelfAttention("bert", width, heads, dropout, init.normal(std=0.02), dtype)
        self.output = ResidualNorm(width, width, dropout, eps, dtype)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.output(self.self(x, mask), x)  # type: ignore[no-any-return]


class SelfAttention(Module):
    """Self-attention in several heads: softmax(q·kᵀ/√d)·v."""

    def __init__(
        self, model: str, width: int, heads: int, dropout: float | Switchable, start: object, dtype: object
    ) -> None:
        if width % heads:
            text = f"{model}: a width of {width} does not divide into {heads} heads; choose a multiple of {heads}."
            fail(OptionError, text)
        self.heads, self.each, self.rate = heads, width // heads, dropout
        self.query, self.key, self.value = (Linear(width, width, init=start, dtype=dtype) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (self._split(project(x)) for project in (self.query, self.key, self.value))
        mixed = attention(q, k, v, mask=mask, dropout=self.rate)
        return mixed.transpose(1, 2).reshape(x.shape)

    def _split(self, x: Tensor) -> Tensor:
        """(batch, time, width) -> (batch, heads, time, width / heads)"""
        batch, time, _ = x.shape
        return x.reshape(batch, time, self.heads, self.each).transpose(1, 2)


class Inner(Module):
    """The first linear layer of the MLP, from the width to the inner width."""

    def __init__(self, width: int, hidden: int, dtype: object) -> None:
        self.dense = Linear(width, hidden, init=init.normal(std=0.02), dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.dense(x)  # type: ignore[no-any-return]


class ResidualNorm(Module):
    """norm(before + dropout(dense(x)))"""

    def __init__(self, inputs: int, outputs: int, dropout: float | Switchable, eps: float, dtype: object) -> None:
        self.dense = Linear(inputs, outputs, init=init.normal(std=0.02), dtype=dtype)
        self.LayerNorm, self.dropout = LayerNorm(outputs, eps, dtype=dtype), Dropout(dropout)

    def forward(self, x: Tensor, before: Tensor) -> Tensor:
        return self.LayerNorm(before + self.dropout(self.dense(x)))  # type: ignore[no-any-return]


class Pooler(Module):
    """The pooler: a linear layer and tanh over the vector of the first token."""

    def __init__(self, width: int, dtype: object) -> None:
        self.dense = Linear(width, width, init=init.normal(std=0.02), dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return tanh(self.dense(pool_sequences(x, "first")))


class TokenHead(Module):
    """The scores of every vocabulary entry at each position."""

    def __init__(self, width: int, vocabulary: int, eps: float, dtype: object) -> None:
        self.predictions = Predictions(width, vocabulary, eps, dtype)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        return self.predictions(x, words)  # type: ignore[no-any-return]


class Predictions(Module):
    """norm(gelu(dense(x))) · wordsᵀ + bias"""

    bias: Tensor

    def __init__(self, width: int, vocabulary: int, eps: float, dtype: object) -> None:
        self.transform = Transform(width, eps, dtype)
        self.bias = parameter((vocabulary,), 0.0, dtype)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        return self.transform(x) @ words.T + self.bias  # type: ignore[no-any-return]


class Transform(Module):
    def __init__(self, width: int, eps: float, dtype: object) -> None:
        self.dense = Linear(width, width, init=init.normal(std=0.02), dtype=dtype)
        self.LayerNorm = LayerNorm(width, eps, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.LayerNorm(gelu(self.dense(x)))  # type: ignore[no-any-return]
