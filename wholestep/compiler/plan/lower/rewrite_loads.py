"""Rewrites kernel bodies: their memory accesses, and the numbers of axes and values of a level that is embedded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from wholestep.compiler.plan.model.bodies import Body, Call, Dot, Exchange, Scatter, Window
from wholestep.compiler.plan.model.kernel import Guard, Index, Instr, Level, Load, Operand, Store

Change = Callable[[Load], Load]


def with_loads(body: Body, change: Change) -> Body:
    """The body with `change` applied to every access, reads and writes."""
    levels = tuple(_level(level, change) for level in body.levels)
    if isinstance(body, Dot):
        return replace(body, a=change(body.a), b=change(body.b), levels=levels)
    if isinstance(body, Scatter):
        return replace(body, target=change(body.target), updates=change(body.updates), index=change(body.index))
    if isinstance(body, Call):
        return replace(body, operands=_operands(body.operands, change), results=_operands(body.results, change))
    if isinstance(body, Exchange):
        return replace(body, operands=tuple(map(change, body.operands)), results=tuple(map(change, body.results)))
    if isinstance(body, Window):
        operands, results = _operands(body.operands, change), _operands(body.results, change)
        return replace(body, operands=operands, results=results, levels=levels)
    return replace(body, levels=levels)


def _level(level: Level, change: Change) -> Level:
    def instr(i: Instr) -> Instr:
        return i if i.load is None else replace(i, load=change(i.load))

    def store(s: Store) -> Store:
        return Store(change(s.load), s.value)

    return replace(
        level,
        row=tuple(map(instr, level.row)),
        row_stores=tuple(map(store, level.row_stores)),
        body=tuple(map(instr, level.body)),
        stores=tuple(map(store, level.stores)),
        sums=tuple(map(store, level.sums)),
    )


def _operands(operands: Sequence[Operand], change: Change) -> tuple[Operand, ...]:
    return tuple(replace(o, load=change(o.load)) for o in operands)


def with_stores(body: Body, change: Callable[[Store], Sequence[Store]]) -> Body:
    """The body with each store of a level replaced by the stores (any number) that `change` returns."""
    levels = tuple(
        replace(
            level,
            row_stores=tuple(new for s in level.row_stores for new in change(s)),
            stores=tuple(new for s in level.stores for new in change(s)),
        )
        for level in body.levels
    )
    return body if levels == body.levels else replace(body, levels=levels)  # type: ignore[arg-type]


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
