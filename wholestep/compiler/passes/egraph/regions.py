"""Detection of repeated regions of a graph (equal layers, the updates of a parameter group), by colour refinement.

Nodes are value-numbered; opaque nodes (leaves, control, several results) belong to no region.  Each node is coloured by
its op, attributes and types, then by the colours of its neighbours (Weisfeiler-Lehman).  The nodes of one colour are
seeds: their regions grow in lockstep, edge by edge, as long as all copies find the same colour and do not overlap.  The
result is a heuristic proposal: `outline.py` compares the copies exactly.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.ir.attrs import Attrs
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.egraph.encode import full_value, is_opaque

RADIUS = 3  # rounds of colour refinement: the distance at which nodes still influence a colour
SMALLEST = 5  # nodes; a smaller region does not pay for its halo


class ValueNumbers:
    """Value numbering: equal values get equal numbers.  Objects are cached by identity, since comparing is slow."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self._by_id: dict[int, tuple[object, int]] = {}  # keeps the object alive, so that its id is not reused

    def of(self, value: Hashable) -> int:
        return self._known.setdefault(value, len(self._known))

    def of_object(self, value: Hashable) -> int:
        seen = self._by_id.get(id(value))
        if seen is None:
            # repr distinguishes 0.0 from -0.0 in attributes, which == does not.
            number = self.of((value, repr(getattr(value, "value", ""))) if isinstance(value, Attrs) else value)
            seen = self._by_id[id(value)] = value, number
        return seen[1]


@dataclass
class NumberedGraph:
    """A value-numbered graph: equal nodes share a number; all lists are indexed by it, in topological order."""

    nodes: list[Node] = field(default_factory=list)
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    number: dict[Node, int] = field(default_factory=dict)
    cut: dict[int, int] = field(default_factory=dict)  # computed tensors that are differentiated with respect to
    ends: tuple[int, ...] = ()
    colour: list[int] = field(default_factory=list)  # a number for op, attributes and types
    type: list[int] = field(default_factory=list)  # value number of the type
    barrier: list[bool] = field(default_factory=list)  # opaque: only its type matters to its readers
    plain: list[bool] = field(default_factory=list)  # constants, indices, sizes: shared by all copies
    attributes: ValueNumbers = field(default_factory=ValueNumbers)

    def grows(self, n: int) -> bool:
        """Can the node be part of a region?"""
        return not (self.barrier[n] or self.plain[n])


def read_program(graph: IRGraph, cuts: Mapping[Node, int]) -> NumberedGraph:
    """Value-number the nodes of a graph."""
    p, kinds = NumberedGraph(), _Kinds()
    numbers: dict[Hashable, int] = {}
    for node in graph.nodes:
        inputs = tuple([p.number[i] for i in node.inputs])
        attrs = p.attributes.of_object(node.attrs)
        number = numbers.setdefault((node.op, attrs, inputs, cuts.get(node)), len(p.nodes))
        p.number[node] = number
        if number < len(p.nodes):
            continue
        p.nodes.append(node)
        p.inputs.append(inputs)
        p.readers.append([])
        for i in dict.fromkeys(inputs):
            p.readers[i].append(number)
        kind = kinds.of(node, attrs, tuple([p.type[i] for i in inputs]))
        plain = node.op in _PLAIN_OPS and (node.op != "expand" or full_value(node) is not None)
        p.type.append(kind.type)
        p.plain.append(plain)
        p.barrier.append(not plain and (kind.opaque or (kind.reads_several and any(p.barrier[i] for i in inputs))))
        p.colour.append(kinds.colour(kind, number, plain, p.barrier[number], node in cuts))
        if node in cuts:
            p.cut[number] = cuts[node]
    ends = graph.roots
    p.ends = tuple(p.number[n] for n in ends)
    return p


_PLAIN_OPS = ops_with(Trait.STEADY) | {"expand"}


@dataclass(frozen=True)
class _Kind:
    """Properties of a node that depend on its op, attributes and input types only."""

    number: int
    type: int
    opaque: bool
    reads_several: bool  # an input is a tuple of results


