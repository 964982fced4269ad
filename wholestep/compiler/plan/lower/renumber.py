"""Renumbers the axes and value ids of a level, so that it can be embedded in another kernel."""

from __future__ import annotations

from dataclasses import replace

from wholestep.compiler.plan.model.kernel import Guard, Index, Instr, Level, Load, Store


def renumber_level(level: Level, axes: int, ids: int) -> Level:
    """The level with `axes` added to every axis number and `ids` to every value id."""

    def index(i: Index) -> Index:
        terms = tuple((a + axes, c) for a, c in i.terms)
        return replace(i, terms=terms, value=None if i.value is None else i.value + ids)

    def load(x: Load) -> Load:
        return replace(x, index=tuple(map(index, x.index)))

    def store(s: Store) -> Store:
        return Store(load(s.load), s.value + ids)

    def instr(i: Instr) -> Instr:
        return replace(
            i,
            id=i.id + ids,
            args=tuple(a + ids for a in i.args),
            load=i.load and load(i.load),
            guards=tuple(Guard(index(g.index), g.lo, g.hi) for g in i.guards),
            fill=None if i.fill is None else i.fill + ids,
            index=i.index and index(i.index),
        )

    return Level(
        tuple(map(instr, level.row)),
        tuple(map(store, level.row_stores)),
        tuple(map(instr, level.body)),
        tuple(map(store, level.stores)),
        tuple(replace(r, id=r.id + ids, value=r.value + ids) for r in level.reduces),
        tuple(map(store, level.sums)),
    )
