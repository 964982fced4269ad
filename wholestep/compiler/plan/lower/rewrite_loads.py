"""Rewrites the memory accesses of a kernel body."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from wholestep.compiler.plan.model.bodies import Body, Call, Dot, Exchange, Scatter, Window
from wholestep.compiler.plan.model.kernel import Instr, Level, Load, Operand, Store

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
