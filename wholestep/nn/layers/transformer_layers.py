"""PyTorch's transformer layers with its arguments: masks are True where a query may *not* attend."""

from __future__ import annotations

import math
from typing import TypeAlias

from wholestep.compiler.frontend.functions import primitives
from wholestep.compiler.frontend.tensor import Operand, Tensor, as_tensor, where
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import boolean, shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.nn.derived import independent_copies
from wholestep.nn.layers.attention import MultiHeadAttention
from wholestep.nn.layers.linear import Dropout, Linear, positive
from wholestep.nn.layers.normalization import LayerNorm
from wholestep.nn.layers.transformer import Activation, Layered
from wholestep.nn.module.module import Module

Mask: TypeAlias = "Operand | None"


def _activation(op: str, activation: str | Activation) -> Activation:
    activations: dict[str, Activation] = {"relu": primitives.relu, "gelu": primitives.gelu}
    if callable(activation):
        return activation
    if activation not in activations:
        fail(OptionError, f"{op}: activation is 'relu', 'gelu' or a function; received {activation!r}.")
    return activations[activation]


def _open(op: str, x: Tensor, heads: int, mask: Mask, padding: Mask) -> Tensor | None:
    """A mask for `ws.attention`, (batch, heads, time, time): True where a query may attend, or numbers to be added."""
    shown: Tensor | None = None
    if mask is not None:
        tensor = as_tensor(mask)
        shown = ~tensor if tensor.dtype == boolean else tensor
        if tensor.ndim == 3:
            shown = shown.reshape((x.shape[0], heads, *tensor.shape[1:]))
    if padding is None:
        return shown
    keys = as_tensor(padding)
    if keys.ndim != 2:
        fail(ShapeError, f"{op}: a key_padding_mask is (batch, time); received {shape_text(keys.shape)}.")
    hidden = keys.dtype == boolean
    seen = (~keys if hidden else keys).reshape((keys.shape[0], 1, 1, keys.shape[1]))
    if shown is None:
        return seen
    if shown.dtype == boolean and hidden:
        return shown & seen
    numbers = [where(t, 0.0, -math.inf).astype(x.dtype) if t.dtype == boolean else t for t in (shown, seen)]
    return numbers[0] + numbers[1]


class _Layer(Layered):
    """The base class of encoder and decoder layers: their arguments, the norms, the order of axes."""

    has_memory = False  # does it attend to the output of an encoder?

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        dtype: object = "float32",
        *,
        split: str | bool | None = None,
    ) -> None:
        positive(type(self).__name__, width=width, heads=heads, hidden=hidden)
        self.self_attn = MultiHeadAttention(width, heads, bias=bias, dropout=dropout, dtype=dtype, split=split)
        self.linear1 = Linear(width, hidden, bias, dtype, split="columns" if split else None)
        self.linear2 = Linear(hidden, width, bias, dtype, split="rows" if split else None)
        for number in (1, 2, 3) if self.has_memory else (1, 2):
            setattr(self, f"norm{number}", LayerNorm(width, layer_norm_eps, bias, dtype))
            setattr(self, f"dropout{number}", Dropout(dropout))
        self.dropout = Dropout(dropout)
        self.activation = _activation(type(self).__name__, activation)
        self.heads, self.batch_first, self.norm_first = heads, batch_first, norm_first
        if self.has_memory:
            self.multihead_attn = MultiHeadAttention(width, heads, bias=bias, dropout=dropout, dtype=dtype, split=split)

    def _batch_first(self, x: Tensor) -> Tensor:
        return x if self.batch_first else x.transpose(0, 1)


