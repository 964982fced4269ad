"""Rules as queries over tables of e-nodes: the e-nodes that a match needs, its conditions, and the e-nodes that it
adds.

Variables are registers; register 0 is the root's e-class.  A query is a list of atoms, each after the atom that binds
its e-class.  Every match leaves a certificate: the values of the rule's tensors and numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from wholestep.compiler.passes.egraph.rules.expression import Expression
from wholestep.compiler.passes.egraph.rules.tree import Apply, Number, Tree
from wholestep.compiler.passes.egraph.rules.typing import Types

ROOT = "root"
ANY_CLASS = -1  # the e-class of an atom that no earlier atom binds: the root of a second left side
ALL = 1 << 20  # as a depth: all levels, more than any rule has


class Atom(NamedTuple):
    """E-nodes with this head in the e-class of register `eclass`; positions count children, slots and type."""

    head: str
    eclass: int
    result: int  # the register that is bound to the e-class
    depth: int  # levels below the root
    literals: tuple[tuple[int, int | float], ...]  # position -> required value
    equal: tuple[tuple[int, int], ...]  # position -> register that must hold the same value
    same: tuple[tuple[int, int], ...]  # two positions that must be equal
    binds: tuple[tuple[int, int], ...]  # position -> register


class Build(NamedTuple):
    """An e-node of the right side."""

    head: str
    children: tuple[int, ...]
    slots: tuple[Expression, ...]
    type: int
    result: int
    typed: bool  # does `type_of` get a row?


class MagnitudeBound(NamedTuple):
    """The magnitude of register `created` is `factor` times the magnitude of `source`."""

    source: int
    created: int
    factor: Expression


@dataclass(frozen=True)
class CompiledRule:
    """A rule as a query, the e-nodes that it adds, and the variables of its certificates by kind."""

    name: str
    tensors: tuple[str, ...]  # variables of tensors, the root first
    numbers: tuple[str, ...]  # variables of attributes, constants and types
    types: Types
    type_names: Mapping[object, str]
    loose: Mapping[Number, str]  # constant that matches within a tolerance -> the variable bound to the matched value
    atoms: tuple[Atom, ...]
    operands: tuple[tuple[int, str], ...]  # position of a child of the root -> the head that it needs
    facts: tuple[int, ...]  # tensors whose facts (type, bounds) are read
    certificate: tuple[int, ...]  # the registers of tensors and numbers
    environment: tuple[tuple[str, int], ...]  # names that expressions may use -> registers
    typed: tuple[tuple[int, int, bool], ...]  # tensor, register of its type, is the register bound by an atom?
    exact_tensors: tuple[tuple[int, int], ...]  # tensor -> required type
    close: tuple[tuple[int, float, float], ...]  # register, value, largest difference
    guard: Expression | None
    builds: tuple[Build, ...]
    right: int
    bound: MagnitudeBound | None
    simplifies: bool
    exact: tuple[int, ...]  # the registers before a match: exact types, else 0
    reach: int  # levels below the root at which a change may lead to a new match; ALL for a second left side

    def type_name(self, side: str, tree: Tree, parent: Apply | None, position: int) -> str:
        """The variable of a subtree's type."""
        return self.type_names[self.types.of(side, tree, parent, position)]
