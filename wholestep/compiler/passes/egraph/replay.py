"""Replay: applies the extraction of an outlined graph to every copy of its blocks.

A rewritten node of a region becomes a *recipe*: the chosen e-nodes from its e-class down to e-classes that contain a
node below it.  Invariant: recipes read only nodes below their own, so together they are acyclic, whatever neighbouring
blocks chose.  A node whose recipe would need any other node stays unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.passes.egraph.egraph import EGraph, ENode
from wholestep.compiler.passes.egraph.encode import FULL, OPAQUE, Encoded
from wholestep.compiler.passes.egraph.outline import Outlined, OutlinedBlock, Place
from wholestep.compiler.passes.egraph.rebuild import make_node
from wholestep.compiler.passes.egraph.regions import NumberedGraph, ValueNumbers


@dataclass(frozen=True)
class RecipeStep:
    """One node of a recipe; it reads local numbers of the block, or, if negative, earlier steps: -1 is the first."""

    choice: ENode
    reads: tuple[int, ...]


@dataclass(frozen=True)
class NodeRecipe:
    """How a node is recomputed: steps in topological order, and which of them is the result."""

    steps: tuple[RecipeStep, ...]
    result: int  # a local number or a step, as in RecipeStep.reads
    classes: frozenset[int]  # the e-classes whose choice differs from the original

    def reads(self) -> Iterator[int]:
        """The numbers of the block's nodes that the recipe reads; results of its own steps are negative."""
        yield from (r for step in self.steps for r in step.reads if r >= 0)
        if self.result >= 0:
            yield self.result


@dataclass
class Replay:
    """The recipes of all blocks, and the graph that they result in."""

    outlined: Outlined
    encoded: Encoded
    egraph: EGraph
    chosen: Sequence[ENode]
    jobs: dict[int, tuple[NodeRecipe, Place]] = field(default_factory=dict)  # number of a node -> its recipe

    def __post_init__(self) -> None:
        first = self.egraph.original_choice()
        for block in self.outlined.blocks:
            recipes = _BlockRecipes(self, block, first)
            for local in range(block.region):
                recipe = recipes.recipe(local)
                if recipe is not None:
                    for copy in block.places:
                        self.jobs[copy[local]] = recipe, copy
        self.needed = self._find_needed(self.outlined.program, self.outlined.program.ends)

    def count_changes(self) -> Counter[int]:
        """The e-classes whose choice differs from the original, with the number of copies."""
        used = [job for n, job in self.jobs.items() if self.needed[n]]
        return Counter(c for c, _ in {(c, copy) for recipe, copy in used for c in recipe.classes})

    def graph(self, original: IRGraph) -> IRGraph:
        """The rewritten graph; the same object if nothing changed."""
        p = self.outlined.program
        nodes = self._build_nodes(p)
        ends = [nodes[n] for n in p.ends]
        unchanged = all(new is old for new, old in zip(ends, original.roots))
        return original if unchanged else original.with_roots(ends)

    def below(self, ends: Sequence[int]) -> list[int]:
        """The numbers of the nodes that some ends now depend on, the ends included."""
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

    def _build_nodes(self, p: NumberedGraph) -> list[Node]:
        nodes = list(p.nodes)
        shared = _HashCons(p.attributes)
        for n, node in enumerate(p.nodes):
            if not self.needed[n]:
                continue
            if n in self.jobs:
                nodes[n] = self._apply_recipe(n, nodes, shared)
            else:
                nodes[n] = shared.unique(node.with_inputs([nodes[i] for i in p.inputs[n]]))
        return nodes

    def _apply_recipe(self, n: int, nodes: Sequence[Node], shared: _HashCons) -> Node:
        recipe, copy = self.jobs[n]
        original = self.outlined.program.nodes[n]
        steps: list[Node] = []

        def read(r: int) -> Node:
            return nodes[copy[r]] if r >= 0 else steps[-1 - r]

        for step in recipe.steps:
            inputs = [read(r) for r in step.reads]
            node = make_node(step.choice, inputs, self.encoded.tables, (original.name, original.line))
            if step.choice.head == FULL:
                node = node.with_inputs([shared.unique(i) for i in node.inputs])
            steps.append(shared.unique(node))
        return read(recipe.result)


