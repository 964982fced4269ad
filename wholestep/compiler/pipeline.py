"""The compiler's pipeline: named stages lower a traced graph to a plan.

`STAGES` lists the passes in order, with the invariant that holds after each stage.  Failures of optional passes cost
speed, never the build: the pass is skipped and the report says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, wraps
from importlib import import_module

from wholestep.compiler.ir.graph import IRGraph, Node
from wholestep.compiler.ir.printer import print_graph
from wholestep.compiler.ir.verify import verify
from wholestep.compiler.memory_budget import plan_within_budget
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.distribute.bucket_collectives import bucket
from wholestep.compiler.passes.distribute.data_parallel import partition_batch
from wholestep.compiler.passes.distribute.shard_optimizer import shard_optimizer_states
from wholestep.compiler.passes.distribute.tensor_parallel import split
from wholestep.compiler.passes.egraph.optimize import optimize
from wholestep.compiler.passes.egraph.report import EGraphReport, describe_error
from wholestep.compiler.passes.egraph.rules.rule import Exactness
from wholestep.compiler.passes.egraph.saturate import Budget
from wholestep.compiler.passes.layout.merge_batch_axes import merge_batch_axes
from wholestep.compiler.passes.layout.sink_reshapes import sink_row_reshapes
from wholestep.compiler.passes.lower.autocast import widen_half_arithmetic
from wholestep.compiler.passes.lower.decompose import decompose_for, lower_ratio, lower_reductions
from wholestep.compiler.passes.lower.dynamic_update_slice import lower_dynamic_update_slices
from wholestep.compiler.passes.lower.embedding_projection import project_tables
from wholestep.compiler.passes.lower.max_pooling import drop_unit_pools, sink_relu_below_pool
from wholestep.compiler.passes.lower.scan import (
    hoist_casts,
    hoist_projections,
    map_over_bodies,
    merge_scans,
    sink_lookups,
)
from wholestep.compiler.passes.simplify.cse import share_common_nodes
from wholestep.compiler.passes.simplify.dead_code import drop_dead_code
from wholestep.compiler.passes.simplify.fold import fold
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients, unroll_inner_loops
from wholestep.compiler.passes.simplify.pad_sum_to_concat import concat_pad_sums
from wholestep.compiler.passes.simplify.recognize_attention import recognize_attention
from wholestep.compiler.plan.check.soundness import check
from wholestep.compiler.plan.memory.peak_memory import Limit
from wholestep.compiler.plan.model.input_bounds import index_bounds, least_sizes
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.plan.model.request import PlanRequest, check_dtypes, origin_of
from wholestep.compiler.plan.model.target_formats import footprint
from wholestep.compiler.spans import Integers, OptimizeReport, Spans
from wholestep.compiler.target import OwnPass, Target
from wholestep.errors import GradientError, GraphError
from wholestep.options import CompileOptions

log = logging.getLogger("wholestep")

# -- stages: named lists of passes, some of which the target chooses -----------------------------------------------
Pass = Callable[[IRGraph], IRGraph]


@dataclass(frozen=True)
class ForTarget:
    """A position in the list whose passes depend on the target."""

    passes: Callable[[Target], tuple[Pass, ...]]


@dataclass(frozen=True)
class Stage:
    """A group of passes; it has the name of its span."""

    name: str
    passes: tuple[Pass | ForTarget, ...]
    egraph: bool = False  # is the stage followed by equality saturation, if the options enable it?

    def passes_for(self, target: Target) -> tuple[Pass, ...]:
        """The passes for a target, its own included."""
        return tuple(p for each in self.passes for p in passes_at(each, target))


def passes_at(entry: Pass | ForTarget, target: Target) -> tuple[Pass, ...]:
    """The passes at one position of a stage."""
    return entry.passes(target) if isinstance(entry, ForTarget) else (entry,)


def with_target(rewrite: Callable[[IRGraph, Target], IRGraph]) -> ForTarget:
    """A pass that takes the target as an argument."""
    return ForTarget(lambda target: (_bind_target(rewrite, target),))


def own(name: str) -> ForTarget:
    """The passes of one field of a target's `lowering`."""
    return ForTarget(lambda target: tuple(own_pass(p, target) for p in getattr(target.lowering, name)))


@cache
def own_pass(named: OwnPass, target: Target) -> Pass:
    """Import a pass that a target names."""
    module, _, name = named.path.partition(":")
    rewrite: Callable[..., IRGraph] = getattr(import_module(module), name)
    return _bind_target(rewrite, target) if named.takes_target else rewrite


@cache  # the same object every time: passes are compared by identity
def _bind_target(rewrite: Callable[[IRGraph, Target], IRGraph], target: Target) -> Pass:
    @wraps(rewrite)
    def rewrite_for_target(graph: IRGraph) -> IRGraph:
        return rewrite(graph, target)

    return rewrite_for_target


