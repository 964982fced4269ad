"""Outlining: repeated regions of a graph (equal layers) enter the e-graph once, so cost grows with distinct layers.

A *block* is a region with its *halo*: the nodes that it reads in neighbouring regions, a few levels deep and never
through a second neighbour, so that rules can match across the border.  Below the halo are free inputs of the same
types. Copies whose blocks are equal node by node share one block.  Soundness: an equality that was proven for a block
holds under every substitution for its inputs, hence in each copy.  The blocks together are an ordinary graph;
`replay.py` applies its extraction to every copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.ir.attrs import InputAttrs
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.passes.egraph.encode import cut_nodes
from wholestep.compiler.passes.egraph.regions import NumberedGraph, find_regions, read_program

HALO = 10  # levels; deeper than the decomposition of any composite
FEWEST_NODES = 600  # a smaller graph is not outlined: there is little to save
LEAST_SAVED = 0.25  # fraction of the nodes; saving less does not pay for the halos

Place = tuple[int, ...]  # the node numbers of a block in one copy: of the region, then of the halo, then of the inputs


@dataclass(frozen=True)
class OutlinedBlock:
    """A region with its halo.  Its nodes have local numbers; the nodes of the region are numbered first."""

    region: int  # the number of nodes of the region itself
    places: tuple[Place, ...]  # the node numbers of each copy
    nodes: tuple[Node, ...]  # the nodes of the outlined graph by local number, built on the first copy


@dataclass(frozen=True)
class Outlined:
    """A graph and its outlined form, in which each block occurs once."""

    program: NumberedGraph
    graph: IRGraph
    cuts: Mapping[Node, int]
    blocks: tuple[OutlinedBlock, ...]


def outline(graph: IRGraph, fewest: int = FEWEST_NODES) -> Outlined | None:
    """The blocks of a graph; None if it is small or has few repetitions."""
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
    inputs: int  # the first local number of an input
    places: list[Place] = field(default_factory=list)


def _shapes(p: NumberedGraph, owner: Sequence[int], copies: Sequence[Sequence[int]]) -> list[_Shape]:
    """The blocks of some copies; copies with equal blocks share one."""
    by_signature: dict[object, _Shape] = {}
    for copy in copies:
        frame = _Frame(p, owner, copy)
        shape = by_signature.setdefault(frame.signature(), _Shape(len(copy), len(frame.inside)))
        shape.places.append((*frame.inside, *frame.inputs))
    return list(by_signature.values())


class _Frame:
    """The halo and the inputs of one region."""

    def __init__(self, p: NumberedGraph, owner: Sequence[int], region: Sequence[int]) -> None:
        self.p = p
        self.inside: dict[int, int] = {n: i for i, n in enumerate(region)}
        self.inputs: dict[int, None] = {}
        border = dict.fromkeys(i for n in region for i in p.inputs[n] if i not in self.inside)
        level = [(n, owner[n]) for n in border]
        for _ in range(HALO):
            level = list(self._next_level(owner, level))
        for n, _ in level:
            self._make_input(n)

    def _next_level(self, owner: Sequence[int], level: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """One more level of the halo: nodes in the same region as their reader; all other nodes become inputs."""
        for n, neighbour in level:
            if n in self.inside or n in self.inputs:
                continue
            if not self.p.grows(n) or owner[n] != neighbour:
                self._make_input(n)
                continue
            self.inside[n] = len(self.inside)
            for i in self.p.inputs[n]:
                yield i, neighbour

    def _make_input(self, n: int) -> None:
        """Make a node an input; but constants are copied into the block, and so is a node with several results, which
        cannot be an input."""
        if n in self.inside:
            return
        if self.p.plain[n] or not isinstance(self.p.nodes[n].result, TensorType):
            self.inside[n] = len(self.inside)
            for i in self.p.inputs[n]:
                self._make_input(i)
        else:
            self.inputs[n] = None

    def signature(self) -> object:
        """A key that is equal for equal blocks: the colour of every node and the local numbers of its operands."""
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
        copy = shape.places[0]
        new: dict[int, Node] = {}
        for i, n in enumerate(copy[shape.inputs :]):
            type = p.nodes[n].type
            new[n] = Node("input", (), InputAttrs(f"{b}.{i}", type))
        for n in sorted(copy[: shape.inputs]):
            new[n] = p.nodes[n].with_inputs([new[i] for i in p.inputs[n]])
            if n in p.cut:
                cuts[new[n]] = len(cuts)
        inside = set(copy[: shape.inputs])
        for n in (n for n in copy[: shape.inputs] if not p.plain[n]):
            # A value with readers outside is an output; with two such readers it counts as stored, as in the full
            # graph.
            others = sum(r not in inside for r in p.readers[n]) + (n in ends)
            outputs += [Output(f"{b}.{n}.{k}", new[n]) for k in range(min(others, 2))]
        blocks.append(OutlinedBlock(shape.region, tuple(shape.places), tuple(new[n] for n in copy)))
    return Outlined(p, IRGraph(tuple(outputs)), cuts, tuple(blocks))
