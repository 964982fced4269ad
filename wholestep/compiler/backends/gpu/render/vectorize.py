"""Elements side by side: a thread reads and writes 16 bytes of them at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from wholestep.compiler.backends.gpu.render.language import LOCAL, STORED
from wholestep.compiler.backends.gpu.render.writer import GpuWriter
from wholestep.compiler.backends.gpu.row_loads import is_plain_load, is_read_in_packs
from wholestep.compiler.plan.model.kernel import Instr, Level, Load, Space, Store


def moves_along(load: Load, axis: int) -> bool:
    """Is another element read at another place of an axis?"""
    return any(a == axis for index in load.index for a, _ in index.terms)


def is_plain_store(store: Store) -> bool:
    return not any(i.is_behind_start for i in store.load.index)


def values_used(instr: Instr) -> Sequence[int]:
    """The values that an instruction needs."""
    found = [*instr.args, *(() if instr.fill is None else (instr.fill,))]
    places = (*(instr.load.index if instr.load else ()), *(g.index for g in instr.guards))
    found += [index.value for index in places if index.value is not None]
    if instr.index is not None and instr.index.value is not None:
        found.append(instr.index.value)
    return found


class Packs:
    """The body of a level for some elements side by side, from `base` on."""

    def __init__(self, w: GpuWriter, axis: int, count: int) -> None:
        self.w, self.axis, self.count = w, axis, count

    def packs(self, load: Load) -> bool:
        return is_read_in_packs(load, self.w.buffer_dtype(load), self.axis, self.count)

    def place(self, load: Load) -> str:
        """Where the first of the elements is."""
        w, own = self.w, self.w.axes[self.axis]
        w.axes[self.axis] = "base"
        text = f"{w.params[load.buffer]} + {w.offset(load)}"
        w.axes[self.axis] = own
        return text

    def read(self, load: Load, name: str, declare: bool = True) -> None:
        w = self.w
        if declare:
            w.emit(f"ws_pack<{STORED[w.buffer_dtype(load)]}, {self.count}> {name};")
        w.emit(f"{name}.read({self.place(load)});")

    def split(self, load: Load, name: str, array: str) -> None:
        self.w.emit(f"{STORED[self.w.buffer_dtype(load)]} {array}[{self.count}]; {name}.split({array});")

    def render(
        self,
        level: Level,
        held: Mapping[Load, str] = MappingProxyType({}),
        known: Mapping[int, str] = MappingProxyType({}),
        kept: Mapping[int, str] = MappingProxyType({}),
        into: Mapping[Store, str] = MappingProxyType({}),
        sums_of: str = "",
    ) -> None:
        """Loads, then element by element what is computed, then stores.

        Args:
            held: packs that were read before.
            known: values that are there already, of instructions that are left out.
            kept: values that later levels want, and where they are put.
            into: what is added up over rows, and where.
            sums_of: what stands behind the name of a sum, where every element has its own.
        """
        w, count = self.w, self.count
        found: dict[Load, str] = {}
        for i in level.body:
            if i.id in known or not is_plain_load(i) or i.load is None or i.load in found or not self.packs(i.load):
                continue
            found[i.load] = f"a{i.id}"
            if i.load not in held:
                self.read(i.load, f"p{i.id}")
            self.split(i.load, held.get(i.load, f"p{i.id}"), f"a{i.id}")
        stores = [s for s in level.stores if w.plan.buffers[s.load.buffer].space is not Space.WORK]
        packed = [(n, s) for n, s in enumerate(stores) if is_plain_store(s) and self.packs(s.load)]
        for n, s in packed:
            w.emit(f"{STORED[w.buffer_dtype(s.load)]} q{n}[{count}];")
        w.emit("#pragma unroll")
        with w.block(f"for (int e = 0; e < {count}; e++)"):
            w.emit(f"const {w.int} i{self.axis} = base + e;")
            for i in level.body:
                if i.id in known:
                    w.values[i.id] = known[i.id]
                elif is_plain_load(i) and i.load in found:
                    w.emit(f"const {LOCAL[i.dtype]} v{i.id} = {found[i.load]}[e];")
                else:
                    w.instructions((i,))
                if i.id in kept:
                    w.emit(f"{kept[i.id]} = {w.values[i.id]};")
            for r in level.reduces:
                w.accumulate(r, of=sums_of)
            for s, place in into.items():
                w.emit(f"{place} += {w.values[s.value]};")
            for n, s in packed:
                w.emit(f"q{n}[e] = {w.stored(s)};")
            w.stores([s for s in stores if s not in [p for _, p in packed]])
        for n, s in packed:
            w.emit(f"ws_pack<{STORED[w.buffer_dtype(s.load)]}, {count}> s{n}; s{n}.join(q{n});")
            w.emit(f"s{n}.write({self.place(s.load)});")
