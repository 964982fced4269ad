"""The states behind a step: the one `State` of a model, initial values, and update counts."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from wholestep.compiler.backend import Placement
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.initializers import InitialValue, is_random, is_zero
from wholestep.compiler.frontend.step import Step
from wholestep.compiler.frontend.update_counters import RAW, UpdateCounters
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.process_group import RankGroup
from wholestep.compiler.runtime.state.state import State
from wholestep.errors import OptionError
from wholestep.nn.module.module import Module
from wholestep.nn.module.parameter import Parameter

# The State of each module, graph or step, which all sessions over it share.
_STATES: WeakKeyDictionary[Any, State] = WeakKeyDictionary()


def state_of(model: object) -> State:
    """The State of a module, graph or step, created once."""
    return _STATES.setdefault(model, State())


def share_state(graph: Graph, model: object) -> None:
    """Let a graph share the state (moments, metrics) of the module that was recorded in it."""
    _STATES[graph] = state_of(model)


def has_numbers(model: Module) -> bool:
    """Are the weights of the model initialized or loaded?"""
    return any(owned.slot is not None for owned in model.named_arrays().values())


def structure(model: Module) -> tuple[int, ...]:
    """The identities of a model's modules and parameters: a cache key of sessions compiled for it."""
    parts = [part for _, part in model.named_modules()]
    return (*map(id, parts), *(id(owned) for part in parts for owned in part.__dict__.get("_owned", {}).values()))


def state_with_numbers(model: Module, seed: int | None = None, overwritten: Container[str] = ()) -> State:
    """The model's state, with missing values initialized; zeros for names in `overwritten`, which are set next."""
    arrays, state = model.named_arrays(), state_of(model)

    def first(name: str) -> InitialValue | None:
        return None if name in overwritten else _initial_value(arrays[name], name, state, seed)

    by_columns = {name for name, owned in arrays.items() if owned.by_columns}
    state.add({name: owned.type for name, owned in arrays.items()}, first, arrays, by_columns=by_columns)
    return state


def _initial_value(owned: Parameter, name: str, state: State, seed: int | None) -> InitialValue:
    network, own_name = _origin(owned, name, state, seed is not None)
    return InitialValue(owned.init, owned.shape, owned.dtype, seed_or_default(seed), own_name, network)


def preview_numbers(model: Module, seed: int | None = None) -> dict[str, AnyArray]:
    """The values of all parameters and buffers, or those that a run with this seed will begin with; changes nothing."""
    state = state_of(model)
    return {
        name: _initial_value(owned, name, state, seed).array() if owned.slot is None else state.get(name)
        for name, owned in model.named_arrays().items()
    }


def _origin(owned: Parameter, name: str, state: State, seeded: bool) -> tuple[int, str]:
    """The network number and name that key a parameter's initial value; a copy has those of the original."""
    network, own_name = owned.origin or (None, name)
    if seeded or not is_random(owned.init):
        return 0, own_name
    return (network_of(state) if network is None else network), own_name


def pin_origins(model: Module) -> None:
    """Before a copy: let parameters that are not initialized yet get the same initial values in all copies."""
    state = state_of(model)
    for name, owned in model.named_arrays().items():
        if owned.slot is None and owned.origin is None and not owned.adopts and is_random(owned.init):
            owned.origin = network_of(state), name


def numbers(model: Module) -> dict[str, AnyArray]:
    """Copies of all parameters and buffers."""
    state = state_with_numbers(model)
    return {name: state.get(name) for name in model.named_arrays()}


# -- first values and counts -------------------------------------------------------------------------------------


def clocks_of(model: Graph | Step, count_of: Callable[[str], int] | None = None) -> UpdateCounters:
    """The update counters of a program: recorded ones of the graph, and the counts of the model's state."""
    return UpdateCounters(model.clocks if isinstance(model, Graph) else None, count_of or state_of(model).updates_of)


def nonzero_values(
    plan: Plan, where: Placement, state: State, owners: Mapping[str, Parameter]
) -> Callable[[str], InitialValue | None]:
    """The initial value of each state of a plan; None for zero, which fresh memory has."""
    firsts = _firsts(plan, where.seed)

    def first(name: str) -> InitialValue | None:
        value, owned = firsts[name], owners.get(name.removesuffix(RAW))
        if is_zero(value.init):
            return None
        if owned is None:
            return value
        network, own_name = _origin(owned, value.name, state, where.seeded)
        return replace(value, network=network, name=own_name)

    return first


def first_values(plan: Plan, seed: int) -> Callable[[str], AnyArray]:
    """The initial value of each state of a plan: a function of (seed, name)."""
    firsts = _firsts(plan, seed)
    return lambda name: firsts[name].array()


def _firsts(plan: Plan, seed: int) -> dict[str, InitialValue]:
    how = {name: (plan.buffers[id].user_type, init) for (name, id), init in zip(plan.states, plan.initial, strict=True)}
    return {
        name: InitialValue(init, tuple(int(e) for e in type.shape), type.dtype, seed, name.removesuffix(RAW))
        for name, (type, init) in how.items()
    }


@dataclass
class _Process:
    seed: int = 0
    networks: int = 0  # number of networks initialized without a seed of their own


_process, _lock = _Process(), Lock()


def manual_seed(seed: int) -> None:
    """Set the default seed from now on, and number networks from 0 again, as in a new process.

    `ws.fit(..., seed=5)` and `ws.build_session(..., seed=5)` do the same for one network.

    Example::

        ws.manual_seed(5)
        first = ws.nn.Linear(3, 3).state_dict()
        ws.manual_seed(5)
        again = ws.nn.Linear(3, 3).state_dict()  # the same weights
    """
    check_seed(seed)
    with _lock:
        _process.seed, _process.networks = seed, 0


def check_seed(seed: object) -> None:
    """Raise OptionError unless it is an integer of 64 bits."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise OptionError(f"seed={seed!r}: expected an integer from 0 to 2**64 - 1.")


def seed_or_default(seed: int | None) -> int:
    """The given seed, or else the default seed of the process."""
    return _process.seed if seed is None else seed


def network_of(state: State) -> int:
    """The number of the network that owns a state, assigned on first use."""
    with _lock:
        if state.network is None:
            state.network = _process.networks
            _process.networks += 1
        return state.network


def agree_on_network(state: State, group: RankGroup) -> None:
    """Collective: give a network the same number on all ranks, whatever else each rank has built."""
    number = -1 if state.network is None else state.network
    gathered = [_unpacked(data) for data in group.gather(f"{number} {_process.networks}".encode())]
    following = max(count for _, count in gathered)
    number = next((number for number, _ in gathered if number >= 0), following)
    with _lock:
        if state.network is None:
            state.network = number
        _process.networks = max(following, number + 1)


def _unpacked(data: bytes) -> Sequence[int]:
    return [int(part) for part in data.split()]
