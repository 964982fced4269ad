"""LeNet-5 on 28 x 28 images, batch 64, Adam: convolutions with few channels, where libraries are weak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.case import Arrays, Case, Cell

if TYPE_CHECKING:
    import jax
    import torch

    import wholestep as ws

ROTATING_BATCHES = 4
CELLS = (Cell("b64_adam", 64, "adam"),)

CONVOLUTIONS = {"c1": (6, 1, 5, 5), "c2": (16, 6, 5, 5)}
DENSE = {"f1": (400, 120), "f2": (120, 84), "f3": (84, 10)}


def weights() -> Arrays:
    """Uniform by fan-in, like torch's initialisation; biases are not 0, so that they matter."""
    rng, out = np.random.default_rng(0), Arrays()

    def uniform(name: str, shape: tuple[int, ...], inputs: int) -> None:
        bound = 1.0 / np.sqrt(inputs)
        out[name] = rng.uniform(-bound, bound, shape).astype(np.float32)

    for name, shape in CONVOLUTIONS.items():
        uniform(f"{name}.weight", shape, shape[1] * 25)
        uniform(f"{name}.bias", shape[:1], shape[1] * 25)
    for name, shape in DENSE.items():
        uniform(f"{name}.weight", shape, shape[0])
        uniform(f"{name}.bias", shape[1:], shape[0])
    return out


def batches(cell: Cell) -> list[Arrays]:
    """Random images and labels, the same for every contender."""
    rng = np.random.default_rng(1)
    return [
        {
            "x": rng.standard_normal((cell.batch, 1, 28, 28), dtype=np.float32),
            "labels": rng.integers(0, 10, cell.batch).astype(np.int32),
        }
        for _ in range(ROTATING_BATCHES)
    ]


def wholestep_graph() -> ws.Graph:
    import wholestep as ws

    g = ws.Graph()
    x = g.input("x", ("batch", 1, 28, 28))
    labels = g.input("labels", ("batch",), dtype="int32")
    p = {name: g.parameter(name, value.shape) for name, value in weights().items()}
    h = ws.max_pool2d(ws.relu(ws.conv2d(x, p["c1.weight"], p["c1.bias"], padding=2)), 2)
    h = ws.max_pool2d(ws.relu(ws.conv2d(h, p["c2.weight"], p["c2.bias"])), 2)
    h = h.reshape(-1, 400)
    h = ws.relu(h @ p["f1.weight"] + p["f1.bias"])
    h = ws.relu(h @ p["f2.weight"] + p["f2.bias"])
    logits = h @ p["f3.weight"] + p["f3.bias"]
    g.set_outputs([ws.losses.cross_entropy(logits, labels), logits])
    return g


def torch_module(start: Arrays) -> torch.nn.Module:
    """A module whose forward returns the loss, so that torch.compile sees loss and network together."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c1, self.c2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
            self.f1, self.f2, self.f3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            h = F.max_pool2d(F.relu(self.c1(x)), 2)
            h = F.max_pool2d(F.relu(self.c2(h)), 2).flatten(1)
            return F.cross_entropy(self.f3(F.relu(self.f2(F.relu(self.f1(h))))), labels)

    network = Network()
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            value = torch.from_numpy(start[name])
            parameter.copy_(value.T if value.ndim == 2 else value)
    return network


def jax_loss(p: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """Channels last, the layout of XLA's own convolution on this processor."""
    import jax
    import jax.numpy as jnp

    def convolve(h: jax.Array, name: str, padding: str) -> jax.Array:
        w = p[f"{name}.weight"].transpose(2, 3, 1, 0)
        h = jax.lax.conv_general_dilated(h, w, (1, 1), padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        h = jax.nn.relu(h + p[f"{name}.bias"])
        return jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    h = batch["x"].transpose(0, 2, 3, 1)
    h = convolve(convolve(h, "c1", "SAME"), "c2", "VALID").transpose(0, 3, 1, 2).reshape(-1, 400)
    for name in ("f1", "f2"):
        h = jax.nn.relu(h @ p[f"{name}.weight"] + p[f"{name}.bias"])
    logits = h @ p["f3.weight"] + p["f3.bias"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][:, None], axis=1))


CASE = Case(
    name="lenet",
    cells=CELLS,
    weights=weights,
    batches=batches,
    models={
        "wholestep": wholestep_graph,
        "torch": torch_module,
        "torch_channels_last": torch_module,
        "jax": jax_loss,
    },
)