# -- the passes, in order ----------------------------------------------------------------------------------------
BEFORE_GRADIENTS = (
    *(inline_calls, unroll_inner_loops, drop_unit_pools),
    *(sink_relu_below_pool, hoist_casts, hoist_projections, project_tables),
)
SIMPLIFY = (fold, share_common_nodes, drop_dead_code)
FLATTEN, SHARD = with_target(merge_batch_axes), with_target(shard_optimizer_states)

STAGES = (
    # Composites that the user wrote as formulas are recognised; unstable formulas are replaced by stable ones.
    # Attention comes before the e-graph, which has no rules for half types and for reshapes between scores and masks.
    Stage("optimize_forward", (recognize_attention,), egraph=True),
    # No gradient, call or stop_gradient nodes are left: the step is one graph of ordinary nodes.  If several ranks
    # compute it, it is the graph of one rank, with its collectives.
    Stage(
        "autodiff",
        (*BEFORE_GRADIENTS, expand_gradients, merge_scans, strip_stop_gradients, partition_batch, split, SHARD),
    ),
    # Constants are folded, common subexpressions are shared, and no node is dead.
    Stage("simplify", SIMPLIFY),
    # The cheapest equivalent program of the whole step was extracted.  Skipped by optimize=False.
    Stage("optimize_full", (), egraph=True),
    # Only casts round to half types, and only contractions read them.
    # Only primitives and composites with kernels on the target are left; reductions have one axis, ratios are
    # divisions, and ops after a product with merged batch axes have merged axes too; sums of disjoint padded parts are
    # concatenations.  Images are channels-last.  Pointwise ops after a norm are computed in the norm's row shape.  Rows
    # are written into a state in place, or else into a copy of it.  The target's own passes have run, and collectives
    # are bucketed.
    Stage(
        "lower",
        (
            widen_half_arithmetic,
            sink_lookups,
            lower_dynamic_update_slices,
            with_target(decompose_for),
            own("windows"),
            with_target(lower_reductions),
            lower_ratio,
            FLATTEN,
            concat_pad_sums,
            sink_row_reshapes,
            *SIMPLIFY,
            own("primitives"),
            bucket,
        ),
    ),
)
# Passes that only make a program faster.  The planner relies on the results of all others.  A target's own pass is
# optional unless its record says that it is needed (`OwnPass.needed`).
OPTIONAL = frozenset[Pass | ForTarget](
    (
        recognize_attention,
        sink_relu_below_pool,
        hoist_casts,
        hoist_projections,
        project_tables,
        merge_scans,
        *SIMPLIFY,
        sink_lookups,
        FLATTEN,
        concat_pad_sums,
        sink_row_reshapes,
    )
)
# Passes that replace formulas by ops whose bits may differ: `exactness="bitwise"` and `optimize=False` leave them out.
REASSOCIATING = frozenset[Pass | ForTarget]((recognize_attention,))
PLAN = "compile"  # span of the last stage, planning: kernels, their order and memory are decided


@cache
def planner_of(target: Target) -> Callable[[PlanRequest], Plan]:
    """The planner of a target."""
    module, _, name = target.planner.partition(":")
    planner: Callable[[PlanRequest], Plan] = getattr(import_module(module), name)
    return planner


@cache
def optional_passes(target: Target) -> frozenset[Pass]:
    """The passes that may fail: without them the program is only slower."""
    common = {p for entry in OPTIONAL for p in passes_at(entry, target)}
    own_passes = (*target.lowering.windows, *target.lowering.primitives)
    return frozenset(common | {own_pass(p, target) for p in own_passes if not p.needed})


