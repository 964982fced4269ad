"""A session's numbers as a dict of arrays: states under their names, the rest under `session/...`."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.state import State
from wholestep.errors import UnknownNameError
from wholestep.session.live import Scalars, checked_number
from wholestep.session.names import PREFIX

COUNTERS = ("step", "epoch")
SESSION = "session/"


def state_dict(state: State, scalars: Scalars) -> dict[str, AnyArray]:
    """States, then counters and runtime scalars."""
    counters = {SESSION + name: np.array(getattr(state, name), np.int64) for name in COUNTERS}
    numbers = {SESSION + name: np.array(value) for name, value in scalars.items()}
    return {**{name: state.get(name) for name in _lasting(state)}, **counters, **numbers}


def _lasting(state: State) -> list[str]:
    """The states that mean something between steps."""
    return [name for name in state.names if not name.startswith(PREFIX)]


def load_state_dict(state: State, scalars: Scalars, values: Mapping[str, object], *, strict: bool) -> None:
    """Restore `values`; all of them are validated before the first is written."""
    numbers = dict(scalars.items())
    known = {*_lasting(state), *(SESSION + name for name in (*COUNTERS, *numbers))}
    unexpected = [name for name in values if name not in known]
    missing = [name for name in known if name not in values]
    if unexpected or (strict and missing):
        raise UnknownNameError(
            f"the state dict does not fit this session: missing {sorted(missing) or 'nothing'}, unexpected "
            f"{sorted(unexpected) or 'nothing'}. Nothing was loaded. Build from the same graph and optimizer"
            + ("." if unexpected else ", or pass strict=False to load what is there.")
        )
    for name, value in values.items():
        if name in state:
            state.fit(name, value)
        else:
            checked_number(name, value)
    for name, value in values.items():
        if name in state:
            state.set(name, value)
        elif (bare := name.removeprefix(SESSION)) in COUNTERS:
            setattr(state, bare, int(checked_number(name, value)))
        else:
            scalars[bare] = checked_number(name, value)
