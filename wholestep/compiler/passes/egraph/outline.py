"""Outlining: what a graph repeats enters the e-graph once, so that the pass costs what is distinct.

A *block* is a region with its *halo*: what the region reads in the regions next to it, a few levels deep and never
through a second neighbour, so that rules see across the border.  Below the halo stand inputs of the same types.  Copies
whose blocks are equal node by node share one: an equality that was proven for the block holds under every substitution
for its inputs, hence in each copy.  The blocks together are an ordinary graph; `replay.py` applies what was chosen for
it to every copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.ir.attrs import InputAttrs
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.egraph.encode import cut_nodes
from wholestep.compiler.passes.egraph.regions import NumberedGraph, find_regions, read_program

HALO = 10  # levels: deeper than the definition of any composite
FEWEST_NODES = 600  # a smaller graph enters as it is: there is little to save
LEAST_SAVED = 0.25  # of the nodes; less is not worth the blocks' frames

Place = tuple[int, ...]  # the numbers of a block's nodes in one copy: the region's, the halo's, the inputs'


@dataclass(frozen=True)
class OutlinedBlock:
    """A region with its halo.  Nodes are local numbers: those of the region first."""

    region: int  # how many of the places are the region's own
    places: tuple[Place, ...]  # of each copy
    nodes: tuple[Node, ...]  # of the first copy, in the outlined graph, by local number


@dataclass(frozen=True)
class Outlined:
    """A graph with repetitions as one of blocks."""

    program: NumberedGraph
    graph: IRGraph
    cuts: Mapping[Node, int]
    blocks: tuple[OutlinedBlock, ...]


def outline(graph: IRGraph, fewest: int = FEWEST_NODES) -> Outlined | None:
    """The blocks of a graph; None where it is small or hardly repeats anything."""
    if len(graph.nodes) < fewest:
        return None
    p = read_program(graph, cut_nodes(graph))
    groups = find_regions(p)
    saved = sum((len(copies) - 1) * len(copies[0]) for copies in groups)
    if saved < LEAST_SAVED * len(p.nodes):
        return None
    owner = [-1] * len(p.nodes)
    regions = [copy for copies in groups for copy in copies]
    for r, copy in enumerate(regions):
        for n in copy:
            owner[n] = r
    groups.append([[n for n in range(len(p.nodes)) if p.grows(n) and owner[n] < 0]])
    shapes = [shape for copies in groups for shape in _shapes(p, owner, copies)]
    return _assemble(p, shapes)


@dataclass
class _Shape:
    """Copies with equal blocks."""

    region: int
    inputs: int  # from this local number on the nodes are inputs
    places: list[Place] = field(default_factory=list)


def _shapes(p: NumberedGraph, owner: Sequence[int], copies: Sequence[Sequence[int]]) -> list[_Shape]:
    """The blocks of copies, equal ones together."""
    found: dict[object, _Shape] = {}
    for copy in copies:
        frame = _Frame(p, owner, copy)
        shape = found.setdefault(frame.signature(), _Shape(len(copy), len(frame.inside)))
        shape.places.append((*frame.inside, *frame.inputs))
    return list(found.values())


class _Frame:
    """The halo and the inputs of one region."""

    def __init__(self, p: NumberedGraph, owner: Sequence[int], region: Sequence[int]) -> None:
        self.p = p
        self.inside: dict[int, int] = {n: i for i, n in enumerate(region)}
        self.inputs: dict[int, None] = {}
        border = dict.fromkeys(i for n in region for i in p.inputs[n] if i not in self.inside)
        level = [(n, owner[n]) for n in border]
        for _ in range(HALO):
            level = list(self._below(owner, level))
        for n, _ in level:
            self._stop(n)

    def _below(self, owner: Sequence[int], level: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """Take what belongs to the same neighbour as its reader; what does not is an input."""
        for n, neighbour in level:
            if n in self.inside or n in self.inputs:
                continue
            if not self.p.grows(n) or owner[n] != neighbour:
                self._stop(n)
                continue
            self.inside[n] = len(self.inside)
            for i in self.p.inputs[n]:
                yield i, neighbour

    def _stop(self, n: int) -> None:
        """An input; but what is the same everywhere comes along, and several results as one value cannot be given."""
        if n in self.inside:
            return
        if self.p.plain[n] or not isinstance(self.p.nodes[n].result, TensorType):
            self.inside[n] = len(self.inside)
            for i in self.p.inputs[n]:
                self._stop(i)
        else:
            self.inputs[n] = None

    def signature(self) -> object:
        """Equal for equal blocks: every node's look and the local numbers of what it reads."""
        local = {**self.inside, **{n: len(self.inside) + i for i, n in enumerate(self.inputs)}}
        looks = [(self.p.colour[n], *[local[i] for i in self.p.inputs[n]]) for n in self.inside]
        types = [self.p.type[n] for n in self.inputs]
        return tuple(looks), tuple(types)


def _assemble(p: NumberedGraph, shapes: Sequence[_Shape]) -> Outlined:
    """The graph of all blocks, each built on its first copy."""
    outputs: list[Output] = []
    cuts: dict[Node, int] = {}
    blocks = []
    ends = set(p.ends)
    for b, shape in enumerate(shapes):
        place = shape.places[0]
        new: dict[int, Node] = {}
        for i, n in enumerate(place[shape.inputs :]):
            type = p.nodes[n].type
            new[n] = Node("input", (), InputAttrs(f"{b}.{i}", type))
        for n in sorted(place[: shape.inputs]):
            new[n] = p.nodes[n].with_inputs([new[i] for i in p.inputs[n]])
            if n in p.cut:
                cuts[new[n]] = len(cuts)
        inside = set(place[: shape.inputs])
        for n in (n for n in place[: shape.inputs] if not p.plain[n]):
            # A value that others read is computed in any case; one with two such readers goes through memory.
            others = sum(r not in inside for r in p.readers[n]) + (n in ends)
            outputs += [Output(f"{b}.{n}.{k}", new[n]) for k in range(min(others, 2))]
        blocks.append(OutlinedBlock(shape.region, tuple(shape.places), tuple(new[n] for n in place)))
    return Outlined(p, IRGraph(tuple(outputs)), cuts, tuple(blocks))
