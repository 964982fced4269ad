"""What was chosen for the blocks of an outlined graph, applied to every copy.

A node of a region becomes a *recipe* over the nodes below it: the chosen e-nodes from its class down to classes that a
node below it stands for.  Recipes look down only, so that together they cannot go in a circle, whatever neighbouring
blocks chose.  A recipe that would need anything else is not used: the node stays as it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.encode import FULL, OPAQUE, Encoded
from wholestep.compiler.passes.egraph.outline import Outlined, OutlinedBlock, Place
from wholestep.compiler.passes.egraph.rebuild import make_node
from wholestep.compiler.passes.egraph.regions import NumberedGraph, ValueNumbers


@dataclass(frozen=True)
class RecipeStep:
    """One node of a recipe; it reads local numbers of the block, or, below zero, steps: -1 is the first."""

    choice: ENode
    reads: tuple[int, ...]


@dataclass(frozen=True)
class NodeRecipe:
    """How a node is made anew: steps in order, the last one first of all in what is read from outside."""

    steps: tuple[RecipeStep, ...]
    result: int  # a local number or a step, as in Step.reads
    classes: frozenset[int]  # where something else than the program's own was chosen

    def reads(self) -> Iterator[int]:
        """The local numbers it needs."""
        yield from (r for step in self.steps for r in step.reads if r >= 0)
        if self.result >= 0:
            yield self.result


@dataclass
class Replay:
    """The recipes of all blocks."""

    outlined: Outlined
    encoded: Encoded
    egraph: EGraph
    chosen: Sequence[ENode]
    jobs: dict[int, tuple[NodeRecipe, Place]] = field(default_factory=dict)  # number of a node -> how it is made

    def __post_init__(self) -> None:
        first = self.egraph.original_choice()
        for block in self.outlined.blocks:
            maker = _Maker(self, block, first)
            for local in range(block.region):
                recipe = maker.recipe(local)
                if recipe is not None:
                    for place in block.places:
                        self.jobs[place[local]] = recipe, place
        self.needed = self._find_needed(self.outlined.program, self.outlined.program.ends)

    def changed(self) -> Counter[int]:
        """The classes where something else was chosen, with the number of copies that it was chosen in."""
        used = [job for n, job in self.jobs.items() if self.needed[n]]
        return Counter(c for c, _ in {(c, place) for recipe, place in used for c in recipe.classes})

    def graph(self, original: IRGraph) -> IRGraph:
        """The rewritten graph; the same object where nothing changed."""
        p = self.outlined.program
        made = self._make(p)
        ends = [made[n] for n in p.ends]
        before = [*(o.node for o in original.outputs), *(u.node for u in original.updates)]
        if all(new is old for new, old in zip(ends, before)):
            return original
        rest = iter(ends)
        return IRGraph(
            tuple(Output(o.name, next(rest)) for o in original.outputs),
            tuple(Update(u.name, next(rest)) for u in original.updates),
            original.inputs,
        )

    def below(self, ends: Sequence[int]) -> list[int]:
        """The numbers of the nodes that some ends are now computed from, these included."""
        needed = self._find_needed(self.outlined.program, ends)
        return [n for n, is_needed in enumerate(needed) if is_needed]

    def _find_needed(self, p: NumberedGraph, ends: Sequence[int]) -> bytearray:
        needed = bytearray(len(p.nodes))
        for n in ends:
            needed[n] = True
        for n in reversed(range(len(p.nodes))):
            if needed[n]:
                job = self.jobs.get(n)
                for i in p.inputs[n] if job is None else [job[1][r] for r in job[0].reads()]:
                    needed[i] = True
        return needed

    def _make(self, p: NumberedGraph) -> list[Node]:
        made = list(p.nodes)
        shared = _Shared(p.attributes)
        for n, node in enumerate(p.nodes):
            if not self.needed[n]:
                continue
            if n in self.jobs:
                made[n] = self._cook(n, made, shared)
            else:
                made[n] = shared.one(node.with_inputs([made[i] for i in p.inputs[n]]))
        return made

    def _cook(self, n: int, made: Sequence[Node], shared: _Shared) -> Node:
        recipe, place = self.jobs[n]
        original = self.outlined.program.nodes[n]
        steps: list[Node] = []

        def read(r: int) -> Node:
            return made[place[r]] if r >= 0 else steps[-1 - r]

        for step in recipe.steps:
            inputs = [read(r) for r in step.reads]
            node = make_node(step.choice, inputs, self.encoded.tables, (original.name, original.line))
            if step.choice.head == FULL:
                node = node.with_inputs([shared.one(i) for i in node.inputs])
            steps.append(shared.one(node))
        return read(recipe.result)


class _Shared:
    """Equal nodes are made once."""

    def __init__(self, attributes: ValueNumbers) -> None:
        self.attributes = attributes
        self.known: dict[Hashable, Node] = {}

    def one(self, node: Node) -> Node:
        key = node.op, self.attributes.of_object(node.attrs), tuple([id(i) for i in node.inputs])
        return self.known.setdefault(key, node)


class _ForeignError(Exception):
    """A recipe would read what does not stand below its node."""


class _Maker:
    """The recipes of one block."""

    def __init__(self, replay: Replay, block: OutlinedBlock, first: Sequence[ENode | None]) -> None:
        self.egraph, self.chosen, self.first = replay.egraph, replay.chosen, first
        self.term = [replay.encoded.term_of.get(n) for n in block.nodes]
        self.own: list[ENode | None] = [None if t is None else self.egraph.originals[t] for t in self.term]
        local = {n: i for i, n in enumerate(block.nodes)}
        self.inputs = [tuple(local[i] for i in n.inputs if i in local) for n in block.nodes]
        self.below = self._below(block.places[0])
        self.members: dict[int, list[int]] = {}
        for i in sorted(range(len(block.nodes)), key=lambda i: block.places[0][i]):
            own = self.own[i]
            if own is not None:
                self.members.setdefault(self.egraph.class_of[own], []).append(i)
        self.cut = {
            i: self._inside_cut(i, replay.encoded) for i, n in enumerate(block.nodes) if n in replay.outlined.cuts
        }

    def _below(self, place: Place) -> list[int]:
        """The local numbers below each node, one bit each."""
        below = [0] * len(place)
        for i in sorted(range(len(place)), key=lambda i: place[i]):
            for j in self.inputs[i]:
                below[i] |= below[j] | 1 << j
        return below

    def _inside_cut(self, i: int, encoded: Encoded) -> ENode:
        term = self.term[i]
        assert term is not None
        (inner,) = encoded.terms[term].children
        return self.egraph.originals[inner]

    def recipe(self, local: int) -> NodeRecipe | None:
        """None: the node is made as it was, from what its inputs became."""
        own = self.cut.get(local, self.own[local])
        if own is None:
            return None
        c = self.egraph.class_of[own]
        if self.chosen[c] == own:
            return None
        try:
            return _Recipe(self, local).of(c)
        except _ForeignError:
            return None


class _Recipe:
    """The recipe of one node being written."""

    def __init__(self, maker: _Maker, local: int) -> None:
        self.maker, self.local = maker, local
        self.steps: list[RecipeStep] = []
        self.known: dict[int, int] = {}
        self.classes: set[int] = set()

    def of(self, c: int) -> NodeRecipe:
        self.root = c
        result = self._read(c)
        return NodeRecipe(tuple(self.steps), result, frozenset(self.classes))

    def _read(self, c: int) -> int:
        if c not in self.known:
            self.known[c] = self._find(c)
        return self.known[c]

    def _find(self, c: int) -> int:
        below = self.maker.below[self.local]
        for i in self.maker.members.get(c, ()):
            if below >> i & 1:
                if c == self.root:
                    self._changed_classes(c)
                return i
        choice = self.maker.chosen[c]
        if choice.head == f"{OPAQUE}_0":
            raise _ForeignError
        self._changed_classes(c)
        self.steps.append(RecipeStep(choice, tuple(self._read(x) for x in choice.children)))
        return -len(self.steps)

    def _changed_classes(self, c: int) -> None:
        if self.maker.chosen[c] != self.maker.first[c]:
            self.classes.add(c)