class TransformerEncoderLayer(_Layer):
    """Self-attention and an MLP (arXiv:1706.03762), with the names and arguments of `torch.nn.TransformerEncoderLayer`.
    `ws.nn.TransformerBlock` is the same with the conventions of this library.

    Args:
        hidden: width of the inner layer.
        activation: "relu", "gelu" or a function.
        batch_first: x is (batch, time, width); else (time, batch, width), PyTorch's default.
        split: as for `ws.nn.TransformerBlock`.

    Example: `ws.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)`.
    """

    def forward(
        self, src: Tensor, src_mask: Mask = None, src_key_padding_mask: Mask = None, is_causal: bool = False
    ) -> Tensor:
        """The output of the layer.  Masks are bool, True where a query may not attend, or numbers that are added;
        (time, time), (batch · heads, time, time), and for keys (batch, time).
        """
        x = self._batch_first(src)
        mask = _open("TransformerEncoderLayer", x, self.heads, src_mask, src_key_padding_mask)
        causal = is_causal and src_mask is None
        x = self._add_residual(x, 1, lambda y: self.self_attn(y, mask=mask, causal=causal))
        return self._batch_first(self._add_residual(x, 2, self._inner))


class TransformerDecoderLayer(_Layer):
    """Self-attention, attention to a memory and an MLP (arXiv:1706.03762), with the names and arguments of
    `torch.nn.TransformerDecoderLayer`; see `TransformerEncoderLayer`.

    Example: `ws.nn.TransformerDecoderLayer(64, 4, 128, batch_first=True)`.
    """

    has_memory = True

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
        tgt_key_padding_mask: Mask = None,
        memory_key_padding_mask: Mask = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Tensor:
        """The output of the layer; masks are as for `TransformerEncoderLayer`."""
        x, encoded = self._batch_first(tgt), self._batch_first(memory)
        mask = _open("TransformerDecoderLayer", x, self.heads, tgt_mask, tgt_key_padding_mask)
        cross_mask = _open("TransformerDecoderLayer", x, self.heads, memory_mask, memory_key_padding_mask)
        causal = tgt_is_causal and tgt_mask is None
        cross_causal = memory_is_causal and memory_mask is None
        x = self._add_residual(x, 1, lambda y: self.self_attn(y, mask=mask, causal=causal))
        x = self._add_residual(x, 2, lambda y: self.multihead_attn(y, encoded, cross_mask, causal=cross_causal))
        return self._batch_first(self._add_residual(x, 3, self._inner))


class _Stack(Module):
    def __init__(self, layer: Module, layers: int, norm: Module | None = None) -> None:
        positive(type(self).__name__, layers=layers)
        self.layers = independent_copies(layer, layers)
        self.norm = norm

    def _behind(self, x: Tensor) -> Tensor:
        return x if self.norm is None else self.norm(x)


class TransformerEncoder(_Stack):
    """A stack of copies of an encoder layer, and a norm after the last if one is given.

    Example: `ws.nn.TransformerEncoder(ws.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True), 2)`.
    """

    def forward(
        self, src: Tensor, mask: Mask = None, src_key_padding_mask: Mask = None, is_causal: bool | None = None
    ) -> Tensor:
        for layer in self.layers:
            src = layer(src, mask, src_key_padding_mask, bool(is_causal))
        return self._behind(src)


class TransformerDecoder(_Stack):
    """A stack of copies of a decoder layer, each with the same memory, and a norm after the last.

    Example: `ws.nn.TransformerDecoder(ws.nn.TransformerDecoderLayer(64, 4, 128, batch_first=True), 2)`.
    """

    def forward(
        self,
        tgt: Tensor,
        memory: Tensor,
        tgt_mask: Mask = None,
        memory_mask: Mask = None,
        tgt_key_padding_mask: Mask = None,
        memory_key_padding_mask: Mask = None,
        tgt_is_causal: bool | None = None,
        memory_is_causal: bool = False,
    ) -> Tensor:
        masks = (tgt_mask, memory_mask, tgt_key_padding_mask, memory_key_padding_mask)
        for layer in self.layers:
            tgt = layer(tgt, memory, *masks, bool(tgt_is_causal), memory_is_causal)
        return self._behind(tgt)
