"""Common subexpression elimination across the levels of a row: computed once, kept in registers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from wholestep.compiler.backends.gpu.render.vectorize import values_used
from wholestep.compiler.plan.model.bodies import Nest
from wholestep.compiler.plan.model.kernel import Instr

LEAVES = ("load", "const", "scalar", "index")
LEAST_OPS = 2  # operations of a value worth keeping: cheaper ones are recomputed


def eliminate_common_subexpressions(nest: Nest, most: int) -> tuple[Nest, dict[int, int]]:
    """Drops instructions of later levels that repeat earlier ones; returns the nest and value -> earlier value.

    Args:
        most: values that a thread can keep of its part of a row.
    """
    first, level_of = _first_of_equals(nest), {i.id: n for n, level in enumerate(nest.levels) for i in level.body}
    instructions = {i.id: i for level in nest.levels for i in level.body}
    registers, replacements, levels = set[int](), dict[int, int](), [nest.levels[0]]
    for n, level in enumerate(nest.levels[1:], 1):
        needed = {s.value for s in (*level.stores, *level.sums)} | {r.value for r in level.reduces}
        body: list[Instr] = []
        for i in reversed(level.body):
            if i.id not in needed:
                continue
            body.append(i)
            earlier = first[i.id]
            if (
                level_of[earlier] < n
                and _ops(earlier, instructions) >= LEAST_OPS
                and len(registers | {earlier}) <= most
            ):
                registers.add(earlier)
                replacements[i.id] = earlier
            else:
                needed.update(values_used(i))
        levels.append(replace(level, body=tuple(reversed(body))))
    return replace(nest, levels=tuple(levels)), replacements


def _first_of_equals(nest: Nest) -> dict[int, int]:
    """Value numbering: value -> first value computed by the same operation from the same operands."""
    written = {load.buffer for load in nest.stores()}
    seen: dict[Instr, int] = {}
    numbers: dict[int, int] = {}
    for i in (i for level in nest.levels for i in level.body):
        is_unmodified = i.load is None or i.load.buffer not in written
        expression = replace(i, id=-1, args=tuple(numbers.get(a, a) for a in i.args))
        numbers[i.id] = seen.setdefault(expression, i.id) if is_unmodified else i.id
    return numbers


def _ops(value: int, instructions: Mapping[int, Instr]) -> int:
    """Per-element operations needed to compute a value."""
    if value not in instructions or instructions[value].op in LEAVES:
        return 0
    return 1 + sum(_ops(used, instructions) for used in values_used(instructions[value]))
