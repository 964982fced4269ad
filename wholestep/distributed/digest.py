"""A digest of everything that determines the bits of a run; workers compare theirs before the first step."""

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

ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # an address in the text of a function
LOCAL_SETTINGS = ("threads", "device")  # workers may have different values of these
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
    """Raise UsageError in every worker if one of them would train something else; names the worker and the field."""
    description = dict(_flatten("", describe_run(session, loader, settings, validation)))
    descriptions = [json.loads(text) for text in group.gather(json.dumps(description).encode())]
    first = descriptions[0]
    for rank, other in enumerate(descriptions):
        for field in sorted({*first, *other}, key=lambda name: (name.startswith("weights"), name)):
            value, expected = other.get(field), first.get(field)
            if value != expected:
                raise UsageError(_difference_text(group, session, rank, field, value, expected))


def describe_run(
    session: Session, loader: Any, settings: Mapping[str, Any], validation: Table | None = None
) -> dict[str, Any]:
    """Everything that determines a run: versions, the plan, rows, seeds, settings and initial values."""
    identity = identity_of(session, loader)
    return {
        "wholestep": identity.pop("version"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        **identity,
        **({} if validation is None else {"data of the validation": describe_table(validation)}),
        "step": session.state.step,
        "settings": {name: value for name, value in settings.items() if name not in LOCAL_SETTINGS},
        "weights": hashlib.sha256(json.dumps(_checksums(session)).encode()).hexdigest()[:16],
    }


def _checksums(session: Session) -> dict[str, int]:
    """A checksum of each replicated state.  Reading a sharded one is a collective, which unequal workers cannot run."""
    replicated = [name for name in session.state.names if not session.state.is_divided(name)]
    return {name: zlib.crc32(np.ascontiguousarray(session.get(name)).tobytes()) for name in replicated}


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flatten(f"{prefix}.{name}" if prefix else str(name), inner)
    else:
        yield prefix, ADDRESS.sub("", str(value))


def _difference_text(group: RankGroup, session: Session, rank: int, field: str, value: object, expected: object) -> str:
    if field == "weights":  # a collective: all workers arrive here, since all compare the same descriptions
        sums = [json.loads(text) for text in group.gather(json.dumps(_checksums(session)).encode())]
        field = next((f"weights of {name!r}" for name in sums[0] if sums[0][name] != sums[rank].get(name)), field)
    advice = next((text for name, text in ADVICE.items() if field.startswith(name)), "Start all of them alike.")
    return (
        f"the workers do not train the same: rank {rank} differs from rank 0 in {field}, which is {value or 'nothing'} "
        f"there and {expected or 'nothing'} on rank 0. {advice}"
    )
