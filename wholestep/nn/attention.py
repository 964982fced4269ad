"""Attention and the transformer block."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from wholestep.compiler.frontend import functions
from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.layers import Switchable, attention
from wholestep.compiler.frontend.sequences import rotary as turn
from wholestep.compiler.frontend.tensor import Operand, Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.nn.basic import Dropout, Linear, positive
from wholestep.nn.module import Module
from wholestep.nn.norms import LayerNorm
from wholestep.nn.parameter import parameter, weight


class MultiHeadAttention(Module):
    """softmax(q·kᵀ/√d)·v in several heads (arXiv:1706.03762), with PyTorch's names: in_proj_weight, out_proj.

    Args:
        width: of the input and the output.
        heads: of the queries; `width` is divided among them.
        kv_heads: of keys and values where several heads of queries share one (arXiv:2305.13245).
        causal: position i sees the positions 0 ... i only.
        rotary: queries and keys know their positions by `ws.rotary`.

    Example: `ws.nn.MultiHeadAttention(128, 4, causal=True)`.
    """

    in_proj_weight: Tensor
    in_proj_bias: Tensor | None

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int | None = None,
        causal: bool = False,
        bias: bool = True,
        dtype: object = "float32",
        rotary: bool = False,
    ) -> None:
        shared = heads if kv_heads is None else kv_heads
        positive("MultiHeadAttention", width=width, heads=heads, kv_heads=shared)
        if width % heads:
            fail(
                OptionError,
                f"MultiHeadAttention: a width of {width} does not divide into {heads} heads; choose a multiple of "
                f"{heads}.",
            )
        if heads % shared:
            fail(OptionError, f"MultiHeadAttention: {heads} heads cannot share {shared} kv_heads evenly.")
        if rotary and width // heads % 2:
            fail(
                OptionError,
                f"MultiHeadAttention: rotary positions turn pairs of features, but {width} in {heads} heads leaves "
                f"{width // heads} each; choose an even number.",
            )
        self.width, self.heads, self.kv_heads, self.causal, self.rotary = width, heads, shared, causal, rotary
        rows = width + 2 * shared * (width // heads)
        self.in_proj_weight = weight((rows, width), init.xavier_uniform(), dtype)
        self.in_proj_bias = parameter((rows,), 0.0, dtype) if bias else None
        self.out_proj = Linear(width, width, bias, dtype)
        if bias:  # zeros, as PyTorch has them here alone
            self.out_proj.bias = parameter((width,), 0.0, dtype)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Operand | None = None) -> Tensor:
        """Attend from x (batch, time, width) to itself, or to `memory` (batch, time', width)."""
        for given in (x, memory):
            if given is not None and (given.ndim != 3 or given.shape[-1] != self.width):
                expected = f"(batch, time, {self.width})"
                fail(ShapeError, f"MultiHeadAttention takes {expected}; received {shape_text(given.shape)}.")
        q, k, v = self._projected(x, memory)
        q, k = (turn(q), turn(k)) if self.rotary else (q, k)
        mixed = attention(q, k, v, causal=self.causal, mask=mask)  # (batch, heads, time, width / heads)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).reshape(x.shape))
        return out

    def _projected(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        shared = self.kv_heads * (self.width // self.heads)
        cuts = (0, self.width, self.width + shared, self.width + 2 * shared)
        if memory is None:
            together = self._project(x, 0, cuts[3])
            q, k, v = (together[..., a:b] for a, b in pairwise(cuts))
        else:
            q, both = self._project(x, 0, cuts[1]), self._project(memory, cuts[1], cuts[3])
            k, v = both[..., :shared], both[..., shared:]
        return self._split(q, self.heads), self._split(k, self.kv_heads), self._split(v, self.kv_heads)

    def _project(self, x: Tensor, first: int, last: int) -> Tensor:
        y = x @ self.in_proj_weight[first:last].T
        return y if self.in_proj_bias is None else y + self.in_proj_bias[first:last]

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """(batch, time, heads · d) -> (batch, heads, time, d)"""
        batch, time, _ = x.shape
        return x.reshape(batch, time, heads, self.width // self.heads).transpose(1, 2)

    def options(self) -> str:
        shared = "" if self.kv_heads == self.heads else f", kv_heads={self.kv_heads}"
        flags = [f", {name}=True" for name in ("causal", "rotary") if getattr(self, name)]
        return f"{self.width}, {self.heads}{shared}{''.join(flags)}"


class TransformerBlock(Module):
    """x + attention(norm(x)), then x + mlp(norm(x)): a pre-norm block under the names of
    `torch.nn.TransformerEncoderLayer(norm_first=True)`.

    Args:
        hidden: width of the inner layer, 4·width unless given.
        dropout: after attention, inside and after the inner layer.

    Example: `ws.nn.TransformerBlock(128, 4, causal=True)`.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int | None = None,
        causal: bool = False,
        dropout: float | Switchable = 0.0,
        activation: Callable[[Tensor], Tensor] = functions.gelu,
        dtype: object = "float32",
    ) -> None:
        inner = 4 * width if hidden is None else hidden
        self.self_attn = MultiHeadAttention(width, heads, causal=causal, dtype=dtype)
        self.linear1, self.linear2 = Linear(width, inner, dtype=dtype), Linear(inner, width, dtype=dtype)
        self.norm1, self.norm2 = LayerNorm(width, dtype=dtype), LayerNorm(width, dtype=dtype)
        self.dropout, self.dropout1, self.dropout2 = Dropout(dropout), Dropout(dropout), Dropout(dropout)
        self.activation = activation

    def forward(self, x: Tensor, mask: Operand | None = None) -> Tensor:
        x = x + self.dropout1(self.self_attn(self.norm1(x), mask=mask))
        inner = self.dropout(self.activation(self.linear1(self.norm2(x))))
        out: Tensor = x + self.dropout2(self.linear2(inner))
        return out
