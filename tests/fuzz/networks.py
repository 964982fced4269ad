"""Random networks, trained a few steps by us and by torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from random import Random
from typing import Any

import numpy as np
import torch

import wholestep as ws
from tests.fuzz.case import FAST, Unfit, Wrong
from tests.fuzz.layer import Layer, Made, Shape
from tests.fuzz.layers import draw_layers, fitting, make, sequence
from tests.fuzz.training import LOSSES, OPTIMIZERS, SCHEDULES, Array
from wholestep.errors import GraphError

FLOOR = {"float32": 2e-5, "float64": 1e-9}  # relative to a tensor's largest element


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


@dataclass(frozen=True)
class Trained:
    """What is compared: losses, and parameters and buffers after the last step."""

    losses: list[float]
    state: dict[str, Array]


# -- drawing -----------------------------------------------------------------------------------------------------


def draw(rng: Random) -> Network:
    """A network as people write them; most in float64, where a wrong value cannot hide behind rounding."""
    shape, vocabulary = _draw_input(rng)
    start = (*shape, rng.choice([1, 2, 3, 8, 17])) if vocabulary else shape
    layers, end = draw_layers(rng, start, rng.randint(1, 6))
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
        rng.choice(list(OPTIMIZERS)),
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
    time: int | str = rng.choice(["time", 1, 2, 3, 5, 6])
    small = [1, 2, 3, 5, 6, 8, 17]
    kind = rng.choice(["rows", "series", "time first", "images", "images", "signals", "tokens"])
    groups, each = (
        rng.choice([1, 1, 2, 2, 3]),
        rng.choice([1, 2, 3, 16, 17, 18, 20, 24, 31, 32, 33, rng.randint(1, 47)]),
    )
    height, width = rng.choice([1, 2, 3, 4, 5, 6]), rng.choice([1, 2, 3, 4, 5, 7])
    shapes: dict[str, Shape] = {
        "rows": (batch, rng.choice([1, 2, 3, 6, 8, 16, 17, 31, 33])),
        "series": (batch, time, rng.choice(small)),
        "time first": (time, batch, rng.choice(small)),
        "images": (batch, groups * each, height, width),
        "signals": (batch, groups * each, rng.choice([1, 2, 3, 5, 17])),
        "tokens": (batch, time),
    }
    return shapes[kind], rng.choice([2, 5, 17]) if kind == "tokens" else 0


def _draw_sizes(rng: Random, capacity: Mapping[str, int], accumulate: int) -> dict[str, int]:
    """Full, or smaller; two rows at least, which a batch norm needs."""
    full = {s: n * (accumulate if s == "batch" else 1) for s, n in capacity.items()}
    return {s: n if rng.random() < 0.4 else rng.randint(min(2, n), n) for s, n in full.items()}


# -- making ------------------------------------------------------------------------------------------------------


def twins(n: Network) -> Made:
    """Both networks, with the weights of torch's."""
    shape, layers = n.shape, n.layers
    ours: list[ws.nn.Module] = []
    theirs: list[torch.nn.Module] = []
    torch.manual_seed(n.seed)
    if n.vocabulary:
        width = layers[0].options["width"]
        ours, theirs = [ws.nn.Embedding(n.vocabulary, width)], [torch.nn.Embedding(n.vocabulary, width)]
        shape, layers = (*shape, width), layers[1:]
    body = sequence(layers, shape)
    ours, theirs, shape = [*ours, *body.ours], [*theirs, *body.theirs], body.shape
    if n.classes and len(shape) > 1 and isinstance(shape[-1], int):
        head = make(Layer("linear", {"outputs": n.classes}), shape)
        if head is not None:
            ours, theirs, shape = [*ours, head.ours], [*theirs, head.theirs], head.shape
    made = Made(ws.nn.Sequential(*ours).astype(n.dtype), torch.nn.Sequential(*theirs).double(), shape)
    with torch.no_grad():
        for p in made.theirs.parameters():
            if p.ndim == 1:  # gains of 1 and shifts of 0 hide mistakes
                p += 0.2 * torch.randn_like(p)
            p.copy_(torch.tensor(p.numpy().astype(n.dtype)))
    if LOSSES[n.loss].classes and (len(shape) < 2 or not isinstance(shape[-1], int)):
        raise Unfit("no axis of classes")
    if not any(True for _ in made.theirs.parameters()):
        raise Unfit("no parameters")
    return made


def batches(n: Network, out: Shape) -> list[dict[str, Array]]:
    """Inputs and targets of every step, exact in the network's dtype."""
    rng = np.random.default_rng(n.seed)

    def sized(shape: Shape, sizes: Mapping[str, int]) -> tuple[int, ...]:
        return tuple(e if isinstance(e, int) else sizes[e] for e in shape)

    found = []
    for sizes in n.steps:
        where = sized(n.shape, sizes)
        x = rng.integers(0, n.vocabulary, where).astype(np.int32) if n.vocabulary else rng.normal(size=where)
        y = LOSSES[n.loss].target(rng, sized(out, sizes))
        found.append({k: a if a.dtype == np.int32 else a.astype(n.dtype) for k, a in (("x", x), ("labels", y))})
    return found


# -- training ----------------------------------------------------------------------------------------------------


def train_torch(n: Network, made: Made, data: list[dict[str, Array]], dtype: str, jiggle: float = 0.0) -> Trained:
    """The oracle; `jiggle` moves every weight by that part of itself, to see what rounding does to the result."""
    torch.set_default_dtype(torch.float64)  # NAdam keeps its product of momenta in the default dtype
    try:
        return _train_torch(n, made, data, dtype, jiggle)
    finally:
        torch.set_default_dtype(torch.float32)


