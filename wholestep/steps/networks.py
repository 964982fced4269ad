"""The default seed of the process, and the numbers of networks whose weights are drawn without a seed of their own.

Initial weights are a function of (seed, network, name).  A network that is given a seed is network 0; the others are
numbered in the order in which their weights are drawn, so that they differ and a script run twice has the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock

from wholestep.compiler.runtime.process_group import RankGroup
from wholestep.compiler.runtime.state.state import State
from wholestep.errors import OptionError


@dataclass
class _Process:
    seed: int = 0
    networks: int = 0  # how many were drawn without a seed of their own


_process, _lock = _Process(), Lock()


def manual_seed(seed: int) -> None:
    """Set the seed of everything that is given none from now on, and number networks from 0 again, as a new process.

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
    """OptionError unless it is an integer of 64 bits."""
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**64:
        raise OptionError(f"seed={seed!r}: expected an integer from 0 to 2**64 - 1.")


def seed_or_default(seed: int | None) -> int:
    """A seed that was given, else that of the process."""
    return _process.seed if seed is None else seed


def network_of(state: State) -> int:
    """The number of the network whose state it is, assigned when it is first asked for."""
    with _lock:
        if state.network is None:
            state.network = _process.networks
            _process.networks += 1
        return state.network


def agree_on_network(state: State, group: RankGroup) -> None:
    """Give a network the same number on all ranks, whatever else each of them has built; all ranks call this."""
    own = -1 if state.network is None else state.network
    gathered = [_unpacked(data) for data in group.gather(f"{own} {_process.networks}".encode())]
    following = max(count for _, count in gathered)
    number = next((number for number, _ in gathered if number >= 0), following)
    with _lock:
        if state.network is None:
            state.network = number
        _process.networks = max(following, number + 1)


def _unpacked(data: bytes) -> Sequence[int]:
    return [int(part) for part in data.split()]
