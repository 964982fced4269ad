"""The model suite, small enough for a GPU that is emulated."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import numpy as np

import wholestep as ws
from wholestep.compiler.backends.cuda.driver.driver import DeviceMemory

Array = np.ndarray[Any, Any]

UNCHECKED = ws.CompileOptions(verify=False, egraph=False)


HELD: WeakSet[DeviceMemory] = WeakSet()  # all that was allocated and is not free again
_ALLOCATE = DeviceMemory.__init__


def _noted(self: DeviceMemory, *given: Any) -> None:
    _ALLOCATE(self, *given)
    HELD.add(self)


DeviceMemory.__init__ = _noted  # type: ignore[method-assign]


def device_bytes() -> int:
    """What this process has allocated on GPUs."""
    gc.collect()
    return sum(found.size for found in HELD)


def images(rows: int, *shape: int) -> dict[str, Array]:
    rng = np.random.default_rng(rows)
    return {
        "x": rng.standard_normal((rows, *shape), dtype=np.float32),
        "labels": rng.integers(0, 10, rows).astype(np.int32),
    }


def words(rows: int) -> dict[str, Array]:
    rng = np.random.default_rng(rows)
    return {name: rng.integers(0, 17, (rows, 6)).astype(np.int32) for name in ("x", "labels")}


def residual() -> ws.nn.Module:
    """Batch norm, strides, a convolution in groups, a pool of averages."""
    return ws.nn.Sequential(
        ws.nn.Conv2d(3, 8, 3, padding=1),
        ws.nn.BatchNorm2d(8),
        ws.nn.ReLU(),
        ws.nn.Conv2d(8, 12, 3, stride=2, padding=1, groups=2),
        ws.nn.BatchNorm2d(12),
        ws.nn.ReLU(),
        ws.nn.GlobalAvgPool2d(),
        ws.nn.Linear(12, 10),
    )


MODELS: dict[str, tuple[Callable[[], ws.nn.Module], Callable[[int], dict[str, Array]], ws.optim.Optimizer]] = {
    "lenet": (ws.models.lenet5, lambda n: images(n, 1, 28, 28), ws.SGD(lr=1e-2, momentum=0.9)),
    "resnet": (residual, lambda n: images(n, 3, 8, 8), ws.SGD(lr=1e-2)),
    # The bias of keys has no gradient but for rounding, which Adam would divide by itself.
    "gpt": (
        lambda: ws.models.gpt2(layers=1, width=16, heads=2, vocabulary=17, context=6),
        words,
        ws.SGD(lr=0.1, momentum=0.9),
    ),
    "lstm": (lambda: ws.models.lstm_lm(17, width=12, layers=1), words, ws.Adam(lr=1e-3)),
}


def session_of(name: str, device: str, **options: Any) -> ws.Session:
    model, draw, optimizer = MODELS[name]
    g, example = ws.Graph(), draw(1)
    x, y = (g.input(n, ("batch", *a.shape[1:]), a.dtype) for n, a in example.items())
    scores = model()(x)
    scores = scores[0] if isinstance(scores, tuple) else scores
    g.set_outputs({"loss": ws.losses.cross_entropy(scores, y), "scores": scores})
    given = {"batch_size": 3, "seed": 1, "options": UNCHECKED, **options}
    return ws.build_session(g, optimizer=optimizer, device=device, **given)
