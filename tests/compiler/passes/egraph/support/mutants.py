"""Wrong versions of a rule: a sign, an index, a number, an operand or a guard is changed on either side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from wholestep.compiler.ir.ops import OPS
from wholestep.compiler.passes.egraph.rules.expression import Expression
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, subtrees

EXCHANGED = {
    "add": "sub", "sub": "add", "mul": "div", "div": "mul", "ratio": "mul", "maximum": "minimum", "minimum": "maximum",
    "less_equal": "less", "less": "less_equal", "equal": "not_equal", "not_equal": "equal", "exp": "exp2",
    "log": "log2", "log1p": "log", "sum": "max", "max": "sum", "recip": "sqrt", "sqrt": "recip", "sigmoid": "tanh",
    "tanh": "sigmoid", "abs": "neg", "softmax": "log_softmax", "log_softmax": "softmax", "silu": "relu",
}  # fmt: skip
NOT_COMMUTATIVE = frozenset({"sub", "div", "ratio", "matmul", "pow", "where", "less", "less_equal", "concat"})
INDEXED = frozenset({"permute", "expand", "sum", "max", "softmax", "log_softmax", "logsumexp", "concat", "iota"})


@dataclass(frozen=True)
class Mutant:
    """What was changed, and the rule with it."""

    label: str
    rule: Rule


def mutants(rule: Rule) -> Iterator[Mutant]:
    """One change at a time, at every place of both sides, and of the guard."""
    for side in ("left", "right"):
        for label, tree in _changed(getattr(rule, side)):
            if side == "right" or isinstance(tree, Apply):
                yield Mutant(f"{side}: {label}", replace(rule, **{side: tree}))
    if rule.guard:
        yield Mutant("guard: dropped", replace(rule, guard=None))
        for i, guard in enumerate(_weaker(str(rule.guard))):
            yield Mutant(f"guard: part {i} dropped", replace(rule, guard=Expression(guard)))


def _weaker(guard: str) -> list[str]:
    parts = guard.split(" and ")
    return [" and ".join(p for p in parts if p is not part) for part in parts] if len(parts) > 1 else []


def _changed(root: Tree) -> Iterator[tuple[str, Tree]]:
    """Every subtree in another form, wherever it stands."""
    for place, tree in enumerate(subtrees(root)):
        if isinstance(tree, Number) and not tree.value.variable:
            yield f"another number for {tree.value}", _with(root, tree, _another_number(tree))
        elif isinstance(tree, Apply):
            for name, change in CHANGES:
                if (other := change(tree)) is not None:
                    yield f"{name} {tree.op} #{place}", _with(root, tree, other)


def _with(root: Tree, tree: Tree, other: Tree) -> Tree:
    if root == tree:
        return other
    if not isinstance(root, Apply):
        return root
    return replace(root, children=tuple(_with(c, tree, other) for c in root.children))


def _another_number(number: Number) -> Number:
    value = number.value.literal
    infinite = value is not None and math.isinf(value)
    return replace(number, value=Expression("0.0" if infinite else f"({number.value}) * 1.3 + 0.125"))


def _negated(tree: Apply) -> Tree | None:
    """Its first float operand gets the other sign."""
    return Apply("neg", (tree,)) if _is_float(tree) else None


def _is_float(tree: Apply) -> bool:
    condition = tree.op in ("less", "less_equal", "equal", "not_equal", "logical_not", "logical_and", "logical_or")
    return not condition and tree.op not in ("iota", "size", "random") and not (tree.opaque and tree.op != "item")


def _with_another_op(tree: Apply) -> Tree | None:
    other = EXCHANGED.get(tree.op)
    if other is None or OPS[other].arity != OPS[tree.op].arity:
        return None
    return replace(tree, op=other)


def _swapped(tree: Apply) -> Tree | None:
    if tree.op == "where":
        c, x, y = tree.children
        return replace(tree, children=(c, y, x)) if x != y else None
    if tree.op in NOT_COMMUTATIVE and tree.children[0] != tree.children[-1]:
        return replace(tree, children=(*tree.children[-1:], *tree.children[1:-1], *tree.children[:1]))
    return None


def _with_another_index(tree: Apply) -> Tree | None:
    """An axis, a place or a flag is another one."""
    if tree.op == "matmul":
        return replace(tree, slots=(Expression(f"1 - ({tree.slots[0]})"), *tree.slots[1:]))
    if tree.op not in INDEXED:
        return None
    (slot,) = tree.slots
    changed = {
        "permute": f"place({slot}, {TURNED})",
        "expand": f"place({TURNED_AXES}, {slot})",
        "sum": f"({slot}) ^ 3",
        "max": f"({slot}) ^ 3",
    }.get(tree.op, f"1 - ({slot})")
    other = Expression(changed)
    unchanged = slot.literal is not None and slot.literal == other.literal  # an expand without axes has no index
    return None if unchanged else replace(tree, slots=(other,))


TURNED = 0x76543021  # axes 0, 1, 2 -> 1, 2, 0
TURNED_AXES = 0x876543021
CHANGES: tuple[tuple[str, Callable[[Apply], Tree | None]], ...] = (
    ("sign of", _negated),
    ("another op for", _with_another_op),
    ("operands of", _swapped),
    ("index of", _with_another_index),
)
