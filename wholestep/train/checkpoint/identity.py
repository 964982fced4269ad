"""The identity of a run: plan, code, instruction set, seed, data.  Runs of equal identity give equal bits."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np

from wholestep.compiler.backends.cpu.runtime.compiler import NATIVE
from wholestep.compiler.plan.io import serialize
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.sources import GPU_FAMILIES
from wholestep.data.loader import DataLoader
from wholestep.data.table import Table

if TYPE_CHECKING:
    from wholestep.compiler.backend import Placement
    from wholestep.session import Session

SAMPLE = 256  # rows of a data set in its fingerprint

# For each entry of the identity, why a difference may change bits.
REASONS = {
    "version": "another version may compute a step in another order",
    "code": "the generated code may add in another order",
    "target": "sums are computed with another instruction set",
    "machine": "another kind of GPU, or another version of NVIDIA's libraries, may add in another order",
    "seed": "random numbers and the order of the data differ",
    "plan": "the step is planned differently, so sums may be computed in another order",
    "shards": "sums are computed over another number of workers",
    "data": "the rows or their order differ",
}


def identity_of(session: Session, loader: Any = None) -> dict[str, Any]:
    """The identity of a session and its data."""
    from wholestep import __version__

    return {
        "version": __version__,
        "code": code_version(session.target.family),
        "machine": getattr(session._programs.where.device, "machine", ""),  # for a GPU: its model and its compiler
        "target": session.target.name,
        "seed": session.seed,
        "plan": [plan_digest(p) for p in session.plans],
        "shards": _workers(session._programs.where),
        "data": describe_data(loader),
    }


def _workers(where: Placement) -> int | str | None:
    """The number of ranks, or the shape of their mesh."""
    return f"{where.ranks} x {where.model_ranks}" if where.model_ranks > 1 else where.ranks or None


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One sentence per difference that changes the bits; data and machines are compared if both sides record them."""
    if not then:
        return ["the checkpoint does not name the program that wrote it, which may compute in another order"]
    sentences = []
    for name, reason in REASONS.items():
        if name in ("data", "machine") and not (then.get(name) and now.get(name)):
            continue
        if then.get(name) != now.get(name):
            sentences.append(
                f"{name}: the checkpoint has {_short(then.get(name))}, this run {_short(now.get(name))}; {reason}"
            )
    return sentences


_DIGESTS: dict[int, tuple[ref[Plan], str]] = {}  # digests by id of the plan, since hashing a plan is slow


def plan_digest(plan: Plan) -> str:
    """A fingerprint of a plan without the initial values of its scalars; the same on every machine."""
    cached = _DIGESTS.get(id(plan))
    if cached is None or cached[0]() is not plan:
        plain = replace(plan, scalars=tuple(replace(s, default=0.0) for s in plan.scalars))
        digest = hashlib.sha256(serialize.dump(plain)).hexdigest()
        cached = _DIGESTS[id(plan)] = ref(plan), digest
    return cached[1]


@cache
def code_version(family: str = "cpu") -> str:
    """A fingerprint of the code generator and runtime of a device family, which turn a plan into machine code.

    For the reference and for external backends it is a hash of their name.
    """
    backends = NATIVE.parent.parent
    named = [backends / family / "native", backends / family / "render"]
    if family in GPU_FAMILIES:
        named.append(backends / "gpu" / "render")
    folders = [folder for folder in named if folder.is_dir()]
    digest = hashlib.sha256(b"" if folders else family.encode())
    for path in sorted(f for folder in folders for f in folder.rglob("*") if f.suffix in (".py", ".c", ".h")):
        digest.update(path.relative_to(backends).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def describe_data(loader: Any) -> dict[str, Any]:
    """Rows, batches and a fingerprint of some rows; empty for data that can be read only once."""
    if not isinstance(loader, DataLoader) or not isinstance(loader.source, Table):
        return {}
    table = loader.source
    return {
        **describe_table(table),
        "batch_size": loader.batch_size,
        "shuffle": loader.shuffles,
        "seed": loader.seed,
        **({} if loader.limit is None and not loader.drop_last else {"batches": len(loader)}),
    }


def describe_table(table: Table) -> dict[str, Any]:
    """The number of rows, and a fingerprint of some of them."""
    return {"rows": len(table), "sample": _sample_digest(table)}


def _sample_digest(table: Table) -> str:
    digest = hashlib.sha256()
    rows = np.unique(np.linspace(0, len(table) - 1, min(SAMPLE, len(table))).astype(np.int64))
    for name, column in sorted(table.columns.items()):
        digest.update(f"{name} {column.dtype} {column.shape}".encode())
        digest.update(np.ascontiguousarray(column[rows]).tobytes())
    return digest.hexdigest()[:16]


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
