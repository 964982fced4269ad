"""The cases of `cuda-zoo`: networks of torchvision and transformers that nobody tuned for, with random weights.

Both sides compute the logits by the module of torch, ours after `ws.from_torch`, and the loss is cross entropy.
Nothing draws random numbers.  The last image network is written in our own layers, which have torch's names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.case import Arrays, Case, Cell
from benchmarks.cases.zoo import torchvision
from benchmarks.gpu.cases import COMPILED, GRAPHS, GpuCase, random_weights

if TYPE_CHECKING:
    import torch

    import wholestep as ws

CLASSES, RATE = 1000, 1e-4  # five steps of this rate change a loss by more than it is rounded
PEERS = (*GRAPHS, *COMPILED)
NO_DROPOUT = {  # by the names of transformers
    "gpt2": dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    "bert": dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
}
SWIN_T: dict[str, Any] = {  # torchvision's swin_t, whose function sets the stochastic depth itself
    "patch_size": [4, 4],
    "embed_dim": 96,
    "depths": [2, 2, 6, 2],
    "num_heads": [3, 6, 12, 24],
    "window_size": [7, 7],
    "stochastic_depth_prob": 0.0,
}


@dataclass(frozen=True)
class Network:
    """A network of torch, and a batch: the arguments of its module by name, and `labels`."""

    build: Callable[[], torch.nn.Module]
    batch: Callable[[int], Arrays]


# -- batches -----------------------------------------------------------------------------------------------------


def pictures(rows: int, side: int = 224, classes: int = CLASSES) -> Arrays:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((rows, 3, side, side), dtype=np.float32)
    return {"x": x, "labels": rng.integers(0, classes, rows).astype(np.int32)}


def sentences(rows: int, tokens: int, vocabulary: int, padded: bool = False) -> Arrays:
    """Random tokens with random successors; `padded`: tokens after a random length are ignored."""
    rng, shape = np.random.default_rng(1), (rows, tokens)
    batch = {"x": rng.integers(0, vocabulary, shape), "labels": rng.integers(0, vocabulary, shape).astype(np.int32)}
    if padded:
        lengths = rng.integers(tokens // 2, tokens + 1, rows)
        batch["mask"] = (np.arange(tokens) < lengths[:, None]).astype(np.int64)
    return batch


# -- networks ----------------------------------------------------------------------------------------------------


def vision(name: str, **more: Any) -> torch.nn.Module:
    network: torch.nn.Module = getattr(torchvision().models, name)(**more)
    return network


def language(config: str, model: str, **more: Any) -> torch.nn.Module:
    """A model of transformers that returns its logits alone."""
    torchvision()  # imported by transformers
    import torch
    import transformers

    body = getattr(transformers, model)(getattr(transformers, config)(**more))
    more_arguments = {} if "Masked" in model else {"use_cache": False}

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            out: torch.Tensor = self.body(input_ids=x, attention_mask=mask, **more_arguments).logits
            return out

    return Logits()


def llama(layers: int, width: int, inner: int, heads: int, key_heads: int, vocabulary: int, tied: bool) -> Any:
    return language(
        "LlamaConfig",
        "LlamaForCausalLM",
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
    )


NETWORKS: dict[str, Network] = {
    "mobilenet_v3_large": Network(partial(vision, "mobilenet_v3_large", dropout=0.0), pictures),
    "efficientnet_b0": Network(partial(vision, "efficientnet_b0", dropout=0.0, stochastic_depth_prob=0.0), pictures),
    "convnext_tiny": Network(partial(vision, "convnext_tiny", stochastic_depth_prob=0.0), pictures),
    "swin_t": Network(partial(vision, "SwinTransformer", **SWIN_T), pictures),
    "gpt2_hf": Network(
        partial(language, "GPT2Config", "GPT2LMHeadModel", **NO_DROPOUT["gpt2"]),
        partial(sentences, tokens=512, vocabulary=50257),
    ),
    "llama": Network(
        partial(llama, 12, 768, 2048, 12, 4, 32000, tied=False), partial(sentences, tokens=512, vocabulary=32000)
    ),
    "bert_base": Network(
        partial(language, "BertConfig", "BertForMaskedLM", **NO_DROPOUT["bert"]),
        partial(sentences, tokens=128, vocabulary=30522, padded=True),
    ),
    "vit_b_16": Network(partial(vision, "vit_b_16"), pictures),
    "resnet50_tv": Network(partial(vision, "resnet50"), pictures),
    "smollm2_135m": Network(
        partial(llama, 30, 576, 1536, 9, 3, 49152, tied=True), partial(sentences, tokens=128, vocabulary=49152)
    ),
}


@cache
def module_of(name: str) -> torch.nn.Module:
    """The module, once per process, with the same weights in every process."""
    import torch

    torch.manual_seed(0)
    return NETWORKS[name].build().train()


def imported_graph(name: str, rows: int) -> ws.Graph:
    """The logits by `ws.from_torch`, the loss by ours."""
    import torch

    import wholestep as ws

    batch = NETWORKS[name].batch(rows)
    arguments = {key: a for key, a in batch.items() if key != "labels"}
    network = ws.from_torch(module_of(name), tuple(torch.from_numpy(a) for a in arguments.values()))
    g = ws.Graph()
    inputs = {key: g.input(key, ("batch", *a.shape[1:]), str(a.dtype)) for key, a in batch.items()}
    logits = network(*(inputs[key] for key in arguments))
    g.set_outputs([ws.losses.cross_entropy(logits, inputs["labels"], axis=-1)])
    return g


def with_loss(body: torch.nn.Module) -> torch.nn.Module:
    """Takes a batch by name, and returns the cross entropy of the logits."""
    import torch
    from torch.nn import functional as F

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, labels: torch.Tensor, **batch: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.body(*batch.values()).flatten(0, -2), labels.flatten())

    return Network()


def imported_case(name: str) -> Case:
    return Case(
        name=name,
        cells=(),
        weights=dict,
        batches=lambda cell: [NETWORKS[name].batch(cell.batch)],
        models={
            "wholestep": lambda: imported_graph(name, 2),
            "torch": lambda start: with_loss(module_of(name)),
        },
        prepare=lambda: module_of(name),
    )


# -- our own layers ----------------------------------------------------------------------------------------------

WIDTHS = ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1))
SIDE, OWN_CLASSES = 32, 10


def separable(nn: Any) -> Any:
    """A MobileNet for images of 32 x 32, in the layers of `ws.nn` or of `torch.nn`: blocks of a depthwise convolution
    and one of 1 x 1, each with batch norm and ReLU (Howard et al., 2017).
    """

    def block(inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1) -> list[Any]:
        options = {"stride": stride, "padding": size // 2, "groups": groups, "bias": False}
        return [nn.Conv2d(inputs, outputs, size, **options), nn.BatchNorm2d(outputs), nn.ReLU()]

    layers = block(3, 32, 3)
    for inputs, outputs, stride in WIDTHS:
        layers += [*block(inputs, inputs, 3, stride, groups=inputs), *block(inputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, OWN_CLASSES))


def separable_graph() -> ws.Graph:
    import wholestep as ws

    g = ws.Graph()
    x, labels = g.input("x", ("batch", 3, SIDE, SIDE)), g.input("labels", ("batch",), "int32")
    g.set_outputs([ws.losses.cross_entropy(separable(ws.nn)(x), labels)])
    return g


def separable_weights() -> Arrays:
    import wholestep as ws

    return random_weights(separable(ws.nn))


def separable_torch(start: Arrays) -> torch.nn.Module:
    import torch

    body = separable(torch.nn)
    body.load_state_dict({name: torch.from_numpy(a) for name, a in start.items()}, strict=False)
    return with_loss(body)


SEPARABLE = Case(
    name="mobilenet_own",
    cells=(),
    weights=separable_weights,
    batches=lambda cell: [pictures(cell.batch, SIDE, OWN_CLASSES)],
    models={"wholestep": separable_graph, "torch": separable_torch},
)


# -- the table ---------------------------------------------------------------------------------------------------


def row(name: str, batch: int, target: float, line: float, **more: Any) -> GpuCase:
    """A network of torch, in bfloat16 unless `precision` says otherwise."""
    precision = more.pop("precision", "bfloat16")
    cell = Cell(f"b{batch}", batch, "adamw", precision, RATE)
    return GpuCase(imported_case(name), cell, PEERS, target, line, kind="network", **more)


ZOO: dict[str, GpuCase] = {
    case.name: case
    for case in (
        row("mobilenet_v3_large", 64, 1.2, 0.95),
        row("efficientnet_b0", 32, 1.2, 0.95),
        row("convnext_tiny", 32, 1.15, 0.95),
        row("swin_t", 32, 1.15, 0.95),
        row("gpt2_hf", 8, 1.15, 1.0),
        row("llama", 8, 1.15, 1.0),
        row("bert_base", 32, 1.15, 1.0),
        row("vit_b_16", 32, 1.15, 1.0),
        row("resnet50_tv", 64, 1.15, 1.0),
        GpuCase(SEPARABLE, Cell("b256", 256, "adamw", rate=RATE), PEERS, 2.5, 1.5, kind="network", tf32=True),
        row("smollm2_135m", 1, 9_000, 12_000, unit="us", precision="float32", peers_tf32=False),
    )
}
