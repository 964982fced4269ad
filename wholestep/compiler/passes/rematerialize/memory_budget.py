"""Rematerialization within a memory budget (activation checkpointing): candidates, their cost, and the rewrite.

Liveness analysis finds the peak of the step.  A value is *live* at the peak if it is computed before and read after it:

    keep it                                       costs its bytes from its definition to its last use
    recompute it elementwise from live values     an activation from its argument, a normalized row from the row
    recompute its product from live operands      costs the time of the product

Elementwise recomputation costs at most a pass over memory, and less if a kernel loads the operands anyway
(`plan/fusion/recompute_placement.py`).  This file ranks candidates by nanoseconds per byte saved; the search for a plan
within the budget (`compiler/memory_budget.py`) decides how many are taken.  Invariant: every value is computed by the
same formula; only a compiler that contracts it differently in another kernel may round differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.ops import LEAVES
from wholestep.compiler.ir.types import TensorType, boolean, evaluate
from wholestep.compiler.passes.rematerialize.copies import (
    BARRIERS,
    INDEX_FUNCTIONS,
    VIEWS,
    Images,
    Rematerialized,
    copy_for_readers,
    is_in_reader,
)
from wholestep.compiler.target import CostTable

SMALLEST = 512  # a value below 1/512 of the live bytes at the peak is not a candidate
LEAST_GAIN = 0.25  # least fraction of the values' bytes to save, if recomputing them keeps other tensors live


@dataclass(frozen=True)
class RecomputeChoice:
    """Values that are recomputed together, each by its index in the graph's nodes."""

    values: tuple[int, ...]
    products: tuple[int, ...]  # indices of the products that are recomputed for them
    bytes: int  # saved at the peak
    cost: float  # nanoseconds, by the target's cost table

    @property
    def price(self) -> float:
        """Nanoseconds per byte saved."""
        return self.cost / self.bytes


