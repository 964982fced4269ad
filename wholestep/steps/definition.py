"""`Definition`: what a session is built from, and the graphs of its entry points, recorded on first use."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence, Sized
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.step import Step
from wholestep.compiler.frontend.update_counters import UpdateCounters
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.type_rules.collectives import BATCH, FIRST, MODEL_RANK, OWN, RANK, ROWS
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.state.state import State
from wholestep.errors import UsageError
from wholestep.nn.module.module import Module
from wholestep.optim import SGD, Optimizer
from wholestep.records import dataclass
from wholestep.schedules import Schedule
from wholestep.schedules.bind import with_schedules
from wholestep.steps.capacity import MICRO_BATCH_DIMS, PARTS, batch_symbol, capacity_of, merge_capacity
from wholestep.steps.evaluate import (
    EVALUATE,
    VALIDATE,
    evaluate_graph,
    forward_only,
    has_own_updates_only,
    predict_graph,
    record_metrics,
)
from wholestep.steps.module import Inputs, training_graph
from wholestep.steps.options import PLAIN, StepOptions, with_parts
from wholestep.steps.states import clocks_of, first_values
from wholestep.steps.train import train_graph

if TYPE_CHECKING:
    from wholestep.data.augment import Augmentations
    from wholestep.steps.micro_batches import MicroBatchGraphs

Model = Module | Graph | Step

TRAIN = "train"
TOGETHER = (TRAIN, VALIDATE)  # entry points that all ranks run collectively
FORWARD = "forward"  # `predict` with the weights that are being trained
PART = f"{TRAIN}.part"  # the micro-batch program that `session.plan` shows

LOSS_AND_GRADIENTS = "loss and gradients"
TENSORS = "tensors "  # the beginning of an entry point that computes chosen tensors: `steps/tensor_graphs.py`

# The entry points of a manual step; `steps/manual_step.py` has their graphs.
MANUAL = ("backward", "gradients", "clip", "apply", "observe", LOSS_AND_GRADIENTS)
UPDATES = ("clip", "apply")  # these take gradients as inputs, and compute no matrix products


@dataclass(frozen=True)
class Definition:
    """A graph or step, its optimizer (None: inference), how it trains, and the largest sizes to compile for."""

    model: Graph | Step
    optimizer: Optimizer | None
    capacity: Mapping[str, int] = field(default_factory=dict)
    step_options: StepOptions = PLAIN
    measures_only: bool = False  # is `evaluate` the entry point that `step` runs?
    clocks: UpdateCounters = field(default_factory=UpdateCounters)  # update counters of its programs
    ranks: int = 0  # data-parallel ranks; 0: not distributed
    shard: str | None = None  # "optimizer": each rank holds a shard of the optimizer's state
    model_ranks: int = 1  # tensor-parallel ranks, which have the same rows
    # Recorded so far: the graph of a step function, and the graphs of entry points.
    recorded: list[Graph] = field(default_factory=list)
    traced: dict[str, ir.IRGraph] = field(default_factory=dict)
    splits: dict[str, MicroBatchGraphs] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """The name of the entry point that `step` runs."""
        if self.has_micro_batches:
            return PART
        if self.measures_only:
            return EVALUATE
        return TRAIN if self.optimizer is not None or isinstance(self.model, Step) else "inference"

    @property
    def graph(self) -> Graph:
        """The graph; for a step function, the graph that it recorded."""
        if isinstance(self.model, Graph):
            return self.model
        if not self.recorded:
            self.recorded.append(self.model.graph(self.clocks))
        return self.recorded[0]

    # -- micro-batches -------------------------------------------------------------------------------------------

    @property
    def has_micro_batches(self) -> bool:
        """Does a step take several micro-batches?"""
        return self.step_options.accumulate > 1 and self.optimizer is not None

    def micro_batches(self, kind: str) -> MicroBatchGraphs:
        """The programs of "train" or "evaluate" over micro-batches; each is an entry point: `train.part`."""
        if kind not in self.splits:
            from wholestep.steps.micro_batches import (
                split_step,  # imported here because it imports autodiff
            )

            assert kind != TRAIN or isinstance(self.model, Graph), "a step function is not split"
            rows = 0
            if self.step_options.per_row.names and kind == TRAIN:
                rows = self.capacity.get(batch_symbol(self.graph), 1) * self.step_options.accumulate
            self.splits[kind] = split_step(
                self._record_update,
                self.optimizer if kind == TRAIN else None,
                self.step_options,
                self._rows_divided if kind in TOGETHER else 0,
                rows,
            )
        return self.splits[kind]

    # -- sizes ---------------------------------------------------------------------------------------------------

    def sizes_of(self, graph: ir.IRGraph) -> dict[str, int]:
        """The capacity of every symbol of an entry point; sizes of micro-batches are derived from the batch size."""
        divided, numbered = False, dict[str, int]()
        if self.ranks:
            from wholestep.steps.distributed import has_parts, is_divided

            divided, numbered = is_divided(graph), {RANK: self.ranks - 1} if has_parts(graph) else {}
            if self.model_ranks > 1:
                numbered = {**numbered, MODEL_RANK: self.model_ranks - 1}
        if not divided and not set(MICRO_BATCH_DIMS) & set(graph.symbols):
            return {**capacity_of(graph, self.capacity), **numbered}
        batch = batch_symbol(self.graph)
        rows = self.capacity.get(batch, 1) * self.step_options.accumulate
        sizes = {**self.capacity, FIRST: rows, ROWS: rows, PARTS: self.step_options.accumulate}
        if not divided:
            return {**capacity_of(graph, sizes), **numbered}
        # A rank has its part of the rows; the sizes of the whole batch appear when the step is divided.
        rank_rows = {batch: -(-self.capacity.get(batch, 1) // self.ranks)}
        part = {BATCH: self.capacity.get(batch, 1)} if FIRST in graph.symbols else {}
        return {**capacity_of(graph, {**sizes, **rank_rows}), ROWS: rows, OWN: rows, **part, **numbered}

    @property
    def has_fixed_batch(self) -> bool:
        """Is the size of the first axis of the first input a constant?"""
        first = next(iter(self.graph.inputs.values()), None)
        return first is not None and bool(first.shape) and isinstance(first.shape[0], int)

    def fits(self, arrays: Mapping[str, object]) -> bool:
        """Are there at most as many rows as the capacity?  Values that are not arrays are refused later."""
        name, first = next(iter(self.graph.inputs.items()), ("", None))
        rows = arrays.get(name)
        if first is None or not first.shape or not isinstance(rows, Sized):
            return True
        return len(rows) <= self.capacity.get(str(first.shape[0]), len(rows))

    def rows_in(self, arrays: Mapping[str, object]) -> tuple[int, int] | None:
        """(rows of the arrays, rows of the largest batch of a step); None if they are not known."""
        name, first = next(iter(self.graph.inputs.items()), ("", None))
        rows = arrays.get(name)
        if first is None or not first.shape or not isinstance(rows, Sized):
            return None
        most = self.capacity.get(str(first.shape[0]), first.shape[0])
        return len(rows), most * self.step_options.accumulate if isinstance(most, int) else len(rows)

    def with_room(self, arrays: Mapping[str, object]) -> Definition:
        """The definition for at least as many rows as the arrays have, a power of two; itself if they fit."""
        if self.fits(arrays):
            return self
        name, first = next(iter(self.graph.inputs.items()))
        rows = len(arrays[name])  # type: ignore[arg-type]
        return replace(self, capacity={**self.capacity, str(first.shape[0]): 1 << (rows - 1).bit_length()}, splits={})

    # -- entry points --------------------------------------------------------------------------------------------

    def trace(self, entry: str) -> ir.IRGraph:
        """The graph of an entry point, recorded once."""
        if entry not in self.traced:
            traced = self._trace(entry)
            # Micro-batch programs were cast before the step was divided.
            if self.step_options.precision.is_half and entry not in UPDATES and "." not in entry:
                from wholestep.compiler.passes.lower.autocast import lower_precision

                traced = lower_precision(traced, self.step_options.precision)
            if self.ranks and (kind := entry.partition(".")[0]) in TOGETHER:
                from wholestep.steps.distributed import (  # imported here because most steps run on one rank
                    mark_batch_inputs,
                    with_divided_states,
                    with_split_states,
                )

                if self._rows_divided:
                    traced = mark_batch_inputs(traced, batch_symbol(self.graph, "a step of several workers"))
                if self.model_ranks > 1:
                    traced = with_split_states(traced, self.graph.owners, self.model_ranks)
                if self.shard is not None and self.ranks > 1 and kind == TRAIN:
                    traced = with_divided_states(traced, self.ranks)
            if self._trains(entry):
                # imported here because few optimizers average weights
                from wholestep.optim.core.averages import with_averages_as_weights

                traced = with_averages_as_weights(traced, self.averaged)
            self.traced[entry] = traced
        return self.traced[entry]

    @property
    def _rows_divided(self) -> int:
        """The number of ranks with rows of their own; 0: not distributed, or tensor-parallel only."""
        return 0 if self.ranks == 1 and self.model_ranks > 1 else self.ranks

    @property
    def averaged(self) -> set[str]:
        """The weights that the optimizer averages, once a training program was recorded."""
        return self.clocks.averaged

    def _trains(self, entry: str) -> bool:
        """Does the entry point use the raw weights of a model that shows their averages?"""
        raw = entry in (*MANUAL, FORWARD) or entry.startswith(TENSORS)
        return bool(self.averaged) and (entry.partition(".")[0] == TRAIN or raw)

    @property
    def _record_update(self) -> Graph:
        """A copy of the user's graph, in which an update is recorded."""
        graph = self.graph.copy()
        graph.clocks = self.clocks
        return graph

    def _trace(self, entry: str) -> ir.IRGraph:
        if entry.startswith(TENSORS):
            from wholestep.steps.tensor_graphs import tensor_graph  # imported here because few sessions are inspected

            return tensor_graph(self._record_update, entry)
        if isinstance(self.model, Step) and entry == TRAIN:
            measured = self.graph.copy()
            record_metrics(measured, self.step_options.measures)
            return with_schedules(measured.to_ir(), self.step_options.schedules)
        if isinstance(self.model, Step) and entry in MANUAL and entry != "observe":
            raise UsageError(
                f"{entry} needs gradients and updates as separate programs, and a @ws.step function has its own. Read "
                "its values: return them, or tensor.keep('name')."
            )
        kind, _, phase = entry.partition(".")
        if phase:
            return self._trace_phase(kind, phase)
        if entry == TRAIN:
            assert self.optimizer is not None
            graph = train_graph(self._record_update, self.optimizer, options=self.step_options)
            return with_schedules(graph, self.step_options.schedules)
        if entry in (EVALUATE, VALIDATE):
            return evaluate_graph(self.graph, self.step_options)
        if entry in MANUAL:
            from wholestep.steps.manual_step import GRAPHS  # imported here because most sessions run whole steps

            return GRAPHS[entry](self._record_update, self.optimizer or SGD())
        predicts = entry in ("predict", FORWARD)
        return predict_graph(self.graph) if predicts and _has_loss(self.graph) else forward_only(self.graph)

    def _trace_phase(self, kind: str, phase: str) -> ir.IRGraph:
        """A micro-batch program with the schedules of its scalars."""
        phases, schedules = self.micro_batches(kind).phases, self.step_options.schedules if kind == TRAIN else {}
        used = {name: graph.leaves("scalar").keys() for name, graph in phases.items()}
        unused = {t: s for t, s in schedules.items() if not any(t in names for names in used.values())}
        here = {t: s for t, s in schedules.items() if t in used[phase]}
        return with_schedules(phases[phase], unused or here)  # an unused schedule is refused by name

    # -- another optimizer, other options -----------------------------------------------------------------------

    def same_program(self, optimizer: Optimizer) -> bool:
        """Would the step with `optimizer` be the same program, up to runtime scalars?"""
        current = self.optimizer
        return current is not None and type(optimizer) is type(current) and optimizer.structure() == current.structure()

    def same_schedules(self, schedules: Mapping[str, Schedule]) -> bool:
        """Would a step with these schedules have the same program, with at most other runtime scalars?"""
        structure = [
            {t: (s.unit, s.structure()) for t, s in x.items()} for x in (self.step_options.schedules, schedules)
        ]
        return structure[0] == structure[1]

    def with_optimizer(self, optimizer: Optimizer) -> Definition:
        """The definition with another optimizer."""
        if isinstance(self.model, Step):
            raise UsageError("a @ws.step function names its own optimizers; change them there and build again.")
        return replace(self, optimizer=optimizer, **self._without_recordings())

    def with_step_options(self, options: StepOptions) -> Definition:
        """The definition with other step options."""
        return replace(self, step_options=options, **self._without_recordings())

    def recounted(self, count_of: Callable[[str], int] | None = None) -> Definition:
        """The definition, to be recorded again for the current update counts of parameters, or those of `count_of`."""
        return replace(self, **{**self._without_recordings(), "clocks": clocks_of(self.model, count_of)})

    def _without_recordings(self) -> dict[str, Any]:
        return {"recorded": [], "traced": {}, "splits": {}, "clocks": clocks_of(self.model)}

    def reset_optimizer_state(self, state: State, model_states: Container[str], plans: Sequence[Plan]) -> None:
        """Reset the optimizer's states and update counts; states that belong to the model are kept."""
        for plan in plans:
            fresh = first_values(plan, 0)
            for name, _ in plan.states:
                if name in state and name not in model_states:
                    state.set(name, fresh(name))
        state.set_updates(dict.fromkeys(self.clocks.starts, 0))


