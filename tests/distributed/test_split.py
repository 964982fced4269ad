"""Layers divided among ranks: the step of one rank of the model axis means what the whole step means."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wholestep as ws
from tests.distributed.support.split_steps import BATCH, check, traced
from wholestep.compiler.frontend.precision import as_precision
from wholestep.compiler.ir.types import Dim
from wholestep.errors import OptionError
from wholestep.steps.options import as_loss_scale

nn = ws.nn
TIME = 5
RNG = np.random.default_rng(0)
VECTORS = RNG.standard_normal((BATCH, 8)).astype(np.float32)
SEQUENCES = RNG.standard_normal((BATCH, TIME, 12)).astype(np.float32)
LABELS = RNG.integers(0, 6, BATCH).astype(np.int32)
TOKENS = RNG.integers(0, 40, (BATCH, TIME + 1)).astype(np.int32)
TEXT = TOKENS[:, :-1], TOKENS[:, 1:]
B = Dim.symbol("batch")


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 12, split="columns"), nn.GELU(), nn.Linear(12, 6, split="rows"))


def gpt(**options: Any) -> nn.Module:
    sizes = {"layers": 1, "width": 12, "heads": 6, "vocabulary": 40, "context": TIME}
    return ws.models.gpt2(**{**sizes, "split": True, **options})


class Decoder(nn.Module):
    """Attention to itself and to a memory, and scores of classes that no rank has all of."""

    def __init__(self) -> None:
        self.block = nn.TransformerDecoderBlock(12, 6, 24, dropout=0.1, attention_dropout=0.2, split="heads")
        self.scores = nn.Linear(12, 6, split="columns")

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        scores: ws.Tensor = self.scores(self.block(x, x * 0.5))
        return scores.mean(1)


class Encoder(nn.Module):
    """Time before the batch, as PyTorch has it; rotary heads behind."""

    def __init__(self) -> None:
        self.block = nn.TransformerEncoderLayer(12, 6, 24, split="heads", batch_first=True)
        self.turned = nn.MultiHeadAttention(12, 6, rotary=True, causal=True, split="heads", bias=False)
        self.scores = nn.Linear(12, 6)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        x = self.block(x)
        scores: ws.Tensor = self.scores(self.turned(x))
        return scores.mean(1)


class Odd(nn.Module):
    """A marking that is of little use: norms, maxima, softmax, slices and products along what is divided."""

    def __init__(self) -> None:
        self.up, self.middle = nn.Linear(8, 12, split="columns"), nn.Linear(12, 12, split="columns")
        self.norm, self.batch_norm, self.scores = nn.LayerNorm(12), nn.BatchNorm1d(12), nn.Linear(12, 6)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        h = self.batch_norm(self.norm(self.up(x)))
        h = ws.softmax(h, axis=-1) + h.max(axis=1, keepdims=True) + ws.concat([h[:, :5], h[:, 5:]], axis=1)
        h = ws.tanh(self.middle(h))
        largest = ws.argmax(h, axis=1).astype("float32").reshape(-1, 1)
        scores: ws.Tensor = self.scores(h.reshape(-1, 3, 4).transpose(1, 2).reshape(-1, 12) + largest)
        return scores


class Looped(nn.Module):
    """A recurrent layer and a convolution, which have no rule: they are given whole values."""

    def __init__(self) -> None:
        self.up, self.loop, self.filter = (
            nn.Linear(12, 12, split="columns"),
            nn.LSTM(12, 12, batch_first=True),
            nn.Conv1d(TIME, 6, 3),
        )
        self.down = nn.Linear(60, 6, split="rows")

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        out = self.loop(self.up(x))
        x = self.filter(out[0] if isinstance(out, tuple) else out)
        scores: ws.Tensor = self.down(x.reshape(-1, 60))
        return scores


def llama() -> nn.Module:
    """Twelve heads share six of keys and values."""
    sizes = {"layers": 1, "width": 24, "heads": 12, "kv_heads": 6, "hidden": 12, "vocabulary": 40, "context": TIME}
    return ws.models.llama(**sizes, split=True)


class Grouped(nn.Module):
    """Twelve heads of queries share fewer of keys and values, in one matrix: to themselves, and to a memory."""

    def __init__(self, kv_heads: int = 6) -> None:
        self.up = nn.Linear(12, 24)
        self.attention = nn.MultiHeadAttention(24, 12, kv_heads=kv_heads, causal=True, rotary=True, split="heads")
        self.beside = nn.MultiHeadAttention(24, 12, kv_heads=kv_heads, split="heads", bias=False)
        self.scores = nn.Linear(24, 6)

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        h = self.up(x)
        h = h + self.attention(h)
        scores: ws.Tensor = self.scores(h + self.beside(h, ws.tanh(h)))
        return scores.mean(1)


def adapted() -> nn.Module:
    model = gpt()
    nn.lora(model, rank=2)
    return model


MUON = ws.Muon(lr=1e-2, groups=[ws.Group(ndim=(0, 1), name="rest", optimizer=ws.AdamW())])
CASES: dict[str, tuple[Any, tuple[Any, Any], dict[str, Any]]] = {
    "columns and rows": (perceptron, (VECTORS, LABELS), {"clip_norm": 0.5}),
    "momentum": (perceptron, (VECTORS, LABELS), {"optimizer": ws.SGD(lr=0.1, momentum=0.9)}),
    "rows and columns of moments": (perceptron, (VECTORS, LABELS), {"optimizer": "adafactor"}),
    "norms of layers": (perceptron, (VECTORS, LABELS), {"optimizer": ws.LAMB()}),
    "products of moments": (perceptron, (VECTORS, LABELS), {"optimizer": MUON}),
    "averages": (perceptron, (VECTORS, LABELS), {"optimizer": ws.optim.EMA(ws.AdamW(lr=1e-2), 0.9)}),
    "micro-batches": (perceptron, (VECTORS, LABELS), {"accumulate": 2, "clip_norm": 0.5}),
    "a step that may be refused": (gpt, TEXT, {"clip_norm": 0.5, "nonfinite": "skip"}),
    "tied weights and dropout": (lambda: gpt(dropout=0.2), TEXT, {"clip_norm": 0.1}),
    "shared keys": (llama, TEXT, {}),
    "adapters": (adapted, TEXT, {"clip_norm": 0.1}),
    "decoder": (Decoder, (SEQUENCES, LABELS), {}),
    "encoder": (Encoder, (SEQUENCES, LABELS), {}),
    "heads that share keys, in one matrix": (Grouped, (SEQUENCES, LABELS), {"clip_norm": 0.5}),
    "of little use": (Odd, (VECTORS, LABELS), {}),
    "without a rule": (Looped, (SEQUENCES, LABELS), {}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("data", "model"), [(1, 3), (2, 2)])
def test_a_step_whose_layers_are_divided_means_what_the_whole_one_means(case: str, data: int, model: int) -> None:
    make, given, options = CASES[case]
    check(traced(make, given, data=data, model=model, **options), given)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_half_products_are_summed_before_they_are_rounded(half: str) -> None:
    """What ranks exchange is float32; the results are those of one process but where a sum lies between two numbers."""
    kind = as_precision(half)
    steps = traced(gpt, TEXT, model=2, clip_norm=0.5, precision=kind, loss_scale=as_loss_scale(None, kind))
    assert {shape for op, axis, shape in steps.exchanged} == {(B, TIME, 12), ()}
    check(steps, TEXT, rtol=1e-2)


def test_a_block_is_two_sums_forward_and_two_backward() -> None:
    """Megatron's pattern (arXiv:1909.08053): nothing else crosses but single numbers of the norm."""
    for layers in (1, 2):
        found = traced(lambda n=layers: gpt(layers=n), TEXT, model=2).exchanged
        assert found == {("all_reduce", "model", (B, TIME, 12)): 4 * layers}
    found = traced(gpt, TEXT, model=2, clip_norm=1.0).exchanged
    assert found == {("all_reduce", "model", (B, TIME, 12)): 4, ("all_reduce", "model", ()): 6}


