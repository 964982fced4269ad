"""The same training written in two ways: the same bits where that is promised, torch's numbers where torch has them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import wholestep as ws
from tests.fuzz import networks
from tests.fuzz.case import Unfit, Wrong
from tests.fuzz.layers.layer import Made
from tests.fuzz.network import Network
from tests.fuzz.networks import Trained
from tests.fuzz.ranks import RANKS, dividing_small_states, is_refused, mark, ranks_of
from tests.fuzz.training import LOSSES, OPTIMIZERS, SCHEDULES, Array
from tests.support.compilers import QUICK
from wholestep.errors import GraphError, NonFiniteError, UsageError

SAME, CLOSE = "same bits", "close"
EPS = {"bfloat16": 2.0**-8, "float16": 2.0**-11}  # half a last place: what a rounding to it may lose
# What may be done differently, and what is promised for it.
FITS = {
    "threads": SAME,
    "resume": SAME,
    "checkpoint": SAME,
    "warm cache": SAME,
    "loader": SAME,
    "dict": SAME,
    "strided": SAME,
    "no egraph": CLOSE,
    "weights of 1": CLOSE,
    "accumulate": CLOSE,
    **dict.fromkeys(RANKS, CLOSE),
}
SESSIONS = {"threads": SAME, "run": SAME, "capacity": SAME, "strided": SAME, "no egraph": CLOSE, "accumulate": CLOSE}
SESSIONS |= dict.fromkeys(RANKS, CLOSE)
PARTS = 2  # micro-batches of a step that accumulates
BITWISE = "rewritten to the same bits"


@dataclass(frozen=True)
class Combination:
    """A network, how it is trained, and what the second run does differently."""

    network: Network
    entry: str  # "fit" or "session"
    changes: tuple[str, ...]
    rows: int = 11
    batch_size: int = 4
    epochs: int = 2
    shuffle: bool = False
    dropout: float = 0.0
    precision: str = "float32"
    device: str = "cpu"


def draw(rng: Random) -> Combination:
    """A network over rows that can be cut into batches."""
    for _ in range(200):
        n = networks.draw(rng)
        if n.shape[0] == "batch" and "time" not in n.shape:
            break
    n = replace(n, accumulate=1, capacity={"batch": 4}, steps=({"batch": 4},), verify=False, threads=1)
    entry = rng.choice(["fit", "fit", "session"])
    table = FITS if entry == "fit" else SESSIONS
    changes = tuple(rng.sample(list(table), rng.choice([1, 1, 2])))
    rows = rng.choice([4, 6, 7, 10, 11])
    epochs, shuffle, dropout = rng.choice([1, 2, 3]), rng.random() < 0.5, rng.choice([0.0, 0.0, 0.3])
    precision = rng.choice(["float32", "float32", "bfloat16", "float16"])
    n = n if precision == "float32" else replace(n, dtype="float32")
    return Combination(n, entry, changes, rows, 4, epochs, shuffle, dropout, precision)


# -- both runs ---------------------------------------------------------------------------------------------------


def data_of(n: Network, shape: Any, rows: int) -> tuple[Array, Array]:
    one = networks.batches(replace(n, steps=({"batch": rows},)), shape)[0]
    return one["x"], one["labels"]


def model_of(c: Combination, made: Made, changes: tuple[str, ...]) -> ws.nn.Module:
    """A fresh model with the first weights; what is dropped comes first, so that names stay."""
    fresh = networks.twins(c.network)
    model = fresh.ours
    model.load_state_dict(_numbers(c.network, made))
    mark(model, changes, c.network.seed)
    if c.network.frozen:
        networks.freeze_first(model)
    return Dropping(model, c.dropout) if c.dropout and not c.network.vocabulary else model


class Dropping(ws.nn.Module):
    """Noise before a network: the same in both runs."""

    def __init__(self, body: ws.nn.Module, rate: float) -> None:
        self.drop, self.body = ws.nn.Dropout(rate), body

    def forward(self, x: ws.Tensor) -> ws.Tensor:
        return self.body(self.drop(x))


def _numbers(n: Network, made: Made) -> dict[str, Array]:
    return {k: v.numpy().astype(n.dtype) for k, v in made.theirs.state_dict().items()}


def strided(a: Array) -> Array:
    """The same numbers, every second one of an array in the other byte order."""
    wide = np.zeros((2 * len(a), *a.shape[1:]), a.dtype.newbyteorder(">"))
    wide[::2] = a
    return wide[::2]


def run_fit(c: Combination, made: Made, changes: tuple[str, ...], cache: Path) -> Trained:
    model, n = model_of(c, made, changes), c.network
    x, y = data_of(n, made.shape, c.rows)
    if "strided" in changes:
        x, y = strided(x), strided(y)
    given: Any = (x, y)
    if "weights of 1" in changes:
        given = (x, y, np.ones(len(x), n.dtype))
    if "dict" in changes:
        given = ({"x": x}, *given[1:])
    if "loader" in changes and len(given) == 2:
        given = ws.DataLoader(given[0], given[1], c.batch_size, shuffle=c.shuffle)
    row, parts = OPTIMIZERS[n.optimizer], PARTS if "accumulate" in changes else 1
    options = {
        "loss": LOSSES[n.loss].ours,
        "optimizer": row.ours(row.lr),
        "schedule": SCHEDULES[n.schedule][0](row.lr) if n.schedule else None,
        "clip_norm": n.clip_norm,
        "batch_size": c.batch_size // parts,
        "accumulate": parts,
        "precision": c.precision,
        "loss_scale": scale_of(c),
        "device": device_of(c, changes),
        **ranks_of(changes),
        "shuffle": c.shuffle,
        "threads": 3 if "threads" in changes else 1,
        "progress": False,
        "options": compile_options(changes, cache),
    }
    with tempfile.TemporaryDirectory() as folder:
        if "resume" in changes and c.epochs > 1:
            ws.fit(model, given, epochs=1, checkpoint=folder, **options)
            model = model_of(c, made, changes)
            history = ws.fit(model, given, epochs=c.epochs, checkpoint=folder, resume=True, **options)
        else:
            kept = {"checkpoint": folder} if "checkpoint" in changes else {}
            history = ws.fit(model, given, epochs=c.epochs, **kept, **options)
    return Trained([e.avg_loss for e in history.epochs], model.state_dict())


def run_session(c: Combination, made: Made, changes: tuple[str, ...], cache: Path) -> Trained:
    model = model_of(c, made, changes)
    n = replace(c.network, capacity={"batch": 9 if "capacity" in changes else c.batch_size})
    n = replace(n, threads=3 if "threads" in changes else 1, device=device_of(c, changes))
    if "accumulate" in changes:
        n = replace(n, accumulate=PARTS, capacity={"batch": c.batch_size // PARTS})
    half = {"precision": c.precision, "loss_scale": scale_of(c), **ranks_of(changes)}
    session = networks.session_of(n, replace(made, ours=model), compile_options(changes, cache), load=False, **half)
    x, y = data_of(n, made.shape, c.rows)
    if "strided" in changes:
        x, y = strided(x), strided(y)
    if "run" in changes and "capacity" not in changes:
        losses = session.run(x=x, labels=y, epochs=c.epochs, shuffle=False, batch_size=c.batch_size).tolist()
    else:
        starts = [i for _ in range(c.epochs) for i in range(0, c.rows, c.batch_size)]
        losses = [float(session.step(x=x[i : i + c.batch_size], labels=y[i : i + c.batch_size])) for i in starts]
    return Trained(losses, model.state_dict())


def device_of(c: Combination, changes: tuple[str, ...]) -> str:
    """The reference has no ranks."""
    return "cpu" if c.device == "reference" and ranks_of(changes) else c.device


def scale_of(c: Combination) -> ws.LossScale | None:
    """Small enough that no step is skipped: torch skips none."""
    return ws.LossScale(init=16.0) if c.precision == "float16" else None


def compile_options(changes: tuple[str, ...], cache: Path) -> ws.CompileOptions:
    folder = str(cache / ("changed" if changes and "warm cache" not in changes else "plain"))
    exactness = "bitwise" if {"parts", BITWISE} & set(changes) else "reassociating"
    told = {"egraph": "no egraph" not in changes, "exactness": exactness}
    return ws.CompileOptions(compiler=QUICK, verify=False, cache_dir=folder, **told)


RUNS: dict[str, Callable[[Combination, Made, tuple[str, ...], Path], Trained]] = {
    "fit": run_fit,
    "session": run_session,
}


def check(c: Combination) -> None:
    made = networks.twins(c.network)
    x, y = data_of(c.network, made.shape, c.rows)
    if made.shape[0] != "batch" or not np.isfinite(np.asarray(x, float)).all():
        raise Unfit("the rows of the outputs are not those of the inputs")
    want, near = against_torch(c, made)
    with tempfile.TemporaryDirectory() as folder, dividing_small_states():
        try:
            plain = RUNS[c.entry](c, made, (), Path(folder))
            changed = RUNS[c.entry](c, made, c.changes, Path(folder))
            check_parts(c, made, changed, Path(folder))
        except NonFiniteError as error:
            if c.shuffle and batch_may_count_nothing(c, made, y):
                raise Unfit(
                    "a batch of rows that count nothing: torch's mean over them is not finite either"
                ) from error
            raise
        except GraphError as error:
            if "accumulate" in c.changes and "cannot" in str(error):
                raise Unfit("a batch norm or a turned batch cannot be cut into parts, and says so") from error
            if ranks_of(c.changes) and is_refused(error):
                raise Unfit("ranks cannot divide it, and say so") from error
            raise
        except UsageError as error:
            if ranks_of(c.changes) and is_refused(error):
                raise Unfit("the optimizer keeps nothing that ranks could divide, and says so") from error
            raise
    table = FITS if c.entry == "fit" else SESSIONS
    if all(table[name] == SAME for name in c.changes):
        same_bits(plain, changed)
    eps = EPS.get(c.precision)
    if not c.shuffle and not c.dropout:
        for found in (plain, changed):
            networks.compare(c.network, replace(found, losses=want.losses), want, near, eps)
    elif ranks_of(c.changes):  # which have the order and the masks of one process
        networks.compare(c.network, changed, plain, [moved(plain, want, other) for other in near], eps)


def check_parts(c: Combination, made: Made, found: Trained, cache: Path) -> None:
    """Divided states change no bit, unless a norm is added up over parts, or a step is rewritten in another order."""
    name = next((name for name in reversed(c.changes) if name in RANKS), "")
    if name == "parts" and c.network.clip_norm is None:
        whole = tuple("three ranks" if change == name else change for change in c.changes)
        same_bits(RUNS[c.entry](c, made, (*whole, BITWISE), cache), found)


def moved(found: Trained, of: Trained, to: Trained) -> Trained:
    """As far from what was found as rounding moves torch's numbers: `of` and `to` are its runs over other batches."""
    by = {name: np.abs(value - to.state[name]).max(initial=0.0) for name, value in of.state.items()}
    off = np.abs(np.asarray(of.losses) - np.asarray(to.losses)).max(initial=0.0)
    state = {name: value + by.get(name.removeprefix("body."), 0.0) for name, value in found.state.items()}
    return Trained([float(loss + off) for loss in found.losses], state)