class RecomputeCandidates:
    """Liveness of a graph's values at its memory peak, and which of them can be recomputed."""

    def __init__(self, graph: IRGraph, sizes: Mapping[str, int], costs: CostTable) -> None:
        self.graph, self.sizes, self.costs = graph, sizes, costs
        self.number = {n: i for i, n in enumerate(graph.nodes)}
        self.readers = graph.consumers()
        self._estimate_times()
        self.computed_by_reader = _computed_by_reader(graph)
        uses = {n: self._late_uses(n) for n in graph.nodes if self._is_stored(n)}
        spans = {n: (self.produced_at[n], max(times), self._bytes(n)) for n, times in uses.items() if times}
        self.bytes, self.peak = _peak(spans.values(), len(graph.nodes))
        self.values = {n: None for n, (first, last, _) in spans.items() if first <= self.peak < last}

    # -- liveness ------------------------------------------------------------------------------------------------

    def _estimate_times(self) -> None:
        """Schedule estimate: a time is the index of a barrier (product or routine) in the graph.

        At `ready_at` all inputs of a node exist, at `produced_at` its value does: elementwise ops and reductions are
        fused into the kernel of their latest input.
        """
        self.produced_at: dict[Node, int] = {}
        self.ready_at: dict[Node, int] = {}
        for n in self.graph.nodes:
            self.ready_at[n] = max((self.produced_at[i] for i in n.inputs), default=0)
            self.produced_at[n] = self.number[n] if n.op in BARRIERS else self.ready_at[n]

    def _is_stored(self, node: Node) -> bool:
        """Can this value be stored in a buffer?"""
        if not isinstance(node.result, TensorType) or not node.inputs or node.host or not node.type.rank:
            return False
        return not _is_fused_into_reader(node) and node not in self.computed_by_reader

    def _late_uses(self, node: Node) -> list[int]:
        """The times of reads by nodes that depend on a later barrier, so the value's kernel cannot contain them."""
        return [
            self.ready_at[r] for r in self._readers_through_views(node) if self.ready_at[r] > self.produced_at[node]
        ]

    def _readers_through_views(self, node: Node) -> Iterator[Node]:
        """The readers of a node, through views and values that are computed in their reader's kernel."""
        for r in self.readers[node]:
            if _is_fused_into_reader(r):
                yield from self._readers_through_views(r)
            else:
                yield r

    def _bytes(self, node: Node) -> int:
        return node.type.bytes(self.sizes)

    # -- candidates ----------------------------------------------------------------------------------------------

    def choices(self) -> tuple[list[RecomputeChoice], list[RecomputeChoice]]:
        """The choices that recompute no product, and those that do, the cheapest per byte first.

        Values that need the same additional tensors live are one choice: they share that cost.
        """
        by_sources: dict[tuple[Node, ...], list[_Recomputation]] = {}
        alone, left = list[RecomputeChoice](), list[Node]()
        for n in self.values:
            if SMALLEST * self._bytes(n) < self.bytes:
                continue
            recomputation = self._recomputation(n, products=False)
            if recomputation is None:
                left.append(n)
            elif recomputation.new:
                by_sources.setdefault(tuple(recomputation.new), []).append(recomputation)
            else:
                alone.append(self._choice([recomputation]))
        for recomputations in by_sources.values():
            choice = self._choice(recomputations)
            if choice.bytes >= LEAST_GAIN * sum(self._bytes(w.value) for w in recomputations):
                alone.append(choice)
            else:
                left += [w.value for w in recomputations]
        return sorted(alone, key=_by_price), self._with_products(left)

    def _with_products(self, values: Sequence[Node]) -> list[RecomputeChoice]:
        """Choices that recompute products, greedily.  No value is recomputed from another such value: a chain of them
        would be live at the same time."""
        recomputations = [
            w for w in (self._recomputation(n, products=True) for n in values) if w is not None and w.products
        ]
        offered = [(self._choice([w]), w) for w in recomputations]
        offered = [(c, w) for c, w in offered if c.bytes >= LEAST_GAIN * self._bytes(w.value)]
        out: list[RecomputeChoice] = []
        taken, read = set[Node](), set[Node]()
        for choice, recomputation in sorted(offered, key=lambda o: _by_price(o[0])):
            if recomputation.value not in read and not recomputation.old & taken:
                out.append(choice)
                taken.add(recomputation.value)
                read |= recomputation.old
        return out

    def _choice(self, recomputations: Sequence[_Recomputation]) -> RecomputeChoice:
        new = {n for w in recomputations for n in w.new}
        gain = sum(self._bytes(w.value) for w in recomputations) - sum(map(self._bytes, new))
        numbers = [
            tuple(sorted(self.number[n] for n in nodes))
            for nodes in ([w.value for w in recomputations], _products(recomputations))
        ]
        return RecomputeChoice(numbers[0], numbers[1], gain, sum(w.cost for w in recomputations))

    def _recomputation(self, value: Node, *, products: bool) -> _Recomputation | None:
        """A way to recompute a value, with its cost and the tensors it reads; None if its op is not recomputed.

        Walks back to live values and leaves; at most one product per path is recomputed.
        """
        if not (_is_map(value) or (products and value.op == "matmul")):
            return None
        recomputation = _Recomputation(value, cost=2 * self._bytes(value) * self.costs.byte)
        todo, seen = [(value, products)], set[Node]()
        while todo:
            node, may_use_product = todo.pop()
            if node in seen or _is_available(node):
                continue
            seen.add(node)
            if node in self.values and node is not value:
                recomputation.old.add(node)
            elif _is_map(node) or node.op in VIEWS:
                recomputation.cost += 0.0 if node.op in VIEWS else self._work(node)
                todo += [(i, may_use_product) for i in node.inputs]
            elif may_use_product and node.op == "matmul":
                recomputation.products.append(node)
                recomputation.cost += self._work(node)
                todo += [(i, False) for i in node.inputs]
            else:
                recomputation.new.append(node)
        recomputation.new.sort(key=self.number.__getitem__)
        return recomputation

    def _work(self, node: Node) -> float:
        elements, t = evaluate(node.type.elements, self.sizes), self.costs
        if node.op != "matmul":
            return elements * t.weights.get(node.op, 1.0) * t.operation
        inner = node.inputs[0].type.shape[-2 if attrs_of(node, at.MatmulAttrs).transpose_a else -1]
        factors = node.inputs[0].type.dtype
        return t.pass_over + elements * evaluate(inner, self.sizes) * t.product_of(factors)

    # -- rewriting -----------------------------------------------------------------------------------------------

    def without(self, chosen: Iterable[RecomputeChoice]) -> IRGraph:
        """The graph in which readers after the peak recompute the chosen values.  Common subexpression elimination must
        not run afterwards."""
        choices = list(chosen)
        recomputed = {self.graph.nodes[i] for c in choices for i in c.values}
        products = {self.graph.nodes[i] for c in choices for i in c.products}
        return _Rematerializer(self, recomputed, products).graph() if recomputed else self.graph


