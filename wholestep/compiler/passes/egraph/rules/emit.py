"""Code generation: a rule as egglog text.  Each rule also writes a certificate: a row with the bindings of a match."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wholestep.compiler.passes.egraph.encode import FULL
from wholestep.compiler.passes.egraph.rules.expression import MOST_ABOVE, MOST_BELOW
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable, subtrees
from wholestep.compiler.passes.egraph.rules.typing import Types

# The type of a term, and upper bounds on how many times larger and smaller it may be than a value of the program.
DECLARATIONS = (
    "(sort T)",
    "(function type_of (T) i64 :merge old)",
    "(function most_above (T) f64 :merge (min old new))",
    "(function most_below (T) f64 :merge (min old new))",
)


def symbol(head: str) -> str:
    return f"op-{head}"


@dataclass(frozen=True)
class Constructor:
    """The signature of a term: its children, the kinds of its attribute slots, then its type id."""

    head: str
    children: int
    kinds: tuple[str, ...]  # kinds of the attribute slots: "i64" or "f64"

    @property
    def symbol(self) -> str:
        """The constructor's name in egglog, with a prefix that avoids the names of egglog's own functions."""
        return symbol(self.head)

    def declaration(self) -> str:
        return f"(constructor {self.symbol} ({' '.join([*['T'] * self.children, *self.kinds, 'i64'])}) T)"


@dataclass(frozen=True)
class EmittedRule:
    """A rule as egglog text, and the variables in its certificate, by kind."""

    name: str
    relation: str
    ruleset: str
    text: str
    tensors: tuple[str, ...]  # variables of tensors, the root first
    numbers: tuple[tuple[str, str], ...]  # (variable, kind) of attributes, constants and types
    heads: tuple[Constructor, ...]
    types: Types
    type_names: Mapping[object, str]
    loose: Mapping[Number, str]  # constant that matches within a tolerance -> the variable bound to the matched value

    def type_name(self, side: str, tree: Tree, parent: Apply | None, position: int) -> str:
        """The variable of a subtree's type."""
        return self.type_names[self.types.of(side, tree, parent, position)]

    def declaration(self) -> str:
        return f"(relation {self.relation} ({' '.join(['T'] * len(self.tensors) + [k for _, k in self.numbers])}))"

    def lines(self) -> list[str]:
        """The declarations of the rule, in a separate ruleset."""
        return [f"(ruleset {self.ruleset})", self.declaration(), self.text]


def emit(rule: Rule, number: int, ruleset: str = "main") -> EmittedRule:
    """Emit one rule; `number` makes the names of its tables unique."""
    return _Emitter(rule).emit(f"by{number}", ruleset)


