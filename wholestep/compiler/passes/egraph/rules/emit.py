"""Rules -> an egglog program.  Each rule also writes its certificate: a row with what it was applied to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from wholestep.compiler.passes.egraph.encode import FULL
from wholestep.compiler.passes.egraph.rules.expression import MOST_ABOVE, MOST_BELOW
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable, subtrees
from wholestep.compiler.passes.egraph.rules.typing import Types

# The type of a term, and how far a value may lie outside those of the program.
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
    """A term's signature: its children, the kinds of its attribute slots, and the type's id last."""

    head: str
    children: int
    kinds: tuple[str, ...]  # "i64" or "f64"

    @property
    def symbol(self) -> str:
        """Its name in egglog, apart from egglog's own functions."""
        return symbol(self.head)

    def declaration(self) -> str:
        return f"(constructor {self.symbol} ({' '.join([*['T'] * self.children, *self.kinds, 'i64'])}) T)"


@dataclass(frozen=True)
class EmittedRule:
    """A rule as egglog text, and the variables that its certificate holds, by kind."""

    name: str
    relation: str
    ruleset: str
    text: str
    tensors: tuple[str, ...]  # the root first
    numbers: tuple[tuple[str, str], ...]  # (variable, kind): attributes, values and types
    heads: tuple[Constructor, ...]
    types: Types
    type_names: Mapping[object, str]
    loose: Mapping[Number, str]  # numbers that match within a tolerance -> the variable that holds what was there

    def type_name(self, side: str, tree: Tree, parent: Apply | None, position: int) -> str:
        """The variable of a subtree's type."""
        return self.type_names[self.types.of(side, tree, parent, position)]

    def declaration(self) -> str:
        return f"(relation {self.relation} ({' '.join(['T'] * len(self.tensors) + [k for _, k in self.numbers])}))"

    def lines(self) -> list[str]:
        """The rule in a ruleset of its own."""
        return [f"(ruleset {self.ruleset})", self.declaration(), self.text]


def emit(rule: Rule, number: int, ruleset: str = "main") -> EmittedRule:
    """One rule; `number` keeps the names of its tables apart from others'."""
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
        self.made: dict[Tree, str] = {}

    def emit(self, relation: str, ruleset: str) -> EmittedRule:
        left = self.rule.left
        assert isinstance(left, Apply), f"{self.rule.name}: a left side is an op"
        for tree in (*subtrees(left), *(subtrees(self.rule.beside) if self.rule.beside else ())):
            if isinstance(tree, Apply) and tree not in self.node_names:
                self._match(tree, "root" if tree == left else f"n{len(self.node_names)}")
        if self.rule.guard:
            self.conditions += self.rule.guard.facts(self._number)
        self._check_variables()
        self._pin_types()
        right = self._build(self.rule.right)
        self._keep_in_range()
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
        self._use(tree)
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
        assert literal is not None, f"{self.rule.name}: a left side holds numbers or variables, not {number.value}"
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
        assert literal is not None, f"{self.rule.name}: a left side binds attributes or names them"
        return str(int(literal))

    def _bind_type(self, type: object) -> str:
        return self.type_names.setdefault(type, f"t{len(self.type_names)}")

    def _subsume(self) -> str:
        """egglog's way to hide an e-node from further matches; it stays in its class."""
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
        if tree in self.made:
            return self.made[tree]
        children = [self._build(child, tree, i) for i, child in enumerate(tree.children)]
        self._use(tree)
        slots = [s.egglog(self._number) for s in tree.slots]
        name = self.made[tree] = f"m{len(self.made)}"
        self.actions.append(f"(let {name} ({' '.join([symbol(tree.head), *children, *slots, type])}))")
        self.actions.append(f"(set (type_of {name}) {type})")
        return name

    def _keep_in_range(self) -> None:
        """What is made may be `above` times larger and `below` times smaller than a value of the program."""
        if self.rule.scaled is None:
            return
        made, of, factor = self.rule.scaled.made, self.rule.scaled.of, self.rule.scaled.factor
        known = self.tensors[of.name] if isinstance(of, Variable) else self.node_names[of]
        size = f"(abs {factor.egglog(self._number)})"
        above, below = f"(* above {size})", f"(/ below {size})"
        self.facts += [f"(= above (most_above {known}))", f"(= below (most_below {known}))"]
        self.conditions += [f"(<= {above} {MOST_ABOVE!r})", f"(<= {below} {MOST_BELOW!r})"]
        new = self.made[made]
        self.actions += [f"(set (most_above {new}) {above})", f"(set (most_below {new}) {below})"]

    def _check_variables(self) -> None:
        """Types of tensors that only the right side asks for come from a table of terms and what rules made of them.

        A guard vouches for what it was written for; without one, a type that the left side does not force is checked.
        """
        forced = Types(self.rule, both=False)
        for variable in (t for t in subtrees(self.rule.left) if isinstance(t, Variable)):
            type = self.types.of("left", variable)
            known = {self.types.of("left", t) for t in subtrees(self.rule.left) if has_type_of(forced, variable, t)}
            if not known and (type not in self.type_names or not self.rule.guard) and self._asks_for(type, variable):
                self.facts.append(f"(= {self._bind_type(type)} (type_of {self.tensors[variable.name]}))")

    def _pin_types(self) -> None:
        """Types that the rule knows exactly, of the left side and of what only the right side has."""
        for name, number in self.rule.types:
            if name[0].islower():
                self.facts.append(f"(= {number} (type_of {self.tensors[name]}))")
            else:
                self.facts.append(f"(= {self._bind_type(self.types.named(name))} {number})")

    def _asks_for(self, type: object, variable: Variable) -> bool:
        """Does the right side depend on the type of this variable?"""
        right = self.rule.right
        if right == variable:
            return True
        applied = (t for t in subtrees(right) if isinstance(t, Apply) and variable in t.children)
        return any(self.types.of("right", t) == type for t in applied)

    def _type_binding(self, tree: Tree, parent: Apply | None, position: int) -> str:
        type = self.types.of("right", tree, parent, position)
        assert type in self.type_names, f"{self.rule.name}: the left side does not tell the type of {tree}"
        return self.type_names[type]

    def _number(self, name: str) -> str:
        if name in self.numbers:
            return name
        assert name in self.type_names, f"{self.rule.name}: {name} is not bound by the left side"
        return self.type_names[name]

    def _use(self, tree: Apply) -> None:
        self.heads.setdefault(tree.head, Constructor(tree.head, len(tree.children), ("i64",) * len(tree.slots)))


def has_type_of(types: Types, variable: Variable, tree: Tree) -> bool:
    """Does the left side alone give an op the type of this variable?"""
    return isinstance(tree, Apply) and types.of("left", tree) == types.of("left", variable)


def signatures(rules: Sequence[EmittedRule], constructors: Iterable[Constructor]) -> dict[str, Constructor]:
    """Every constructor that the e-graph may hold."""
    return {c.head: c for c in [*constructors, *(h for e in rules for h in e.heads)]}
