"""A multi-layer perceptron with three hidden layers of 1024: large enough that arithmetic dominates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.case import Arrays, Case, Cell

if TYPE_CHECKING:
    import jax
    import torch

    import wholestep as ws

SIZES = (784, 1024, 1024, 1024, 10)
LAYERS = range(len(SIZES) - 1)
ROTATING_BATCHES = 4
CELLS = (Cell("b256_adam", 256, "adam"),)


def weights() -> Arrays:
    """The initial weights of every contender."""
    rng, out = np.random.default_rng(0), Arrays()
    for i in LAYERS:
        bound = np.sqrt(6.0 / SIZES[i])
        out[f"w{i}"] = rng.uniform(-bound, bound, SIZES[i : i + 2]).astype(np.float32)
        out[f"b{i}"] = np.zeros(SIZES[i + 1], np.float32)
    return out


def batches(cell: Cell) -> list[Arrays]:
    """Random batches, the same for every contender."""
    rng = np.random.default_rng(1)
    return [
        {
            "x": rng.standard_normal((cell.batch, SIZES[0]), dtype=np.float32),
            "labels": rng.integers(0, SIZES[-1], cell.batch).astype(np.int32),
        }
        for _ in range(ROTATING_BATCHES)
    ]


def wholestep_graph() -> ws.Graph:
    import wholestep as ws

    g = ws.Graph()
    x = g.input("x", ("batch", SIZES[0]))
    labels = g.input("labels", ("batch",), dtype="int32")
    for i in LAYERS:
        x = x @ g.parameter(f"w{i}", SIZES[i : i + 2]) + g.parameter(f"b{i}", (SIZES[i + 1],))
        x = ws.relu(x) if i != LAYERS[-1] else x
    g.set_outputs([ws.losses.cross_entropy(x, labels), x])
    return g


def torch_module(start: Arrays) -> torch.nn.Module:
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(SIZES[i], SIZES[i + 1]) for i in LAYERS)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            for layer in self.layers[:-1]:
                x = torch.relu(layer(x))
            return torch.nn.functional.cross_entropy(self.layers[-1](x), labels)

    network = Network()
    with torch.no_grad():
        for i in LAYERS:
            network.layers[i].weight.copy_(torch.from_numpy(start[f"w{i}"].T))
            network.layers[i].bias.copy_(torch.from_numpy(start[f"b{i}"]))
    return network


def jax_loss(p: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    import jax
    import jax.numpy as jnp

    x = batch["x"]
    for i in LAYERS:
        x = x @ p[f"w{i}"] + p[f"b{i}"]
        x = jax.nn.relu(x) if i != LAYERS[-1] else x
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), batch["labels"][:, None], axis=1))


CASE = Case(
    name="bigmlp",
    cells=CELLS,
    weights=weights,
    batches=batches,
    models={"wholestep": wholestep_graph, "torch": torch_module, "jax": jax_loss},
)
