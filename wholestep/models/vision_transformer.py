"""ViT: "An image is worth 16x16 words: Transformers for image recognition at scale", Dosovitskiy et al. 2020
(arXiv:2010.11929).

Parameters are named and shaped as in the published checkpoints: `vit.encoder.layer.0.attention.attention.query.weight`.
"""

from __future__ import annotations

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.functions.primitives import concat, gelu
from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import OptionError, ShapeError
from wholestep.models.bert_model import BertLayers, SelfAttention, sizes_of
from wholestep.nn import Conv2d, Dropout, LayerNorm, Linear, Module
from wholestep.nn.layers.linear import positive
from wholestep.nn.module.parameter import parameter

SIZES = {  # name: layers, width, heads, inner width
    "vit-tiny": (12, 192, 3, 768),
    "vit-small": (12, 384, 6, 1536),
    "vit-base": (12, 768, 12, 3072),
    "vit-large": (24, 1024, 16, 4096),
}


def vit(
    size: str = "vit-base",
    *,
    classes: int = 1000,
    image: int = 224,
    patch: int = 16,
    channels: int = 3,
    layers: int | None = None,
    width: int | None = None,
    heads: int | None = None,
    hidden: int | None = None,
    dropout: float | Switchable = 0.0,
    eps: float = 1e-12,
    dtype: object = "float32",
) -> ViT:
    """ViT of a published size ("vit-tiny", "vit-small", "vit-base", "vit-large") or of any other.

    Args:
        image, patch: sides of the images, and of the squares that become words.
        hidden: width of the inner layer; 4·width if only the width is given.

    Example: `ws.models.vit(classes=10, image=32, patch=8, layers=2, width=64, heads=4)`.
    """
    sizes = sizes_of("vit", SIZES, size, layers, width, heads, hidden)
    return ViT(*sizes, classes, image, patch, channels, dropout, eps, dtype)


class ViT(Module):
    """Images (batch, channels, image, image) -> scores (batch, classes)."""

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        hidden: int,
        classes: int,
        image: int,
        patch: int,
        channels: int,
        dropout: float | Switchable,
        eps: float,
        dtype: object,
    ) -> None:
        positive(
            "vit", layers=layers, width=width, heads=heads, hidden=hidden, classes=classes, image=image, patch=patch
        )
        if image % patch:
            fail(OptionError, f"vit: images of {image} x {image} do not divide into patches of {patch} x {patch}.")
        self.vit = ViTEncoder(
            ViTEmbeddings(width, image, patch, channels, dropout, dtype),
            BertLayers([ViTBlock(width, heads, hidden, dropout, eps, dtype) for _ in range(layers)]),
            LayerNorm(width, eps, dtype=dtype),
        )
        self.classifier = Linear(width, classes, init=init.trunc_normal(std=0.02), dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.classifier(self.vit(x)[:, 0])
        return scores


class ViTEncoder(Module):
    """Maps images to hidden vectors (batch, 1 + patches, width); the first vector belongs to the class token."""

    def __init__(self, embeddings: ViTEmbeddings, encoder: BertLayers, layernorm: LayerNorm) -> None:
        self.embeddings, self.encoder, self.layernorm = embeddings, encoder, layernorm

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layernorm(self.encoder(self.embeddings(x)))
        return out


class ViTEmbeddings(Module):
    """The embeddings of the class token and of the patches, plus position embeddings."""

    cls_token: Tensor
    position_embeddings: Tensor

    def __init__(
        self, width: int, image: int, patch: int, channels: int, dropout: float | Switchable, dtype: object
    ) -> None:
        self.image, self.channels, self.count = image, channels, (image // patch) ** 2
        start = init.trunc_normal(std=0.02)
        self.cls_token = parameter((1, 1, width), start, dtype)
        self.position_embeddings = parameter((1, self.count + 1, width), start, dtype)
        self.patch_embeddings = Patches(channels, width, patch, dtype)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1:] != (self.channels, self.image, self.image):
            takes = f"(batch, {self.channels}, {self.image}, {self.image})"
            fail(ShapeError, f"vit takes images {takes}; received {shape_text(x.shape)}. Resize them: ws.interpolate.")
        words = self.patch_embeddings(x)
        batch, _, width = words.shape
        together = concat([self.cls_token.expand(batch, 1, width), words], 1)
        out: Tensor = self.dropout(together + self.position_embeddings)
        return out


class Patches(Module):
    """The patch embedding: (batch, channels, H, W) -> (batch, patches, width)."""

    def __init__(self, channels: int, width: int, patch: int, dtype: object) -> None:
        self.projection = Conv2d(channels, width, patch, stride=patch, init=init.trunc_normal(std=0.02), dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        y = self.projection(x)
        return y.reshape((*y.shape[:2], y.shape[2] * y.shape[3])).transpose(1, 2)  # type: ignore[no-any-return]


class ViTBlock(Module):
    """x + attention(norm(x)), then x + mlp(norm(x))"""

    def __init__(
        self, width: int, heads: int, hidden: int, dropout: float | Switchable, eps: float, dtype: object
    ) -> None:
        start = init.trunc_normal(std=0.02)
        self.attention = ViTAttention(width, heads, dropout, start, dtype)
        self.intermediate = Dense(width, hidden, 0.0, start, dtype)
        self.output = Dense(hidden, width, dropout, start, dtype)
        self.layernorm_before, self.layernorm_after = (LayerNorm(width, eps, dtype=dtype) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.layernorm_before(x))
        return x + self.output(gelu(self.intermediate(self.layernorm_after(x))))  # type: ignore[no-any-return]


class ViTAttention(Module):
    """Self-attention over all patches."""

    def __init__(self, width: int, heads: int, dropout: float | Switchable, start: object, dtype: object) -> None:
        self.attention = SelfAttention("vit", width, heads, 0.0, start, dtype)
        self.output = Dense(width, width, dropout, start, dtype)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.attention(x))  # type: ignore[no-any-return]


class Dense(Module):
    """A linear layer followed by dropout."""

    def __init__(self, inputs: int, outputs: int, dropout: float | Switchable, start: object, dtype: object) -> None:
        self.dense, self.dropout = Linear(inputs, outputs, init=start, dtype=dtype), Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.dense(x))  # type: ignore[no-any-return]
