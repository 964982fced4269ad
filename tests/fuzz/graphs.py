"""Random expressions with first and second derivatives, through the whole pipeline, against torch and NumPy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch

import wholestep as ws
from tests.fuzz.case import Unfit, Wrong
from tests.fuzz.edges import EXTREME, INTEGERS
from tests.fuzz.expressions import OPS
from tests.fuzz.programs import SIZES, Array, Extent, Op, OpRow, Pool, as_extents
from tests.support.compilers import QUICK
from wholestep.errors import WholestepError

TABLES: dict[str, dict[str, OpRow]] = {"floats": OPS, "extreme": EXTREME, "integers": INTEGERS}
LARGEST = 30.0  # of a value of "floats", so that nothing is lost by cancelling
MOST_ELEMENTS = 4000
MAGNITUDE = 1e30
SMALLEST, GREATEST = (float(f(np.finfo(np.float32))) for f in (lambda i: i.tiny, lambda i: i.max))
TOLERANCE = {"float32": 2e-4, "float64": 1e-9}


@dataclass(frozen=True)
class Program:
    """Operations, which of their values are given out, and how often these are differentiated."""

    table: str
    ops: tuple[Op, ...]
    outputs: tuple[int, ...]
    dtype: str = "float64"
    order: int = 0
    sizes: Mapping[str, int] | None = None
    room: int = 0  # how much larger the capacity is than the sizes
    verify: bool = False
    threads: int = 1
    seed: int = 0
    device: str = "cpu"


# -- drawing -----------------------------------------------------------------------------------------------------


def draw(rng: Random, sizes: Mapping[str, int] | None = None, most: int = 10) -> Program:
    """Up to so many operations over leaves with symbolic dimensions in every place."""
    with np.errstate(all="ignore"):
        return _draw(rng, sizes, most)


def _draw(rng: Random, sizes: Mapping[str, int] | None, most: int) -> Program:
    table = rng.choice(["floats"] * 6 + ["extreme", "integers"])
    chosen = sizes or {s: rng.choice([1, 2, 3, 5, 7, 17]) for s in SIZES}
    dtype = {"floats": rng.choice(["float64", "float64", "float32"]), "extreme": "float32", "integers": "int32"}[table]
    start = Program(table, (), (), dtype, rng.choice([0, 1, 1, 1, 2]) if table == "floats" else 0, chosen,
                    rng.choice([0, 0, 1, 3]) if sizes is None else 0, rng.random() < 0.1, rng.choice([1, 1, 2, 3]),
                    rng.randrange(10**6))  # fmt: skip
    pool = empty_pool(start, ws.Graph())
    _first_leaves(rng, pool, table)
    wanted = rng.randint(2, most)
    for _ in range(8 * wanted):
        if sum(op.name != "leaf" for op in pool.ops) >= wanted:
            break
        _try(rng, pool, table)
    read = {i for op in pool.ops for i in op.args}
    ends = [i for i, op in enumerate(pool.ops) if i not in read and op.name != "leaf"]
    return without_dead(replace(start, ops=tuple(pool.ops), outputs=tuple(ends[-4:])))


def empty_pool(p: Program, graph: ws.Graph, prefix: str = "") -> Pool:
    magnitude = MAGNITUDE if p.table == "extreme" else 1.0
    return Pool(graph, p.dtype, p.sizes or SIZES, Random(p.seed), magnitude, prefix=prefix)


def _first_leaves(rng: Random, pool: Pool, table: str) -> None:
    for _ in range(rng.randint(1, 3)):
        rank = rng.choice([1, 2, 2, 3, 3, 4] if table == "floats" else [0, 1, 1, 2])
        shape: tuple[Extent, ...] = tuple(rng.choice([1, 2, 3, 5, 17, "batch", "batch", "time"]) for _ in range(rank))
        if elements(shape, pool.sizes) <= MOST_ELEMENTS:
            kinds = ["int32", "int64", "uint8"] if table == "integers" else [pool.dtype]
            pool.leaf(shape, rng.choice(["input", "parameter"]), rng.choice(kinds))
    if not pool.ops:
        pool.leaf(("batch", 3), dtype=pool.dtype)


def elements(shape: Sequence[Extent], sizes: Mapping[str, int]) -> int:
    return int(np.prod([e if isinstance(e, int) else sizes[e] for e in shape]))


def _try(rng: Random, pool: Pool, table: str) -> None:
    """Add an operation, and take it back where its values are beyond what can be judged."""
    rows = TABLES[table]
    name = rng.choices(list(rows), [row.share for row in rows.values()])[0]
    before = len(pool.ops)
    drawn = rows[name].draw(rng, pool)
    if drawn is not None:
        pool.run(Op(name, *drawn), rows[name])
    if drawn is None or not _judgeable(pool.found[-1], table):
        while len(pool.ops) > before:
            pool.drop_last()


def _judgeable(value: Any, table: str) -> bool:
    array = value.detach().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.size > MOST_ELEMENTS or array.size == 0 or array.ndim > 5:
        return False
    if table == "integers":
        return True
    size = np.abs(array)
    if table == "extreme":
        return bool(((size > 4 * SMALLEST) & (size < GREATEST / MOST_ELEMENTS)).all())
    return bool(np.isfinite(array).all() and size.max() < LARGEST)


def without_dead(p: Program) -> Program:
    """Only what the outputs need, numbered anew."""
    needed: set[int] = set()
    waiting = list(p.outputs)
    while waiting:
        i = waiting.pop()
        if i not in needed:
            needed.add(i)
            waiting.extend(p.ops[i].args)
    number = {old: new for new, old in enumerate(sorted(needed))}
    ops = tuple(replace(p.ops[i], args=tuple(number[a] for a in p.ops[i].args)) for i in sorted(needed))
    return replace(p, ops=ops, outputs=tuple(number[i] for i in p.outputs))


# -- both sides --------------------------------------------------------------------------------------------------


@dataclass
class Recorded:
    """A program in a graph: our outputs by name, and what they should be."""

    tensors: dict[str, ws.Tensor]
    expected: dict[str, Any]
    scales: dict[str, float]
    feed: dict[str, Array]


def record(p: Program, graph: ws.Graph, prefix: str = "") -> Recorded:
    """Run the program on both sides, and differentiate."""
    pool = empty_pool(p, graph, prefix)
    for op in p.ops:
        pool.run(op, None if op.name == "leaf" else TABLES[p.table][op.name])
    tensors = {f"{prefix}out{i}": pool.tensors[i] for i in p.outputs}
    values = {f"{prefix}out{i}": pool.found[i] for i in p.outputs}
    leaves = [i for i, op in enumerate(p.ops) if op.name == "leaf" and pool.tensors[i].dtype.is_float]
    if p.order:
        ours = sum_of(list(tensors.values()), p.dtype)
        theirs = torch_sum_of(list(values.values()))
        for order in range(1, p.order + 1):
            slopes = ws.gradients(ours, [pool.tensors[i] for i in leaves])
            twins = torch.autograd.grad(
                theirs, [pool.found[i] for i in leaves], create_graph=order < p.order, materialize_grads=True
            )
            tensors |= {f"{prefix}d{order} of {i}": s for i, s in zip(leaves, slopes)}
            values |= {f"{prefix}d{order} of {i}": s for i, s in zip(leaves, twins)}
            if order < p.order:
                ours = sum((s * s).sum() for s in slopes)
                theirs = sum((s * s).sum() for s in twins)
                if not theirs.requires_grad:
                    break
    arrays = {k: v.detach().numpy() if isinstance(v, torch.Tensor) else v for k, v in values.items()}
    scale = max([1.0, *(float(np.abs(np.asarray(a, np.float64)).max(initial=0.0)) for a in arrays.values())])
    inputs = [i for i, op in enumerate(p.ops) if op.name == "leaf" and op.options["kind"] == "input"]
    feed = {pool.tensors[i].name: _given(pool.found[i], p.ops[i].options["dtype"]) for i in inputs}
    return Recorded(tensors, arrays, dict.fromkeys(arrays, scale), feed)


def _given(value: Any, dtype: str) -> Array:
    return (value.detach().numpy() if isinstance(value, torch.Tensor) else value).astype(dtype)


def weights_of(rank: int) -> float:
    return 0.5 + 0.25 * rank


def sum_of(tensors: list[ws.Tensor], dtype: str) -> ws.Tensor:
    """Of all outputs, squared, so that gradients are not the same everywhere."""
    return sum((ws.sin(t) * weights_of(i)).mean() for i, t in enumerate(tensors))


def torch_sum_of(tensors: list[torch.Tensor]) -> torch.Tensor:
    return sum((torch.sin(t) * weights_of(i)).mean() for i, t in enumerate(tensors))


def check(p: Program) -> None:
    check_many([p])


def check_many(programs: list[Program], names: list[str] | None = None) -> None:
    """Programs in one graph; Wrong names the one that is wrong."""
    for name, failure in failures(programs, names or [f"p{i}" for i in range(len(programs))]).items():
        raise Wrong(f"{name}: {failure}")


def failures(programs: list[Program], names: list[str]) -> dict[str, str]:
    """What is wrong with each program that is wrong; all of them are compiled as one."""
    first, graph = programs[0], ws.Graph()
    with np.errstate(all="ignore"):
        recorded = {name: record(p, graph, f"{name}.") for name, p in zip(names, programs)}
    outputs = {k: t for r in recorded.values() for k, t in r.tensors.items()}
    if not outputs:
        raise Unfit("nothing to compute")
    graph.set_outputs(outputs)
    sizes = first.sizes or SIZES
    session = ws.build_inference_session(
        graph,
        capacity={s: n + first.room for s, n in sizes.items() if s in graph.to_ir().symbols},
        device=first.device,
        threads=first.threads,
        options=ws.CompileOptions(compiler=QUICK, verify=None if first.verify else False),
    )
    found = session.step({k: a for r in recorded.values() for k, a in r.feed.items()}).outputs
    wrong = {}
    for (name, r), p in zip(recorded.items(), programs):
        gaps = [
            text for key, want in r.expected.items() if (text := difference(p, key, found[key], want, r.scales[key]))
        ]
        if gaps:
            wrong[name] = "; ".join(gaps)
    return wrong


def difference(p: Program, what: str, got: Array, want: Array, scale: float) -> str:
    """Empty where they agree: whole numbers to the last bit, extreme ones relative to each of them."""
    if got.shape != want.shape:
        return f"{what} has shape {got.shape}, expected {want.shape}"
    if got.dtype.kind != "f":
        return "" if np.array_equal(got, want) else f"{what} is {got.ravel()[:6]}, expected {want.ravel()[:6]}"
    limit = TOLERANCE[p.dtype] * (np.abs(want) if p.table == "extreme" else scale)
    bad = ~(np.abs(got.astype(np.float64) - want) <= limit)
    if not bad.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(bad)[0])
    return f"{what}{list(at)} is {got[at]:.9g}, expected {want[at]:.9g} ({int(bad.sum())} of {bad.size} wrong)"


# -- as text, and smaller ----------------------------------------------------------------------------------------


def to_data(p: Program) -> dict[str, Any]:
    return asdict(p)


def from_data(data: Mapping[str, Any]) -> Program:
    ops = tuple(Op(o["name"], tuple(o["args"]), o["options"]) for o in data["ops"])
    return Program(**{**data, "ops": ops, "outputs": tuple(data["outputs"])})


def smaller(p: Program) -> Iterator[Program]:
    """One output, fewer derivatives, a leaf in the place of a value, smaller sizes."""
    if len(p.outputs) > 1:
        for i in p.outputs:
            yield without_dead(replace(p, outputs=(i,)))
    for order in range(p.order):
        yield replace(p, order=order)
    for i in p.outputs:
        for a in p.ops[i].args:
            if p.ops[a].name != "leaf":
                yield without_dead(replace(p, outputs=tuple(a if o == i else o for o in p.outputs)))
    yield from _with_leaves(p)
    for name, plain in (("room", 0), ("verify", False), ("threads", 1), ("device", "cpu")):
        if getattr(p, name) != plain:
            yield replace(p, **{name: plain})
    for s, n in (p.sizes or SIZES).items():
        for less in sorted({1, 2, n // 2, n - 1} - {0, n}):
            if less < n:
                yield replace(p, sizes={**(p.sizes or SIZES), s: less})
    yield from _smaller_leaves(p)


def _with_leaves(p: Program) -> Iterator[Program]:
    graph = ws.Graph()
    pool = empty_pool(p, graph)
    try:
        for op in p.ops:
            pool.run(op, None if op.name == "leaf" else TABLES[p.table][op.name])
    except (WholestepError, RuntimeError, ValueError, IndexError):
        return
    for i, op in reversed(list(enumerate(p.ops))):
        if op.name == "leaf" or i in p.outputs:
            continue
        for a in op.args:
            if pool.tensors[a].shape == pool.tensors[i].shape and pool.tensors[a].dtype == pool.tensors[i].dtype:
                yield without_dead(replace(p, ops=tuple(_redirected(o, i, a) for o in p.ops)))
        plain = as_extents(pool.shape(i))
        if plain is not None:
            options = {"shape": list(plain), "kind": "input", "dtype": pool.tensors[i].dtype.name}
            leaf = Op("leaf", (), {**options, "below": 0, "key": i})
            yield without_dead(replace(p, ops=(*p.ops[:i], leaf, *p.ops[i + 1 :])))


def _redirected(op: Op, old: int, new: int) -> Op:
    return replace(op, args=tuple(new if a == old else a for a in op.args))


def _smaller_leaves(p: Program) -> Iterator[Program]:
    for i, op in enumerate(p.ops):
        for d, e in enumerate(op.options.get("shape", ())):
            if isinstance(e, int) and e > 1:
                for less in (1, e // 2, e - 1):
                    shape = [*op.options["shape"][:d], less, *op.options["shape"][d + 1 :]]
                    changed = replace(op, options={**op.options, "shape": shape})
                    yield replace(p, ops=(*p.ops[:i], changed, *p.ops[i + 1 :]))


def text(p: Program) -> str:
    """The program as lines of assignments."""
    lines = []
    for i, op in enumerate(p.ops):
        given = [*(f"v{a}" for a in op.args), *(f"{k}={v}" for k, v in op.options.items() if op.name != "leaf" or v)]
        lines.append(f"v{i} = {op.name}({', '.join(given)})")
    told = {k: v for k, v in vars(p).items() if k not in ("ops", "outputs")}
    lines.append(f"outputs {', '.join(f'v{i}' for i in p.outputs)}; {', '.join(f'{k}={v}' for k, v in told.items())}")
    return "\n".join(lines)
