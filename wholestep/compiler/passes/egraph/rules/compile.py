"""Compiles a rule to a query: names become registers, and atoms are ordered so that each joins with earlier atoms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from wholestep.compiler.passes.egraph.encode import FULL
from wholestep.compiler.passes.egraph.rules.expression import Expression
from wholestep.compiler.passes.egraph.rules.query import ALL, ANY_CLASS, ROOT, Atom, Build, CompiledRule, MagnitudeBound
from wholestep.compiler.passes.egraph.rules.rule import Rule
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree, Variable, subtrees
from wholestep.compiler.passes.egraph.rules.typing import Types

Argument = str | int | float  # the name of a register, or a literal


def compile_rule(rule: Rule) -> CompiledRule:
    return _Compiler(rule).compile()


class _Term(NamedTuple):
    """An atom before registers are numbered."""

    name: str
    head: str
    arguments: tuple[Argument, ...]
    depth: int


class _Compiler:
    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.types = Types(rule)
        self.type_names: dict[object, str] = {}
        self.node_names: dict[Tree, str] = {}
        self.tensors: dict[str, str] = {}
        self.numbers: dict[str, None] = {}
        self.terms: list[_Term] = []
        self.loose: dict[Number, str] = {}
        self.registers: dict[str, int] = {ROOT: 0}
        self.typed: list[tuple[str, str]] = []
        self.exact: dict[str, int] = {}  # type variable -> its exact type
        self.exact_tensors: list[tuple[str, int]] = []
        self.builds: list[Build] = []
        self.built: dict[Tree, int] = {}

    def compile(self) -> CompiledRule:
        left, second = self.rule.left, self.rule.second_left
        assert isinstance(left, Apply), f"{self.rule.name}: the left side must be an op"
        depths = {**_depths(second), **_depths(left)} if second else _depths(left)
        for tree in (*subtrees(left), *(subtrees(second) if second else ())):
            if isinstance(tree, Apply) and tree not in self.node_names:
                self._match(tree, ROOT if tree == left else f"n{len(self.node_names)}", depths[tree])
        self._bind_variable_types()
        self._require_types()
        atoms = self._order()
        right = self._build(self.rule.right)
        bound = self._magnitude_bound()
        names = {**self.numbers, **dict.fromkeys(self.type_names.values())}
        tensors = (ROOT, *self.tensors.values())
        named_types = {t: name for t, name in self.type_names.items() if isinstance(t, str)}
        environment = (*zip(self.numbers, self.numbers), *named_types.items())
        typed = tuple(self._tensor_types(atoms))
        exact_tensors = tuple((self._register(tensor), number) for tensor, number in self.exact_tensors)
        source = () if bound is None else (bound.source,)
        return CompiledRule(
            name=self.rule.name,
            tensors=tensors,
            numbers=tuple(names),
            types=self.types,
            type_names=self.type_names,
            loose=self.loose,
            atoms=atoms,
            operands=self._operands(left),
            facts=(*(t for t, _, _ in typed), *(t for t, _ in exact_tensors), *source),
            certificate=tuple(self._register(n) for n in (*tensors, *names)),
            environment=tuple((name, self._register(variable)) for name, variable in environment),
            typed=typed,
            exact_tensors=exact_tensors,
            close=tuple(self._closeness(number, name) for number, name in self.loose.items()),
            guard=self.rule.guard,
            builds=tuple(self.builds),
            right=right,
            bound=bound,
            simplifies=self.rule.simplifies,
            reach=self._reach(atoms, depths),
            exact=tuple(self.exact.get(name, 0) for name in self._all_registers()),
        )

    def _all_registers(self) -> list[str]:
        for name in self.exact:
            self._register(name)
        return list(self.registers)

    def _operands(self, left: Apply) -> tuple[tuple[int, str], ...]:
        heads = (
            (i, FULL if isinstance(c, Number) else c.head)
            for i, c in enumerate(left.children)
            if not isinstance(c, Variable)
        )
        return tuple(heads)

    def _register(self, name: str) -> int:
        return self.registers.setdefault(name, len(self.registers))

    # -- the left side -------------------------------------------------------------------------------------------

    def _match(self, tree: Apply, name: str, depth: int) -> None:
        self.node_names[tree] = name
        children = [self._match_child(child, tree, i, depth + 1) for i, child in enumerate(tree.children)]
        slots = [self._match_slot(s.variable, s.literal) for s in tree.slots]
        type = self._bind_type(self.types.of("left", tree))
        self.terms.append(_Term(name, tree.head, (*children, *slots, type), depth))

    def _match_child(self, child: Tree, parent: Apply, position: int, depth: int) -> str:
        if isinstance(child, Variable):
            return self.tensors.setdefault(child.name, f"x_{child.name}")
        if isinstance(child, Apply):
            return self.node_names[child]
        type = self._bind_type(self.types.of("left", child, parent, position))
        name = f"full{len(self.terms)}"
        self.terms.append(_Term(name, FULL, (self._match_value(child), type), depth))
        return name

    def _match_value(self, number: Number) -> Argument:
        if number.value.variable:
            self.numbers.setdefault(number.value.variable)
            return number.value.variable
        literal = number.value.literal
        assert literal is not None, (
            f"{self.rule.name}: constants of a left side are literals or variables, not {number.value}"
        )
        if not number.tolerance:
            return float(literal)
        if number not in self.loose:
            name = self.loose[number] = f"k{len(self.numbers)}"
            self.numbers[name] = None
        return self.loose[number]

    def _match_slot(self, variable: str | None, literal: int | float | None) -> Argument:
        if variable:
            self.numbers.setdefault(variable)
            return variable
        assert literal is not None, f"{self.rule.name}: attributes of a left side are literals or variables"
        return int(literal)

    def _bind_type(self, type: object) -> str:
        return self.type_names.setdefault(type, f"t{len(self.type_names)}")

    def _bind_variable_types(self) -> None:
        """Bind the types of variables that only the right side needs, from `type_of`.

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
                self.typed.append((self.tensors[variable.name], self._bind_type(type)))

    def _require_types(self) -> None:
        """The exact types of the rule, of both sides."""
        for name, number in self.rule.types:
            if name[0].islower():
                self.exact_tensors.append((self.tensors[name], number))
            else:
                self.exact[self._bind_type(self.types.by_name(name))] = number

    def _right_needs_type(self, type: object, variable: Variable) -> bool:
        """Does the right side depend on the type of this variable?"""
        right = self.rule.right
        if right == variable:
            return True
        applied = (t for t in subtrees(right) if isinstance(t, Apply) and variable in t.children)
        return any(self.types.of("right", t) == type for t in applied)

    def _closeness(self, number: Number, name: str) -> tuple[int, float, float]:
        value = float(number.value.literal or 0)
        return self.registers[name], value, abs(value) * number.tolerance

    def _order(self) -> tuple[Atom, ...]:
        """The atoms, each after the atom that binds its e-class; constants first, since they are the most selective."""
        rest, atoms, bound_registers = list(self.terms), [], {ROOT}
        while rest:
            bound = [t for t in rest if t.name in bound_registers]
            free = [t for t in rest if not any(t.name in other.arguments for other in rest)]
            term = min(bound or free, key=lambda t: t.head != FULL)
            atoms.append(self._atom(term, bound_registers))
            rest.remove(term)
        return tuple(atoms)

    def _atom(self, term: _Term, bound_registers: set[str]) -> Atom:
        literals: list[tuple[int, int | float]] = []
        equal: list[tuple[int, int]] = []
        binds: dict[str, int] = {}
        same: list[tuple[int, int]] = []
        eclass = self._register(term.name) if term.name in bound_registers else ANY_CLASS
        for position, argument in enumerate(term.arguments):
            if not isinstance(argument, str):
                literals.append((position, argument))
            elif argument in self.exact:
                literals.append((position, self.exact[argument]))
            elif argument in bound_registers:
                equal.append((position, self._register(argument)))
            elif argument in binds:
                same.append((position, binds[argument]))
            else:
                binds[argument] = position
        bound_registers.update([term.name, *binds])
        bound = tuple((position, self._register(argument)) for argument, position in binds.items())
        tests = tuple(literals), tuple(equal), tuple(same)
        return Atom(term.head, eclass, self._register(term.name), term.depth, *tests, bound)

    def _tensor_types(self, atoms: Sequence[Atom]) -> Iterator[tuple[int, int, bool]]:
        registers = {register for atom in atoms for _, register in atom.binds} | {*map(self._register, self.exact)}
        for tensor, type in self.typed:
            register = self._register(type)
            yield self._register(tensor), register, register in registers
            registers.add(register)

    def _reach(self, atoms: Sequence[Atom], depths: Mapping[Tree, int]) -> int:
        if any(atom.eclass == ANY_CLASS for atom in atoms):
            return ALL
        reads_facts = self.typed or self.exact_tensors or self.rule.scaled
        return max(depths.values()) if reads_facts else max(atom.depth for atom in atoms)

    # -- the right side ------------------------------------------------------------------------------------------

    def _build(self, tree: Tree, parent: Apply | None = None, position: int = 0) -> int:
        if isinstance(tree, Variable):
            assert tree.name in self.tensors, f"{self.rule.name}: {tree.name} is not bound by the left side"
            return self._register(self.tensors[tree.name])
        if tree in self.built:
            return self.built[tree]
        type = self._type_binding(tree, parent, position)
        if isinstance(tree, Number):
            self._check_names(tree.value)
            result = self._register(f"value{len(self.registers)}")
            self.builds.append(Build(FULL, (), (tree.value,), type, result, typed=False))
            return result
        children = tuple(self._build(child, tree, i) for i, child in enumerate(tree.children))
        for slot in tree.slots:
            self._check_names(slot)
        result = self.built[tree] = self._register(f"m{len(self.registers)}")
        self.builds.append(Build(tree.head, children, tree.slots, type, result, typed=True))
        return result

    def _magnitude_bound(self) -> MagnitudeBound | None:
        """How many times larger or smaller than a value of the program the new value may be."""
        scaled = self.rule.scaled
        if scaled is None:
            return None
        of = scaled.of
        source = self.tensors[of.name] if isinstance(of, Variable) else self.node_names[of]
        return MagnitudeBound(self.registers[source], self.built[scaled.created], scaled.factor)

    def _type_binding(self, tree: Tree, parent: Apply | None, position: int) -> int:
        type = self.types.of("right", tree, parent, position)
        assert type in self.type_names, f"{self.rule.name}: the left side does not determine the type of {tree}"
        return self._register(self.type_names[type])

    def _check_names(self, expression: Expression) -> None:
        for name in expression.variables():
            assert name in self.numbers or name in self.type_names, (
                f"{self.rule.name}: {name} is not bound by the left side"
            )


