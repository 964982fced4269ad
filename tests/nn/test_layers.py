"""Every layer against torch's: same names and shapes of weights, same values, same gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import wholestep as ws
from tests.nn.twins import assert_twins

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 12))
SEQUENCE = RNG.normal(size=(3, 7, 16))
IMAGES = RNG.normal(size=(2, 8, 5, 3))


class TorchSwiGLU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return nn.functional.silu(a) * b


class TorchSelfAttention(nn.MultiheadAttention):
    def __init__(self, causal: bool) -> None:
        super().__init__(16, 4, batch_first=True)
        self.mask = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, x, x, need_weights=False, attn_mask=self.mask)[0]


class TorchRotaryAttention(nn.MultiheadAttention):
    """Positions as complex numbers on the unit circle, multiplied with pairs (i, i + d/2) as complex numbers."""

    def __init__(self) -> None:
        super().__init__(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        heads = (x @ self.in_proj_weight.T + self.in_proj_bias).reshape(3, 7, 3, 4, 4).permute(2, 0, 3, 1, 4)
        angles = torch.outer(torch.arange(7), 10000.0 ** (-torch.arange(0, 4, 2) / 4.0).double())
        turn = torch.polar(torch.ones_like(angles), angles).to(torch.complex128)

        def turned(h: torch.Tensor) -> torch.Tensor:
            z = torch.complex(*h.chunk(2, -1)) * turn
            return torch.cat([z.real, z.imag], -1).to(h.dtype)

        mixed = nn.functional.scaled_dot_product_attention(turned(heads[0]), turned(heads[1]), heads[2], is_causal=True)
        out: torch.Tensor = self.out_proj(mixed.transpose(1, 2).reshape(x.shape))
        return out


class TorchCausalBlock(nn.TransformerEncoderLayer):
    def __init__(self) -> None:
        super().__init__(16, 4, 64, 0.0, nn.functional.gelu, batch_first=True, norm_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(x, src_mask=torch.ones(7, 7, dtype=torch.bool).triu(1))


class TorchCosines(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.cosine_similarity(x[:, None], self.weight, dim=-1)


LAYERS: dict[str, tuple[Callable[[], ws.nn.Module], Callable[[], nn.Module], np.ndarray]] = {
    "linear": (lambda: ws.nn.Linear(12, 7), lambda: nn.Linear(12, 7), X),
    "linear without bias": (lambda: ws.nn.Linear(16, 3, bias=False), lambda: nn.Linear(16, 3, bias=False), SEQUENCE),
    "cosines": (lambda: ws.nn.CosineLinear(12, 7), lambda: TorchCosines(12, 7, bias=False), X),
    "embedding": (lambda: ws.nn.Embedding(9, 4), lambda: nn.Embedding(9, 4), RNG.integers(0, 9, (3, 6))),
    "layer norm": (lambda: ws.nn.LayerNorm(12), lambda: nn.LayerNorm(12), X),
    "layer norm of two axes": (lambda: ws.nn.LayerNorm((5, 3)), lambda: nn.LayerNorm((5, 3)), IMAGES),
    "rms norm": (lambda: ws.nn.RMSNorm(12), lambda: nn.RMSNorm(12), X),
    "group norm": (lambda: ws.nn.GroupNorm(2, 8), lambda: nn.GroupNorm(2, 8), IMAGES),
    "conv2d": (lambda: ws.nn.Conv2d(8, 4, 3, padding=1), lambda: nn.Conv2d(8, 4, 3, padding=1), IMAGES),
    "conv2d, everything else": (
        lambda: ws.nn.Conv2d(8, 6, (3, 2), (2, 1), (2, 1), dilation=(2, 1), groups=2, bias=False),
        lambda: nn.Conv2d(8, 6, (3, 2), (2, 1), (2, 1), dilation=(2, 1), groups=2, bias=False),
        IMAGES,
    ),
    "conv1d": (lambda: ws.nn.Conv1d(7, 5, 3, 2, 1), lambda: nn.Conv1d(7, 5, 3, 2, 1), SEQUENCE),
    "max pool": (lambda: ws.nn.MaxPool2d(2), lambda: nn.MaxPool2d(2), IMAGES),
    "max pool, overlapping": (lambda: ws.nn.MaxPool2d(3, 2, 1), lambda: nn.MaxPool2d(3, 2, 1), IMAGES),
    "average pool": (lambda: ws.nn.AvgPool2d((2, 3), 1, 1), lambda: nn.AvgPool2d((2, 3), 1, 1), IMAGES),
    "global average pool": (
        ws.nn.GlobalAvgPool2d, lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten()), IMAGES
    ),
    "global average pool of signals": (
        ws.nn.GlobalAvgPool1d, lambda: nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten()), SEQUENCE
    ),
    "global max pool of signals": (
        ws.nn.GlobalMaxPool1d, lambda: nn.Sequential(nn.AdaptiveMaxPool1d(1), nn.Flatten()), SEQUENCE
    ),
    "global max pool": (ws.nn.GlobalMaxPool2d, lambda: nn.Sequential(nn.AdaptiveMaxPool2d(1), nn.Flatten()), IMAGES),
    "pool of sequences": (
        lambda: ws.nn.Sequential(ws.nn.Lambda(lambda x: x.transpose(1, 2)), ws.nn.SequencePool("mean")),
        lambda: nn.Sequential(nn.AdaptiveAvgPool1d(1), nn.Flatten()),
        SEQUENCE,
    ),
    "zero pad of signals": (lambda: ws.nn.ZeroPad1d((2, 1)), lambda: nn.ZeroPad1d((2, 1)), SEQUENCE),
    "zero pad": (lambda: ws.nn.ZeroPad2d((1, 0, 2, 1)), lambda: nn.ZeroPad2d((1, 0, 2, 1)), IMAGES),
    "reflection pad of signals": (lambda: ws.nn.ReflectionPad1d(2), lambda: nn.ReflectionPad1d(2), SEQUENCE),
    "replication pad of signals": (lambda: ws.nn.ReplicationPad1d(2), lambda: nn.ReplicationPad1d(2), SEQUENCE),
    "replication pad": (lambda: ws.nn.ReplicationPad2d(1), lambda: nn.ReplicationPad2d(1), IMAGES),
    "circular pad of signals": (lambda: ws.nn.CircularPad1d(2), lambda: nn.CircularPad1d(2), SEQUENCE),
    "circular pad": (lambda: ws.nn.CircularPad2d(1), lambda: nn.CircularPad2d(1), IMAGES),
    "batch norm of rows": (lambda: ws.nn.BatchNorm1d(12), lambda: nn.BatchNorm1d(12), X),
    "batch norm of signals": (lambda: ws.nn.BatchNorm1d(7, eps=0.1), lambda: nn.BatchNorm1d(7, eps=0.1), SEQUENCE),
    "batch norm of images": (lambda: ws.nn.BatchNorm2d(8), lambda: nn.BatchNorm2d(8), IMAGES),
    "batch norm, plain": (
        lambda: ws.nn.BatchNorm2d(8, affine=False, track_running_stats=False),
        lambda: nn.BatchNorm2d(8, affine=False, track_running_stats=False),
        IMAGES,
    ),
    "flatten": (ws.nn.Flatten, nn.Flatten, IMAGES),
    "relu": (ws.nn.ReLU, nn.ReLU, X),
    "leaky relu": (lambda: ws.nn.LeakyReLU(0.2), lambda: nn.LeakyReLU(0.2), X),
    "elu": (lambda: ws.nn.ELU(1.5), lambda: nn.ELU(1.5), X),
    "gelu": (ws.nn.GELU, nn.GELU, X),
    "gelu by tanh": (lambda: ws.nn.GELU("tanh"), lambda: nn.GELU("tanh"), X),
    "silu": (ws.nn.SiLU, nn.SiLU, X),
    "mish": (ws.nn.Mish, nn.Mish, X),
    "softplus": (ws.nn.Softplus, lambda: nn.Softplus(threshold=1e9), X),
    "hardswish": (ws.nn.Hardswish, nn.Hardswish, 3.0 * X),
    "swiglu": (ws.nn.SwiGLU, TorchSwiGLU, X),
    "tanh": (ws.nn.Tanh, nn.Tanh, X),
    "sigmoid": (ws.nn.Sigmoid, nn.Sigmoid, X),
    "softmax": (ws.nn.Softmax, lambda: nn.Softmax(-1), X),
    "attention": (lambda: ws.nn.MultiHeadAttention(16, 4), lambda: TorchSelfAttention(False), SEQUENCE),
    "causal attention": (
        lambda: ws.nn.MultiHeadAttention(16, 4, causal=True), lambda: TorchSelfAttention(True), SEQUENCE
    ),
    "rotary attention": (
        lambda: ws.nn.MultiHeadAttention(16, 4, causal=True, rotary=True), TorchRotaryAttention, SEQUENCE
    ),
    "transformer block": (lambda: ws.nn.TransformerBlock(16, 4, causal=True), TorchCausalBlock, SEQUENCE),
    "sequential": (
        lambda: ws.nn.Sequential(ws.nn.Linear(12, 8), ws.nn.ReLU(), ws.nn.Linear(8, 3)),
        lambda: nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)),
        X,
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layer_equals_torchs(layer: str, dtype: str) -> None:
    torch.manual_seed(0)
    ours, theirs, x = LAYERS[layer]
    assert_twins(ours(), theirs(), [x], dtype)


@pytest.mark.parametrize("name", ["CosineSimilarity", "PairwiseDistance"])
def test_a_layer_of_two_inputs_equals_torchs(name: str) -> None:
    assert_twins(getattr(ws.nn, name)(), getattr(nn, name)(), (X, X[::-1].copy()), "float64")


def test_a_printed_activation_shows_its_arguments() -> None:
    assert repr(ws.nn.Threshold(0.1, 2.0)) == "Threshold(threshold=0.1, value=2.0)"
    assert repr(ws.nn.Softmax(1)) == "Softmax(axis=1)"
    assert repr(ws.nn.ELU(1.5)) == "ELU(1.5)"
    assert repr(ws.nn.Tanh()) == "Tanh()"


def test_extremes_of_softplus_and_elu_stay_finite() -> None:
    x = np.array([[-1e4, -50.0, 0.0, 50.0, 1e4]], np.float32)
    for layer, expected in [(ws.nn.Softplus(), nn.Softplus()), (ws.nn.ELU(), nn.ELU())]:
        np.testing.assert_allclose(layer(x), expected(torch.tensor(x)).numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: ws.nn.Linear(0, 3), "Linear: inputs must be an integer of at least 1; received 0"),
        (lambda: ws.nn.MultiHeadAttention(10, 3), "a width of 10 does not divide into 3 heads"),
        (lambda: ws.nn.MultiHeadAttention(12, 4, kv_heads=3), "4 heads cannot share 3 kv_heads evenly"),
        (lambda: ws.nn.Conv2d(1, 2, stride=3), r"Conv2d lacks kernel: write Conv2d\(inputs, outputs, kernel\)"),
        (lambda: ws.nn.Conv1d(1, 2, 3, inputs=4), "Conv1d: inputs was given by position and by name; give it once"),
        (lambda: ws.nn.GroupNorm(3, 8), "8 channels do not divide into 3 groups"),
        (lambda: ws.nn.Dropout(1.5), "p must be a probability, between 0 and 1; received 1.5"),
        (lambda: ws.nn.Sequential(ws.relu), "Sequential takes modules; .* ws.nn.Lambda"),
        (lambda: ws.nn.Linear(3, 2)(X), "takes 3 features on the last axis; received"),
        (lambda: ws.nn.Linear(4, 2)(IMAGES), "Flatten it first: ws.nn.Flatten"),
        (lambda: ws.nn.Embedding(3, 2)(X), "Embedding looks up integers"),
        (lambda: ws.nn.MultiHeadAttention(12, 4)(X), r"takes \(batch, time, 12\); received \(batch, 12\)"),
        (lambda: ws.nn.Residual(ws.nn.Linear(12, 3))(X), "their shapes must agree. Give shortcut="),
        (lambda: ws.swiglu(ws.Graph().input("x", (2, 3))), "swiglu splits the last axis into halves"),
    ],
)
def test_errors_teach(make: Callable[[], object], text: str) -> None:
    with pytest.raises(ws.errors.WholestepError, match=text):
        make()
