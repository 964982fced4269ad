"""Micro-batches: the programs of a step that accumulates gradients over several batches.

The loss is decomposed as  Σ weight·numerator/denominator + terms without data  (`passes/distribute/separability.py`).
Denominators are summed over all micro-batches first; each micro-batch then accumulates the gradients of its numerators
divided by these sums; the terms without data, and a function of one quotient (rmse), are added with the update.  So the
step equals that of one large batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from wholestep.compiler.frontend.functions.primitives import where
from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.layers.composites import evaluation_graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir import build as b
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.graph import Node, rewrite, toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.type_rules.collectives import FIRST, ROWS, SHARES
from wholestep.compiler.ir.types import Dim, divide, product
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.distribute.separability import LossTerm, Separation
from wholestep.compiler.passes.lower.autocast import lower_precision
from wholestep.compiler.passes.simplify.inline import drop_custom_gradients, inline_calls
from wholestep.errors import GraphError
from wholestep.optim import Optimizer
from wholestep.steps.capacity import PREFIX, batch_symbol
from wholestep.steps.evaluate import EVALUATE, loss_of, record_metrics
from wholestep.steps.loss_scale import scale_loss, unscale_gradients
from wholestep.steps.options import RowValues, StepOptions
from wholestep.steps.row_values import row_outputs, with_row_values_of_part
from wholestep.steps.separable_loss import depends_on, need_plain_gradients, read_loss, rewritten, symbols_in
from wholestep.steps.train import Slopes, finish, reachable_parameters, select_parameters


@dataclass(frozen=True)
class MicroBatchGraphs:
    """The programs of a step: denominators (None if sizes determine them), one micro-batch (part), the update."""

    counts: ir.IRGraph | None
    part: ir.IRGraph
    update: ir.IRGraph
    batch: str  # the symbolic dimension that is split

    @property
    def phases(self) -> dict[str, ir.IRGraph]:
        """The programs in the order in which they run."""
        phases = {"counts": self.counts, "part": self.part, "update": self.update}
        return {name: graph for name, graph in phases.items() if graph is not None}


def split_step(
    graph: Graph, optimizer: Optimizer | None, options: StepOptions, ranks: int = 0, rows: int = 0
) -> MicroBatchGraphs:
    """The programs of a step over a user's graph; GraphError names the node that makes the loss inseparable.

    Without an optimizer they evaluate: the last one returns the loss and changes nothing.  With several ranks each
    accumulates its own sums, and the update adds those of all ranks.  `rows` is the most rows of a step.
    """
    return _Splitter(graph, optimizer, options, SHARES if ranks else PREFIX, rows).split()


@dataclass(frozen=True)
class _Sum:
    """A state that accumulates over micro-batches; until the update it replaces the step's state `of`."""

    state: Tensor
    update: ir.Update
    of: Tensor | None = None


