"""What the backward pass reads again is made a second time where memory is short, instead of being kept.

A value is *kept* if it is made before the step needs most memory and read after that.  Three ways to have it then:

    keep it                              its bytes, all the time between
    make it of other values that are kept    an activation of what it was applied to, a normalised row of the row
    compute its product once more        of operands that are kept

A product's own time is what the last costs; the others cost a pass over memory, or less, where a kernel reads what they
are made of anyway (`plan/fusion/recompute_placement.py`).  Which values give most bytes for their time is decided here; how many of them are
needed for a limit, by those who make plans.  No number is computed in another way: only code that is compiled for
another kernel may round otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import LEAVES, Trait, ops_with
from wholestep.compiler.ir.types import TensorType, boolean, evaluate
from wholestep.compiler.passes.rematerialize.late_readers import BARRIERS, MADE, Again
from wholestep.compiler.target import CostTable

VIEWS = ops_with(Trait.VIEW)
SMALLEST = 512  # parts of what is kept: a value that is less is not worth a choice
LEAST_GAIN = 0.25  # of the bytes of values: where they are made of something that had not to be kept


class Recomputed(Again):
    """A value that is made again of values in memory, in the kernel of its reader or in one beside it."""

    __slots__ = ()

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Recomputed(self.op, inputs, self.attrs, self.name, self.line)


class Repeated(Node):
    """A product that is computed a second time, or what follows it."""

    __slots__ = ()

    def with_inputs(self, inputs: Sequence[Node]) -> Node:
        return Repeated(self.op, inputs, self.attrs, self.name, self.line)


@dataclass(frozen=True)
class RecomputeChoice:
    """Values that are made again together, each by its number in the graph."""

    values: tuple[int, ...]
    products: tuple[int, ...]  # that are computed again for them
    bytes: int  # that need not be kept any more
    cost: float  # nanoseconds, by the target's table

    @property
    def price(self) -> float:
        """Nanoseconds a byte."""
        return self.cost / self.bytes


class RecomputeCandidates:
    """What a graph keeps over its peak, and what could be made again."""

    def __init__(self, graph: IRGraph, sizes: Mapping[str, int], costs: CostTable) -> None:
        self.graph, self.sizes, self.costs = graph, sizes, costs
        self.number = {n: i for i, n in enumerate(graph.nodes)}
        self.readers = graph.consumers()
        self._find_times()
        self.waiting = _computed_by_reader(graph)
        uses = {n: self._late_uses(n) for n in graph.nodes if self._is_stored(n)}
        spans = {n: (self.made[n], max(found), self._bytes(n)) for n, found in uses.items() if found}
        self.bytes, self.peak = _peak(spans.values(), len(graph.nodes))
        self.values = {n: None for n, (first, last, _) in spans.items() if first <= self.peak < last}

    # -- what is kept --------------------------------------------------------------------------------------------

    def _find_times(self) -> None:
        """A time is the number of a product or routine: behind which one a node is made, and could be at the earliest.

        What is computed element by element, or added up, is made with what it is made of.
        """
        self.made: dict[Node, int] = {}
        self.ready: dict[Node, int] = {}
        for n in self.graph.nodes:
            self.ready[n] = max((self.made[i] for i in n.inputs), default=0)
            self.made[n] = self.number[n] if n.op in BARRIERS else self.ready[n]

    def _is_stored(self, node: Node) -> bool:
        """May it be a buffer of its own?"""
        if not isinstance(node.result, TensorType) or not node.inputs or node.host or not node.type.rank:
            return False
        return not _passes(node) and node not in self.waiting

    def _late_uses(self, node: Node) -> list[int]:
        """When it is read by those that wait for something made later: no kernel could hold both."""
        return [self.ready[r] for r in self._beyond(node) if self.ready[r] > self.made[node]]

    def _beyond(self, node: Node) -> Iterator[Node]:
        """Who reads a node, perhaps in another shape or by way of what is made for one reader."""
        for r in self.readers[node]:
            if _passes(r):
                yield from self._beyond(r)
            else:
                yield r

    def _bytes(self, node: Node) -> int:
        return node.type.bytes(self.sizes)

    # -- what could be made again --------------------------------------------------------------------------------

    def choices(self) -> tuple[list[RecomputeChoice], list[RecomputeChoice]]:
        """What could be made again without products, and with them, the cheapest first."""
        by_sources: dict[tuple[Node, ...], list[_Recomputation]] = {}
        alone, left = list[RecomputeChoice](), list[Node]()
        for n in self.values:
            if SMALLEST * self._bytes(n) < self.bytes:
                continue
            way = self._way(n, products=False)
            if way is None:
                left.append(n)
            elif way.new:
                by_sources.setdefault(tuple(way.new), []).append(way)
            else:
                alone.append(self._choice([way]))
        for ways in by_sources.values():
            found = self._choice(ways)
            if found.bytes >= LEAST_GAIN * sum(self._bytes(w.value) for w in ways):
                alone.append(found)
            else:
                left += [w.value for w in ways]
        return sorted(alone, key=_order), self._with_products(left)

    def _with_products(self, values: Sequence[Node]) -> list[RecomputeChoice]:
        """No value is made of one that a product makes again: all of them would be alive together."""
        ways = [w for w in (self._way(n, products=True) for n in values) if w is not None and w.products]
        offered = [(self._choice([w]), w) for w in ways]
        offered = [(c, w) for c, w in offered if c.bytes >= LEAST_GAIN * self._bytes(w.value)]
        out: list[RecomputeChoice] = []
        taken, read = set[Node](), set[Node]()
        for choice, way in sorted(offered, key=lambda o: _order(o[0])):
            if way.value not in read and not way.old & taken:
                out.append(choice)
                taken.add(way.value)
                read |= way.old
        return out

    def _choice(self, ways: Sequence[_Recomputation]) -> RecomputeChoice:
        new = {n for w in ways for n in w.new}
        gain = sum(self._bytes(w.value) for w in ways) - sum(map(self._bytes, new))
        numbers = [tuple(sorted(self.number[n] for n in found)) for found in ([w.value for w in ways], _products(ways))]
        return RecomputeChoice(numbers[0], numbers[1], gain, sum(w.cost for w in ways))

    def _way(self, value: Node, *, products: bool) -> _Recomputation | None:
        """How a value could be made again: of what, at what cost; None where its op is not one to repeat."""
        if not (_is_map(value) or (products and value.op == "matmul")):
            return None
        way = _Recomputation(value, cost=2 * self._bytes(value) * self.costs.byte)
        todo, seen = [(value, products)], set[Node]()
        while todo:
            node, may = todo.pop()
            if node in seen or _is_at_hand(node):
                continue
            seen.add(node)
            if node in self.values and node is not value:
                way.old.add(node)
            elif _is_map(node) or node.op in VIEWS:
                way.cost += 0.0 if node.op in VIEWS else self._work(node)
                todo += [(i, may) for i in node.inputs]
            elif may and node.op == "matmul":
                way.products.append(node)
                way.cost += self._work(node)
                todo += [(i, False) for i in node.inputs]
            else:
                way.new.append(node)
        way.new.sort(key=self.number.__getitem__)
        return way

    def _work(self, node: Node) -> float:
        elements, t = evaluate(node.type.elements, self.sizes), self.costs
        if node.op != "matmul":
            return elements * t.weights.get(node.op, 1.0) * t.operation
        inner = node.inputs[0].type.shape[-2 if attrs_of(node, at.MatmulAttrs).transpose_a else -1]
        factors = node.inputs[0].type.dtype
        return t.pass_over + elements * evaluate(inner, self.sizes) * t.product_of(factors)

    # -- making it again -----------------------------------------------------------------------------------------

    def without(self, chosen: Iterable[RecomputeChoice]) -> IRGraph:
        """The graph with the chosen values made again by those who read them behind the peak.  Not to be followed by a
        pass that makes equal nodes one."""
        picked = list(chosen)
        again = {self.graph.nodes[i] for c in picked for i in c.values}
        products = {self.graph.nodes[i] for c in picked for i in c.products}
        return _Rewriting(self, again, products).graph() if again else self.graph


@dataclass
class _Recomputation:
    """How a value is made again."""

    value: Node
    cost: float

    def __post_init__(self) -> None:
        self.new: list[Node] = []  # what has to be kept for it
        self.old: set[Node] = set()  # what is kept anyway
        self.products: list[Node] = []


class _Rewriting:
    """A map is made by each reader for itself; a product, and what products and routines read, once for all."""

    def __init__(self, kept: RecomputeCandidates, again: set[Node], products: set[Node]) -> None:
        self.kept, self.again, self.products = kept, again, products
        self.new: dict[Node, Node] = {}
        self.shared: dict[Node, Node] = {}

    def graph(self) -> IRGraph:
        graph = self.kept.graph
        for n in graph.nodes:
            copies = self.shared if n.op in BARRIERS else {}
            late = self.kept.ready[n] > self.kept.peak and not _passes(n)
            self.new[n] = n.with_inputs([self._late(i, copies) if late else self.new[i] for i in n.inputs])
        return IRGraph(
            tuple(Output(o.name, self.new[o.node]) for o in graph.outputs),
            tuple(Update(u.name, self.new[u.node]) for u in graph.updates),
            tuple(self.new[i] for i in graph.inputs),
        )

    def _late(self, node: Node, copies: dict[Node, Node]) -> Node:
        """An input of a reader behind the peak: made again, where it is made of what was chosen."""
        if node in self.again:
            return self._recompute(node, copies)
        if not _passes(node):
            return self.new[node]
        inputs = [self._late(i, copies) for i in node.inputs]
        if all(a is self.new[i] for a, i in zip(inputs, node.inputs, strict=True)):
            return self.new[node]
        if node not in copies:
            copies[node] = Recomputed(node.op, inputs, node.attrs, node.name, node.line)
        return copies[node]

    def _recompute(self, node: Node, copies: dict[Node, Node]) -> Node:
        """A value once more, and what it is made of, up to what is in memory."""
        ends = self._ends_product(node)
        found = self.shared if ends else copies
        if node not in found:
            inner = self.shared if ends or node.op in BARRIERS else copies
            inputs = [self._inside(i, inner) for i in node.inputs]
            if node.op in VIEWS and all(a is self.new[i] for a, i in zip(inputs, node.inputs, strict=True)):
                return self.new[node]
            kind = Repeated if ends else Recomputed
            found[node] = kind(node.op, inputs, node.attrs, node.name, node.line)
        return found[node]

    def _inside(self, node: Node, copies: dict[Node, Node]) -> Node:
        """An input of what is made again."""
        kept = node in self.kept.values and node not in self.again
        if _is_at_hand(node) or kept:
            return self.new[node]
        made = _is_map(node) or node.op in VIEWS or node in self.products
        return self._recompute(node, copies) if made else self.new[node]

    def _ends_product(self, node: Node) -> bool:
        """Is it a product, or what its kernel stores in its place: rounded to a half type, perhaps behind a bias?"""
        if node in self.products:
            return True
        if node.op == "cast" and node.type.dtype.is_half:
            return self._ends_product(node.inputs[0])
        if node.op != "add" or not any(isinstance(i, Again) for i in node.inputs):
            return False
        return any(i in self.products for i in node.inputs)


def _passes(node: Node) -> bool:
    """Is it made where it is read: a way of reading its input, a comparison, what was made again before?"""
    return node.op in VIEWS or isinstance(node, Again) or (_is_map(node) and node.type.dtype == boolean)


def _is_map(node: Node) -> bool:
    return isinstance(node.result, TensorType) and node.is_elementwise and not node.host


def _is_at_hand(node: Node) -> bool:
    return node.op in LEAVES or node.op in MADE or node.host


def _computed_by_reader(graph: IRGraph) -> set[Node]:
    """What is made of leaves alone, element by element: in the kernel of its reader, whenever that is."""
    found: set[Node] = set()
    for n in graph.nodes:
        if (_is_map(n) or n.op in VIEWS) and all(_is_at_hand(i) or i in found for i in n.inputs):
            found.add(n)
    return found


def _products(ways: Sequence[_Recomputation]) -> set[Node]:
    return {p for w in ways for p in w.products}


def _order(choice: RecomputeChoice) -> tuple[float, tuple[int, ...]]:
    return (choice.price, choice.values)


def _peak(spans: Iterable[tuple[int, int, int]], length: int) -> tuple[int, int]:
    """The most bytes that are kept at a time, and the node behind which they are."""
    change = [0] * (length + 1)
    for first, last, bytes in spans:
        change[first] += bytes
        change[last] -= bytes
    kept = list(accumulate(change[:length]))
    most = max(kept, default=0)
    return most, kept.index(most) if kept else 0
