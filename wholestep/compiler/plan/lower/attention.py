"""Lowers attention and its gradients to routine calls, one per sequence and key head (grouped-query attention).

The query heads that share a key head are an axis `group` inside the call.  No buffer holds the scores: the backward
call recomputes them with the log-sum-exp of each row (`lse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.type_rules.layers import heads_in_group, lse_position
from wholestep.compiler.ir.types import Extent, evaluate, product
from wholestep.compiler.plan.fusion.clusters import Cluster
from wholestep.compiler.plan.lower.routine_ops import STEPPED, Assembled, compose_indices, has_contiguous_columns
from wholestep.compiler.plan.memory.buffers import Buffers
from wholestep.compiler.plan.model.access import Indices, resolve
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Index, Kernel, Load, Operand

FLOPS_OF_SOFTMAX = 5  # operations per score: scale, compare, subtract, exponentiate, add
FLOPS_OF_ITS_GRADIENT = 7  # operations per score in the backward pass


@dataclass(frozen=True)
class Head:
    """The axes of an attention kernel: leading axes, query heads per key head, queries, keys, width, value width."""

    lead: tuple[Extent, ...]
    group: int
    queries: Extent
    keys: Extent
    width: Extent
    values: Extent

    @staticmethod
    def of(node: Node) -> Head:
        q, k, v = (i.type for i in node.inputs[:3])
        group = heads_in_group(q, k)
        return Head(k.shape[:-2], group, q.shape[-2], k.shape[-2], q.shape[-1], v.shape[-1])

    @property
    def axes(self) -> tuple[Extent, ...]:
        return (*self.lead, self.group, self.queries, self.keys, self.width, self.values)

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(range(len(self.lead)))

    def inner(self, *names: str) -> tuple[int, ...]:
        """The positions of the named axes, which follow the leading axes."""
        order = ("group", "queries", "keys", "width", "values")
        return tuple(len(self.lead) + order.index(n) for n in names)

    def query_index(self, *names: str) -> Indices:
        """The index of a tensor that has one head per query head."""
        lead = [Index.axis(a) for a in self.rows]
        if self.group > 1:
            (group,) = self.inner("group")
            lead[-1] = Index(((self.rows[-1], self.group), (group, 1)))
        return (*lead, *(Index.axis(a) for a in self.inner(*names)))

    def key_index(self, *names: str) -> Indices:
        """The index of a tensor that has one head per key head."""
        return tuple(Index.axis(a) for a in (*self.rows, *self.inner(*names)))

    def pairs(self, causal: bool, sizes: dict[str, int]) -> int:
        """The number of scores that are computed."""
        queries, keys = evaluate(self.queries, sizes), evaluate(self.keys, sizes)
        scores_per_head = sum(min(i + 1, keys) for i in range(queries)) if causal else queries * keys
        return evaluate(product(self.lead), sizes) * self.group * scores_per_head

    def extents(self, causal: bool) -> tuple[tuple[str, Extent], ...]:
        names = ("group", "queries", "keys", "width", "values")
        extents = zip(names, self.axes[len(self.lead) :], strict=True)
        return (*extents, ("causal", int(causal)))


def operand(name: str, node: Node, index: Indices, axes: Sequence[int], buffers: Buffers) -> Operand:
    """The access of an operand at `index`; `axes` are the loops inside the routine."""
    access = resolve(node, index)
    return _operand(name, Load(buffers.of(access.base), access.shape, access.index), axes)


def result(name: str, node: Node, index: Indices, axes: Sequence[int], cluster: Cluster, buffers: Buffers) -> Operand:
    """The access of a result at `index`: inside the assembled value that it is a part of, or in its own buffer."""
    for assembled in cluster.nodes:
        if isinstance(assembled, Assembled) and node in assembled.inputs:
            part_index = assembled.places[assembled.inputs.index(node)]
            index, node = compose_indices(part_index, index), assembled
            break
    (target,) = buffers.targets(node)
    return _operand(name, Load(target.buffer, target.shape, compose_indices(target.index, index)), axes)


def _operand(name: str, load: Load, axes: Sequence[int]) -> Operand:
    in_rows = name in STEPPED or has_contiguous_columns(load.index, axes[-1])
    assert in_rows, f"the last axis of {name!r} must be contiguous for a routine"
    return Operand(name, load, tuple(axes))


@dataclass(frozen=True)
class AttentionOperands:
    """The memory accesses of operands and results."""

    head: Head
    cluster: Cluster
    buffers: Buffers

    def query_operand(self, name: str, node: Node, *axes: str) -> Operand:
        return operand(name, node, self.head.query_index(*axes), self.head.inner("group", *axes), self.buffers)

    def key_operand(self, name: str, node: Node, *axes: str) -> Operand:
        return operand(name, node, self.head.key_index(*axes), self.head.inner(*axes), self.buffers)

    def query_result(self, name: str, node: Node, *axes: str) -> Operand:
        inner = self.head.inner("group", *axes)
        return result(name, node, self.head.query_index(*axes), inner, self.cluster, self.buffers)

    def key_result(self, name: str, node: Node, *axes: str) -> Operand:
        return result(name, node, self.head.key_index(*axes), self.head.inner(*axes), self.cluster, self.buffers)

    def inputs(self, nodes: Sequence[Node]) -> list[Operand]:
        q, k, v, *mask = nodes
        operands = [self.query_operand("q", q, "queries", "width"), self.key_operand("k", k, "keys", "width")]
        operands.append(self.key_operand("v", v, "keys", "values"))
        return operands + [self.query_operand("mask", m, "queries", "keys") for m in mask]


def emit_attention(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    node = cluster.nodes[0]
    attrs, head, sizes = attrs_of(node, at.AttentionAttrs), Head.of(node), dict(buffers.sizes)
    find = AttentionOperands(head, cluster, buffers)
    results = []
    for n in cluster.nodes:
        if n.op == "attention":
            results.append(find.query_result("out", n, "queries", "values"))
        elif n.op == "attention_lse":
            results.append(find.query_result("lse", n, "queries"))
    flops_per_score = 2 * head.width + FLOPS_OF_SOFTMAX
    if results[0].name == "out" or len(results) > 1:
        flops_per_score = flops_per_score + 2 * head.values
    return _kernel(id, "attention", head, attrs, find.inputs(node.inputs), results, flops_per_score, buffers, sizes)


def emit_attention_grad(id: int, cluster: Cluster, buffers: Buffers) -> Kernel:
    node = cluster.nodes[0]
    attrs, head, sizes = attrs_of(node, at.AttentionAttrs), Head.of(node), dict(buffers.sizes)
    find = AttentionOperands(head, cluster, buffers)
    at_lse = lse_position([i.type.rank for i in node.inputs])
    operands, (lse, *upstream) = find.inputs(node.inputs[:at_lse]), node.inputs[at_lse:]
    operands.append(find.query_operand("lse", lse, "queries"))
    operands += [
        find.query_operand(*named, "queries", "values") for named in zip(("gradient", "out"), upstream, strict=False)
    ]
    flops_per_score, results = 2 * head.width + 2 * head.values + FLOPS_OF_ITS_GRADIENT, []
    for n in (n for n in cluster.nodes if n.op == "item"):
        index = attrs_of(n, at.ItemAttrs).index
        if index == 0:
            results.append(find.query_result("dq", n, "queries", "width"))
        elif index in (1, 2):
            axis = ("width", "values")[index - 1]
            results.append(find.key_result(("dk", "dv")[index - 1], n, "keys", axis))
        else:
            results.append(find.query_result("dmask", n, "queries", "keys"))
        flops_per_score = flops_per_score + 2 * (head.width, head.width, head.values, 0)[index]
    return _kernel(id, "attention_grad", head, attrs, operands, results, flops_per_score, buffers, sizes)


def _kernel(
    id: int,
    routine: str,
    head: Head,
    attrs: at.AttentionAttrs,
    operands: Sequence[Operand],
    results: Sequence[Operand],
    flops_per_score: Extent,
    buffers: Buffers,
    sizes: dict[str, int],
) -> Kernel:
    """The kernel of one call."""
    dtype = buffers.all[operands[0].load.buffer].type.dtype
    call = Call(
        routine,
        dtype,
        head.rows,
        tuple(operands),
        tuple(results),
        head.extents(attrs.causal),
        (("scale", attrs.scale),),
        head.pairs(attrs.causal, sizes) * evaluate(flops_per_score, sizes),
    )
    return Kernel(id, head.axes, call)
