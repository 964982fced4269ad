"""The GPU cases: networks of `benchmarks.cases` and larger ones, their peers, and their targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from benchmarks.case import Arrays, Case, Cell
from benchmarks.cases import gpt, lenet, lstm, mlp

if TYPE_CHECKING:
    import torch

    import wholestep as ws

GRAPHS, COMPILED = ("torch_eager", "torch_graph"), ("torch_compile", "torch_compile_graph")
CONVOLUTIONAL = (*GRAPHS, "torch_compile_graph")
PIXELS, CLASSES = {"resnet18": 32, "resnet50": 224}, {"resnet18": 10, "resnet50": 1000}


@dataclass(frozen=True)
class GpuCase:
    """A benchmark cell of a network.  Its target is a time, or a ratio to the fastest peer in the same rounds."""

    case: Case
    cell: Cell
    peers: tuple[str, ...]
    target: float
    line: float  # the limit beyond which the case fails
    unit: Literal["us", "ratio"] = "ratio"
    # epochs: over rows on the GPU; update: AdamW alone; network: a step, and its slow kernels
    kind: Literal["step", "epochs", "update", "network"] = "step"
    tf32: bool = False  # compute our float32 products in tf32?
    peers_tf32: bool = True  # may peers?
    memory: float | None = None  # memory limit of our step, as a fraction; peers have none

    @property
    def name(self) -> str:
        more = f"_{self.kind}" if self.kind in ("epochs", "update") else ""
        more += "" if self.memory is None else "_memory"
        return f"{self.case.name}_{self.cell.name}{more}"


def images(network: str, cell: Cell) -> list[Arrays]:
    """A batch of random images."""
    rng, side = np.random.default_rng(1), PIXELS[network]
    return [
        {
            "x": rng.standard_normal((cell.batch, 3, side, side), dtype=np.float32),
            "labels": rng.integers(0, CLASSES[network], cell.batch).astype(np.int32),
        }
    ]


def our_resnet(network: str) -> ws.nn.Module:
    """A ResNet of torchvision; `resnet18` with a stem for images of 32 x 32."""
    import wholestep as ws

    if network == "resnet50":
        return ws.models.resnet50()
    return ws.models.resnet18(CLASSES[network], stem="3x3")


def random_weights(module: ws.nn.Module) -> Arrays:
    """Weights under torch's names, which are also ours; gains are not 1 and shifts not 0, so that they matter."""
    rng, out = np.random.default_rng(0), Arrays()
    for name, parameter in module.named_parameters():
        shape = tuple(parameter.shape)
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 0
        mean = 1.0 if len(shape) == 1 and name.endswith("weight") else 0.0
        std = float(np.sqrt(2.0 / fan_in)) if fan_in else 0.1
        out[name] = (mean + std * rng.standard_normal(shape)).astype(np.float32)
    return out


def resnet_graph(network: str) -> ws.Graph:
    import wholestep as ws

    g, side = ws.Graph(), PIXELS[network]
    x, labels = g.input("x", ("batch", 3, side, side)), g.input("labels", ("batch",), dtype="int32")
    g.set_outputs([ws.losses.cross_entropy(our_resnet(network)(x), labels)])
    return g


def resnet_module(network: str, start: Arrays) -> torch.nn.Module:
    import torch
    import torchvision
    from torch.nn import functional as F

    body: Any = getattr(torchvision.models, network)(num_classes=CLASSES[network])
    if network == "resnet18":
        body.conv1, body.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    with torch.no_grad():
        for name, parameter in body.named_parameters():
            parameter.copy_(torch.from_numpy(start[name]))

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = body

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(self.body(x), labels)

    return Network()


def resnet_case(network: str) -> Case:
    return Case(
        name=network,
        cells=(),
        weights=lambda: random_weights(our_resnet(network)),
        batches=lambda cell: images(network, cell),
        models={
            "wholestep": lambda: resnet_graph(network),
            "torch": lambda start: resnet_module(network, start),
        },
    )


GPT2 = gpt.gpt_case("gpt2", gpt.Size(layers=12, width=768, heads=12, vocabulary=50304, time=1024), ())

# of GPT-2: per parameter, the gradient is read, and weight and two moments are read and written
PARAMETERS, UPDATE_BYTES = 124_475_904, 28


def terabytes(per_second: float) -> float:
    """The microseconds of an update at this bandwidth."""
    return PARAMETERS * UPDATE_BYTES / per_second / 1e6


def half(name: str, batch: int) -> Cell:
    return Cell(name, batch, "adamw", "bfloat16")


CASES: dict[str, GpuCase] = {
    found.name: found
    for found in (
        GpuCase(GPT2, half("b16", 16), COMPILED, target=1.14, line=1.06),
        GpuCase(GPT2, half("b16", 16), COMPILED, target=1.05, line=1.05, memory=0.7),
        GpuCase(GPT2, half("b4", 4), COMPILED, target=1.2, line=1.1),
        GpuCase(GPT2, half("b1", 1), COMPILED, target=1.25, line=1.1),
        GpuCase(mlp.CASE, mlp.CASE.cell("b32_adam"), (*GRAPHS, "jax"), target=12, line=25, unit="us"),
        GpuCase(mlp.CASE, mlp.CASE.cell("b128_adam"), (*GRAPHS, "jax"), target=15, line=30, unit="us"),
        GpuCase(mlp.CASE, mlp.CASE.cell("b32_adam"), ("jax_scan",), 8, 15, unit="us", kind="epochs"),
        GpuCase(mlp.CASE, mlp.CASE.cell("b128_adam"), ("jax_scan",), 11, 18, unit="us", kind="epochs"),
        GpuCase(lenet.CASE, lenet.CASE.cell("b64_adam"), (*GRAPHS, "jax"), target=45, line=90, unit="us"),
        GpuCase(gpt.CASE, gpt.CASE.cell("b16_adamw"), (*GRAPHS, "jax"), target=350, line=600, unit="us"),
        GpuCase(resnet_case("resnet18"), half("b256", 256), CONVOLUTIONAL, target=1.05, line=0.9),
        GpuCase(resnet_case("resnet50"), half("b64", 64), CONVOLUTIONAL, target=1.0, line=0.85),
        GpuCase(GPT2, half("adamw", 1), ("torch_graph",), terabytes(3.9), terabytes(3.4), unit="us", kind="update"),
        GpuCase(lstm.CASE, lstm.CASE.cell("b32_adamw"), (*GRAPHS, "jax"), target=1.2, line=0.8, tf32=True),
    )
}
