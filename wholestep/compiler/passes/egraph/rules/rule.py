"""A rewrite rule as data: a law, the reason why it holds, its guard, and its exactness.

Each rule generates its query (compile.py) and its numeric test (tests/compiler/passes/egraph/test_rules.py).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, total_ordering

from wholestep.compiler.passes.egraph.rules.expression import Expression
from wholestep.compiler.passes.egraph.rules.tree import Tree, parse, tree_text


@total_ordering
class Exactness(enum.Enum):
    """How much a rewrite may change the bits.  A level includes the rules of the levels before it."""

    BITWISE = "bitwise"  # equal bits (except for the payload of NaN)
    REASSOCIATING = "reassociating"  # equal in real arithmetic, as accurate up to rounding
    APPROXIMATE = "approximate"  # close, or equal on a smaller domain

    def __lt__(self, other: Exactness) -> bool:
        levels = list(Exactness)
        return levels.index(self) < levels.index(other)


class RuleScope(enum.Enum):
    """Where a rule may run."""

    ANYWHERE = "anywhere"
    STEP = "whole step"  # only after autodiff: before, the rule would change a gradient, or could not match


Sample = tuple[int | str, ...] | int | float  # the shape of a tensor or type; the value of an attribute or constant


@dataclass(frozen=True)
class Scaled:
    """A value that the right side creates: `of`, the root or a tensor of the left side, times `factor`.

    Each e-class carries bounds on how many times larger and smaller it may be than a value of the program.  Factors of
    consecutive rules multiply, so that no chain of rules leaves the range of the dtype.
    """

    created: Tree
    of: Tree
    factor: Expression


@dataclass(frozen=True)
class Rule:
    """A rewrite rule: an equation, applied from left to right."""

    name: str
    family: str
    left: Tree
    right: Tree
    reason: str
    exactness: Exactness
    guard: Expression | None = None
    scope: RuleScope = RuleScope.STEP
    samples: tuple[Mapping[str, Sample], ...] = ({},)
    refused: tuple[Mapping[str, Sample], ...] = ()  # samples that the guard must reject
    positive: tuple[str, ...] = ()  # tensors that the samples draw from (0, 3) instead of (-3, 3)
    replaces: bool = False  # the right side is extracted at any cost
    simplifies: bool = False  # the left side is subsumed: other rules no longer match it
    types: tuple[tuple[str, int], ...] = ()  # exact type ids, of type names and of tensors (lower case)
    second_left: Tree | None = None  # a second term that must exist too; it binds tensors that the left side does not
    scaled: Scaled | None = None  # the value whose magnitude is bounded

    @cached_property
    def at_any_cost(self) -> Rule:
        """The same rule, with a right side that is extracted at any cost."""
        return replace(self, replaces=True)

    @property
    def law(self) -> str:
        when = f"  where {self.guard}" if self.guard else ""
        return f"{tree_text(self.left)} = {tree_text(self.right)}{when}"


@dataclass(frozen=True)
class FamilyRows:
    """Collects the rules of one family."""

    name: str
    rows: list[Rule] = field(default_factory=list)

    def rule(
        self,
        name: str,
        law: str,
        reason: str,
        exactness: Exactness,
        *,
        guard: str = "",
        scope: RuleScope = RuleScope.STEP,
        samples: tuple[Mapping[str, Sample], ...] = ({},),
        refused: tuple[Mapping[str, Sample], ...] = (),
        positive: tuple[str, ...] = (),
        replaces: bool = False,
        simplifies: bool = False,
        scaled: tuple[str, str, str] | None = None,
    ) -> None:
        """Add `law`, written as "left = right"; `scaled`: (created value, of, factor), which also is the guard."""
        left, right = law.split(" = ")
        condition = Expression(guard) if guard else None
        bounded = None
        if scaled is not None:
            created, of, factor = scaled
            bounded = Scaled(parse(created), parse(of), Expression(factor))
            assert condition is None, f"{name}: `scaled` and `guard` exclude each other"
            condition = Expression(f"is_moderate({factor})")
        self.rows.append(
            Rule(
                name,
                self.name,
                parse(left),
                parse(right),
                reason,
                exactness,
                condition,
                scope,
                samples,
                refused,
                positive,
                replaces,
                simplifies,
                scaled=bounded,
            )
        )
