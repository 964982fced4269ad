"""What several levels of a row make of the same numbers: it is made once, and kept in registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wholestep.compiler.backends.gpu.render.vectorize import values_used
from wholestep.compiler.plan.model.bodies import Nest
from wholestep.compiler.plan.model.kernel import Instr

LEAVES = ("load", "const", "scalar", "index")
LEAST_OPS = 2  # of a value that is kept: what is less is made again


def without_repeats(nest: Nest, most: int) -> tuple[Nest, dict[int, int]]:
    """A nest whose later levels leave out what earlier ones have made, and which value stands for which.

    Args:
        most: values that a thread can keep of its part of a row.
    """
    first, level_of = _first_of_equals(nest), {i.id: n for n, level in enumerate(nest.levels) for i in level.body}
    made = {i.id: i for level in nest.levels for i in level.body}
    kept, found, levels = set[int](), dict[int, int](), [nest.levels[0]]
    for n, level in enumerate(nest.levels[1:], 1):
        needed = {s.value for s in (*level.stores, *level.sums)} | {r.value for r in level.reduces}
        body: list[Instr] = []
        for i in reversed(level.body):
            if i.id not in needed:
                continue
            body.append(i)
            earlier = first[i.id]
            if level_of[earlier] < n and _ops(earlier, made) >= LEAST_OPS and len(kept | {earlier}) <= most:
                kept.add(earlier)
                found[i.id] = earlier
            else:
                needed.update(values_used(i))
        levels.append(replace(level, body=tuple(reversed(body))))
    return replace(nest, levels=tuple(levels)), found


def _first_of_equals(nest: Nest) -> dict[int, int]:
    """Value -> the first that is made in the same way of the same numbers."""
    written = {load.buffer for load in nest.stores()}
    seen: dict[Instr, int] = {}
    found: dict[int, int] = {}
    for i in (i for level in nest.levels for i in level.body):
        is_steady = i.load is None or i.load.buffer not in written
        way = replace(i, id=-1, args=tuple(found.get(a, a) for a in i.args))
        found[i.id] = seen.setdefault(way, i.id) if is_steady else i.id
    return found


def _ops(value: int, made: Mapping[int, Instr]) -> int:
    """The operations behind a value, as far as it is made for each element."""
    if value not in made or made[value].op in LEAVES:
        return 0
    return 1 + sum(_ops(used, made) for used in values_used(made[value]))