class _HashCons:
    """Hash-consing of nodes: equal nodes become one object."""

    def __init__(self, attributes: ValueNumbers) -> None:
        self.attributes = attributes
        self.by_key: dict[Hashable, Node] = {}

    def unique(self, node: Node) -> Node:
        key = node.op, self.attributes.of_object(node.attrs), tuple([id(i) for i in node.inputs])
        return self.by_key.setdefault(key, node)


class _ForeignError(Exception):
    """Raised if a recipe would read a leaf that is not below its node."""


class _BlockRecipes:
    """Builds the recipes of one block."""

    def __init__(self, replay: Replay, block: OutlinedBlock, first: Sequence[ENode | None]) -> None:
        self.egraph, self.chosen, self.first = replay.egraph, replay.chosen, first
        self.term = [replay.encoded.term_of.get(n) for n in block.nodes]
        self.originals: list[ENode | None] = [None if t is None else self.egraph.originals[t] for t in self.term]
        local = {n: i for i, n in enumerate(block.nodes)}
        self.inputs = [tuple(local[i] for i in n.inputs if i in local) for n in block.nodes]
        self.below = self._below(block.places[0])
        self.members: dict[int, list[int]] = {}
        for i in sorted(range(len(block.nodes)), key=lambda i: block.places[0][i]):
            original = self.originals[i]
            if original is not None:
                self.members.setdefault(self.egraph.class_of[original], []).append(i)
        self.cut = {
            i: self._inside_cut(i, replay.encoded) for i, n in enumerate(block.nodes) if n in replay.outlined.cuts
        }

    def _below(self, copy: Place) -> list[int]:
        """For each node, the bit set of local numbers below it."""
        below = [0] * len(copy)
        for i in sorted(range(len(copy)), key=lambda i: copy[i]):
            for j in self.inputs[i]:
                below[i] |= below[j] | 1 << j
        return below

    def _inside_cut(self, i: int, encoded: Encoded) -> ENode:
        term = self.term[i]
        assert term is not None
        (inner,) = encoded.terms[term].children
        return self.egraph.originals[inner]

    def recipe(self, local: int) -> NodeRecipe | None:
        """The recipe of a node; None: the original op over its rewritten inputs."""
        original = self.cut.get(local, self.originals[local])
        if original is None:
            return None
        c = self.egraph.class_of[original]
        if self.chosen[c] == original:
            return None
        try:
            return _RecipeBuilder(self, local).of(c)
        except _ForeignError:
            return None


class _RecipeBuilder:
    """Builds the recipe of one node."""

    def __init__(self, recipes: _BlockRecipes, local: int) -> None:
        self.recipes, self.local = recipes, local
        self.steps: list[RecipeStep] = []
        self.read_index: dict[int, int] = {}
        self.classes: set[int] = set()

    def of(self, c: int) -> NodeRecipe:
        self.root = c
        result = self._read(c)
        return NodeRecipe(tuple(self.steps), result, frozenset(self.classes))

    def _read(self, c: int) -> int:
        if c not in self.read_index:
            self.read_index[c] = self._find(c)
        return self.read_index[c]

    def _find(self, c: int) -> int:
        below = self.recipes.below[self.local]
        for i in self.recipes.members.get(c, ()):
            if below >> i & 1:
                if c == self.root:
                    self._changed_classes(c)
                return i
        choice = self.recipes.chosen[c]
        if choice.head == f"{OPAQUE}_0":
            raise _ForeignError
        self._changed_classes(c)
        self.steps.append(RecipeStep(choice, tuple(self._read(x) for x in choice.children)))
        return -len(self.steps)

    def _changed_classes(self, c: int) -> None:
        if self.recipes.chosen[c] != self.recipes.first[c]:
            self.classes.add(c)
