"""State: the numbers that outlive a step, by name.  It belongs to the model; sessions borrow it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from wholestep.compiler.ir.types import TensorType, shape_text, symbols_of
from wholestep.compiler.plan.kernel import Layout
from wholestep.compiler.plan.layout import layout_bytes, pack, state_layout, unpack
from wholestep.compiler.runtime.arrays import AnyArray, as_array, check_dtype
from wholestep.compiler.runtime.counting import Counting
from wholestep.compiler.runtime.memory import Region
from wholestep.compiler.runtime.threads import default_threads
from wholestep.compiler.runtime.together import run_all
from wholestep.errors import GraphError, ShapeError, UnknownNameError

MANY = 4 << 20  # bytes of states from which on their first values are worth a thread for each core


@dataclass(frozen=True)
class Slot:
    """One state: its type and the flat array that stores it."""

    type: TensorType
    layout: Layout
    stored: AnyArray

    @property
    def address(self) -> int:
        return int(self.stored.ctypes.data)


class State(Counting):
    """name -> buffer.  Every entry point of every session over a model reads and writes these same bytes.

    `version` changes whenever a number does: programs that keep a second layout of a state compare it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._slots: dict[str, Slot] = {}
        self._regions: list[Region] = []
        self.version = 0

    def add(self, types: Mapping[str, TensorType], initial: Callable[[str], AnyArray | None]) -> None:
        """Make room for the states that are not there yet, in one mapping, and give them their first values.

        None stands for zeros.
        """
        for name in types.keys() & self._slots.keys():
            if self._slots[name].type != types[name]:
                raise GraphError(
                    f"the state {name!r} is {self._slots[name].type} in this model; received a program that has it as "
                    f"{types[name]}. Give one of them another name."
                )
        new = {name: type for name, type in types.items() if name not in self._slots}
        if not new:
            return
        sizes = {name: _bytes(name, type) for name, type in new.items()}
        region, offset = Region(sum(sizes.values())), 0
        for name, type in new.items():
            stored = region.view(offset, sizes[name] // type.dtype.size, type.dtype.numpy)
            self._slots[name] = Slot(type, state_layout(type), stored)
            offset += sizes[name]
        self._regions.append(region)
        self._begin(
            sorted(new, key=lambda name: -sizes[name]), initial, threads=1 if offset < MANY else default_threads()
        )

    def _begin(self, names: Sequence[str], initial: Callable[[str], AnyArray | None], threads: int) -> None:
        """Write the first values: NumPy draws those of several states at a time."""

        def write(name: str) -> None:
            value = initial(name)
            if value is not None:  # else the mapping is as it should be
                self.set(name, value)

        run_all([partial(write, name) for name in names], threads)
        self.version += 1

    @property
    def mapped_bytes(self) -> int:
        """The bytes of all mappings."""
        return sum(r.size for r in self._regions)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._slots)

    def __contains__(self, name: object) -> bool:
        return name in self._slots

    def slot(self, name: str) -> Slot:
        """Where a state is stored; UnknownNameError where there is none of this name."""
        try:
            return self._slots[name]
        except KeyError:
            known = ", ".join(map(repr, self._slots)) or "none"
            raise UnknownNameError(f"there is no state named {name!r}; there are: {known}.") from None

    def get(self, name: str) -> AnyArray:
        """A copy of a state, as the user sees it: rows contiguous."""
        slot = self.slot(name)
        return unpack(slot.stored, slot.type.shape, slot.layout)

    def set(self, name: str, value: object) -> None:
        """Replace a state's numbers."""
        slot = self.slot(name)
        stored = self.fit(name, value)
        slot.stored[: stored.size] = stored
        self.version += 1

    def fit(self, name: str, value: object) -> AnyArray:
        """`value` as the state stores it; an error where its shape or dtype does not fit.  Writes nothing."""
        slot, what = self.slot(name), f"the state {name!r}"
        array = as_array(value, what)
        if array.shape != slot.type.shape:
            raise ShapeError(
                f"{what} has shape {shape_text(slot.type.shape)}; received {array.shape}. Reshape the array to it."
            )
        check_dtype(array, slot.type.dtype.numpy, what)
        return pack(array.astype(slot.type.dtype.numpy, copy=False), slot.layout)


def _bytes(name: str, type: TensorType) -> int:
    symbols = sorted(symbols_of(type.shape))
    if symbols:
        raise GraphError(
            f"the state {name!r} has shape {shape_text(type.shape)}; a state outlives the step and needs a "
            f"fixed size. Replace {', '.join(map(repr, symbols))} by a number."
        )
    return layout_bytes(type, state_layout(type), {})