@dataclass
class _Recomputation:
    """How a value is recomputed, and what that keeps in memory."""

    value: Node
    cost: float

    def __post_init__(self) -> None:
        self.new: list[Node] = []  # operands that become live at the peak because of the recomputation
        self.old: set[Node] = set()  # operands that are live anyway
        self.products: list[Node] = []


class _Rematerializer:
    """Each reader recomputes elementwise values for itself; products and operands of barriers are recomputed once."""

    def __init__(self, candidates: RecomputeCandidates, recomputed: set[Node], products: set[Node]) -> None:
        self.candidates, self.recomputed, self.products = candidates, recomputed, products
        self.new: Images = {}
        self.shared: Images = {}  # copies that are shared by all readers

    def graph(self) -> IRGraph:
        return copy_for_readers(self.candidates.graph, self.new, self._input_of)

    def _input_of(self, value: Node, reader: Node, copies: Images) -> Node:
        late = self.candidates.ready_at[reader] > self.candidates.peak and not _is_fused_into_reader(reader)
        return self._late_input(value, self.shared if reader.op in BARRIERS else copies) if late else self.new[value]

    def _late_input(self, node: Node, copies: Images) -> Node:
        """The input of a reader after the peak; recomputed if it depends on a chosen value through fused ops."""
        if node in self.recomputed:
            return self._recompute(node, copies)
        if not _is_fused_into_reader(node):
            return self.new[node]
        inputs = [self._late_input(i, copies) for i in node.inputs]
        if all(a is self.new[i] for a, i in zip(inputs, node.inputs, strict=True)):
            return self.new[node]
        if node not in copies:
            copies[node] = Rematerialized.of(node, inputs, late=True)
        return copies[node]

    def _recompute(self, node: Node, copies: Images) -> Node:
        """Duplicate a value and its operands, back to values in memory."""
        ends_product = self._ends_product(node)
        cache = self.shared if ends_product else copies
        if node not in cache:
            inner = self.shared if ends_product or node.op in BARRIERS else copies
            inputs = [self._operand(i, inner) for i in node.inputs]
            if node.op in VIEWS and all(a is self.new[i] for a, i in zip(inputs, node.inputs, strict=True)):
                return self.new[node]
            cache[node] = Rematerialized.of(node, inputs, in_reader=not ends_product, late=True)
        return cache[node]

    def _operand(self, node: Node, copies: Images) -> Node:
        """An input of a recomputed value: recomputed too, unless it is in memory."""
        is_live = node in self.candidates.values and node not in self.recomputed
        if _is_available(node) or is_live:
            return self.new[node]
        is_recomputable = _is_map(node) or node.op in VIEWS or node in self.products
        return self._recompute(node, copies) if is_recomputable else self.new[node]

    def _ends_product(self, node: Node) -> bool:
        """Is the node a recomputed product or its epilogue: a cast to a half type, perhaps after a bias?"""
        if node in self.products:
            return True
        if node.op == "cast" and node.type.dtype.is_half:
            return self._ends_product(node.inputs[0])
        if node.op != "add" or not any(map(is_in_reader, node.inputs)):
            return False
        return any(i in self.products for i in node.inputs)


def _is_fused_into_reader(node: Node) -> bool:
    """Is the node computed in its reader's kernel: a view, a comparison, or a value rematerialized before?"""
    return node.op in VIEWS or is_in_reader(node) or (_is_map(node) and node.type.dtype == boolean)


def _is_map(node: Node) -> bool:
    return isinstance(node.result, TensorType) and node.is_elementwise and not node.host


def _is_available(node: Node) -> bool:
    return node.op in LEAVES or node.op in INDEX_FUNCTIONS or node.host


def _computed_by_reader(graph: IRGraph) -> set[Node]:
    """Elementwise functions whose operands are all leaves: the kernels that read them compute them."""
    result: set[Node] = set()
    for n in graph.nodes:
        if (_is_map(n) or n.op in VIEWS) and all(_is_available(i) or i in result for i in n.inputs):
            result.add(n)
    return result


def _products(recomputations: Sequence[_Recomputation]) -> set[Node]:
    return {p for w in recomputations for p in w.products}


def _by_price(choice: RecomputeChoice) -> tuple[float, tuple[int, ...]]:
    return (choice.price, choice.values)


def _peak(spans: Iterable[tuple[int, int, int]], length: int) -> tuple[int, int]:
    """The peak of live bytes over spans (definition, last use, bytes), and the index of the node where it is."""
    change = [0] * (length + 1)
    for first, last, bytes in spans:
        change[first] += bytes
        change[last] -= bytes
    live = list(accumulate(change[:length]))
    most = max(live, default=0)
    return most, live.index(most) if live else 0
