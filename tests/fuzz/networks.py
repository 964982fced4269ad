"""Random networks, trained a few steps by us and by torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import torch

import wholestep as ws
from tests.fuzz.case import Unfit, Wrong
from tests.fuzz.layers.layer import Layer, Made, Shape
from tests.fuzz.layers.layers import make, sequence
from tests.fuzz.network import Network, at_once, draw_any, from_data, smaller, text, to_data
from tests.fuzz.training import LOSSES, OPTIMIZERS, SCHEDULES, Array
from tests.support.compilers import QUICK
from wholestep.errors import GraphError

__all__ = ["Network", "check", "draw", "from_data", "smaller", "text", "to_data"]
torch.set_num_threads(1)  # its threads cost more than they bring at these sizes
FLOOR = {"float32": 2e-5, "float64": 1e-9}  # relative to a tensor's largest element


@dataclass(frozen=True)
class Trained:
    """What is compared: losses, and parameters and buffers after the last step."""

    losses: list[float]
    state: dict[str, Array]


def draw(rng: Random, most: int = 6) -> Network:
    """A network of up to so many layers that can be judged."""
    while True:
        network = draw_any(rng, most)
        try:
            judgement(network, twins(network))
        except Unfit:
            continue
        return network


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
    if LOSSES[n.loss].classes and (len(shape) < 2 or not isinstance(shape[-1], int) or shape[-1] < 2):
        raise Unfit("no axis of classes")
    trained = made.theirs[1:] if n.frozen else made.theirs
    if not list(trained.parameters()):
        raise Unfit("nothing to train")
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
    """The oracle; `jiggle` moves weights and gradients by that part of their size, to see what rounding does."""
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
        _jiggled(params, jiggle)
        _clip(params, n.clip_norm)
        optimizer.step()
        losses.append(loss.item())
    state = {k: v.double().numpy().copy() for k, v in module.state_dict().items() if "num_batches" not in k}
    module.requires_grad_(True).double().load_state_dict(start)
    return Trained(losses, state)


def _jiggled(params: list[torch.nn.Parameter], part: float) -> None:
    """What is 0 but for rounding, and is divided by itself or asked for its sign, is seen to be so."""
    for p in params:
        if p.grad is not None and part:
            p.grad += part * p.grad.abs().max() * torch.randn_like(p)


def _clip(params: list[torch.nn.Parameter], limit: float | None) -> None:
    """Exactly to the limit: torch's own adds 1e-6 to the norm."""
    if limit is None:
        return
    given = [p.grad for p in params if p.grad is not None]
    norm = math.sqrt(sum(float((g.double() ** 2).sum()) for g in given))
    for g in given:
        g *= limit / norm if norm > limit else 1.0


def session_of(
    n: Network, made: Made, options: ws.CompileOptions | None = None, load: bool = True, **half: Any
) -> ws.Session:
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
        device=n.device,
        threads=n.threads,
        options=options or ws.CompileOptions(compiler=QUICK, verify=None if n.verify else False),
        **{"precision": "float32", **half},  # None would round convolutions to tf32 on a GPU
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


@dataclass(frozen=True)
class Judgement:
    """What torch makes of a network, and what it makes of it with other roundings."""

    data: list[dict[str, Array]]
    expected: Trained
    near: list[Trained]


def judgement(n: Network, made: Made) -> Judgement:
    data = batches(n, made.shape)
    runs = [("float64", 0.0), ("float64", 1e-13)]
    if n.dtype == "float32":
        runs = [("float64", 0.0), ("float32", 0.0), ("float64", 1e-7)]
    expected, *near = (train_torch(n, made, data, *run) for run in runs)
    if not all(np.isfinite(t.losses).all() for t in (expected, *near)):
        raise Unfit("torch's loss is not finite")
    return Judgement(data, expected, near)


def check(n: Network) -> None:
    """Ours and torch's agree as closely as rounding lets them; Wrong says where they do not."""
    made = twins(n)
    judge = judgement(n, made)
    try:
        found = train_ours(n, made, judge.data)
    except GraphError:
        if n.accumulate == 1:
            raise
        check(at_once(n))  # a batch norm or a turned batch cannot be cut into parts, and says so
        return
    compare(n, found, judge.expected, judge.near)


def compare(n: Network, found: Trained, expected: Trained, near: list[Trained], eps: float | None = None) -> None:
    """Wrong where ours is further off than rounding explains; `eps` is that of products in half precision."""
    floor = FLOOR[n.dtype] if eps is None else 4 * eps
    factor = 20 if n.dtype == "float32" else 1000

    def gap(a: Any, b: Any) -> float:
        return float(np.abs(np.asarray(a) - np.asarray(b)).max(initial=0.0))

    def judge(what: str, got: Any, want: Any, others: list[Any]) -> None:
        size = float(np.abs(np.asarray(want)).max(initial=0.0))
        limit = floor * max(size, 0.1) + factor * max(gap(o, want) for o in others)
        worst = gap(got, want)
        if not worst <= limit:  # NaN is wrong too
            raise Wrong(f"{what}: off by {worst:.3g}, allowed {limit:.3g}, largest {size:.3g}")

    judge("losses", found.losses, expected.losses, [t.losses for t in near])
    for name, want in expected.state.items():
        judge(name, found.state[name], want, [t.state[name] for t in near])
