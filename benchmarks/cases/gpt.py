"""GPT-2: 4 layers, width 128, 4 heads, 64 tokens, batch 16; other sizes by `gpt_case`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.case import Arrays, Case, Cell

if TYPE_CHECKING:
    import jax
    import torch

    import wholestep as ws

ROTATING_BATCHES = 4
CELLS = (Cell("b16_adamw", 16, "adamw"),)


@dataclass(frozen=True)
class Size:
    """The sizes of a GPT-2."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    time: int


SMALL = Size(layers=4, width=128, heads=4, vocabulary=65, time=64)


def weights(size: Size) -> Arrays:
    """Weights under the names of the published checkpoints; biases are not 0 and gains not 1, so that they matter."""
    rng, out, width = np.random.default_rng(0), Arrays(), size.width

    def normal(name: str, *shape: int, mean: float = 0.0, std: float = 0.02) -> None:
        out[name] = (mean + std * rng.standard_normal(shape)).astype(np.float32)

    def norm(name: str) -> None:
        normal(f"{name}.weight", width, mean=1.0)
        normal(f"{name}.bias", width)

    def linear(name: str, inputs: int, outputs: int) -> None:
        normal(f"{name}.weight", inputs, outputs)
        normal(f"{name}.bias", outputs)

    normal("wte.weight", size.vocabulary, width)
    normal("wpe.weight", size.time, width)
    for i in range(size.layers):
        norm(f"h.{i}.ln_1")
        linear(f"h.{i}.attn.c_attn", width, 3 * width)
        linear(f"h.{i}.attn.c_proj", width, width)
        norm(f"h.{i}.ln_2")
        linear(f"h.{i}.mlp.c_fc", width, 4 * width)
        linear(f"h.{i}.mlp.c_proj", 4 * width, width)
    norm("ln_f")
    return out


def batches(size: Size, cell: Cell) -> list[Arrays]:
    """Random tokens, the same for every contender."""
    rng = np.random.default_rng(1)
    return [
        {name: rng.integers(0, size.vocabulary, (cell.batch, size.time)).astype(np.int32) for name in ("x", "labels")}
        for _ in range(ROTATING_BATCHES)
    ]


def wholestep_graph(size: Size) -> ws.Graph:
    import wholestep as ws

    g = ws.Graph()
    x, labels = (g.input(name, ("batch", size.time), "int32") for name in ("x", "labels"))
    model = ws.models.gpt2(
        layers=size.layers, width=size.width, heads=size.heads, vocabulary=size.vocabulary, context=size.time
    )
    g.set_outputs([ws.losses.cross_entropy(model(x), labels)])
    return g


def torch_module(size: Size, start: Arrays) -> torch.nn.Module:
    import torch
    from torch.nn import functional as F

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            # Names in a ParameterDict must not contain dots.
            self.p = torch.nn.ParameterDict({n.replace(".", "/"): torch.tensor(w) for n, w in start.items()})

        def norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
            return F.layer_norm(x, (size.width,), self.p[f"{name}/weight"], self.p[f"{name}/bias"])

        def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
            rows = torch.addmm(self.p[f"{name}/bias"], x.reshape(-1, x.shape[-1]), self.p[f"{name}/weight"])
            return rows.reshape(*x.shape[:-1], -1)

        def attend(self, name: str, x: torch.Tensor) -> torch.Tensor:
            together = self.linear(f"{name}/c_attn", x).split(size.width, dim=2)
            q, k, v = (t.view(*t.shape[:2], size.heads, size.width // size.heads).transpose(1, 2) for t in together)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.linear(f"{name}/c_proj", mixed.transpose(1, 2).reshape(x.shape))

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            x = F.embedding(x, self.p["wte/weight"]) + self.p["wpe/weight"]
            for i in range(size.layers):
                x = x + self.attend(f"h/{i}/attn", self.norm(f"h/{i}/ln_1", x))
                inner = F.gelu(self.linear(f"h/{i}/mlp/c_fc", self.norm(f"h/{i}/ln_2", x)), approximate="tanh")
                x = x + self.linear(f"h/{i}/mlp/c_proj", inner)
            logits = self.norm("ln_f", x) @ self.p["wte/weight"].T
            return F.cross_entropy(logits.reshape(-1, size.vocabulary), labels.reshape(-1))

    return Network()


def jax_loss(size: Size, p: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    import jax
    import jax.numpy as jnp

    def norm(name: str, x: jax.Array) -> jax.Array:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(name: str, x: jax.Array) -> jax.Array:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def attend(name: str, x: jax.Array) -> jax.Array:
        together = jnp.split(linear(f"{name}.c_attn", x), 3, axis=-1)
        q, k, v = (t.reshape(*t.shape[:2], size.heads, -1).transpose(0, 2, 1, 3) for t in together)
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(size.width // size.heads)
        scores = jnp.where(jnp.tril(jnp.ones((size.time, size.time), bool)), scores, -jnp.inf)
        mixed = jax.nn.softmax(scores) @ v
        return linear(f"{name}.c_proj", mixed.transpose(0, 2, 1, 3).reshape(x.shape))

    x = p["wte.weight"][batch["x"]] + p["wpe.weight"]
    for i in range(size.layers):
        x = x + attend(f"h.{i}.attn", norm(f"h.{i}.ln_1", x))
        inner = jax.nn.gelu(linear(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x)), approximate=True)
        x = x + linear(f"h.{i}.mlp.c_proj", inner)
    logits = norm("ln_f", x) @ p["wte.weight"].T
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][..., None], axis=-1)
    return -jnp.mean(picked)


def gpt_case(name: str, size: Size, cells: tuple[Cell, ...]) -> Case:
    """The case for one size."""
    models = {"wholestep": wholestep_graph, "torch": torch_module, "jax": jax_loss}
    return Case(
        name=name,
        cells=cells,
        weights=partial(weights, size),
        batches=partial(batches, size),
        models={framework: partial(model, size) for framework, model in models.items()},
    )


CASE = gpt_case("gpt", SMALL, CELLS)
