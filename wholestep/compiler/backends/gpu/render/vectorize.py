"""Vectorised accesses: a thread loads and stores 16 bytes of adjacent elements at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import copysign
from types import MappingProxyType

from wholestep.compiler.backends.gpu.grids.row_loads import (
    has_uniform_guards,
    has_vector_loads,
    is_padded_row,
    is_plain_load,
)
from wholestep.compiler.backends.gpu.render.language import LOCAL, STORED
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.plan.model.kernel import Instr, Level, Load, Space, Store


def moves_along(load: Load, axis: int) -> bool:
    """Does an access depend on an axis?"""
    return any(a == axis for index in load.index for a, _ in index.terms)


def is_plain_store(store: Store) -> bool:
    return not any(i.is_behind_start for i in store.load.index)


def values_used(instr: Instr) -> Sequence[int]:
    """The values that an instruction reads."""
    values = [*instr.args, *(() if instr.fill is None else (instr.fill,))]
    indices = (*(instr.load.index if instr.load else ()), *(g.index for g in instr.guards))
    values += [index.value for index in indices if index.value is not None]
    if instr.index is not None and instr.index.value is not None:
        values.append(instr.index.value)
    return values


def instructions_of_address(load: Load, body: Sequence[Instr], computed: Container[int]) -> list[Instr]:
    """The instructions of a body that compute the address of a load, such as the row of a lookup, in order."""
    needed = {index.value for index in load.index if index.value is not None}
    chosen: list[Instr] = []
    for instr in reversed(body):
        if instr.id in needed and instr.id not in computed:
            chosen.insert(0, instr)
            needed.update(values_used(instr))
    return chosen


class VectorizedLevel:
    """The body of a level for `count` adjacent elements, which start at `base`."""

    def __init__(self, w: GpuWriter, axis: int, count: int) -> None:
        self.w, self.axis, self.count = w, axis, count
        length = w.kernel.axes[axis] if axis >= 0 else 0
        self.end = length if isinstance(length, int) and length % count else None  # the last vector ends in padding
        self._stored: dict[int, str] = {}  # guarded vector loads -> the type of their array

    def packs(self, load: Load) -> bool:
        return has_vector_loads(load, self.w.buffer_dtype(load), self.axis, self.count)

    def packs_store(self, load: Load) -> bool:
        """Is a vector stored whole?  The last one of a row only into padding, which becomes zero."""
        is_free = self.end is None or is_padded_row(self.w.plan, load, self.axis, self.end)
        return is_free and self.packs(load)

    def _moves(self, instr: Instr) -> bool:
        """Does an instruction depend on the index along the vectorized axis, not only on loaded elements?"""
        positions = [*(instr.load.index if instr.load else ()), *(g.index for g in instr.guards)]
        positions += [] if instr.index is None else [instr.index]
        return any(a == self.axis for index in positions for a, _ in index.terms)

    def place(self, load: Load) -> str:
        """Address of the first element."""
        with self._at_base():
            return self.w.address(load)

    @contextmanager
    def _at_base(self) -> Iterator[None]:
        """Here an index is the index of the vector's first element."""
        w, index = self.w, self.w.axes[self.axis]
        w.axes[self.axis] = "base"
        yield
        w.axes[self.axis] = index

    def read(self, load: Load, name: str, declare: bool = True) -> None:
        w = self.w
        if declare:
            w.emit(f"ws_pack<{STORED[w.buffer_dtype(load)]}, {self.count}> {name};")
        w.emit(f"{name}.read({self.place(load)});")

    def _read_guarded(self, level: Level, computed: Container[int], saved: Container[int]) -> dict[int, str | None]:
        """Reads the vectors of guarded loads; their ids -> the array of their elements, zero where the guards fail.

        A concatenation is a chain of such loads, each of which is the fill value of the next.  A chain has one array,
        so that it costs the registers of one vector; its inner values, which nothing else reads, have None.
        """
        w, arrays = self.w, dict[int, str | None]()
        consts = [i for i in (*level.row, *level.body) if i.op == "const"]
        zeros = {i.id for i in consts if i.const == 0.0 and copysign(1.0, i.const) > 0}  # all bits are 0
        uses = Counter(value for i in level.body for value in values_used(i))
        uses.update([*(s.value for s in level.stores), *(r.value for r in level.reduces)])
        for i in level.body:
            if i.id in computed or not self._has_guarded_vector(i):
                continue
            assert i.load is not None
            assert i.fill is not None
            array, dtype = arrays.get(i.fill), STORED[w.buffer_dtype(i.load)]
            is_inner = array is not None and uses[i.fill] == 1 and i.fill not in saved
            if is_inner and dtype == self._stored[i.fill]:
                arrays[i.fill] = None
            elif i.fill in zeros:
                array = f"a{i.id}"
                w.emit(f"{dtype} {array}[{self.count}] = {{}};")
            else:
                continue
            arrays[i.id], self._stored[i.id] = array, dtype
            with self._at_base():
                inside = " && ".join(w.guard(g.index, g.lo, g.hi) for g in i.guards)
            with w.block(f"if ({inside})"):
                self.read(i.load, f"p{i.id}")
                w.emit(f"p{i.id}.split({array});")
        return arrays

    def _has_guarded_vector(self, instr: Instr) -> bool:
        load = instr.load
        if load is None or any(index.value is not None for index in load.index):
            return False
        return has_uniform_guards(instr, self.axis, self.count) and self.packs(load)

    def split(self, load: Load, name: str, array: str) -> None:
        self.w.emit(f"{STORED[self.w.buffer_dtype(load)]} {array}[{self.count}]; {name}.split({array});")

    def render(
        self,
        level: Level,
        loaded: Mapping[Load, str] = MappingProxyType({}),
        computed: Mapping[int, str] = MappingProxyType({}),
        saved: Mapping[int, str] = MappingProxyType({}),
        into: Mapping[Store, str] = MappingProxyType({}),
        sums_of: str = "",
        inside: str = "",
    ) -> None:
        """Emits vector loads, then the computation element by element, then vector stores.

        Args:
            loaded: vectors that were loaded before.
            computed: values that are already computed; their instructions are skipped.
            saved: values that later levels need -> where to store them.
            into: column sums -> their accumulators.
            sums_of: suffix of an accumulator's name if every element has its own.
            inside: a condition under which the vector is known not to be the last one of a row that ends in padding.
        """
        w, count = self.w, self.count
        arrays: dict[Load, str] = {}
        addresses = {i.id: instructions_of_address(i.load, level.body, computed) for i in level.body if i.load}
        for i in level.body:
            if i.id in computed or not is_plain_load(i) or i.load is None or i.load in arrays or not self.packs(i.load):
                continue
            if any(self._moves(each) for each in addresses[i.id]):
                continue
            if missing := [each for each in addresses[i.id] if each.id not in computed]:
                w.instructions(missing)
                computed = {**computed, **{each.id: w.values[each.id] for each in missing}}
            arrays[i.load] = f"a{i.id}"
            if i.load not in loaded:
                self.read(i.load, f"p{i.id}")
            self.split(i.load, loaded.get(i.load, f"p{i.id}"), f"a{i.id}")
        guarded = self._read_guarded(level, computed, saved)
        stores = [s for s in level.stores if w.plan.buffers[s.load.buffer].space is not Space.WORK]
        packed = [(n, s) for n, s in enumerate(stores) if is_plain_store(s) and self.packs_store(s.load)]
        for n, s in packed:
            w.emit(f"{STORED[w.buffer_dtype(s.load)]} q{n}[{count}]{'' if self.end is None else ' = {}'};")
        w.emit("#pragma unroll")
        guard = f"{inside} || " if inside else ""
        condition = "" if self.end is None else f" if ({guard}base + e < {self.end})"
        with w.block(f"for (int e = 0; e < {count}; e++){condition}"):
            w.emit(f"const {w.int} i{self.axis} = base + e;")
            for i in level.body:
                if i.id in computed:
                    w.values[i.id] = computed[i.id]
                elif is_plain_load(i) and i.load in arrays:
                    w.emit(f"const {LOCAL[i.dtype]} v{i.id} = {arrays[i.load]}[e];")
                elif i.id in guarded:
                    if guarded[i.id] is None:  # an inner load of a concatenation
                        continue
                    w.emit(f"const {LOCAL[i.dtype]} v{i.id} = {guarded[i.id]}[e];")
                else:
                    w.instructions((i,))
                if i.id in saved:
                    w.emit(f"{saved[i.id]} = {w.values[i.id]};")
            for r in level.reduces:
                w.accumulate(r, of=sums_of)
            for s, accumulator in into.items():
                w.emit(f"{accumulator} += {w.values[s.value]};")
            for n, s in packed:
                w.emit(f"q{n}[e] = {w.store_operand(s)};")
            w.stores([s for s in stores if s not in [p for _, p in packed]])
        for n, s in packed:
            w.emit(f"ws_pack<{STORED[w.buffer_dtype(s.load)]}, {count}> s{n}; s{n}.join(q{n});")
            w.emit(f"s{n}.write({self.place(s.load)});")
