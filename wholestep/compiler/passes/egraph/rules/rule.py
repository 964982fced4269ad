"""A rewrite rule as data: a law, why it holds, when, and how exactly.

From a row come the egglog rule (emit.py) and its numeric test (tests/compiler/passes/egraph/test_rules.py).
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
    """How much a rewrite may change the bits.  A level allows its own rules and those of the levels before it."""

    BITWISE = "bitwise"  # equal bits (of numbers: which NaN comes out is not told apart)
    REASSOCIATING = "reassociating"  # equal in real arithmetic, as accurate up to rounding
    APPROXIMATE = "approximate"  # close, or equal on a smaller domain

    def __lt__(self, other: Exactness) -> bool:
        levels = list(Exactness)
        return levels.index(self) < levels.index(other)


class RuleScope(enum.Enum):
    """Where a rule may run."""

    ANYWHERE = "anywhere"
    STEP = "whole step"  # not before autodiff: it would change a gradient, or gradients hide what it looks for


Sample = tuple[int | str, ...] | int | float  # the shape of a tensor or a type; the value of an attribute or a number


@dataclass(frozen=True)
class Scaled:
    """A value that the right side makes: `of`, the root or a tensor of the left side, times `factor`.

    Both are kept with a class: how many times larger, and how many times smaller, it may be than a value of the
    program.  So the factors that several rules move multiply, and none is moved too far.
    """

    made: Tree
    of: Tree
    factor: Expression


@dataclass(frozen=True)
class Rule:
    """left = right, read from left to right."""

    name: str
    family: str
    left: Tree
    right: Tree
    reason: str
    exactness: Exactness
    guard: Expression | None = None
    scope: RuleScope = RuleScope.STEP
    samples: tuple[Mapping[str, Sample], ...] = ({},)
    refused: tuple[Mapping[str, Sample], ...] = ()  # what the guard must not let through
    positive: tuple[str, ...] = ()  # tensors that the samples draw from (0, 3) instead of (-3, 3)
    replaces: bool = False  # the right side is taken whatever it costs
    simplifies: bool = False  # the left side is of no more use to other rules: they stop looking at it
    types: tuple[tuple[str, int], ...] = ()  # exact types, by id: of type names, and of tensors (lower case)
    beside: Tree | None = None  # a term that must be there as well; it tells tensors that the left side does not
    scaled: Scaled | None = None  # what must stay in range

    @cached_property
    def taken(self) -> Rule:
        """The same, whose right side is taken whatever it costs."""
        return replace(self, replaces=True)

    @property
    def law(self) -> str:
        when = f"  where {self.guard}" if self.guard else ""
        return f"{tree_text(self.left)} = {tree_text(self.right)}{when}"


@dataclass(frozen=True)
class FamilyRows:
    """Collects the rows of one family."""

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
        """Add `law`, written as "left = right"; `scaled`: (made, of, factor), which is the guard as well."""
        left, right = law.split(" = ")
        condition = Expression(guard) if guard else None
        makes = None
        if scaled is not None:
            made, of, factor = scaled
            makes = Scaled(parse(made), parse(of), Expression(factor))
            assert condition is None, f"{name}: what is scaled is its guard"
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
                scaled=makes,
            )
        )