class _Emitter:
    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.types = Types(rule)
        self.type_names: dict[object, str] = {}
        self.node_names: dict[Tree, str] = {}
        self.tensors: dict[str, str] = {}
        self.numbers: dict[str, str] = {}
        self.facts: list[str] = []
        self.conditions: list[str] = []
        self.heads: dict[str, Constructor] = {}
        self.loose: dict[Number, str] = {}
        self.root = ""
        self.actions: list[str] = []
        self.built: dict[Tree, str] = {}

    def emit(self, relation: str, ruleset: str) -> EmittedRule:
        left = self.rule.left
        assert isinstance(left, Apply), f"{self.rule.name}: the left side must be an op"
        for tree in (*subtrees(left), *(subtrees(self.rule.second_left) if self.rule.second_left else ())):
            if isinstance(tree, Apply) and tree not in self.node_names:
                self._match(tree, "root" if tree == left else f"n{len(self.node_names)}")
        if self.rule.guard:
            self.conditions += self.rule.guard.facts(self._number)
        self._bind_variable_types()
        self._pin_types()
        right = self._build(self.rule.right)
        self._limit_magnitude()
        numbers = {**self.numbers, **dict.fromkeys(self.type_names.values(), "i64")}
        row = " ".join(["root", *self.tensors.values(), *numbers])
        text = (
            f"(rule ({' '.join([*self.facts, *self.conditions])})"
            f" ({' '.join(self.actions)} (union root {right}) ({relation} {row}){self._subsume()})"
            f' :ruleset {ruleset} :name "{self.rule.name}")'
        )
        return EmittedRule(
            self.rule.name,
            relation,
            ruleset,
            text,
            ("root", *self.tensors.values()),
            tuple(numbers.items()),
            tuple(self.heads.values()),
            self.types,
            self.type_names,
            self.loose,
        )

    # -- the left side -------------------------------------------------------------------------------------------

    def _match(self, tree: Apply, name: str) -> None:
        self.node_names[tree] = name
        children = [self._match_child(child, tree, i) for i, child in enumerate(tree.children)]
        slots = [self._match_slot(str(s.variable or ""), s.literal) for s in tree.slots]
        self._declare_head(tree)
        term = " ".join([symbol(tree.head), *children, *slots, self._bind_type(self.types.of("left", tree))])
        self.facts.append(f"(= {name} ({term}))")
        if tree == self.rule.left:
            self.root = f"({term})"

    def _match_child(self, child: Tree, parent: Apply, position: int) -> str:
        if isinstance(child, Variable):
            return self.tensors.setdefault(child.name, f"x_{child.name}")
        if isinstance(child, Apply):
            return self.node_names[child]
        type = self._bind_type(self.types.of("left", child, parent, position))
        self.heads.setdefault(FULL, Constructor(FULL, 0, ("f64",)))
        return f"({symbol(FULL)} {self._match_value(child)} {type})"

    def _match_value(self, number: Number) -> str:
        if number.value.variable:
            self.numbers.setdefault(number.value.variable, "f64")
            return number.value.variable
        literal = number.value.literal
        assert literal is not None, (
            f"{self.rule.name}: constants of a left side are literals or variables, not {number.value}"
        )
        if not number.tolerance:
            return repr(float(literal))
        if number in self.loose:
            return self.loose[number]
        name = self.loose[number] = f"k{len(self.numbers)}"
        self.numbers[name] = "f64"
        self.conditions.append(f"(< (abs (- {name} {float(literal)!r})) {abs(float(literal)) * number.tolerance!r})")
        return name

    def _match_slot(self, variable: str, literal: int | float | None) -> str:
        if variable:
            self.numbers.setdefault(variable, "i64")
            return variable
        assert literal is not None, f"{self.rule.name}: attributes of a left side are literals or variables"
        return str(int(literal))

    def _bind_type(self, type: object) -> str:
        return self.type_names.setdefault(type, f"t{len(self.type_names)}")

    def _subsume(self) -> str:
        """egglog's `subsume` hides the left side from further matches; it stays in its e-class."""
        return f" (subsume {self.root})" if self.rule.simplifies else ""

    # -- the right side ------------------------------------------------------------------------------------------

    def _build(self, tree: Tree, parent: Apply | None = None, position: int = 0) -> str:
        if isinstance(tree, Variable):
            assert tree.name in self.tensors, f"{self.rule.name}: {tree.name} is not bound by the left side"
            return self.tensors[tree.name]
        type = self._type_binding(tree, parent, position)
        if isinstance(tree, Number):
            self.heads.setdefault(FULL, Constructor(FULL, 0, ("f64",)))
            return f"({symbol(FULL)} {tree.value.egglog(self._number)} {type})"
        if tree in self.built:
            return self.built[tree]
        children = [self._build(child, tree, i) for i, child in enumerate(tree.children)]
        self._declare_head(tree)
        slots = [s.egglog(self._number) for s in tree.slots]
        name = self.built[tree] = f"m{len(self.built)}"
        self.actions.append(f"(let {name} ({' '.join([symbol(tree.head), *children, *slots, type])}))")
        self.actions.append(f"(set (type_of {name}) {type})")
        return name

    def _limit_magnitude(self) -> None:
        """Check and propagate the bounds: the new value may be `above` times larger and `below` times smaller than a
        value of the program."""
        if self.rule.scaled is None:
            return
        created, of, factor = self.rule.scaled.created, self.rule.scaled.of, self.rule.scaled.factor
        source = self.tensors[of.name] if isinstance(of, Variable) else self.node_names[of]
        size = f"(abs {factor.egglog(self._number)})"
        above, below = f"(* above {size})", f"(/ below {size})"
        self.facts += [f"(= above (most_above {source}))", f"(= below (most_below {source}))"]
        self.conditions += [f"(<= {above} {MOST_ABOVE!r})", f"(<= {below} {MOST_BELOW!r})"]
        new = self.built[created]
        self.actions += [f"(set (most_above {new}) {above})", f"(set (most_below {new}) {below})"]

    def _bind_variable_types(self) -> None:
        """Bind the types of variables that only the right side needs, from the table `type_of`.

        A guard is trusted to imply the types; without one, a type that the left side does not determine is checked.
        """
        left_types = Types(self.rule, both=False)
        for variable in (t for t in subtrees(self.rule.left) if isinstance(t, Variable)):
            type = self.types.of("left", variable)
            same_type_ops = {
                self.types.of("left", t) for t in subtrees(self.rule.left) if has_type_of(left_types, variable, t)
            }
            if (
                not same_type_ops
                and (type not in self.type_names or not self.rule.guard)
                and self._right_needs_type(type, variable)
            ):
                self.facts.append(f"(= {self._bind_type(type)} (type_of {self.tensors[variable.name]}))")

    def _pin_types(self) -> None:
        """Bind the exact types of the rule, of both sides."""
        for name, number in self.rule.types:
            if name[0].islower():
                self.facts.append(f"(= {number} (type_of {self.tensors[name]}))")
            else:
                self.facts.append(f"(= {self._bind_type(self.types.by_name(name))} {number})")

    def _right_needs_type(self, type: object, variable: Variable) -> bool:
        """Does the right side depend on the type of this variable?"""
        right = self.rule.right
        if right == variable:
            return True
        applied = (t for t in subtrees(right) if isinstance(t, Apply) and variable in t.children)
        return any(self.types.of("right", t) == type for t in applied)

    def _type_binding(self, tree: Tree, parent: Apply | None, position: int) -> str:
        type = self.types.of("right", tree, parent, position)
        assert type in self.type_names, f"{self.rule.name}: the left side does not determine the type of {tree}"
        return self.type_names[type]

    def _number(self, name: str) -> str:
        if name in self.numbers:
            return name
        assert name in self.type_names, f"{self.rule.name}: {name} is not bound by the left side"
        return self.type_names[name]

    def _declare_head(self, tree: Apply) -> None:
        self.heads.setdefault(tree.head, Constructor(tree.head, len(tree.children), ("i64",) * len(tree.slots)))


def has_type_of(types: Types, variable: Variable, tree: Tree) -> bool:
    """Does the left side alone determine that an op has the type of this variable?"""
    return isinstance(tree, Apply) and types.of("left", tree) == types.of("left", variable)


def signatures(rules: Sequence[EmittedRule], constructors: Iterable[Constructor]) -> dict[str, Constructor]:
    """All constructors of the e-graph: those of the program and of the rules."""
    return {c.head: c for c in [*constructors, *(h for e in rules for h in e.heads)]}