class _Kinds:
    """Cache of `_Kind`."""

    def __init__(self) -> None:
        self._known: dict[Hashable, _Kind] = {}
        self._types, self._colours = ValueNumbers(), ValueNumbers()

    def of(self, node: Node, attrs: int, inputs: tuple[int, ...]) -> _Kind:
        key = node.op, attrs, inputs
        kind = self._known.get(key)
        if kind is None:
            several = any(not isinstance(i.result, TensorType) for i in node.inputs)
            kind = _Kind(len(self._known), self._types.of(node.result), is_opaque(node), several)
            self._known[key] = kind
        return kind

    def colour(self, kind: _Kind, at: int, plain: bool, barrier: bool, cut: bool) -> int:
        if plain:
            return self._colours.of(("plain", at))
        return self._colours.of(("type", kind.type) if barrier else (kind.number, cut))


def find_regions(p: NumberedGraph) -> list[list[list[int]]]:
    """Groups of equal regions; each group is a list of copies, each copy a list of its nodes in the same order."""
    near = _refine(p, p.colour)
    far = near
    for _ in range(RADIUS - 1):
        far = _refine(p, far)
    classes: dict[int, list[int]] = {}
    for n, colour in enumerate(far):
        if p.grows(n):
            classes.setdefault(colour, []).append(n)
    taken = bytearray(not p.grows(n) for n in range(len(p.nodes)))
    groups = []
    for seeds in sorted(classes.values(), key=lambda members: (-len(members), members[0])):
        free_seeds = [n for n in seeds if not taken[n]]
        if len(free_seeds) > 1:
            positions = _Growth(p, near, taken, free_seeds).positions
            if len(positions) >= SMALLEST:
                groups.append([list(copy) for copy in zip(*positions)])
            else:
                for position in positions:
                    for n in position:
                        taken[n] = False
    return groups


def _refine(p: NumberedGraph, colour: list[int]) -> list[int]:
    """One round of colour refinement: new colours from each node's colour and the colours of its inputs and readers."""
    numbers: dict[Hashable, int] = {}
    out = []
    for n, own_colour in enumerate(colour):
        if p.barrier[n] or p.plain[n]:
            key: Hashable = own_colour
        else:
            input_colours = [colour[i] for i in p.inputs[n]]
            key = own_colour, tuple(input_colours), tuple(sorted([colour[r] for r in p.readers[n]]))
        out.append(numbers.setdefault(key, len(numbers)))
    return out


class _Growth:
    """Grows regions from seeds in lockstep: `positions` holds, for each node of a region, that node in every copy."""

    def __init__(self, p: NumberedGraph, near: list[int], taken: bytearray, seeds: Sequence[int]) -> None:
        self.p, self.near, self.taken = p, near, taken
        self.positions: list[tuple[int, ...]] = []
        self._take(tuple(seeds))
        for position in self.positions:  # the loop appends to the list
            for candidate in self._neighbours(position):
                if self._fits(candidate):
                    self._take(candidate)

    def _take(self, position: tuple[int, ...]) -> None:
        self.positions.append(position)
        for n in position:
            self.taken[n] = True

    def _fits(self, position: tuple[int, ...]) -> bool:
        if any(self.taken[n] for n in position):
            return False
        colour = self.p.colour[position[0]]
        return len(set(position)) == len(position) and all(self.p.colour[n] == colour for n in position)

    def _neighbours(self, position: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        inputs, readers = self.p.inputs, self.p.readers
        yield from zip(*[inputs[n] for n in position])
        first = [r for r in readers[position[0]] if not self.taken[r]]
        colours = [self.near[r] for r in first]
        for reader, colour in zip(first, colours):
            if colours.count(colour) == 1:
                others = [[r for r in readers[n] if self.near[r] == colour] for n in position[1:]]
                if all(len(o) == 1 for o in others):
                    yield (reader, *[o[0] for o in others])