def _has_loss(graph: Graph) -> bool:
    first = next(iter(graph.outputs.values()), None)
    return first is not None and first.shape == () and first.dtype.is_float


# -- from a model to its definition ------------------------------------------------------------------------------


def as_graph(
    model: Model,
    inputs: Inputs | None,
    targets: Inputs | None,
    loss: Any,
    loss_weights: Mapping[str, float] | None = None,
    augmentations: Augmentations | None = None,
) -> Graph | Step:
    """A module and its loss as a graph; graphs and steps are returned unchanged."""
    if isinstance(model, Module):
        return training_graph(model, inputs, targets, loss, loss_weights, augmentations)
    if any(argument is not None for argument in (inputs, targets, loss, loss_weights, augmentations)):
        raise UsageError(
            "inputs=, targets=, loss= and loss_weights= describe a module; a graph or step declares its own."
        )
    return model


def define_step(
    model: Graph | Step,
    optimizer: Optimizer | str | None,
    batch_size: int | None,
    capacity: Mapping[str, int] | None,
    options: StepOptions = PLAIN,
    ranks: int = 0,
    shard: str | None = None,
    model_ranks: int = 1,
) -> Definition:
    """The definition of a graph with an optimizer (SGD by default), or of a step function, which has its own."""
    if isinstance(model, Step):
        if optimizer is not None:
            raise UsageError("a @ws.step function applies its own optimizers; leave optimizer= out.")
        taken = {name: getattr(options, name) for name in ("measures", "schedules", "precision", "memory")}
        if options != StepOptions(**taken):
            raise UsageError(
                "a @ws.step function records its own clipping (ws.optim.clip_by_global_norm) and makes one update of "
                "each batch; of these options it takes only metrics=, schedule=, precision= and memory=."
            )
        definition = Definition(model, None, {}, options, ranks=ranks, shard=shard, model_ranks=model_ranks)
        return with_capacity(definition, batch_size, capacity)
    need_graph(model, "build_session")
    if optimizer is not None and has_own_updates_only(model):
        raise UsageError(
            f"optimizer={optimizer!r}: the graph has no outputs, so there is no loss to take gradients of; it updates "
            f"{', '.join(model.updates)} itself. Leave optimizer= out, or declare the loss: g.set_outputs([loss])."
        )
    model.need_penalties()
    check_options(options, ranks)
    options = with_parts(options, model)
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        from wholestep.optim.core.names import get  # imported here because most callers pass an optimizer

        optimizer = get(optimizer)
    definition = Definition(model, optimizer or SGD(), {}, options, ranks=ranks, shard=shard, model_ranks=model_ranks)
    return with_capacity(definition, batch_size, capacity)


def check_options(options: StepOptions, ranks: int) -> None:
    """Raise UsageError for options that do not go together."""
    if options.per_row.names:
        from wholestep.steps.row_values import check_row_options  # imported here because it imports autodiff

        check_row_options(options, ranks)
    if options.privacy is not None:
        from wholestep.steps.private_gradients import check_private_options  # imported here because it imports autodiff

        check_private_options(options, ranks)


def need_graph(model: object, what: str) -> None:
    """Raise UsageError unless the model is a graph."""
    if not isinstance(model, Graph):
        raise UsageError(
            f"{what} takes a ws.nn.Module, a ws.Graph or a @ws.step function; received {type(model).__name__}: "
            f"{model!r}."
        )


def with_capacity(definition: Definition, batch_size: int | None, capacity: Mapping[str, int] | None) -> Definition:
    """The definition with its capacity; OptionError for a dimension without one."""
    sizes = {**(capacity or {}), **({} if batch_size is None else {"batch": batch_size})}
    definition = replace(definition, clocks=clocks_of(definition.model), capacity=sizes)
    graph = definition.trace(definition.main)
    fitted = replace(definition, capacity=merge_capacity(graph, batch_size, capacity))
    fitted.sizes_of(graph)
    return fitted
