"""LeNet-5 and its torch twin, with the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import wholestep as ws

Array = np.ndarray[Any, Any]

SHAPES: dict[str, tuple[int, ...]] = {
    "c1": (6, 1, 5, 5), "b1": (6,), "c2": (16, 6, 5, 5), "b2": (16,),
    "f1": (400, 120), "d1": (120,), "f2": (120, 84), "d2": (84,), "f3": (84, 10), "d3": (10,),
}  # fmt: skip


def weights() -> dict[str, Array]:
    rng = np.random.default_rng(3)
    return {n: rng.normal(size=s) / np.sqrt(np.prod(s[1:]) if len(s) == 4 else s[0]) for n, s in SHAPES.items()}


def lenet(dtype: str = "float32") -> ws.Graph:
    g = ws.Graph()
    x, labels = g.input("x", ("batch", 1, 28, 28), dtype), g.input("labels", ("batch",), "int32")
    p = {n: g.parameter(n, w.shape, init=w, dtype=dtype) for n, w in weights().items()}
    h = ws.max_pool2d(ws.relu(ws.conv2d(x, p["c1"], p["b1"], padding=2)), 2)
    h = ws.max_pool2d(ws.relu(ws.conv2d(h, p["c2"], p["b2"])), 2).reshape(-1, 400)
    h = ws.relu(ws.relu(h @ p["f1"] + p["d1"]) @ p["f2"] + p["d2"])
    g.set_outputs({"loss": ws.losses.cross_entropy(h @ p["f3"] + p["d3"], labels)})
    return g


def torch_gradients(batch: dict[str, Array], dtype: str) -> tuple[float, dict[str, Array]]:
    """The loss and the gradient of every weight, in float64 on numbers of the given dtype."""
    p = {n: torch.tensor(w.astype(dtype).astype("float64"), requires_grad=True) for n, w in weights().items()}
    x = torch.tensor(batch["x"].astype("float64"))
    h = F.max_pool2d(F.relu(F.conv2d(x, p["c1"], p["b1"], padding=2)), 2)
    h = F.max_pool2d(F.relu(F.conv2d(h, p["c2"], p["b2"])), 2).flatten(1)
    h = F.relu(F.relu(h @ p["f1"] + p["d1"]) @ p["f2"] + p["d2"])
    loss = F.cross_entropy(h @ p["f3"] + p["d3"], torch.tensor(batch["labels"]).long())
    loss.backward()
    return loss.item(), {n: t.grad.numpy() for n, t in p.items()}


def batch(rows: int, dtype: str = "float32", seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        "x": rng.normal(size=(rows, 1, 28, 28)).astype(dtype),
        "labels": rng.integers(0, 10, rows).astype(np.int32),
    }
