"""Steps of several ranks: marks inputs that are divided by rows, and states that are sharded.

The passes of `compiler/passes/distribute/` act on these marks.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wholestep.compiler.frontend.update_counters import AVERAGE, RAW
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node, rewrite
from wholestep.compiler.ir.state_partition import AxisSplit
from wholestep.compiler.ir.types import Dim, symbols_of
from wholestep.errors import UsageError
from wholestep.steps.capacity import PREFIX

log = logging.getLogger("wholestep")

UNSHARDED = (RAW, AVERAGE)  # suffixes of states that are weights and not optimizer states


def mark_batch_inputs(graph: IRGraph, batch: str) -> IRGraph:
    """The graph with marks on inputs that have one row for each row of the batch.

    Outputs with rows are left out, as with micro-batches: no rank has all rows.  `predict` returns them.
    """
    batch_inputs = {n for n in graph.inputs if n.type.rank and n.type.shape[0] == Dim.symbol(batch)}

    def marked(node: Node) -> Node:
        if node not in batch_inputs:
            return node
        return Node("input", (), replace(attrs_of(node, at.InputAttrs), divided=True), node.name, node.line)

    outputs = tuple(o for o in graph.outputs if batch not in symbols_of(o.node.type.shape))
    return rewrite(replace(graph, outputs=outputs), marked)


def is_divided(graph: IRGraph) -> bool:
    """Does each rank have different rows?"""
    return any(attrs_of(n, at.InputAttrs).divided for n in graph.inputs)


def with_divided_states(graph: IRGraph, ranks: int) -> IRGraph:
    """The graph with marks on the optimizer states that ranks may store as shards."""
    weights = {name: node.type for name, node in graph.leaves("parameter").items()}
    slots = {
        node
        for name, node in graph.leaves("state").items()
        if node.type.rank and not name.endswith(UNSHARDED) and any(name.startswith(f"{w}.") for w in weights)
    }
    if not slots and any(u.name in weights for u in graph.updates):
        raise UsageError(
            "shard='optimizer' divides the optimizer's states among workers, and this optimizer has none for its "
            "weights. Leave shard= out, or train with momentum, Adam, AdamW, Lion or RMSprop."
        )

    def marked(node: Node) -> Node:
        if node not in slots:
            return node
        return Node(node.op, (), replace(attrs_of(node, at.StateAttrs), parts=ranks), node.name, node.line)

    return rewrite(graph, marked)


def has_parts(graph: IRGraph) -> bool:
    """Are there states that ranks may hold as shards?"""
    return any(attrs_of(n, at.StateAttrs).parts for n in graph.states().values())


def with_split_states(graph: IRGraph, owners: Mapping[str, Any], ranks: int) -> IRGraph:
    """The graph with those states marked that tensor-parallel ranks divide: weights of layers with `split=`, and
    optimizer states of the same shape.
    """
    marked = {name: owned for name, owned in owners.items() if getattr(owned, "splitting", None) is not None}
    if not marked:
        log.warning(
            "model=%d, and no layer has split=: all workers compute the same. Split some, as "
            "ws.nn.Linear(..., split='columns'), ws.nn.MultiHeadAttention(..., split='heads') or "
            "ws.models.gpt2(..., split=True), or leave model= out.",
            ranks,
        )
    for name, owned in marked.items():
        owned.splitting.need(name, ranks)
    splits: dict[Node, AxisSplit] = {}
    for name, node in graph.states().items():
        weight = marked.get(_weight_of(name, marked))
        if weight is not None and node.type.shape == weight.type.shape:
            splits[node] = weight.splitting.among(ranks)

    def mark(node: Node) -> Node:
        if node not in splits:
            return node
        return Node(
            node.op, (), replace(attrs_of(node, at.StateAttrs), split=splits[node].numbers), node.name, node.line
        )

    return rewrite(graph, mark)


def _weight_of(state: str, weights: Mapping[str, Any]) -> str:
    """The name of the weight to which a state belongs, or of the state itself; accumulated gradients have a prefix."""
    name = state
    if name.startswith(PREFIX):
        name = name.removeprefix(PREFIX).removeprefix("share/").partition("/")[2]
    while name not in weights and "." in name:
        name = name.rpartition(".")[0]
    return name
