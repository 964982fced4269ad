"""Does a checkpoint fit a session?  Every reason why not, in one error, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from wholestep.errors import CheckpointError
from wholestep.session.checkpoint import SESSION
from wholestep.train.tensors import Array

if TYPE_CHECKING:
    from wholestep.session import Session

SHOWN = 6


def check_fits(arrays: Mapping[str, Array], session: Session, name: str) -> None:
    """CheckpointError where names or shapes differ: another model, or another optimizer or metrics."""
    states = session.lasting_states
    here = {n: tuple(int(e) for e in session.state.slot(n).type.shape) for n in states}
    there = {n: a.shape for n, a in arrays.items() if not n.startswith(SESSION)}
    own = {n for n, is_own in states.items() if is_own}
    wrong = [f"{n} is {there[n]} in it and {here[n]} here" for n in here if n in there and there[n] != here[n]]
    missing = [n for n in here if n not in there]
    unexpected = [n for n in there if n not in here]
    if wrong or any(n in own for n in missing):
        what = f"{name} is of another model: " + "; ".join(_listed(wrong, missing, unexpected))
        raise CheckpointError(
            f"{what}. Nothing was loaded. Build the model as it was, or start anew in another folder."
        )
    if missing or unexpected:
        what = f"{name} was made with another model, optimizer or metrics: " + "; ".join(
            _listed([], missing, unexpected)
        )
        raise CheckpointError(
            f"{what}. Nothing was loaded. Train as before, or take the weights alone: "
            f"model.load('{name}/weights.safetensors')."
        )


def _listed(wrong: list[str], missing: list[str], unexpected: list[str]) -> list[str]:
    parts = [_some(wrong)] if wrong else []
    parts += [f"it lacks {_some(missing)}"] if missing else []
    return [*parts, *([f"it has {_some(unexpected)} too"] if unexpected else [])]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
