"""ResNet-20 on 32 x 32 images, batch 64, AdamW: shortcuts without parameters (arXiv:1512.03385, section 4.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from benchmarks.case import Arrays, Case, Cell

if TYPE_CHECKING:
    import jax
    import torch

    import wholestep as ws

ROTATING_BATCHES = 2
CELLS = (Cell("b64_adamw", 64, "adamw"),)
EPS = 1e-5


def layers() -> list[tuple[str, int, int, int]]:
    """(name, input channels, output channels, stride) of every convolution, in order."""
    out, channels = [("stem", 3, 16, 1)], 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            out += [(f"{stage}{block}a", channels, width, stride), (f"{stage}{block}b", width, width, 1)]
            channels = width
    return out


def weights() -> Arrays:
    """Kaiming-normal kernels; gains and shifts are not 1 and 0, so that they matter."""
    rng, out = np.random.default_rng(0), Arrays()

    def normal(name: str, shape: tuple[int, ...], std: float, mean: float = 0.0) -> None:
        out[name] = (mean + std * rng.standard_normal(shape)).astype(np.float32)

    for name, inputs, outputs, _ in layers():
        normal(f"conv{name}", (outputs, inputs, 3, 3), float(np.sqrt(2.0 / (9 * inputs))))
        normal(f"gain{name}", (outputs,), 0.1, 1.0)
        normal(f"shift{name}", (outputs,), 0.1)
    normal("dense", (64, 10), 0.1)
    normal("bias", (10,), 0.1)
    return out


def batches(cell: Cell) -> list[Arrays]:
    """Random images and labels, the same for every contender."""
    rng = np.random.default_rng(1)
    return [
        {
            "x": rng.standard_normal((cell.batch, 3, 32, 32), dtype=np.float32),
            "labels": rng.integers(0, 10, cell.batch).astype(np.int32),
        }
        for _ in range(ROTATING_BATCHES)
    ]


def wholestep_graph() -> ws.Graph:
    import wholestep as ws

    g = ws.Graph()
    x, labels = g.input("x", ("batch", 3, 32, 32)), g.input("labels", ("batch",), dtype="int32")
    p = {name: g.parameter(name, value.shape) for name, value in weights().items()}
    stride = {name: s for name, _, _, s in layers()}

    def convolve(h: ws.Tensor, name: str) -> ws.Tensor:
        h = ws.conv2d(h, p[f"conv{name}"], stride=stride[name], padding=1)
        return ws.batch_norm(h, p[f"gain{name}"], p[f"shift{name}"], eps=EPS)

    h = ws.relu(convolve(x, "stem"))
    for name, inputs, outputs, s in layers()[1::2]:
        branch = convolve(ws.relu(convolve(h, name)), f"{name[:-1]}b")
        if s == 2:
            h = ws.pad(h[:, :, ::2, ::2], [(0, 0), (0, outputs - inputs), (0, 0), (0, 0)])
        h = ws.relu(branch + h)
    logits = ws.global_avg_pool2d(h) @ p["dense"] + p["bias"]
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
            for name, inputs, outputs, stride in layers():
                self.add_module(f"conv{name}", nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False))
                self.add_module(f"norm{name}", nn.BatchNorm2d(outputs, EPS, track_running_stats=False))
            self.dense = nn.Linear(64, 10)

        def convolve(self, h: torch.Tensor, name: str) -> torch.Tensor:
            out: torch.Tensor = self.get_submodule(f"norm{name}")(self.get_submodule(f"conv{name}")(h))
            return out

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            h = F.relu(self.convolve(x, "stem"))
            for name, inputs, outputs, stride in layers()[1::2]:
                branch = self.convolve(F.relu(self.convolve(h, name)), f"{name[:-1]}b")
                if stride == 2:
                    h = F.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, 0, outputs - inputs))
                h = F.relu(branch + h)
            return F.cross_entropy(self.dense(h.mean((2, 3))), labels)

    network, names = Network(), {"weight": "gain", "bias": "shift"}
    with torch.no_grad():
        for path, parameter in network.named_parameters():
            module, _, kind = path.rpartition(".")
            renamed = {"dense.weight": "dense", "dense.bias": "bias"}.get(path)
            name = renamed or (module if module.startswith("conv") else names[kind] + module.removeprefix("norm"))
            value = torch.from_numpy(start[name])
            parameter.copy_(value.T if value.ndim == 2 else value)
    return network


def jax_loss(p: dict[str, jax.Array], batch: dict[str, jax.Array]) -> jax.Array:
    """Channels last, the layout of XLA's own convolution on this processor."""
    import jax
    import jax.numpy as jnp

    stride = {name: s for name, _, _, s in layers()}

    def convolve(h: jax.Array, name: str) -> jax.Array:
        w, s = p[f"conv{name}"].transpose(2, 3, 1, 0), (stride[name],) * 2
        h = jax.lax.conv_general_dilated(h, w, s, ((1, 1), (1, 1)), dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean = h.mean((0, 1, 2))
        variance = jnp.square(h - mean).mean((0, 1, 2))
        return (h - mean) * jax.lax.rsqrt(variance + EPS) * p[f"gain{name}"] + p[f"shift{name}"]

    h = jax.nn.relu(convolve(batch["x"].transpose(0, 2, 3, 1), "stem"))
    for name, inputs, outputs, s in layers()[1::2]:
        branch = convolve(jax.nn.relu(convolve(h, name)), f"{name[:-1]}b")
        if s == 2:
            h = jnp.pad(h[:, ::2, ::2], ((0, 0), (0, 0), (0, 0), (0, outputs - inputs)))
        h = jax.nn.relu(branch + h)
    logits = h.mean((1, 2)) @ p["dense"] + p["bias"]
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), batch["labels"][:, None], axis=1))


CASE = Case(
    name="resnet",
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
