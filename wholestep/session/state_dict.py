"""The states of a session: `get`, `set`, and `state_dict`, whose scalars and counters are called `session/...`."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.update_counters import UpdateCounters
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.state.slot import host_memory
from wholestep.compiler.runtime.state.state import State
from wholestep.compiler.runtime.state.step_counters import SessionCounter
from wholestep.errors import UnknownNameError, UsageError
from wholestep.session.programs import Programs
from wholestep.session.runtime_scalars import check_number
from wholestep.steps.capacity import PREFIX

if TYPE_CHECKING:
    from wholestep.compiler.runtime.state.state_pieces import StatePiece

SESSION = "session/"
STEP, EPOCH = SESSION + "step", SESSION + "epoch"
UPDATES = SESSION + "updates"  # updates by the session itself; UPDATES/w.adam: of a parameter by an optimizer


def readable_name(tensor: Tensor) -> str:
    """The name under which a tensor of a graph is read after a step; an updated state has the state's name."""
    if not isinstance(tensor, Tensor) or tensor.graph is None:
        raise UsageError(f"session.get takes a name or a tensor of the graph; received {tensor!r}.")
    graph = tensor.graph
    for named in (graph.states, graph.kept, graph.outputs, graph.updates):
        for name, other in named.items():
            if other.node is tensor.node:
                return name
    raise UnknownNameError(
        f"{tensor!r} is not read after a step: only states, outputs and kept tensors are. Before the session is built, "
        "write tensor.keep()."
    )


class StateAccess:
    """The part of a session that reads and writes states."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def get(self, name: str | Tensor) -> AnyArray:
        """A copy of a parameter or state, or of an output or kept tensor of the last step: by name, or the tensor."""
        main, state = self._programs.main, self._programs.state
        if not isinstance(name, str):
            name = readable_name(name)
        if name in state:
            return state.get(name)
        if name not in main.outputs:
            names = ", ".join(map(repr, [*state.names, *main.outputs])) or "none"
            raise UnknownNameError(
                f"there is nothing named {name!r} to read; there are: {names}. Keep a tensor to read it: tensor.keep()."
            )
        if not main.ran:
            raise UsageError(f"the output {name!r} has no value yet: call session.step first.")
        return main.read(name)

    def set(self, name: str, array: object) -> None:
        """Replace a parameter or state."""
        self._programs.state.replace(name, array)

    def state_dict(self, *, without: Container[str] = ()) -> dict[str, AnyArray]:
        """Everything that a bit-exact resume needs: states (except those in `without`), runtime scalars, counters."""
        self._programs.need_averages("state_dict")
        return state_dict(self._programs, without)

    def share_parts(self, *, without: Container[str] = ()) -> None:
        """Collective: send this worker's shards to the worker that calls `state_dict`."""
        state = self._programs.state
        for name in _persistent_names(state):
            if name not in without and state.is_divided(name):
                state.get(name)

    def have_whole_weights(self) -> None:
        """Collective: gather the model's sharded states on every worker, which can then predict and save alone."""
        state, lasting = self._programs.state, self._programs.lasting_states
        for name in [name for name, is_own in lasting.items() if is_own and state.is_divided(name)]:
            state.slot(name).move(host_memory())

    def own_pieces(self) -> dict[str, StatePiece]:
        """This worker's shards of states that do not belong to the model; without communication."""
        state, lasting = self._programs.state, self._programs.lasting_states
        names = [name for name, is_own in lasting.items() if not is_own]
        return {name: piece for name in names if (piece := state.piece(name)) is not None}

    def prepare_to_load(self, values: Mapping[str, object]) -> None:
        """Recompile if update counts in `values` differ for parameters that share a counter here."""
        self._programs.count_apart(counts_in(values))

    def load_state_dict(self, values: Mapping[str, object], *, strict: bool = True) -> None:
        """Restore a `state_dict()`.  Nothing is written unless all of it fits."""
        load_state_dict(self._programs, values, strict=strict)


def state_dict(programs: Programs, without: Container[str] = ()) -> dict[str, AnyArray]:
    """States, then counters and runtime scalars."""
    state, scalars, turn, clocks = programs.state, programs.scalars, programs.turn, programs.clocks
    counts = {STEP: state.step, EPOCH: state.epoch, UPDATES: state.updates_in(turn)}
    counts |= {f"{UPDATES}/{key}": state.updates_of(key) for key in clocks.starts}
    counters = {name: np.array(count, np.int64) for name, count in counts.items()}
    numbers = {SESSION + name: np.array(value) for name, value in scalars.items()}
    states = {name: state.get(name) for name in _persistent_names(state) if name not in without}
    return {**states, **counters, **numbers}


def _persistent_names(state: State) -> list[str]:
    """The states that persist between steps."""
    return [name for name in state.names if not name.startswith(PREFIX)]


def load_state_dict(programs: Programs, values: Mapping[str, object], *, strict: bool) -> None:
    """Restore `values`; all of them are validated before the first is written."""
    state, scalars, turn, clocks = programs.state, programs.scalars, programs.turn, programs.clocks
    numbers = [SESSION + name for name, _ in scalars.items()]
    counted = {UPDATES, *(f"{UPDATES}/{key}" for key in clocks.starts)}
    # States of other sessions over the model, e.g. of an earlier validation, are optional.
    needed = {*programs.lasting_states, STEP, EPOCH, *numbers}
    unexpected = [name for name in values if name not in needed | counted | {*_persistent_names(state)}]
    missing = [name for name in needed if name not in values]
    if unexpected or (strict and missing):
        raise UnknownNameError(
            f"the state dict does not fit this session: missing {sorted(missing) or 'nothing'}, unexpected "
            f"{sorted(unexpected) or 'nothing'}. Nothing was loaded. Build from the same graph and optimizer"
            + ("." if unexpected else ", or pass strict=False to load what is there.")
        )
    scalars_and_counts = {name: check_number(name, value) for name, value in values.items() if name not in state}
    for name in values.keys() - scalars_and_counts.keys():
        state.fit(name, values[name])
    for name in values.keys() - scalars_and_counts.keys():
        state.set(name, values[name])
    for name in numbers:
        if name in scalars_and_counts:
            scalars[name.removeprefix(SESSION)] = scalars_and_counts[name]
    _load_counts(state, turn, clocks, {name: int(n) for name, n in scalars_and_counts.items() if name not in numbers})


@contextmanager
def undone_steps(programs: Programs) -> Iterator[Mapping[str, AnyArray]]:
    """Undo the steps of the block: every state, scalar and counter is restored.  Yields the previous states."""
    programs.take_turn()  # the update counters are this session's while its steps run
    counted, state = state_dict(programs), programs.state
    before = {n: state.get(n) for n in state.names}
    try:
        yield before
    finally:
        for name, value in before.items():
            state.set(name, value)
        load_state_dict(programs, counted, strict=False)


def counts_in(values: Mapping[str, object]) -> Callable[[str], int]:
    """The update counts in a state dict; in older files, which have none, each count is the step number."""
    step = values.get(STEP, 0)
    return lambda key: int(check_number(key, values.get(f"{UPDATES}/{key}", step)))


def _load_counts(state: State, turn: SessionCounter, clocks: UpdateCounters, counts: Mapping[str, int]) -> None:
    state.epoch = counts.get(EPOCH, state.epoch)
    if STEP not in counts:
        return
    state.set_step(counts[STEP])
    count_of = counts_in(counts)
    state.set_updates({key: count_of(key) for key in clocks.starts})
    turn.updates = counts.get(UPDATES, counts[STEP])
