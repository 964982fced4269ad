"""Transformer blocks, pre-norm or post-norm, and stacks of them, under PyTorch's names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wholestep.compiler.frontend.functions import primitives
from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.compiler.frontend.tensor import Operand, Tensor
from wholestep.nn.layers.attention import MultiHeadAttention
from wholestep.nn.layers.linear import Dropout, Linear, positive
from wholestep.nn.layers.normalization import LayerNorm
from wholestep.nn.module.module import Module

Activation = Callable[[Tensor], Tensor]


class Layered(Module):
    """The base class of transformer layers: the MLP and the residual connections."""

    linear1: Linear
    linear2: Linear
    dropout: Dropout
    activation: Activation
    norm_first: bool

    def _inner(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear2(self.dropout(self.activation(self.linear1(x))))
        return out

    def _add_residual(self, x: Tensor, number: int, part: Callable[[Tensor], Tensor]) -> Tensor:
        """x plus a sublayer of it, with the norm before the sublayer or after the sum."""
        norm: Any = getattr(self, f"norm{number}")
        drop: Any = getattr(self, f"dropout{number}")
        out: Tensor = x + drop(part(norm(x))) if self.norm_first else norm(x + drop(part(x)))
        return out


class _Block(Layered):
    """The base class of blocks with this library's conventions; `TransformerBlock` documents the arguments."""

    has_memory = False  # does it attend to the output of another stack?

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int | None = None,
        causal: bool = False,
        dropout: float | Switchable = 0.0,
        activation: Activation = primitives.gelu,
        dtype: object = "float32",
        norm_first: bool = True,
        attention_dropout: float | Switchable = 0.0,
        init: object = None,
        split: str | bool | None = None,
    ) -> None:
        inner = 4 * width if hidden is None else hidden
        self.self_attn = MultiHeadAttention(
            width, heads, causal=causal, dtype=dtype, dropout=attention_dropout, init=init, split=split
        )
        if self.has_memory:
            self.multihead_attn = MultiHeadAttention(
                width, heads, dtype=dtype, dropout=attention_dropout, init=init, split=split
            )
        self.linear1 = Linear(width, inner, dtype=dtype, init=init, split="columns" if split else None)
        self.linear2 = Linear(inner, width, dtype=dtype, init=init, split="rows" if split else None)
        parts = 3 if self.has_memory else 2
        for number in range(1, parts + 1):
            setattr(self, f"norm{number}", LayerNorm(width, dtype=dtype))
        self.dropout = Dropout(dropout)
        for number in range(1, parts + 1):
            setattr(self, f"dropout{number}", Dropout(dropout))
        self.activation, self.norm_first = activation, norm_first


class TransformerBlock(_Block):
    """A transformer block, pre-norm (arXiv:2002.04745): x + attention(norm(x)), then x + mlp(norm(x)); or post-norm as
    first published (arXiv:1706.03762): norm(x + attention(x)), then norm(x + mlp(x)).

    Names are those of `torch.nn.TransformerEncoderLayer`.

    Args:
        hidden: width of the inner layer, 4·width unless given.
        dropout: after attention, inside and after the inner layer.
        norm_first: norms are before the sublayers, rather than after the sums.
        attention_dropout: the rate of dropout of the softmax's weights (see `ws.attention`).
        init: the initializer of all weights; by default PyTorch's.
        split: "heads": workers that divide layers, `ws.Workers(model=2)`, have some of the heads and some of the inner
            layer's features each.

    Example: `ws.nn.TransformerBlock(128, 4, causal=True)`.
    """

    def forward(self, x: Tensor, mask: Operand | None = None) -> Tensor:
        """The output of the block for x (batch, time, width); `mask` is as for `ws.attention`."""
        x = self._add_residual(x, 1, lambda y: self.self_attn(y, mask=mask))
        return self._add_residual(x, 2, self._inner)


class TransformerDecoderBlock(_Block):
    """A decoder block: self-attention, attention to a memory, and an MLP (arXiv:1706.03762).

    Names are those of `torch.nn.TransformerDecoderLayer`; the arguments are those of `TransformerBlock`, but that it is
    causal and has its norms after the sums by default.

    Example: `ws.nn.TransformerDecoderBlock(128, 4)(x, memory)`.
    """

    has_memory = True

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int | None = None,
        causal: bool = True,
        dropout: float | Switchable = 0.0,
        activation: Activation = primitives.relu,
        dtype: object = "float32",
        norm_first: bool = False,
        attention_dropout: float | Switchable = 0.0,
        init: object = None,
        split: str | bool | None = None,
    ) -> None:
        how = (dropout, activation, dtype, norm_first, attention_dropout, init, split)
        super().__init__(width, heads, hidden, causal, *how)

    def forward(
        self, x: Tensor, memory: Tensor, mask: Operand | None = None, memory_mask: Operand | None = None
    ) -> Tensor:
        """The output for x (batch, time, width) and memory (batch, time', width); masks are as for `ws.attention`."""
        x = self._add_residual(x, 1, lambda y: self.self_attn(y, mask=mask))
        x = self._add_residual(x, 2, lambda y: self.multihead_attn(y, memory, memory_mask))
        return self._add_residual(x, 3, self._inner)


class Transformer(Module):
    """An encoder and a decoder (arXiv:1706.03762): maps (source, target) to the decoder's output.

    Both take vectors, (batch, time, width), as `torch.nn.Transformer(batch_first=True)` does, whose names it has;
    embeddings, positions and the scores of words are the model's around it.  A position of the target attends only to
    itself and earlier ones.

    Args:
        encoder_layers, decoder_layers: the number of blocks.
        dropout, activation, norm_first, attention_dropout, init, split: as for `TransformerBlock`.

    Example: `ws.nn.Transformer(64, 4, encoder_layers=2, decoder_layers=2)(source, target)`.
    """

    def __init__(
        self,
        width: int = 512,
        heads: int = 8,
        encoder_layers: int = 6,
        decoder_layers: int = 6,
        hidden: int | None = None,
        dropout: float | Switchable = 0.1,
        activation: Activation = primitives.relu,
        dtype: object = "float32",
        norm_first: bool = False,
        attention_dropout: float | Switchable = 0.0,
        init: object = None,
        split: str | bool | None = None,
    ) -> None:
        positive("Transformer", encoder_layers=encoder_layers, decoder_layers=decoder_layers)
        how = (dropout, activation, dtype, norm_first, attention_dropout, init, split)
        encoders = [TransformerBlock(width, heads, hidden, False, *how) for _ in range(encoder_layers)]
        decoders = [TransformerDecoderBlock(width, heads, hidden, True, *how) for _ in range(decoder_layers)]
        self.encoder, self.decoder = Stack(encoders, width, dtype), Stack(decoders, width, dtype)

    def forward(
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Operand | None = None,
        target_mask: Operand | None = None,
        memory_mask: Operand | None = None,
    ) -> Tensor:
        """The decoder's output; masks are as for `ws.attention`: True where a query may attend."""
        memory = self.encoder(source, mask=source_mask)
        out: Tensor = self.decoder(target, memory, mask=target_mask, memory_mask=memory_mask)
        return out


class Stack(Module):
    """A stack of blocks, all with the same memory and masks, and a norm after the last."""

    def __init__(self, layers: Sequence[Module], width: int, dtype: object) -> None:
        self.layers, self.norm = list(layers), LayerNorm(width, dtype=dtype)

    def forward(self, x: Tensor, *memory: Tensor, **masks: Operand | None) -> Tensor:
        for layer in self.layers:
            x = layer(x, *memory, **masks)
        out: Tensor = self.norm(x)
        return out