def _train_torch(n: Network, made: Made, data: list[dict[str, Array]], dtype: str, jiggle: float) -> Trained:
    torch.manual_seed(n.seed + 1)
    start = {k: v.clone() for k, v in made.theirs.state_dict().items()}
    module = made.theirs.to(getattr(torch, dtype)).train()
    with torch.no_grad():
        for p in module.parameters():
            p *= 1 + jiggle * torch.randn_like(p)
    if n.frozen:
        module[0].requires_grad_(False)
    params = [p for p in module.parameters() if p.requires_grad]
    if not params:
        raise Unfit("everything is frozen")
    row = OPTIMIZERS[n.optimizer]
    optimizer = row.theirs(params, row.lr)
    factor = SCHEDULES[n.schedule][1] if n.schedule else lambda _: 1.0
    losses = []
    for i, batch in enumerate(data):
        x, y = (
            torch.tensor(a) if a.dtype == np.int32 else torch.tensor(a).to(getattr(torch, dtype))
            for a in batch.values()
        )
        optimizer.param_groups[0]["lr"] = row.lr * factor(i)
        optimizer.zero_grad()
        loss = LOSSES[n.loss].theirs(module(x), y)
        loss.backward()
        _clip(params, n.clip_norm)
        optimizer.step()
        losses.append(loss.item())
    state = {k: v.double().numpy().copy() for k, v in module.state_dict().items() if "num_batches" not in k}
    module.requires_grad_(True).double().load_state_dict(start)
    return Trained(losses, state)


def _clip(params: list[torch.nn.Parameter], limit: float | None) -> None:
    """Exactly to the limit: torch's own adds 1e-6 to the norm."""
    if limit is None:
        return
    given = [p.grad for p in params if p.grad is not None]
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in given))
    for g in given:
        g *= limit / norm if norm > limit else 1.0


def session_of(n: Network, made: Made, options: ws.CompileOptions | None = None, load: bool = True) -> ws.Session:
    """Our session, through the whole pipeline with its default options; `load`: with torch's weights."""
    if load:
        made.ours.load_state_dict({k: v.numpy().astype(n.dtype) for k, v in made.theirs.state_dict().items()})
    if n.frozen:
        freeze_first(made.ours)
    example = LOSSES[n.loss].target(np.random.default_rng(0), (2,) * len(made.shape))
    target = made.shape if example.ndim == len(made.shape) else made.shape[:-1]
    row = OPTIMIZERS[n.optimizer]
    return ws.build_session(
        made.ours,
        inputs=ws.Spec(n.shape, "int32" if n.vocabulary else n.dtype),
        targets=ws.Spec(target, "int32" if example.dtype == np.int32 else n.dtype),
        loss=LOSSES[n.loss].ours,
        optimizer=row.ours(row.lr),
        schedule=SCHEDULES[n.schedule][0](row.lr) if n.schedule else None,
        capacity=dict(n.capacity),
        clip_norm=n.clip_norm,
        accumulate=n.accumulate,
        threads=n.threads,
        options=options or ws.CompileOptions(compiler=FAST, verify=None if n.verify else False),
    )


def freeze_first(model: ws.nn.Module) -> None:
    """The layer called 0, where it has parameters."""
    names = [name for name in model.parameters() if name.removeprefix("body.").startswith("0.")]
    if names:
        model.freeze(*names)


def train_ours(n: Network, made: Made, data: list[dict[str, Array]]) -> Trained:
    session = session_of(n, made)
    losses = [float(session.step(batch)) for batch in data]
    return Trained(losses, {k: session.get(k).astype(np.float64) for k in made.ours.named_arrays()})


def check(n: Network) -> None:
    """Ours and torch's agree as closely as rounding lets them; Wrong says where they do not."""
    made = twins(n)
    data = batches(n, made.shape)
    expected = train_torch(n, made, data, "float64")
    if not np.isfinite(expected.losses).all():
        raise Unfit("the loss of torch is not finite")
    near = [train_torch(n, made, data, "float64", 1e-13)]
    if n.dtype == "float32":
        near = [train_torch(n, made, data, "float32"), train_torch(n, made, data, "float64", 1e-7)]
    if not all(np.isfinite(t.losses).all() for t in near):
        raise Unfit("the loss of torch is near the end of the range")
    try:
        found = train_ours(n, made, data)
    except GraphError as error:
        if n.accumulate > 1 and "per_micro_batch" in str(error):
            raise Unfit("the loss cannot be cut into batches") from None
        raise
    compare(n, found, expected, near)


def compare(n: Network, found: Trained, expected: Trained, near: list[Trained]) -> None:
    def gap(a: Any, b: Any) -> float:
        return float(np.abs(np.asarray(a) - np.asarray(b)).max(initial=0.0))

    def judge(what: str, got: Any, want: Any, others: list[Any]) -> None:
        size = float(np.abs(np.asarray(want)).max(initial=0.0))
        factor = 20 if n.dtype == "float32" else 1000
        limit = FLOOR[n.dtype] * max(size, 0.1) + factor * max(gap(o, want) for o in others)
        worst = gap(got, want)
        if not worst <= limit:  # NaN is wrong too
            raise Wrong(f"{what}: off by {worst:.3g}, allowed {limit:.3g}, largest {size:.3g}")

    judge("losses", found.losses, expected.losses, [t.losses for t in near])
    for name, want in expected.state.items():
        if name in found.state:
            judge(name, found.state[name], want, [t.state[name] for t in near])


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
    for name in ("accumulate", "schedule", "clip_norm", "frozen", "verify", "threads", "optimizer", "loss", "classes"):
        if getattr(n, name) != getattr(plain, name):
            yield replace(n, **{name: getattr(plain, name)})
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
