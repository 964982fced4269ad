"""Parameters and states: one by one, and all together."""

from __future__ import annotations

from collections.abc import Mapping

from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.errors import UnknownNameError, UsageError
from wholestep.session.entries import Programs
from wholestep.session.state_dict import counts_in, load_state_dict, state_dict


class Numbers:
    """The part of a session that reads and writes what it computes with."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    def get(self, name: str) -> AnyArray:
        """A copy of a parameter or state, or of an output or kept tensor of the last step."""
        main, state = self._programs.main, self._programs.state
        if name in state:
            return state.get(name)
        if name not in main.outputs:
            known = ", ".join(map(repr, [*state.names, *main.outputs])) or "none"
            raise UnknownNameError(
                f"there is nothing named {name!r} to read; there are: {known}. Keep a tensor to read it: tensor.keep()."
            )
        if not main.ran:
            raise UsageError(f"the output {name!r} has no value yet: call session.step first.")
        return main.read(name)

    def set(self, name: str, array: object) -> None:
        """Replace a parameter or state."""
        self._programs.state.replace(name, array)

    def state_dict(self) -> dict[str, AnyArray]:
        """Everything that a bit-exact resume needs: states, runtime scalars, counters."""
        self._programs.need_averages("state_dict")
        return state_dict(self._programs)

    def prepare_to_load(self, values: Mapping[str, object]) -> None:
        """Compile the program that `values` were made by, where counts of updates differ that are one here."""
        self._programs.count_apart(counts_in(values))

    def load_state_dict(self, values: Mapping[str, object], *, strict: bool = True) -> None:
        """Restore what `state_dict` gave.  Nothing is written unless all of it fits."""
        load_state_dict(self._programs, values, strict=strict)