class _Splitter:
    def __init__(self, graph: Graph, optimizer: Optimizer | None, options: StepOptions, prefix: str, rows: int) -> None:
        self.prefix = prefix  # prefix of accumulated states, which are summed over ranks
        self.rows = rows
        self.graph, self.optimizer, self.step_options = graph, optimizer, options
        self.what = f"accumulate={options.accumulate}" if optimizer else "evaluating more rows than the capacity"
        self.batch = batch_symbol(graph)
        # Leaves are declared in this graph; the programs consist of its nodes.
        self.step = graph.copy(updates=optimizer is not None)
        self.params: list[Tensor] = []
        if optimizer is not None:
            declared = optimizer.trainable(select_parameters(self.step))
            self.params = reachable_parameters(loss_of(self.step), declared, options.unused)
            need_plain_gradients(graph, optimizer, options)
        with self.step.scope(EVALUATE) if optimizer is None else nullcontext():
            record_metrics(self.step, options.measures)
        traced = self.step.to_ir() if optimizer is not None else evaluation_graph(self.step.to_ir())
        if options.precision.is_half:
            traced = lower_precision(traced, options.precision)
        whole = expand_gradients(inline_calls(traced))
        self.whole = whole if optimizer is not None else drop_custom_gradients(whole)
        self.loss = self.whole.outputs[0].node
        self.totals: dict[Node, Tensor] = {}  # denominator -> its sum over all micro-batches
        self.is_first = self._tensor(b.size(Dim.symbol(FIRST))) == 0
        self.scale = None if options.loss_scale is None or optimizer is None else options.loss_scale.now(self.step)

    def split(self) -> MicroBatchGraphs:
        read = read_loss(self.whole, self.batch, self.step_options, self.what, trains=self.optimizer is not None)
        share = self._sum([self._share(t, self._total(t.denominator)) for t in read.terms])
        if share is None:
            fail(GraphError, f"{self.what}: the loss does not depend on the batch and cannot be split; use 1.")
        loss = self._add_up("loss", share)
        here = self._inside(share)
        slopes = {p.name: g for p, g in zip(here, self._slopes(share, here), strict=True)}
        sums = {p.name: self._add_up_slope(p, slopes[p.name]) for p in here}
        shadows = self._shadows(list(self._updates_of_parts()))
        counts = [self._add_up_in(state, d) for d, state in self.totals.items()]
        return MicroBatchGraphs(
            self._program((), [c.update for c in counts]) if counts else None,
            self._part([s.update for s in (loss, *sums.values(), *shadows)], slopes),
            self._update(read, loss.state, {name: s.state for name, s in sums.items()}, shadows),
            self.batch,
        )

    # -- parts ---------------------------------------------------------------------------------------------------

    def _part(self, updates: Sequence[ir.Update], slopes: Mapping[str, Tensor]) -> ir.IRGraph:
        wanted = self.step_options.per_row
        if self.optimizer is not None and wanted.names:
            part = ir.IRGraph((), tuple(updates))
            updates = with_row_values_of_part(
                self.step, part, self._tensor(self.loss), slopes, wanted, self.rows
            ).updates
        return self._program((), updates, every_input=True)

    def _share(self, term: LossTerm, total: Node | None) -> Node:
        """The contribution of a micro-batch to the loss."""
        value = term.numerator if total is None else b.div(term.numerator, b.cast(total, term.numerator.type.dtype))
        if term.weight is not None:
            value = b.mul(b.cast(term.weight, value.type.dtype), value)
        return b.cast(value, self.loss.type.dtype)

    def _total(self, denominator: Node | None) -> Node | None:
        """A denominator over all micro-batches."""
        if denominator is None:
            return None
        if denominator.host:  # it depends on sizes only: evaluate it at the sum of the sizes
            return rewritten(denominator, self._of_all_rows)
        if denominator not in self.totals:
            name = f"{PREFIX}denominator{len(self.totals)}"
            self.totals[denominator] = self.step.state(name, (), 0.0, denominator.type.dtype)
        return self.totals[denominator].node

    def _of_all_rows(self, node: Node) -> Node:
        rest = divide(b.attrs_of(node, at.SizeAttrs).extent, Dim.symbol(self.batch)) if node.op == "size" else None
        return node if rest is None else b.make("size", (), at.SizeAttrs(rest * Dim.symbol(ROWS)))

    def _add_up(self, name: str, value: Tensor) -> _Sum:
        return self._add_up_in(self.step.state(self.prefix + name, value.shape, 0.0, value.dtype), value.node)

    def _add_up_slope(self, w: Tensor, slope: Tensor) -> _Sum:
        return self._add_up_in(self.step.state_like(w, f"{self.prefix}grad/{w.name}"), slope.node)

    def _add_up_in(self, state: Tensor, value: Node) -> _Sum:
        """The sum over the micro-batches so far; the first one overwrites the state."""
        part = self._tensor(value)
        return _Sum(state, ir.Update(state.name, where(self.is_first, part, state + part).node))

    def _updates_of_parts(self) -> Iterator[ir.Update]:
        """Updates per micro-batch: metrics; GraphError for a state of the user that depends on the batch."""
        model_updates = self.graph.updates
        for update in self.whole.updates:
            if update.name in model_updates and not depends_on(update.node, self.batch):
                continue
            if update.name in model_updates and not self.step_options.per_micro_batch:
                fail(
                    GraphError,
                    f"{self.what}: the new value of the state {update.name!r} depends on the batch, and a step has "
                    "several. Train with accumulate=1, or update it for each: per_micro_batch=True.",
                )
            yield update

    def _shadows(self, updates: Sequence[ir.Update]) -> list[_Sum]:
        """Copies of the states that every micro-batch updates, used if the step may be skipped."""
        states = [self.step.states[u.name] for u in updates]
        if not self.step_options.may_skip or self.optimizer is None:
            return [_Sum(state, update) for state, update in zip(states, updates, strict=True)]
        named = zip(updates, states, strict=True)
        copies = [self.step.state_like(s, f"{PREFIX}state/{u.name}", 0) for u, s in named]
        pairs = list(zip(states, copies, strict=True))
        # An update may read another state: a metric writes its rows at its count.
        starts = {state.node: where(self.is_first, state, shadow).node for state, shadow in pairs}
        return [
            _Sum(shadow, ir.Update(shadow.name, rewritten(update.node, lambda n: n, starts)), state)
            for (state, shadow), update in zip(pairs, updates, strict=True)
        ]

    # -- the update ----------------------------------------------------------------------------------------------

    def _update(
        self, read: Separation, loss: Tensor, sums: Mapping[str, Tensor], shadows: Sequence[_Sum]
    ) -> ir.IRGraph:
        total, slopes = self._whole_loss(read, loss, sums)
        if self.optimizer is None:
            return self._program([ir.Output(self.whole.outputs[0].name, total.node)], (), parts=False)
        final = self.step.copy(updates=False)
        final.set_outputs({self.whole.outputs[0].name: final.adopt(total)})
        for shadow in shadows:
            if shadow.of is not None:
                final.update(final.adopt(shadow.of), final.adopt(shadow.state))
        for update in self.whole.updates:
            if update.name in self.graph.updates and not depends_on(update.node, self.batch):
                final.update(final.states[update.name], Tensor(update.node, final))
        params = [final.adopt(p) for p in self.params]
        grads = [final.adopt(slopes[p.name]) for p in self.params]
        options = replace(self.step_options, per_row=RowValues())  # values of rows are written by the micro-batches
        step = finish(final, Slopes(final.adopt(total), params, grads), self.optimizer, options)
        outputs = [o for o in step.outputs if not depends_on(o.node, self.batch)]
        outputs += row_outputs(self.step, self.step_options.per_row)
        return self._program(outputs, step.updates, parts=False)

    def _whole_loss(
        self, read: Separation, loss: Tensor, sums: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of the step and its gradients, from the accumulated sums."""
        if read.outer is not None:
            return self._outer(read.outer, read.terms[0], loss, sums)
        rest = self._sum([b.cast(n, loss.dtype) for n in read.rest])
        if rest is None:
            return loss, dict(sums)
        free = self._inside(rest)
        return loss + rest, _add_gradients(sums, free, self._slopes(rest, free))

    def _outer(
        self, outer: Node, term: LossTerm, quotient: Tensor, sums: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The gradient of loss = f(q, parameters): ∂f/∂q·∂q, from the accumulated sums, plus ∂f."""
        sides = (term.numerator, term.denominator)
        old = next(n for n in toposort([outer]) if n.op in ops_with(Trait.QUOTIENT) and n.inputs == sides)
        loss = self._tensor(rewritten(outer, lambda n: n, {old: b.cast(quotient.node, old.type.dtype)}))
        free = self._inside(loss)
        factor, *direct = self._slopes(loss, [quotient, *free])
        return loss, _add_gradients({name: g * factor for name, g in sums.items()}, free, direct)

    # -- programs ------------------------------------------------------------------------------------------------

    def _program(
        self,
        outputs: Sequence[ir.Output],
        updates: Sequence[ir.Update],
        *,
        parts: bool = True,
        every_input: bool = False,
    ) -> ir.IRGraph:
        needed = set(toposort([*(o.node for o in outputs), *(u.node for u in updates)]))
        inputs = tuple(t.node for t in self.graph.inputs.values() if every_input or t.node in needed)
        program = ir.IRGraph(tuple(outputs), tuple(updates), inputs)
        return rewrite(program, self._offset_random) if parts else program

    def _offset_random(self, node: Node) -> Node:
        """Random numbers are keyed by the position of an element in the whole batch."""
        if node.op not in ops_with(Trait.DRAWS) or self.batch not in symbols_in(node):
            return node
        a, row = node.attrs, divide(product(node.type.shape), Dim.symbol(self.batch))
        assert isinstance(a, at.RandomAttrs | at.DropoutAttrs)
        if row is None:  # several rows per row of the batch: only with `per_micro_batch`
            return node
        return Node(node.op, node.inputs, replace(a, first=row * Dim.symbol(FIRST)), node.name, node.line)

    def _slopes(self, value: Tensor, params: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of a term of the loss, through the loss scale if there is one."""
        return unscale_gradients(gradients(scale_loss(value, self.scale), params), self.scale)

    def _inside(self, value: Tensor) -> list[Tensor]:
        """The parameters that a value depends on."""
        nodes = set(toposort([value.node]))
        return [p for p in self.params if p.node in nodes]

    def _tensor(self, node: Node) -> Tensor:
        return Tensor(node, self.step)

    def _sum(self, nodes: Sequence[Node]) -> Tensor | None:
        total: Node | None = None
        for node in nodes:
            total = node if total is None else b.add(total, node)
        return None if total is None else self._tensor(total)


def _add_gradients(sums: Mapping[str, Tensor], params: Sequence[Tensor], grads: Sequence[Tensor]) -> dict[str, Tensor]:
    """Gradients by parameter, summed if a parameter occurs in both."""
    out = dict(sums)
    for p, g in zip(params, grads, strict=True):
        out[p.name] = out[p.name] + g if p.name in out else g
    return out
