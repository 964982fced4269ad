"""What the workers of a run must have in common, compared before the first step."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import zlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.errors import UsageError
from wholestep.train.checkpoint.identity import describe_table, identity_of

if TYPE_CHECKING:
    from wholestep.compiler.runtime.process_group import RankGroup
    from wholestep.data.table import Table
    from wholestep.session import Session

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # in the text of a function
OWN = ("threads", "device")  # settings in which workers may differ
ADVICE = {
    "wholestep": "Install the same version everywhere.",
    "python": "Use the same version of Python everywhere.",
    "numpy": "Install the same version everywhere.",
    "target": "Name one that all machines have: device='cpu/portable'.",
    "seed": "Give all of them the same seed=.",
    "data": "All workers are given all rows, in the same order; each takes its own of every batch.",
    "weights": "Build the model in the same way everywhere: with a seed, or from the same file.",
}


def need_same(
    group: RankGroup, session: Session, loader: Any, settings: Mapping[str, Any], validation: Table | None = None
) -> None:
    """UsageError, in every worker, where one of them would train something else; it names the worker and the field."""
    own = dict(_flat("", describe_run(session, loader, settings, validation)))
    told = [json.loads(text) for text in group.gather(json.dumps(own).encode())]
    first = told[0]
    for rank, other in enumerate(told):
        for field in sorted({*first, *other}, key=lambda name: (name.startswith("weights"), name)):
            there, here = other.get(field), first.get(field)
            if there != here:
                raise UsageError(_differ(group, session, rank, field, there, here))


def describe_run(
    session: Session, loader: Any, settings: Mapping[str, Any], validation: Table | None = None
) -> dict[str, Any]:
    """What decides a run: versions, the plan, rows, seeds, settings, and the numbers that it begins with."""
    identity = identity_of(session, loader)
    return {
        "wholestep": identity.pop("version"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        **identity,
        **({} if validation is None else {"data of the validation": describe_table(validation)}),
        "step": session.state.step,
        "settings": {name: value for name, value in settings.items() if name not in OWN},
        "weights": hashlib.sha256(json.dumps(_sums(session)).encode()).hexdigest()[:16],
    }


def _sums(session: Session) -> dict[str, int]:
    """A checksum of each state that a worker has to itself: those that differ could not even read the others."""
    own = [name for name in session.state.names if not session.state.is_divided(name)]
    return {name: zlib.crc32(np.ascontiguousarray(session.get(name)).tobytes()) for name in own}


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{prefix}.{name}" if prefix else str(name), inner)
    else:
        yield prefix, ADDRESS.sub("", str(value))


def _differ(group: RankGroup, session: Session, rank: int, field: str, there: object, here: object) -> str:
    if field == "weights":  # in every worker: all of them see the same texts
        sums = [json.loads(text) for text in group.gather(json.dumps(_sums(session)).encode())]
        field = next((f"weights of {name!r}" for name in sums[0] if sums[0][name] != sums[rank].get(name)), field)
    advice = next((text for name, text in ADVICE.items() if field.startswith(name)), "Start all of them alike.")
    return (
        f"the workers do not train the same: rank {rank} differs from rank 0 in {field}, which is {there or 'nothing'} "
        f"there and {here or 'nothing'} on rank 0. {advice}"
    )
