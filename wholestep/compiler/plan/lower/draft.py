"""Lowers a graph to a draft, the target-independent half of planning.

In order: copies, fusion, topological order, expansion of loops, buffers, kernels.  A draft has neither offsets nor
schedules; a backend's planner adds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from wholestep.compiler.ir.attrs import InputAttrs
from wholestep.compiler.ir.build import attrs_of
from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.type_rules.collectives import ROWS
from wholestep.compiler.ir.types import Dim, evaluate
from wholestep.compiler.plan.fusion.clusters import Cluster, fuse
from wholestep.compiler.plan.fusion.concat_elimination import generate_in_place, in_place_concats, parts
from wholestep.compiler.plan.fusion.fuse_column_sums import join_column_sums
from wholestep.compiler.plan.fusion.fuse_updates import fuse_pointwise
from wholestep.compiler.plan.fusion.partial_column_sums import fuse_partial_sums, split_column_sums
from wholestep.compiler.plan.fusion.recompute_placement import join_recomputed, just_in_time
from wholestep.compiler.plan.io.traffic import bytes_moved, flops
from wholestep.compiler.plan.lower.lower_cluster import EMIT
from wholestep.compiler.plan.lower.materialize import ReadableViews, materialize_copies
from wholestep.compiler.plan.lower.routine_ops import assemble
from wholestep.compiler.plan.lower.scan import expand_loops, in_slots
from wholestep.compiler.plan.memory.buffers import Buffers
from wholestep.compiler.plan.memory.cluster_order import place_updates, topological
from wholestep.compiler.plan.model.bodies import Dot
from wholestep.compiler.plan.model.kernel import VERSION, Buffer, Draft, Kernel, Least, Space
from wholestep.compiler.plan.model.request import PlanRequest
from wholestep.compiler.target import Target
from wholestep.errors import GraphError


def make_draft(request: PlanRequest, operands: ReadableViews | None = None) -> Draft:
    """Draft one entry point.

    Args:
        operands: which views the backend's kernels read in place; by default all strided ones.
    """
    graph, target, fused = request.graph, request.target, request.fused
    sizes = _check_sizes(graph, request.capacity, request.least)
    rules, fusion = operands or ReadableViews(), target.fusion
    prepared = materialize_copies(assemble(graph), rules)  # every kernel can read its operands in place
    prepared = split_column_sums(prepared, fusion, sizes)  # large column sums have two stages
    clusters = fuse(prepared, fusion, fused, sizes)  # decides which ops share a kernel
    if fused:
        clusters = fuse_partial_sums(clusters)
        clusters = fuse_pointwise(clusters, prepared.updates, fusion)  # an update is one pass over its buffers
        clusters = join_column_sums(clusters, prepared.updates, fusion)  # sums share a kernel that reads their operand
        clusters = join_recomputed(clusters, fusion)  # recomputed values join kernels that read their operands
        clusters = generate_in_place(clusters, prepared)  # random numbers are stored where they are read
    updates = place_updates(prepared, clusters)  # a state is overwritten only after its last read
    # Each loop is replaced by the clusters of its body.
    opened = expand_loops(topological(just_in_time(clusters)), fusion, rules, fused)
    opened.parts.update(
        {part: (n, at) for c in opened.clusters if c.loop is None for n in in_place_concats(c) for part, at in parts(n)}
    )
    ordered = opened.clusters
    buffers = Buffers(prepared, ordered, updates, sizes, graph.outputs, opened)  # decides which values are stored
    kernels = [emit(i, c, buffers, request.label) for i, c in enumerate(ordered)]
    names = {b.id: b.name for b in buffers.all if b.space is Space.STATE}
    leaves = prepared.states()
    parameters = [buffers.states[n] for n in prepared.leaves("parameter")]
    updated = tuple(dict.fromkeys(u.name for u in updates))
    divided = next((str(i.type.shape[0]) for i in graph.inputs if attrs_of(i, InputAttrs).divided), "")
    return Draft(
        version=VERSION,
        target=target.name,
        symbols=prepared.symbols,
        capacity=tuple(sizes[s] for s in prepared.symbols),
        buffers=tuple(buffers.all),
        kernels=tuple(kernels),
        scalars=tuple(buffers.host.scalars.values()),
        host=tuple(buffers.host.values),
        slots=buffers.host.slots,
        inputs=tuple((b.name, b.id) for b in buffers.all if b.space is Space.INPUT),
        outputs=tuple(buffers.outputs.items()),
        states=tuple(buffers.states.items()),
        initial=tuple(leaves[name].attrs.init for name in buffers.states),  # type: ignore[attr-defined]
        updated=updated,
        bounds=request.bounds,
        constants=tuple(
            (b, n.attrs.array.value.tobytes())  # type: ignore[attr-defined]
            for n, b in buffers.stored.items()
            if n.op == "constant"
        ),
        param_grad_pairs=tuple((p, buffers.outputs.get(f"{names[p]}.grad")) for p in parameters if names[p] in updated),
        param_buffers=tuple(parameters),
        loops=tuple(opened.loops),
        least=request.least,
        divided=divided,
        whole=request.capacity[ROWS] if divided else 0,
        notes=half_notes(kernels, buffers.all, target),
    )


def half_notes(kernels: Sequence[Kernel], buffers: Sequence[Buffer], target: Target) -> tuple[str, ...]:
    """Notes on whether the target multiplies half-precision operands itself, or only stores them."""
    operands = dict.fromkeys(buffers[k.body.a.buffer].type.dtype for k in kernels if isinstance(k.body, Dot))
    return tuple(
        f"products of {dtype} are computed in {dtype}, and accumulate in {dtype.accumulate}"
        if dtype.name in target.dtypes
        else f"{target.name} has no products of {dtype}: operands are stored in {dtype}, computed in {dtype.accumulate}"
        for dtype in operands
        if dtype.is_half
    )


def _check_sizes(graph: IRGraph, capacity: Mapping[str, int], least: Sequence[Least]) -> dict[str, int]:
    """The capacity of each symbol of the graph; an error if one is missing, cannot bound memory, or is too small."""
    missing = [s for s in graph.symbols if s not in capacity]
    if missing:
        raise GraphError(
            f"the dimension {missing[0]!r} has no capacity; pass capacity={{{missing[0]!r}: 32}} (or batch_size=32)."
        )
    sizes = {s: capacity[s] for s in graph.symbols}
    for extent in (e for n in graph.nodes for t in n.results for e in t.shape if isinstance(e, Dim)):
        if any(names and coefficient < 0 for names, coefficient in extent.terms):
            raise GraphError(
                f"the dimension {extent} grows when a symbol shrinks, so the capacity does not bound its memory. Give "
                "the difference a symbol of its own."
            )
    for needed in least:
        if needed.value(sizes) < needed.size:
            raise GraphError(
                f"{needed.extent} is {needed.value(sizes)} at most; {needed.why}, so it must be at least "
                f"{needed.size}. Build with a larger batch_size."
            )
    return sizes


def emit(id: int, cluster: Cluster, buffers: Buffers, label: Callable[[Node], str]) -> Kernel:
    """Lower a cluster to a kernel; `label` names the origin of each op."""
    stored_in_place = set(in_place_concats(cluster))
    computed = replace(cluster, nodes=[n for n in cluster.nodes if n not in stored_in_place])
    kernel = EMIT[cluster.kind](id, computed if stored_in_place else cluster, buffers)
    if cluster.loop is not None:
        kernel = in_slots(kernel, buffers.slots, buffers.all)
    origin = tuple(map(label, cluster.members))
    return replace(kernel, origin=origin, loop=cluster.loop)


def count_work(draft: Draft) -> list[Kernel]:
    """The kernels with their flops and moved bytes, over all iterations of their loops."""
    sizes, kernels = draft.sizes, []
    for kernel in draft.kernels:
        iterations = 1 if kernel.loop is None else evaluate(draft.loops[kernel.loop].length, sizes)
        traffic = bytes_moved(kernel, draft.buffers, sizes)
        kernels.append(replace(kernel, flops=iterations * flops(kernel, sizes), bytes=iterations * traffic))
    return kernels
