"""Matrix chain ordering: (a·b)·c = a·(b·c), if that takes fewer multiplications.

Unrestricted associativity explodes the e-graph, so there are four bounds: an instance is a pair of nested products of
the program, or created from them by these rules; it goes from more multiplications to fewer, never back; there are at
most MOST instances; and none whose types occur in a chain of more than LONGEST nested products.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output
from wholestep.compiler.ir.types import Dim, Extent, TensorType, evaluate, float64
from wholestep.compiler.passes.egraph.rules.from_nodes import InstanceLaw, Pair, leaf
from wholestep.compiler.passes.egraph.rules.rule import Exactness

TYPICAL_SIZE = 64  # the extent of a symbolic dimension here; extraction chooses between orders
GAIN = 0.8  # the new order takes at most this fraction of the multiplications
MOST = 48  # instances per program
LONGEST = 8  # products; a chain of n has Catalan(n) orders: 1,430 for 8, 6 billion for 20


def _orders(graph: IRGraph) -> Iterator[Pair]:
    """Pairs of nested products over leaves: the original and the cheaper order."""
    readers: dict[Node, list[Node]] = {}
    products = [n for n in graph.nodes if n.op == "matmul"]
    for n in products:
        for i in n.inputs:
            readers.setdefault(i, []).append(n)
    pending, too_long = list(products), _signatures_in_long_chains(products)
    seen: set[Node] = set()
    count = 0
    for node in pending:  # the loop appends to the list
        for position in (0, 1):
            other = _reassociate(node, position)
            if other is None or count == MOST or _signature(node, position) in too_long:
                continue
            if other not in seen:
                seen.add(other)
                count += 1
                yield _over_leaves(node, position)
                pending += [other, *(i for i in other.inputs if i.op == "matmul")]
                for reader in readers.get(node, ()):
                    swapped = [other if i is node else i for i in reader.inputs]
                    pending.append(b.make("matmul", swapped, reader.attrs))


def _signatures_in_long_chains(products: Sequence[Node]) -> set[Hashable]:
    """Signatures of products in chains of more than LONGEST: a rule matches by types, hence all along the chain."""
    below: dict[Node, int] = {}
    for n in products:
        below[n] = 1 + max((below.get(i, 0) for i in n.inputs), default=0)
    run = dict(below)
    for n in reversed(products):
        for i in n.inputs:
            if i in run:
                run[i] = max(run[i], run[n])
    long = [n for n in products if run[n] > LONGEST]
    return {_signature(n, i) for n in long for i in (0, 1) if n.inputs[i].op == "matmul"}


def _signature(node: Node, position: int) -> Hashable:
    inner, other = node.inputs[position], node.inputs[1 - position]
    return position, node.attrs, inner.attrs, *(n.type for n in (*inner.inputs, other))


def _reassociate(node: Node, position: int) -> Node | None:
    """The product in the other order, if its operand at `position` is a product and that is cheaper; else None."""
    inner = node.inputs[position]
    if inner.op != "matmul" or any(i.type.dtype != node.type.dtype for i in (*inner.inputs, *node.inputs)):
        return None  # half operands are rounded; the intermediate product of the other order would not be
    (f, g), (p, q) = _flags(node), _flags(inner)
    x, y = inner.inputs
    if position == 0:
        c = node.inputs[1]  # (xy)c = x(yc);  (xy)'c = y'(x'c)
        new = b.matmul(x, c, not p, g) if f else b.matmul(y, c, q, g)
        other = b.matmul(y, new, not q, False) if f else b.matmul(x, new, p, False)
    else:
        a = node.inputs[0]  # a(xy) = (ax)y;  a(xy)' = (ay')x'
        new = b.matmul(a, y, f, not q) if g else b.matmul(a, x, f, p)
        other = b.matmul(new, x, False, not p) if g else b.matmul(new, y, False, q)
    return other if _multiplications(new, other) <= GAIN * _multiplications(inner, node) else None


def _over_leaves(node: Node, position: int) -> Pair:
    inner, other = node.inputs[position], node.inputs[1 - position]
    x, y, z = (leaf(name, n.type) for name, n in zip("xyz", (*inner.inputs, other), strict=True))
    product = b.make("matmul", (x, y), inner.attrs)
    left = b.make("matmul", (product, z) if position == 0 else (z, product), node.attrs)
    right = _reassociate(left, position)
    assert right is not None, f"{node!r} was cheaper the other way"
    return left, right


def _flags(node: Node) -> tuple[bool, bool]:
    a = attrs_of(node, at.MatmulAttrs)
    return a.transpose_a, a.transpose_b


def _multiplications(*products: Node) -> int:
    """The number of multiplications in these products, without the multiplications that compute their operands."""
    count: Extent = 0
    for product in products:
        count += product.type.elements * product.inputs[0].type.shape[-2 if _flags(product)[0] else -1]
    return evaluate(count, dict.fromkeys(count.symbols, TYPICAL_SIZE)) if isinstance(count, Dim) else count


def _sample() -> IRGraph:
    def tensor(name: str, *shape: Extent) -> Node:
        return b.make("input", (), at.InputAttrs(name, TensorType(shape, float64)))

    n = Dim.symbol("n")
    x, u, v, w = tensor("x", n, 40), tensor("u", 40, 3), tensor("v", 3, 50), tensor("w", 50, 4)
    low_rank = b.matmul(x, b.matmul(u, v))  # x(uv) = (xu)v
    chain = b.matmul(b.matmul(b.matmul(tensor("p", 5, n), x), b.matmul(u, v)), w)
    transposed = b.matmul(x, b.matmul(v, u, True, True), False, True)  # x(v'u')' = (xu)v
    left = b.matmul(b.matmul(tensor("r", 60, 2), tensor("s", 2, 40)), tensor("t", 40, 1))
    transposed_left = b.matmul(b.matmul(tensor("k", 2, 60), tensor("l", 40, 2), True, True), tensor("m", 60, 1), True)
    outputs = tuple(Output(f"y{i}", y) for i, y in enumerate((low_rank, chain, transposed, left, transposed_left)))
    return IRGraph(outputs, (), tuple(i for i in IRGraph(outputs).nodes if i.op == "input"))


LAWS: tuple[InstanceLaw, ...] = (
    InstanceLaw(
        "product-order",
        "contractions",
        "(ab)c = a(bc), whichever multiplies less",
        "products associate; the order decides how much is multiplied",
        Exactness.REASSOCIATING,
        _orders,
        _sample,
    ),
)
