"""A random network as plain data: drawn, told, and made smaller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

from tests.fuzz.layers.layer import Layer, Shape
from tests.fuzz.layers.layers import draw_layers, fitting
from tests.fuzz.training import LOSSES, OPTIMIZERS, SCHEDULES


@dataclass(frozen=True)
class Network:
    """A network, its data and how it is trained, as plain data."""

    shape: Shape  # of the input
    layers: tuple[Layer, ...]
    steps: tuple[Mapping[str, int], ...]  # the sizes of the symbolic dimensions in each step
    capacity: Mapping[str, int] = field(default_factory=dict)
    vocabulary: int = 0  # the input is whole numbers below it, looked up in an embedding
    classes: int = 0  # a linear head of that width, where the last axis has a number
    loss: str = "mse"
    optimizer: str = "sgd"
    dtype: str = "float64"
    clip_norm: float | None = None
    accumulate: int = 1
    schedule: str | None = None
    frozen: bool = False  # the first layer is not trained
    verify: bool = False
    threads: int = 1
    seed: int = 0
    device: str = "cpu"


# -- drawing -----------------------------------------------------------------------------------------------------


def draw_any(rng: Random, most: int) -> Network:
    """As people write them; most in float64, where a wrong value cannot hide behind rounding."""
    shape, vocabulary = _draw_input(rng)
    start = (*shape, rng.choice([1, 2, 3, 8, 17])) if vocabulary else shape
    layers, end = draw_layers(rng, start, rng.randint(1, most))
    if vocabulary:
        layers = (Layer("embedding", {"entries": vocabulary, "width": start[-1]}), *layers)
    fixed = isinstance(end[-1], int) and len(end) > 1
    loss = rng.choice(list(LOSSES) if fixed else [n for n, row in LOSSES.items() if not row.classes])
    head = fixed and (LOSSES[loss].classes or rng.random() < 0.5)
    capacity = {e: rng.choice(CAPACITIES) for e in shape if isinstance(e, str)}
    accumulate = rng.choice([1, 1, 1, 1, 1, 3]) if shape[0] == "batch" and "time" not in shape else 1
    return Network(
        shape,
        layers,
        tuple(_draw_sizes(rng, capacity, accumulate) for _ in range(rng.randint(3, 5))),
        capacity,
        vocabulary,
        rng.choice([2, 3, 5, 17]) if head else 0,
        loss,
        # Signs of the mean absolute error add up to exactly 0 here and to a rounding in torch, -1.4e-17 for a bias of
        # the 78th network, and Lion takes their sign.
        {("mae", "lion"): "adam"}.get((loss, name := rng.choice(list(OPTIMIZERS))), name),
        rng.choice(["float64", "float64", "float64", "float32"]),
        rng.choice([None, None, 0.1, 1.0]),
        accumulate,
        rng.choice([None, None, None, *SCHEDULES]),
        rng.random() < 0.1,
        rng.random() < 0.15,
        rng.choice([1, 1, 1, 2, 3]),
        rng.randrange(10**6),
    )


CAPACITIES = (2, 3, 4, 5, 8, 17)


def _draw_input(rng: Random) -> tuple[Shape, int]:
    batch: int | str = rng.choice(["batch", "batch", "batch", 1, 3, 4])
    time: int | str = rng.choice(["time", 1, 2, 3, 5, 6, 7, 17])
    small = [1, 2, 3, 5, 6, 8, 17]
    kind = rng.choice(["rows", "series", "series", "time first", *["images"] * 4, "signals", "volumes", "tokens"])
    groups, each = (
        rng.choice([1, 1, 2, 2, 3]),
        rng.choice([1, 2, 3, 16, 17, 18, 20, 24, 31, 32, 33, rng.randint(1, 47)]),
    )
    height, width = rng.choice([1, 2, 3, 4, 5, 6, 9]), rng.choice([1, 2, 3, 4, 5, 7, 11])
    shapes: dict[str, Shape] = {
        "rows": (batch, rng.choice([1, 2, 3, 6, 8, 16, 17, 31, 33])),
        "series": (batch, time, rng.choice(small)),
        "time first": (time, batch, rng.choice(small)),
        "images": (batch, groups * each, height, width),
        "signals": (batch, groups * each, rng.choice([1, 2, 3, 5, 17])),
        "volumes": (batch, rng.choice([1, 2, 3, 8, 16]), rng.choice([2, 3, 5]), rng.choice([3, 4]), rng.choice([2, 5])),
        "tokens": (batch, time),
    }
    return shapes[kind], rng.choice([2, 5, 17]) if kind == "tokens" else 0


def _draw_sizes(rng: Random, capacity: Mapping[str, int], accumulate: int) -> dict[str, int]:
    """Full, or smaller; two rows at least, which a batch norm needs."""
    full = {s: n * (accumulate if s == "batch" else 1) for s, n in capacity.items()}
    return {s: n if rng.random() < 0.4 else rng.randint(min(2, n), n) for s, n in full.items()}


def at_once(n: Network) -> Network:
    """The same in steps of one batch each."""
    steps = tuple({s: min(size, n.capacity[s]) for s, size in sizes.items()} for sizes in n.steps)
    return replace(n, accumulate=1, steps=steps)


# -- as text, and smaller ----------------------------------------------------------------------------------------


def to_data(n: Network) -> dict[str, Any]:
    return asdict(n)


def from_data(data: Mapping[str, Any]) -> Network:
    def layer(d: Mapping[str, Any]) -> Layer:
        return Layer(d["kind"], d["options"], tuple(tuple(map(layer, body)) for body in d.get("bodies", ())))

    changed = {
        "shape": tuple(data["shape"]),
        "layers": tuple(map(layer, data["layers"])),
        "steps": tuple(data["steps"]),
    }
    return Network(**{**data, **changed})


def smaller(n: Network) -> Iterator[Network]:
    """Simpler ones, the boldest first."""
    yield from _fewer_layers(n)
    plain = Network(n.shape, n.layers, n.steps)
    for name in (
        "device",
        "accumulate",
        "schedule",
        "clip_norm",
        "frozen",
        "verify",
        "threads",
        "optimizer",
        "loss",
        "classes",
    ):
        if getattr(n, name) != getattr(plain, name):
            yield at_once(n) if name == "accumulate" else replace(n, **{name: getattr(plain, name)})
    if len(n.steps) > 1:
        yield replace(n, steps=n.steps[:1])
        yield replace(n, steps=n.steps[:-1])
    yield from _smaller_sizes(n)


def _fewer_layers(n: Network) -> Iterator[Network]:
    first = 1 if n.vocabulary else 0
    for i in reversed(range(first, len(n.layers))):
        yield replace(n, layers=n.layers[:i] + n.layers[i + 1 :])
    for i, layer in enumerate(n.layers):
        for body in layer.bodies:
            yield replace(n, layers=n.layers[:i] + body + n.layers[i + 1 :])
            for j in range(len(body)):
                less = tuple(b if b is not body else body[:j] + body[j + 1 :] for b in layer.bodies)
                yield replace(n, layers=(*n.layers[:i], replace(layer, bodies=less), *n.layers[i + 1 :]))
        for name, value in layer.options.items():
            for simple in _simpler(value):
                less = replace(layer, options={**layer.options, name: simple})
                yield replace(n, layers=(*n.layers[:i], less, *n.layers[i + 1 :]))


def _simpler(value: Any) -> Iterator[Any]:
    if isinstance(value, bool):
        if value:
            yield False
    elif isinstance(value, int) and value > 1:
        yield 1
        yield value // 2
        yield value - 1
    elif isinstance(value, list) and value and all(isinstance(v, int) for v in value):
        if len(value) > 2:
            yield value[:-1]
        for i, v in enumerate(value):
            for simple in _simpler(v):
                yield [*value[:i], simple, *value[i + 1 :]]


def _smaller_sizes(n: Network) -> Iterator[Network]:
    for i, extent in enumerate(n.shape):
        if isinstance(extent, int):
            for simple in _simpler(extent):
                yield replace(n, shape=(*n.shape[:i], simple, *n.shape[i + 1 :]))
        else:
            for simple in _simpler(n.capacity[extent]):
                if simple >= 2:
                    steps = tuple({**s, extent: min(s[extent], simple * n.accumulate)} for s in n.steps)
                    yield replace(n, capacity={**n.capacity, extent: simple}, steps=steps)


def text(n: Network) -> str:
    """The network as a few readable lines."""
    first = n.layers[:1] if n.vocabulary else ()
    rest = fitting(n.layers[len(first) :], (*n.shape, first[0].options["width"]) if first else n.shape)
    plain = vars(Network(n.shape, n.layers, n.steps))
    told = {k: v for k, v in vars(n).items() if k not in ("shape", "layers") and (v != plain[k] or k == "steps")}
    lines = [f"input {n.shape}", *(f"  {line}" for layer in (*first, *rest) for line in _lines(layer))]
    return "\n".join([*lines, ", ".join(f"{k}={v}" for k, v in told.items())])


def _lines(layer: Layer) -> list[str]:
    options = ", ".join(f"{k}={v}" for k, v in layer.options.items())
    inside = [
        f"  {line}" for body in layer.bodies for inner in (*body, None) for line in (_lines(inner) if inner else ["--"])
    ]
    return [f"{layer.kind}({options})", *inside]