def _depths(tree: Tree) -> dict[Tree, int]:
    """The greatest depth at which each subtree occurs."""
    depths: dict[Tree, int] = {}

    def walk(t: Tree, depth: int) -> None:
        depths[t] = max(depth, depths.get(t, 0))
        for child in t.children if isinstance(t, Apply) else ():
            walk(child, depth + 1)

    walk(tree, 0)
    return depths


def has_type_of(types: Types, variable: Variable, tree: Tree) -> bool:
    """Does the left side alone determine that an op has the type of this variable?"""
    return isinstance(tree, Apply) and types.of("left", tree) == types.of("left", variable)


def compile_rules(rules: Sequence[Rule]) -> list[CompiledRule]:
    """The rules compiled; those without exact types, which programs share, are kept."""
    return [compile_rule(rule) if rule.types else _cached_query(rule) for rule in rules]


_CACHE_CAPACITY = 4096  # entries of the cache below; it is cleared when full
_compiled: dict[int, tuple[Rule, CompiledRule]] = {}  # id of a rule -> the rule, kept alive, and its query


def _cached_query(rule: Rule) -> CompiledRule:
    if id(rule) not in _compiled:
        if len(_compiled) >= _CACHE_CAPACITY:
            _compiled.clear()
        _compiled[id(rule)] = rule, compile_rule(rule)
    return _compiled[id(rule)][1]