def test_heads_that_share_keys_are_with_them() -> None:
    """Also where queries, keys and values are blocks of one matrix, of different widths."""
    assert traced(llama, TEXT, model=2).exchanged == {("all_reduce", "model", (B, TIME, 24)): 4}
    given = SEQUENCES, LABELS
    assert traced(Grouped, given, model=2).exchanged == {("all_reduce", "model", (B, TIME, 24)): 5}


def test_parts_of_layers_have_their_optimizers_state_divided_too() -> None:
    """ZeRO-1 of what is divided already: a moment of (64, 32) is (32, 32) here, and a rank has 16 columns."""

    def wide() -> nn.Module:
        return nn.Sequential(nn.Linear(32, 64, split="columns"), nn.ReLU(), nn.Linear(64, 6, split="rows"))

    given = RNG.standard_normal((BATCH, 32)).astype(np.float32), LABELS
    steps = traced(wide, given, data=2, model=2, zero=True, clip_norm=0.5)
    assert {name: d.shape for name, d in steps.divisions.items() if name.startswith("0.weight")} == {
        "0.weight": (32, 32),
        "0.weight.adam.m": (16, 32),
        "0.weight.adam.v": (16, 32),
    }
    check(steps, given)


@pytest.mark.parametrize(
    ("make", "ranks", "told"),
    [
        (
            lambda: nn.Linear(8, 9, split="columns"),
            2,
            r"Linear\(8, 9\): the 9 outputs of 'weight' do not divide among 2",
        ),
        (lambda: nn.Linear(8, 6, split="rows"), 3, r"the 8 inputs of 'weight' do not divide among 3 workers; choose a"),
        (
            lambda: Grouped(kv_heads=3),
            2,
            r"MultiHeadAttention\(24, 12\): the 3 kv_heads of 'attention.in_proj_weight' do not divide among 2",
        ),
        (lambda: gpt(heads=3), 2, "gpt2: the 3 heads of 'h.0.attn.c_attn.weight' do not divide among 2 workers"),
    ],
)
def test_what_does_not_divide_is_refused_at_its_line(make: Any, ranks: int, told: str) -> None:
    given = TEXT if "gpt" in told else (SEQUENCES if "kv_heads" in told else VECTORS, LABELS)
    with pytest.raises(OptionError, match=f"{told}(.|\n)*at .*test_split.py"):
        traced(make, given, model=ranks)


