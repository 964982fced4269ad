"""Products of half operands leave half results, as in PyTorch's autocast: a library rounds as it stores.

    matmul(a, b) in float32 becomes cast(cast(matmul(a, b), half), float32)

What follows reads half the bytes; the product itself is still added up in float32.  One that adds up over rows, a
weight's gradient, stays as it is: it is small beside its operands, and an update wants it whole.  So does a result that
somebody outside reads.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, Output, Update
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import DType
from wholestep.compiler.passes.rematerialize.late_readers import Again

VIEWS, PRODUCTS = ops_with(Trait.VIEW), ops_with(Trait.PRODUCT)


def round_products(graph: IRGraph) -> IRGraph:
    """The graph with the results of its half products in half types; the same one where there are none."""
    shown = {base_of_view(n) for n in (*(o.node for o in graph.outputs), *(u.node for u in graph.updates))}
    rounded = {n for n in graph.nodes if _may_be_half(n) and n not in shown}
    if not rounded:
        return graph
    graph = _sum_half_operands(graph)
    biased = _bias_sums(graph, rounded)
    new: dict[Node, Node] = {}
    narrow: dict[Node, Node] = {}  # what was float32 -> the half value that it is a copy of
    for node in graph.nodes:
        moved = node.with_inputs([new[i] for i in node.inputs])
        source = narrow.get(node.inputs[0]) if node.inputs else None
        if node in biased:
            with b.origin(node):
                moved = node.with_inputs(
                    [_half_bias(new[i], half_of(node)) if i.op == "expand" else new[i] for i in node.inputs]
                )
        elif node in rounded and not any(node in n.inputs for n in biased):
            with b.origin(node):
                narrow[node] = b.cast(moved, node.inputs[0].type.dtype)
                moved = b.cast(narrow[node], node.type.dtype)
        elif source is not None and node.op in VIEWS:
            with b.origin(node):
                narrow[node] = node.with_inputs([source])
                moved = b.cast(narrow[node], node.type.dtype)
        elif source is not None and node.op == "cast" and node.type.dtype == source.type.dtype:
            moved = source
        new[node] = moved
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def _bias_sums(graph: IRGraph, rounded: set[Node]) -> set[Node]:
    """Sums of a product and a bias that only products and routines read, rounded: the library adds the bias itself.

    What anything else reads gets its bias from the kernel that reads it.
    """
    readers, found = graph.consumers(), set[Node]()

    def for_products(node: Node) -> bool:
        return all(for_products(r) if r.op in VIEWS else r.op in PRODUCTS for r in readers[node])

    for node in graph.nodes:
        products = [i for i in node.inputs if i in rounded and len(readers[i]) == 1]
        others = [i for i in node.inputs if i.op == "expand" and i.inputs[0].type.rank == 1]
        if node.op != "add" or len(products) != 1 or len(others) != 1:
            continue
        along = attrs_of(others[0], at.ExpandAttrs).axes == (node.type.rank - 1,)
        half = products[0].inputs[0].type.dtype
        casts = all(r.op == "cast" and r.type.dtype == half and for_products(r) for r in readers[node])
        if along and casts and len(readers[node]) == 1 and others[0].inputs[0].is_state:
            found.add(node)
    return found


def _half_bias(spread: Node, half: DType) -> Node:
    """A bias in the type of the result, as the library wants it."""
    (bias,) = spread.inputs
    return Again("cast", (spread.with_inputs([b.cast(bias, half)]),), at.CastAttrs(spread.type.dtype), "", spread.line)


def _sum_half_operands(graph: IRGraph) -> IRGraph:
    """The gradient of a bias adds up what the products of its layer read, rounded: nobody stores it whole as well."""
    rounds: dict[Node, Node] = {}  # what is rounded -> the cast
    for n in graph.nodes:
        if n.op == "cast" and n.type.dtype.is_half and n.inputs[0].type.dtype == n.type.dtype.accumulate:
            rounds.setdefault(n.inputs[0], n)
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new.setdefault(node, node.with_inputs([new[i] for i in node.inputs]))
        if node.op == "sum" and node.inputs[0] in rounds and attrs_of(node, at.SumAttrs).axes == (0,):
            (x,) = node.inputs
            half = new.setdefault(rounds[x], rounds[x].with_inputs([new[x]]))
            with b.origin(node):
                new[node] = node.with_inputs([b.cast(half, x.type.dtype)])
    return IRGraph(
        tuple(Output(o.name, new[o.node]) for o in graph.outputs),
        tuple(Update(u.name, new[u.node]) for u in graph.updates),
        tuple(new[i] for i in graph.inputs),
    )


def half_of(node: Node) -> DType:
    """The type of the operands of the product that a bias is added to."""
    return next(i.inputs[0].type.dtype for i in node.inputs if i.op == "matmul")


def base_of_view(node: Node) -> Node:
    """What a view is a view of; any other node is itself."""
    while node.op in VIEWS:
        node = node.inputs[0]
    return node


def _may_be_half(node: Node) -> bool:
    return node.op == "matmul" and node.inputs[0].type.dtype.is_half and not attrs_of(node, at.MatmulAttrs).transpose_a
