"""Half GEMM outputs: products of half operands store half results, as in PyTorch's autocast (the library rounds).

    matmul(a, b) in float32 becomes cast(cast(matmul(a, b), half), float32)

Consumers read half the bytes; the product itself still accumulates in float32.  A product that reduces over rows (the
gradient of a weight) stays float32: it is small compared with its operands, and the update needs the precision.
A result that leaves the step stays float32 too.
"""

from __future__ import annotations

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, below
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import DType
from wholestep.compiler.passes.rematerialize.copies import Rematerialized

VIEWS, PRODUCTS = ops_with(Trait.VIEW), ops_with(Trait.PRODUCT)


def round_products(graph: IRGraph) -> IRGraph:
    """Round the results of products of half operands; the same graph if there are none."""
    returned = {below(n, VIEWS) for n in graph.roots}
    rounded = {n for n in graph.nodes if _may_be_half(n) and n not in returned}
    if not rounded:
        return graph
    graph = _sum_half_operands(graph)
    biased = _bias_sums(graph, rounded)
    new: dict[Node, Node] = {}
    narrow: dict[Node, Node] = {}  # float32 value -> the half value that it is widened from
    for node in graph.nodes:
        rebuilt = node.with_inputs([new[i] for i in node.inputs])
        source = narrow.get(node.inputs[0]) if node.inputs else None
        if node in biased:
            with b.origin(node):
                rebuilt = node.with_inputs(
                    [_half_bias(new[i], half_of(node)) if i.op == "expand" else new[i] for i in node.inputs]
                )
        elif node in rounded and not any(node in n.inputs for n in biased):
            with b.origin(node):
                narrow[node] = b.cast(rebuilt, node.inputs[0].type.dtype)
                rebuilt = b.cast(narrow[node], node.type.dtype)
        elif source is not None and node.op in VIEWS:
            with b.origin(node):
                narrow[node] = node.with_inputs([source])
                rebuilt = b.cast(narrow[node], node.type.dtype)
        elif source is not None and node.op == "cast" and node.type.dtype == source.type.dtype:
            rebuilt = source
        new[node] = rebuilt
    return graph.with_nodes(new)


def _bias_sums(graph: IRGraph, rounded: set[Node]) -> set[Node]:
    """Round sums of a product and a bias that only products and routines read: the library's epilogue adds the bias.

    For other readers, the bias is added in the kernel of the reader.
    """
    readers, bias_sums = graph.consumers(), set[Node]()

    def for_products(node: Node) -> bool:
        return all(for_products(r) if r.op in VIEWS else r.op in PRODUCTS for r in readers[node])

    for node in graph.nodes:
        products = [i for i in node.inputs if i in rounded and len(readers[i]) == 1]
        biases = [i for i in node.inputs if i.op == "expand" and i.inputs[0].type.rank == 1]
        if node.op != "add" or len(products) != 1 or len(biases) != 1:
            continue
        is_row_bias = attrs_of(biases[0], at.ExpandAttrs).axes == (node.type.rank - 1,)
        half = products[0].inputs[0].type.dtype
        only_rounded = all(r.op == "cast" and r.type.dtype == half and for_products(r) for r in readers[node])
        if is_row_bias and only_rounded and len(readers[node]) == 1 and biases[0].inputs[0].is_state:
            bias_sums.add(node)
    return bias_sums


def _half_bias(broadcast: Node, half: DType) -> Node:
    """A bias rounded to the dtype of the result, as the library's epilogue requires."""
    (bias,) = broadcast.inputs
    return Rematerialized(
        "cast", (broadcast.with_inputs([b.cast(bias, half)]),), at.CastAttrs(broadcast.type.dtype), "", broadcast.line
    )


def _sum_half_operands(graph: IRGraph) -> IRGraph:
    """The gradient of a bias sums the rounded upstream gradient that the products read: no float32 copy is stored."""
    casts: dict[Node, Node] = {}  # float32 value -> its cast to a half type
    for n in graph.nodes:
        if n.op == "cast" and n.type.dtype.is_half and n.inputs[0].type.dtype == n.type.dtype.accumulate:
            casts.setdefault(n.inputs[0], n)
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        new.setdefault(node, node.with_inputs([new[i] for i in node.inputs]))
        if node.op == "sum" and node.inputs[0] in casts and attrs_of(node, at.SumAttrs).axes == (0,):
            (x,) = node.inputs
            half = new.setdefault(casts[x], casts[x].with_inputs([new[x]]))
            with b.origin(node):
                new[node] = node.with_inputs([b.cast(half, x.type.dtype)])
    return graph.with_nodes(new)


def half_of(node: Node) -> DType:
    """The operand dtype of the product that a bias is added to."""
    return next(i.inputs[0].type.dtype for i in node.inputs if i.op == "matmul")


def _may_be_half(node: Node) -> bool:
    return node.op == "matmul" and node.inputs[0].type.dtype.is_half and not attrs_of(node, at.MatmulAttrs).transpose_a
