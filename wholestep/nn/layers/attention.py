"""Multi-head attention."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from wholestep.compiler.frontend import initializers
from wholestep.compiler.frontend.layers.composites import Switchable, attention
from wholestep.compiler.frontend.shape.sequences import rotary as turn
from wholestep.compiler.frontend.tensor import Operand, Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError, UsageError
from wholestep.nn.layers.linear import Linear, positive, regularize
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import parameter, weight

if TYPE_CHECKING:
    from wholestep.nn.module.regularizers import Regularizer


class MultiHeadAttention(Module):
    """Multi-head attention, softmax(q·kᵀ/√d)·v (arXiv:1706.03762), with PyTorch's names: in_proj_weight, out_proj.

    Args:
        width: features of the input and the output.
        heads: heads of the queries; `width` is divided among them.
        kv_heads: heads of keys and values, if several heads of queries share one (arXiv:2305.13245).
        causal: position i attends only to positions 0 to i.
        rotary: apply rotary position embeddings, `ws.rotary`, to queries and keys.
        dropout: the rate of dropout of the softmax's weights, in training (see `ws.attention`).
        head_width: features of each head; width / heads by default.
        init: the initializer of both weights; by default PyTorch's.
        split: "heads": workers that divide layers, `ws.Workers(model=2)`, have some of the heads each.
        weight_regularizer, activity_regularizer: as for `ws.nn.Linear`.

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
        dropout: float | Switchable = 0.0,
        head_width: int | None = None,
        init: object = None,
        *,
        split: str | bool | None = None,
        weight_regularizer: Regularizer = None,
        activity_regularizer: Regularizer = None,
    ) -> None:
        regularize(self, weight_regularizer, activity_regularizer)
        shared = heads if kv_heads is None else kv_heads
        positive("MultiHeadAttention", width=width, heads=heads, kv_heads=shared)
        if head_width is not None:
            positive("MultiHeadAttention", head_width=head_width)
        elif width % heads:
            fail(
                OptionError,
                f"MultiHeadAttention: a width of {width} does not divide into {heads} heads; choose a multiple of "
                f"{heads}, or say how wide a head is: head_width=.",
            )
        if heads % shared:
            fail(OptionError, f"MultiHeadAttention: {heads} heads cannot share {shared} kv_heads evenly.")
        each = width // heads if head_width is None else head_width
        if rotary and each % 2:
            fail(
                OptionError,
                f"MultiHeadAttention: rotary positions turn pairs of features, but {width} in {heads} heads leaves "
                f"{each} each; choose an even number.",
            )
        self.width, self.heads, self.kv_heads, self.causal, self.rotary = width, heads, shared, causal, rotary
        self.head_width, self.dropout = each, dropout
        rows = (heads + 2 * shared) * each
        self.in_proj_weight = weight((rows, width), initializers.xavier_uniform() if init is None else init, dtype)
        self.in_proj_bias = parameter((rows,), 0.0, dtype) if bias else None
        self.out_proj = Linear(heads * each, width, bias, dtype, init)
        if bias:  # biases start as zeros, as in PyTorch's attention
            self.out_proj.bias = parameter((width,), 0.0, dtype)
        self.split = None if not split else "heads"
        if split:
            # imported here because few layers are split
            from wholestep.nn.wrappers.tensor_parallel import split_attention

            split_attention(self, split)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, mask: Operand | None = None, causal: bool = False
    ) -> Tensor:
        """Attend from x (batch, time, width) to itself, or to `memory`; `causal` overrides the layer's own."""
        if memory is not None and isinstance(mask, Tensor) and mask.shape == memory.shape:
            fail(
                UsageError,
                "MultiHeadAttention was called on three tensors of one shape, as torch's on query, key and value. Keys "
                "and values come from one memory: attention(x), or attention(x, memory); it gives one tensor.",
            )
        for tensor in (x, memory):
            if tensor is not None and (tensor.ndim != 3 or tensor.shape[-1] != self.width):
                expected = f"(batch, time, {self.width})"
                fail(ShapeError, f"MultiHeadAttention takes {expected}; received {shape_text(tensor.shape)}.")
        q, k, v = self._project_qkv(x, memory)
        q, k = (turn(q), turn(k)) if self.rotary else (q, k)
        mixed = attention(
            q, k, v, causal=self.causal or causal, mask=mask, dropout=self.dropout
        )  # (batch, heads, time, head width)
        out: Tensor = self.out_proj(mixed.transpose(1, 2).reshape((*x.shape[:2], self.heads * self.head_width)))
        return out

    def _project_qkv(self, x: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        query_width, shared = self.heads * self.head_width, self.kv_heads * self.head_width
        cuts = (0, query_width, query_width + shared, query_width + 2 * shared)
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
        return x.reshape(batch, time, heads, self.head_width).transpose(1, 2)

    def options(self) -> str:
        shared = "" if self.kv_heads == self.heads else f", kv_heads={self.kv_heads}"
        flags = [f", {name}=True" for name in ("causal", "rotary") if getattr(self, name)]
        head_width = "" if self.head_width * self.heads == self.width else f", head_width={self.head_width}"
        split = "" if self.split is None else f", split={self.split!r}"
        return f"{self.width}, {self.heads}{shared}{head_width}{''.join(flags)}{split}"