@dataclass
class Compiler:
    """Runs the stages with one set of options and records their spans."""

    options: CompileOptions = field(default_factory=CompileOptions)
    spans: Spans = field(default_factory=Spans)
    egraph_reports: list[EGraphReport] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)  # passes that failed and were skipped, and why
    label: Callable[[Node], str] = origin_of  # the text for a node in a kernel's origin
    _verified_nodes: set[Node] = field(default_factory=set, init=False, repr=False)  # nodes that passed verification

    def run_stages(self, graph: IRGraph, target: Target, until: str | None = None) -> IRGraph:
        """The graph for a target after the stage `until`, or after all of them."""
        assert until is None or until in [s.name for s in STAGES], f"there is no stage {until!r}"
        plain = graph
        for stage in STAGES:
            if stage.name == "autodiff":
                graph = self._expand_gradients(stage, graph, plain, target)
            elif stage.name != "optimize_full" or self.options.optimize:
                graph = self._run_stage(stage, graph, target)
            if stage.name == until:
                break
        return graph

    def _expand_gradients(self, stage: Stage, graph: IRGraph, plain: IRGraph, target: Target) -> IRGraph:
        """The graph with gradients expanded; starts from the unrewritten graph if a rewrite removed a parameter.

        A rewrite of `concat([a, b])[:, :1]` removes b from the loss, yet its gradient must be 0, not missing.
        """
        try:
            return self._run_stage(stage, graph, target)
        except GradientError as error:
            if graph is plain:
                raise
            expanded = self._run_stage(stage, plain, target)
            self.given_up.append(f"rewrites of the forward pass were left out: {describe_error(error)}")
            return expanded

    def _run_stage(self, stage: Stage, graph: IRGraph, target: Target) -> IRGraph:
        with self.spans.span(stage.name) as span:
            span.nodes_before = len(graph.nodes)
            for rewrite in stage.passes_for(target):
                graph = self._apply(rewrite, graph, target)
            if stage.egraph and self.options.uses_egraph:
                graph = self._rewrite(stage, graph, target)
            span.nodes_after = len(graph.nodes)
        return graph

    def _apply(self, rewrite: Pass, graph: IRGraph, target: Target) -> IRGraph:
        """The graph after a pass; the unchanged graph if an optional pass fails, or if the options exclude it."""
        if rewrite in REASSOCIATING and (not self.options.optimize or self.options.exactness == "bitwise"):
            return graph
        try:
            return self._check(map_over_bodies(rewrite)(graph))
        except Exception as error:
            if rewrite not in optional_passes(target):
                raise
            self.given_up.append(f"{rewrite.__name__} was left out: {describe_error(error)}")
            log.warning("%s", self.given_up[-1], exc_info=True)
            return graph

    def _check(self, graph: IRGraph) -> IRGraph:
        if self.options.check_passes:
            verify(graph, self._verified_nodes)
        return graph

    def _rewrite(self, stage: Stage, graph: IRGraph, target: Target) -> IRGraph:
        """The program that the e-graph extracts; records its result, or why there is none, for the report."""
        before_autodiff = stage.name == "optimize_forward"
        if before_autodiff and self.options.exactness == "bitwise":
            return graph  # the gradient formula of a named op is equal, but not bit for bit
        rewritten, report = optimize(
            graph,
            {},  # costs assume typical sizes, so that sessions of different capacity compute the same bits
            exactness=Exactness(self.options.exactness),
            before_autodiff=before_autodiff,
            budget=Budget(self.options.egraph_rounds, self.options.egraph_nodes, seconds=self.options.egraph_seconds),
            costs=target.costs,
        )
        try:
            self._check(rewritten)
        except GraphError as error:  # the input graph passed verification, so the rewriting is at fault
            rewritten, report = graph, report.as_failure(describe_error(error))
        self.egraph_reports.append(report)
        if not report.complete:
            log.warning("%s: %s", stage.name, report)
        return rewritten

    def plan(
        self, graph: IRGraph, capacity: Mapping[str, int], target: Target, limit: Limit | None = None
    ) -> tuple[Plan, OptimizeReport]:
        """The plan of one entry point for a target, within the memory limit if there is one, and the build's report."""
        log.info("traced graph: %d nodes", len(graph.nodes))
        if log.isEnabledFor(logging.DEBUG):
            log.debug("traced graph:\n%s", print_graph(graph))
        self._check(graph)
        check_dtypes(graph, target)
        # Index bounds come from the traced graph: a rewrite may replace a lookup by arithmetic on its index.
        bounds, least = index_bounds(graph), least_sizes(graph)
        self.egraph_reports, self.given_up = [], []
        lowered = self.run_stages(graph, target)
        check_dtypes(lowered, target)  # passes add tensors too: masks, indices, copies in other dtypes
        with self.spans.span(PLAN):
            request = PlanRequest(
                lowered, capacity, target, self.options.fuse, tuple(bounds), tuple(least), label=self.label
            )
            planner = planner_of(target)
            plan = planner(request) if limit is None else plan_within_budget(request, planner, limit)
            check(plan)
            _need_room(plan, target)
        log.info("plan: %d nodes, %d buffers, %d dispatches", len(lowered.nodes), len(plan.buffers), len(plan.kernels))
        for report in self.egraph_reports:
            chosen = ", ".join(f"{count}x {rule}" for rule, count in sorted(report.applied.items()))
            log.info("%s: %s", report.stage, chosen or "no rewriting was chosen")
        applied = dict.fromkeys(rule for r in self.egraph_reports for rule in r.applied)
        return plan, OptimizeReport(
            len(graph.nodes),
            len(lowered.nodes),
            tuple(applied),
            tuple(self.spans.all),
            egraph=tuple(self.egraph_reports),
            exactness=self.options.exactness if self.options.uses_egraph else "",
            after=_integers(plan, len(lowered.nodes)),
            given_up=tuple(self.given_up),
        )


def _need_room(plan: Plan, target: Target) -> None:
    """Raise a GraphError if a buffer is larger than the target's kernels can address."""
    limit, largest = target.limits.largest_buffer, max(plan.buffers, key=lambda b: b.bytes, default=None)
    if limit is not None and largest is not None and largest.bytes > limit:
        subject = f"the {largest.space.value} {largest.name!r}" if largest.name else "an intermediate value"
        raise GraphError(
            f"{subject}, {largest.user_type}, takes {largest.bytes:,} bytes at capacity; a buffer on {target} has at "
            f"most {limit:,}. Build with a smaller batch_size, or make the tensor smaller."
        )


def _integers(plan: Plan, nodes: int) -> Integers:
    return Integers(nodes, len(plan.kernels), plan.flops, plan.bytes_moved, footprint(plan, 1).peak_bytes)
