"""Networks of torch, torchvision, timm and transformers, imported by `ws.from_torch`.

Every contender builds the same module from the same seed, without dropout; the loss is the mean square distance to a
fixed random target, the optimizer AdamW.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.case import Arrays, Case, Cell

if TYPE_CHECKING:
    import torch

    import wholestep as ws

VOCABULARY, TOKENS = 100, 32
CELLS = (Cell("b8_adamw", 8, "adamw"),)


def torchvision() -> Any:
    """Imports torchvision; its own ops do not load with a CPU-only torch, and are not used."""
    import torch

    register_fake = torch.library.register_fake
    torch.library.register_fake = lambda op, *a, **k: (
        (lambda f: f) if "torchvision::" in str(op) else register_fake(op, *a, **k)
    )
    try:
        import torchvision
    finally:
        torch.library.register_fake = register_fake
    return torchvision


def torchvision_net(name: str, **more: Any) -> torch.nn.Module:
    network: torch.nn.Module = getattr(torchvision().models, name)(num_classes=10, **more)
    return network


def timm_net(name: str, **more: Any) -> torch.nn.Module:
    torchvision()  # imported by timm
    import timm

    network: torch.nn.Module = timm.create_model(name, num_classes=10, **more)
    return network


def transformers_net(kind: str, **more: Any) -> torch.nn.Module:
    torchvision()  # imported by transformers
    import torch
    import transformers

    config, model = {
        "bert": ("BertConfig", "BertForMaskedLM"),
        "gpt2": ("GPT2Config", "GPT2LMHeadModel"),
        "llama": ("LlamaConfig", "LlamaForCausalLM"),
    }[kind]
    body = getattr(transformers, model)(getattr(transformers, config)(vocab_size=VOCABULARY, **more))

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.body(x, use_cache=False).logits if kind != "bert" else self.body(x).logits
            return output

    return Logits()


def unet() -> torch.nn.Module:
    import torch
    from torch import nn

    def block(inputs: int, outputs: int) -> nn.Sequential:
        pair = ((inputs, outputs), (outputs, outputs))
        layers = [(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU()) for i, o in pair]
        return nn.Sequential(*(part for three in layers for part in three))

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = block(3, 16), block(16, 32), block(32, 64)
            self.up1, self.up2 = nn.ConvTranspose2d(64, 32, 2, 2), nn.ConvTranspose2d(32, 16, 2, 2)
            self.d1, self.d2, self.out, self.pool = block(64, 32), block(32, 16), nn.Conv2d(16, 2, 1), nn.MaxPool2d(2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a = self.a(x)
            b = self.b(self.pool(a))
            h = self.up1(self.c(self.pool(b)))
            h = self.up2(self.d1(torch.cat([h, b], 1)))
            out: torch.Tensor = self.out(self.d2(torch.cat([h, a], 1)))
            return out

    return UNet()


def tcn() -> torch.nn.Module:
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self, inputs: int, outputs: int, gap: int) -> None:
            super().__init__()
            self.gap = gap
            self.one, self.two = (
                nn.Conv1d(inputs, outputs, 3, dilation=gap),
                nn.Conv1d(outputs, outputs, 3, dilation=gap),
            )
            self.beside = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            h = F.relu(self.one(F.pad(x, (2 * self.gap, 0))))
            return F.relu(F.relu(self.two(F.pad(h, (2 * self.gap, 0)))) + self.beside(x))

    return nn.Sequential(Block(8, 32, 1), Block(32, 32, 2), Block(32, 32, 4), Block(32, 32, 8), nn.Conv1d(32, 10, 1))


def lstm() -> torch.nn.Module:
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = nn.Embedding(VOCABULARY, 64), nn.Linear(64, VOCABULARY)
            self.lstm = nn.LSTM(64, 64, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.decoder(self.lstm(self.encoder(x))[0])
            return out

    return Network()


_SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_IMAGES, _TEXT = (3, 64, 64), (TOKENS,)
# name -> (module, shape of one input row)
NETWORKS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "resnet18": (partial(torchvision_net, "resnet18"), _IMAGES),
    "mobilenet_v2": (partial(torchvision_net, "mobilenet_v2", dropout=0.0), _IMAGES),
    "vgg11": (partial(torchvision_net, "vgg11", dropout=0.0), (3, 32, 32)),
    "vit_tiny": (partial(timm_net, "vit_tiny_patch16_224", img_size=64, depth=4), _IMAGES),
    "convnext_atto": (partial(timm_net, "convnext_atto"), _IMAGES),
    "bert_tiny": (partial(transformers_net, "bert", **_SMALL, **_STILL), _TEXT),
    "gpt2_tiny": (
        partial(transformers_net, "gpt2", n_embd=64, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
        _TEXT,
    ),
    "llama_tiny": (partial(transformers_net, "llama", **_SMALL, num_key_value_heads=2), _TEXT),
    "unet": (unet, _IMAGES),
    "tcn": (tcn, (8, 128)),
    "mlp_mixer": (partial(timm_net, "mixer_s32_224", img_size=64), _IMAGES),
    "lstm": (lstm, _TEXT),
}


def module_of(name: str) -> torch.nn.Module:
    import torch

    torch.manual_seed(0)
    network: torch.nn.Module = NETWORKS[name][0]().train()
    return network


def inputs_of(name: str, rows: int) -> np.ndarray:
    rng, shape = np.random.default_rng(1), NETWORKS[name][1]
    if shape == _TEXT:
        return rng.integers(0, VOCABULARY, (rows, *shape))
    return rng.standard_normal((rows, *shape), dtype=np.float32)


def batches(name: str, cell: Cell) -> list[Arrays]:
    """A random batch, and a target with the shape of the network's output."""
    import torch

    x = inputs_of(name, cell.batch)
    with torch.no_grad():
        shape = module_of(name)(torch.from_numpy(x)).shape
    return [{"x": x, "y": np.random.default_rng(2).standard_normal(shape, dtype=np.float32)}]


def wholestep_graph(name: str) -> ws.Graph:
    import torch

    import wholestep as ws

    example = torch.from_numpy(inputs_of(name, CELLS[0].batch))
    network = ws.from_torch(module_of(name), example)
    y = batches(name, CELLS[0])[0]["y"]
    g = ws.Graph()
    x = g.input("x", ("batch", *example.shape[1:]), "int64" if example.dtype == torch.int64 else "float32")
    apart = network(x) - g.input("y", ("batch", *y.shape[1:]))
    g.set_outputs([(apart * apart).mean()])
    return g


def torch_module(name: str, start: Arrays) -> torch.nn.Module:
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = module_of(name)

        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.mse_loss(self.body(x), y)

    return Network()


def zoo_case(name: str) -> Case:
    return Case(
        name=f"zoo_{name}",
        cells=CELLS,
        weights=dict,
        batches=partial(batches, name),
        models={"wholestep": partial(wholestep_graph, name), "torch": partial(torch_module, name)},
    )


ZOO: dict[str, Case] = {name: zoo_case(name) for name in NETWORKS}
