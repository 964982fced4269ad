"""Repeated regions of a graph: equal layers, the updates of a parameter group.

Equal nodes are one number here; what no rule looks into (leaves, control, several results) belongs to no region.
Nodes are coloured by their op, attributes and types, then by the colours around them.  The nodes of one colour are
seeds: their regions grow together, edge by edge, as long as all of them find the same thing there and none meets
another.  What is found is a proposal: `outline.py` compares the copies exactly.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.ir.attrs import Attrs
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.egraph.encode import full_value, is_opaque

RADIUS = 3  # how far around a node its colour sees
SMALLEST = 5  # nodes of a region that is worth its frame


class ValueNumbers:
    """Equal values have equal numbers.  An object seen before is known by its identity: comparing is slow."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self._seen: dict[int, tuple[object, int]] = {}  # holds the object, so that its id stays its own

    def of(self, value: Hashable) -> int:
        return self._known.setdefault(value, len(self._known))

    def of_object(self, value: Hashable) -> int:
        seen = self._seen.get(id(value))
        if seen is None:
            # repr tells 0.0 from -0.0 in attributes, which == does not.
            number = self.of((value, repr(getattr(value, "value", ""))) if isinstance(value, Attrs) else value)
            seen = self._seen[id(value)] = value, number
        return seen[1]


@dataclass
class NumberedGraph:
    """A graph with equal nodes as one: everything by number, in topological order."""

    nodes: list[Node] = field(default_factory=list)
    inputs: list[tuple[int, ...]] = field(default_factory=list)
    readers: list[list[int]] = field(default_factory=list)
    number: dict[Node, int] = field(default_factory=dict)
    cut: dict[int, int] = field(default_factory=dict)  # computed tensors that a gradient is taken for
    ends: tuple[int, ...] = ()
    colour: list[int] = field(default_factory=list)  # op, attributes, types
    type: list[int] = field(default_factory=list)  # equal types have equal numbers
    barrier: list[bool] = field(default_factory=list)  # no rule looks into it: its readers know its type alone
    plain: list[bool] = field(default_factory=list)  # constants, indices, sizes: the same wherever they are read
    attributes: ValueNumbers = field(default_factory=ValueNumbers)

    def grows(self, n: int) -> bool:
        """May it be part of a region?"""
        return not (self.barrier[n] or self.plain[n])


def read_program(graph: IRGraph, cuts: Mapping[Node, int]) -> NumberedGraph:
    """Number the nodes of a graph."""
    p, kinds = NumberedGraph(), _Kinds()
    known: dict[Hashable, int] = {}
    for node in graph.nodes:
        inputs = tuple([p.number[i] for i in node.inputs])
        attrs = p.attributes.of_object(node.attrs)
        at = known.setdefault((node.op, attrs, inputs, cuts.get(node)), len(p.nodes))
        p.number[node] = at
        if at < len(p.nodes):
            continue
        p.nodes.append(node)
        p.inputs.append(inputs)
        p.readers.append([])
        for i in dict.fromkeys(inputs):
            p.readers[i].append(at)
        kind = kinds.of(node, attrs, tuple([p.type[i] for i in inputs]))
        plain = node.op in _PLAIN_OPS and (node.op != "expand" or full_value(node) is not None)
        p.type.append(kind.type)
        p.plain.append(plain)
        p.barrier.append(not plain and (kind.opaque or (kind.reads_several and any(p.barrier[i] for i in inputs))))
        p.colour.append(kinds.colour(kind, at, plain, p.barrier[at], node in cuts))
        if node in cuts:
            p.cut[at] = cuts[node]
    ends = [*(o.node for o in graph.outputs), *(u.node for u in graph.updates)]
    p.ends = tuple(p.number[n] for n in ends)
    return p


_PLAIN_OPS = ops_with(Trait.STEADY) | {"expand"}


@dataclass(frozen=True)
class _Kind:
    """What op, attributes and the types of inputs say of a node."""

    number: int
    type: int
    opaque: bool
    reads_several: bool  # an input is a tuple of results


class _Kinds:
    """Kinds, worked out once each."""

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
    """Groups of regions that look alike; of each, its copies; of each copy, its nodes in the same order."""
    near = _spread(p, p.colour)
    far = near
    for _ in range(RADIUS - 1):
        far = _spread(p, far)
    classes: dict[int, list[int]] = {}
    for n, colour in enumerate(far):
        if p.grows(n):
            classes.setdefault(colour, []).append(n)
    taken = bytearray(not p.grows(n) for n in range(len(p.nodes)))
    groups = []
    for seeds in sorted(classes.values(), key=lambda members: (-len(members), members[0])):
        free = [n for n in seeds if not taken[n]]
        if len(free) > 1:
            places = _Growth(p, near, taken, free).places
            if len(places) >= SMALLEST:
                groups.append([list(copy) for copy in zip(*places)])
            else:
                for place in places:
                    for n in place:
                        taken[n] = False
    return groups


def _spread(p: NumberedGraph, colour: list[int]) -> list[int]:
    """Colours that also tell those of inputs and readers."""
    numbers: dict[Hashable, int] = {}
    out = []
    for n, own in enumerate(colour):
        if p.barrier[n] or p.plain[n]:
            key: Hashable = own
        else:
            around = [colour[i] for i in p.inputs[n]]
            key = own, tuple(around), tuple(sorted([colour[r] for r in p.readers[n]]))
        out.append(numbers.setdefault(key, len(numbers)))
    return out


class _Growth:
    """The regions of some seeds: `places` holds, for each position, the node of every copy."""

    def __init__(self, p: NumberedGraph, near: list[int], taken: bytearray, seeds: Sequence[int]) -> None:
        self.p, self.near, self.taken = p, near, taken
        self.places: list[tuple[int, ...]] = []
        self._take(tuple(seeds))
        for place in self.places:  # grows
            for candidate in self._around(place):
                if self._fits(candidate):
                    self._take(candidate)

    def _take(self, place: tuple[int, ...]) -> None:
        self.places.append(place)
        for n in place:
            self.taken[n] = True

    def _fits(self, place: tuple[int, ...]) -> bool:
        if any(self.taken[n] for n in place):
            return False
        colour = self.p.colour[place[0]]
        return len(set(place)) == len(place) and all(self.p.colour[n] == colour for n in place)

    def _around(self, place: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        inputs, readers = self.p.inputs, self.p.readers
        yield from zip(*[inputs[n] for n in place])
        first = [r for r in readers[place[0]] if not self.taken[r]]
        looks = [self.near[r] for r in first]
        for reader, look in zip(first, looks):
            if looks.count(look) == 1:
                others = [[r for r in readers[n] if self.near[r] == look] for n in place[1:]]
                if all(len(o) == 1 for o in others):
                    yield (reader, *[o[0] for o in others])