def test_a_layer_says_how_it_is_divided() -> None:
    assert repr(nn.Linear(8, 6, split="rows")) == "Linear(8, 6, split='rows')"
    assert "split" not in repr(nn.TransformerBlock(12, 6)) + repr(nn.MultiHeadAttention(12, 6, split=False))
    block = nn.TransformerBlock(12, 6, split=True)
    marked = {name: owned.splitting for name, owned in block.named_arrays().items() if owned.splitting is not None}
    assert {name: (how.axis, how.blocks, how.units) for name, how in marked.items()} == {
        "self_attn.in_proj_weight": (0, 3, 6),
        "self_attn.in_proj_bias": (0, 3, 6),
        "self_attn.out_proj.weight": (1, 1, 6),
        "linear1.weight": (0, 1, 48),
        "linear1.bias": (0, 1, 48),
        "linear2.weight": (1, 1, 48),
    }


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: nn.Linear(8, 6, split="column"), "split='column'; expected 'columns' or 'rows', or None"),
        (lambda: nn.MultiHeadAttention(12, 6, split="rows"), "split='rows'; expected 'heads', or None"),
    ],
)
def test_a_split_that_no_layer_knows_is_refused(make: Any, told: str) -> None:
    with pytest.raises(OptionError, match=told):
        make()
