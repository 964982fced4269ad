"""An LSTM language model: 2 layers of width 256, 64 tokens of 65, batch 32."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.case import Arrays, Case, Cell

if TYPE_CHECKING:
    import jax
    import torch

    import wholestep as ws

LAYERS, WIDTH, VOCABULARY, TIME = 2, 256, 65, 64
ROTATING_BATCHES = 4
CELLS = (Cell("b32_adamw", 32, "adamw"),)


def weights() -> Arrays:
    """Uniform like torch's initialisation, under the names of our model; the gates are i, f, g, o."""
    rng, out = np.random.default_rng(0), Arrays()

    def uniform(name: str, *shape: int) -> None:
        out[name] = rng.uniform(-1 / np.sqrt(WIDTH), 1 / np.sqrt(WIDTH), shape).astype(np.float32)

    uniform("encoder.weight", VOCABULARY, WIDTH)
    for i in range(LAYERS):
        uniform(f"lstm.weight_ih_l{i}", 4 * WIDTH, WIDTH)
        uniform(f"lstm.weight_hh_l{i}", 4 * WIDTH, WIDTH)
        uniform(f"lstm.bias_ih_l{i}", 4 * WIDTH)
        uniform(f"lstm.bias_hh_l{i}", 4 * WIDTH)
    uniform("decoder.weight", VOCABULARY, WIDTH)
    uniform("decoder.bias", VOCABULARY)
    return out


def batches(cell: Cell) -> list[Arrays]:
    """Random tokens, the same for every contender."""
    rng = np.random.default_rng(1)
    return [
        {name: rng.integers(0, VOCABULARY, (cell.batch, TIME)).astype(np.int32) for name in ("x", "labels")}
        for _ in range(ROTATING_BATCHES)
    ]


def wholestep_graph() -> ws.Graph:
    import wholestep as ws

    g = ws.Graph()
    x, labels = (g.input(name, ("batch", TIME), "int32") for name in ("x", "labels"))
    model = ws.models.lstm_lm(VOCABULARY, width=WIDTH, layers=LAYERS)
    g.set_outputs([ws.losses.cross_entropy(model(x), labels)])
    return g


def torch_module(start: Arrays) -> torch.nn.Module:
    """Time first: torch's loop is faster over (time, batch, width) than over (batch, time, width)."""
    import torch
    from torch.nn import functional as F

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = torch.nn.Embedding(VOCABULARY, WIDTH)
            self.lstm = torch.nn.LSTM(WIDTH, WIDTH, LAYERS)
            self.decoder = torch.nn.Linear(WIDTH, VOCABULARY)
            self.load_state_dict({name: torch.tensor(w) for name, w in start.items()})

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            outputs, _ = self.lstm(self.encoder(x.T))
            logits = self.decoder(outputs)
            return F.cross_entropy(logits.reshape(-1, VOCABULARY), labels.T.reshape(-1).long())

    return Network()


def jax_loss(p: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """The input projections of the gates for all steps at once, the rest in lax.scan."""
    import jax
    import jax.numpy as jnp

    def layer(i: int, x: jax.Array) -> jax.Array:
        gates = x @ p[f"lstm.weight_ih_l{i}"].T + p[f"lstm.bias_ih_l{i}"] + p[f"lstm.bias_hh_l{i}"]
        u = p[f"lstm.weight_hh_l{i}"].T

        def cell(state: tuple[jax.Array, jax.Array], gates: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
            h, c = state
            i, f, g, o = jnp.split(gates + h @ u, 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], WIDTH), x.dtype)
        return jax.lax.scan(cell, (zeros, zeros), gates)[1]

    x = p["encoder.weight"][batch["x"].T]
    for i in range(LAYERS):
        x = layer(i, x)
    logits = x @ p["decoder.weight"].T + p["decoder.bias"]
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"].T[..., None], axis=-1)
    return -jnp.mean(picked)


CASE = Case(
    name="lstm",
    cells=CELLS,
    weights=weights,
    batches=batches,
    models={"wholestep": wholestep_graph, "torch": torch_module, "jax": jax_loss},
)