def same_bits(a: Trained, b: Trained) -> None:
    if a.losses != b.losses:
        raise Wrong(f"losses are {a.losses} and {b.losses}")
    for name, value in a.state.items():
        if value.tobytes() != b.state[name].tobytes():
            raise Wrong(f"{name} differs in bits by {np.abs(value - b.state[name]).max()}")


def against_torch(c: Combination, made: Made) -> tuple[Trained, list[Trained]]:
    """Torch's numbers over batches in the order of their rows, and what rounding makes of them."""
    x, y = data_of(c.network, made.shape, c.rows)
    parts = [{"x": x[i : i + 4], "labels": y[i : i + 4]} for i in range(0, c.rows, c.batch_size)] * c.epochs
    runs = [("float64", 0.0), ("float64", 1e-13)]
    if c.network.dtype == "float32":
        runs += [("float32", 0.0), ("float64", 1e-7)]
    if c.precision in EPS:
        runs = [("float64", 0.0), ("float64", EPS[c.precision]), ("float64", -2 * EPS[c.precision])]
    want, *near = (networks.train_torch(c.network, made, parts, *run) for run in runs)
    if not np.isfinite(want.losses).all():
        raise Unfit("the loss of torch is not finite")
    return want, near


def batch_may_count_nothing(c: Combination, made: Made, labels: Array) -> bool:
    """Could the smallest batch be of such rows alone, in some order?"""
    counts = LOSSES[c.network.loss].counts
    if counts is None:
        return False
    rows = counts(labels, int(made.shape[-1])).reshape(len(labels), -1).any(axis=1)
    return int((~rows).sum()) >= (c.rows % c.batch_size or c.batch_size)


# -- as text, and smaller ----------------------------------------------------------------------------------------


def to_data(c: Combination) -> dict[str, Any]:
    return asdict(c)


def from_data(data: Mapping[str, Any]) -> Combination:
    changed = {"network": networks.from_data(data["network"]), "changes": tuple(data["changes"])}
    return Combination(**{**data, **changed})


def smaller(c: Combination) -> Iterator[Combination]:
    if len(c.changes) > 1:
        for name in c.changes:
            yield replace(c, changes=(name,))
    if c.epochs > 1:
        yield replace(c, epochs=c.epochs - 1)
    for name in ("shuffle", "dropout"):
        if getattr(c, name):
            yield replace(c, **{name: type(getattr(c, name))(0)})
    if c.device != "cpu":
        yield replace(c, device="cpu")
    if c.precision != "float32":
        yield replace(c, precision="float32")
    for n in networks.smaller(c.network):
        if n.capacity == c.network.capacity and n.shape[0] == "batch":
            yield replace(c, network=n)


def text(c: Combination) -> str:
    told = {k: v for k, v in vars(c).items() if k != "network"}
    return f"{networks.text(c.network)}\n{', '.join(f'{k}={v}' for k, v in told.items())}"
