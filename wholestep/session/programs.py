"""The programs of a session: entry points over one state, compiled on first use."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from wholestep.compiler.backend import LoadContext, Placement, Program
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.update_counters import AVERAGE, RAW, START, UpdateCounters, is_counter
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.memory import explain_memory_errors
from wholestep.compiler.runtime.state.state import State
from wholestep.compiler.runtime.state.step_counters import Counting, SessionCounter
from wholestep.compiler.runtime.state.storage import StateMemory
from wholestep.errors import UsageError
from wholestep.schedules.bind import scalar_name
from wholestep.session.building.plans import Plans
from wholestep.session.metrics import EntryMetrics
from wholestep.session.running.entry_point import EntryPoint, SessionLock
from wholestep.session.runtime_scalars import RuntimeScalars, governor
from wholestep.steps.capacity import PREFIX
from wholestep.steps.definition import PART, TRAIN, check_options
from wholestep.steps.evaluate import EVALUATE, VALIDATE
from wholestep.steps.loss_scale import REFUSED
from wholestep.steps.options import PLAIN, StepOptions, as_row_values
from wholestep.steps.states import nonzero_values
from wholestep.steps.train import NONFINITE

if TYPE_CHECKING:
    from wholestep.callbacks.observers import Observer

log = logging.getLogger("wholestep")

WITH_ROWS = "main with "  # prefix of entry points that are the main one with values of rows


class Programs:
    """Entry points by name, their shared runtime scalars, and their metrics."""

    def __init__(self, where: Placement, state: State, compiled: Plans | None) -> None:
        self.where, self.state = where, state
        self.place = LoadContext(where, state, where.device.scratch())
        self.entries: dict[str, EntryPoint] = {}
        self.measured: dict[str, EntryMetrics] = {}
        self.of_micro_batches: list[Program] = []  # the programs of one step, in order
        self.scalars = RuntimeScalars(_broadcast(self.entries))
        self.turn = SessionCounter()  # counts the steps of this session
        self.counts: Counting = state  # `counts.turn` is the counter of the session that is stepping
        self.turns = SessionLock()  # the lock of threads that share the session
        self.held: dict[str, AnyArray] = {}  # inputs given by set_input
        self.notes: tuple[str, ...] = ()  # lines about the data of a run, for the report
        self.observer: Observer | None = None
        self.closed = False
        self.main: EntryPoint
        self.stepped: EntryPoint  # the entry point of the last step: the main one, or the same step with `per_row=`
        self._define(compiled)

    def _define(self, compiled: Plans | None) -> None:
        """Set the definition that entry points are compiled from; None if there is only the main one."""
        self.compiled = compiled
        self.step_options: StepOptions = PLAIN if compiled is None else compiled.definition.step_options
        self.raises = self.step_options.nonfinite == "raise"
        for name in [name for name in self.entries if name.startswith(WITH_ROWS)]:
            del self.entries[name]  # an entry point of the previous definition
        self._govern()

    def _govern(self) -> None:
        """Let each schedule determine the value of its runtime scalar."""
        state, schedules = self.state, self.step_options.schedules
        self.scalars.governed = {target: governor(target, s, state, self.turn) for target, s in schedules.items()}
        for target, schedule in schedules.items():
            for number, value in schedule.numbers().items():
                if value is not None:  # if it is None, the plan's default is used
                    self.scalars.declare(scalar_name(target, number), value)

    def need(self, what: str) -> Plans:
        """The definition that entry points are compiled from; UsageError for a session built from a plan alone."""
        if self.closed:
            refuse_closed()
        if self.compiled is None:
            raise UsageError(
                f"this session was built from a plan alone and cannot compile {what}. Use ws.build_session(graph)."
            )
        return self.compiled

    def by_name(self, what: str, argument: object, more: tuple[object, ...] = ()) -> Mapping[str, object]:
        """The positional argument of a method, which must be one mapping by input name."""
        if isinstance(argument, Mapping) and not more:
            return argument
        names = ", ".join(f"{i.name}=..." for i in self.main.inputs.all)
        raise UsageError(
            f"{what} takes its inputs by name: session.{what}({names}); received {1 + len(more)} by position."
        )

    def with_held(self, inputs: dict[str, object]) -> dict[str, object]:
        """Inputs merged with the inputs of `set_input`, which are used until they are set again."""
        self.held = {name: a for name, a in self.held.items() if name not in inputs}
        return {**self.held, **inputs}

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that a step runs: one plan, or the plans of its micro-batches."""
        return tuple(p.plan for p in self.of_micro_batches) or (self.main.plan,)

    @property
    def lasting_states(self) -> dict[str, bool]:
        """The states of a step that persist between steps; True for the model's own."""
        used = [name for plan in self.plans for name, _ in plan.states]
        model = None if self.compiled is None else self.compiled.definition.model
        model_states = model.states if isinstance(model, Graph) else {}
        names = dict.fromkeys(n for n in (*model_states, *used) if n in self.state and not n.startswith(PREFIX))
        return {name: not model_states or name in model_states for name in names}

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The parameters; for a plan from a file, which does not distinguish them, all persistent states."""
        names = self.lasting_states if self.compiled is None else self.compiled.definition.graph.parameters
        return tuple(name for name in names if name in self.state)

    def close(self) -> None:
        """Release programs and their memory; later calls are UsageErrors."""
        if not self.closed:
            self.wait()
            self.closed, self.compiled, self.held, self.observer = True, None, {}, None
            self.entries.clear()
            self.of_micro_batches, self.measured = [], _Closed()  # type: ignore[assignment]
            self.place = LoadContext(self.where, self.state, self.where.device.scratch())
            self.main = self.stepped = _Closed()  # type: ignore[assignment]

    def wait(self) -> None:
        """Block until all steps are done; raises the error of a failed step."""
        for entry in [*self.entries.values()]:  # a copy, since another thread may load an entry point
            entry.program.wait()

    # -- counting ------------------------------------------------------------------------------------------------

    def take_turn(self) -> None:
        """Make steps count for this session: its own counter, and the counters of the parameters that it updates."""
        if not self.main.plan.updated:
            return
        self.need_averages("a step")
        self.count_apart(self.state.updates_of)
        self._begin_averages()
        for name, start in self.starts().items():
            for entry in self.entries.values():
                entry.program.scalar(name, start)
        self.turn.keys = tuple(self.clocks.starts)
        self.state.take_turn(self.turn)

    def need_averages(self, what: str) -> None:
        """Raise UsageError inside `raw_weights`, where states are swapped."""
        if self.state.shows_raw:
            raise UsageError(f"{what} is not possible inside `with ws.optim.raw_weights(...)`; leave it first.")

    def _begin_averages(self) -> None:
        """Initialize new averages with the current weights; end averages of weights that are now trained without."""
        state, averaged = self.state, self.clocks.averaged
        if not state.family.averages or not self.where.device.runs:
            return
        for name in {name for plan in self.plans for name in plan.updated} - averaged:
            for other, weight in state.averages_of(name):
                other.set_updates({weight + AVERAGE: 0})
        for name in averaged:
            if not state.updates_of(name + AVERAGE):
                state.set(name + RAW, state.get(name))

    @property
    def clocks(self) -> UpdateCounters:
        """The update counters of the session's programs."""
        return UpdateCounters() if self.compiled is None else self.compiled.definition.clocks

    def count_apart(self, count_of: Callable[[str], int]) -> None:
        """Recompile if parameters that share an update counter have different counts."""
        if any(len({count_of(key) for key in keys}) > 1 for keys in self.clocks.cohorts().values()):
            compiled = self.need("a step for parameters that have had different numbers of updates")
            recounted = compiled.of(compiled.definition.recounted(count_of))
            self.recompile(recounted, "the numbers of updates that its parameters have had")

    def starts(self) -> dict[str, float]:
        """The steps at which a program's counters start."""
        state, cohorts = self.state, self.clocks.cohorts()
        starts = {name: state.step - state.updates_of(keys[0]) for name, keys in cohorts.items()}
        return {START: state.step - state.updates_in(self.turn), **starts}

    # -- entry points --------------------------------------------------------------------------------------------

    def entry(self, name: str) -> EntryPoint:
        """An entry point other than the main one, compiled on first use."""
        if name not in self.entries:
            plan = self.need(f"the entry point {name!r}").plan(name)
            self._load_apart(name, lambda: self.load(name, *plan))
        return self.entries[name]

    def _load_apart(self, name: str, load: Callable[[], object]) -> None:
        """Load an entry point under the session lock: shared memory may move."""
        with self.turns:
            if name not in self.entries:  # another thread may have loaded it first
                load()

    def entry_with_room(self, name: str, arrays: Mapping[str, object]) -> EntryPoint:
        """An entry point with capacity for all rows of the arrays."""
        compiled = self.need(f"the entry point {name!r}")
        larger = compiled.with_room(arrays)
        if larger is compiled:
            return self.entry(name)
        key = f"{name} of {larger.definition.capacity}"
        if key not in self.entries:
            plan = larger.plan(name)
            self._load_apart(key, lambda: self.load(key, *plan))
        return self.entries[key]

    def entry_for_all_rows(self, kind: str = EVALUATE) -> EntryPoint:
        """`evaluate` over batches, for data of any size, compiled on first use."""
        name = f"{kind} all rows"
        if name not in self.entries:
            self._load_apart(name, lambda: self._load_micro_batches(name, kind))
        return self.entries[name]

    def main_with_rows(self, per_row: Sequence[str]) -> EntryPoint:
        """The step with values of every row among its outputs, compiled on first use."""
        wanted = as_row_values(per_row)
        if set(wanted.names) <= set(self.step_options.per_row.names) and not self.step_options.per_row.capacity:
            return self.main
        name = WITH_ROWS + ", ".join(wanted.names)
        if name not in self.entries:
            compiled = self.need("a step with per_row=")
            definition = compiled.definition
            if definition.main not in (TRAIN, PART) or not isinstance(definition.model, Graph):
                raise UsageError("step(per_row=...) needs a step that trains a ws.nn.Module or a ws.Graph.")
            check_options(options := replace(self.step_options, per_row=wanted), definition.ranks)
            measured = compiled.of(definition.with_step_options(options))
            self._load_apart(name, lambda: self._load_step(name, measured))
        return self.entries[name]

    def _load_step(self, name: str, compiled: Plans) -> EntryPoint:
        if compiled.definition.has_micro_batches:
            return self._load_micro_batches(name, TRAIN, compiled=compiled)
        return self.load(name, *compiled.plan(compiled.definition.main))

    def recompile(self, compiled: Plans, why: str) -> None:
        """Replace the step, over the same state; the caller holds the session lock."""
        log.info("recompiling the step for %s; parameters are kept", why)
        self._define(compiled)
        self.load_main(*compiled.plan(compiled.definition.main))

    def load_main(self, plan: Plan, key: str) -> None:
        """Load the main entry point."""
        definition = None if self.compiled is None else self.compiled.definition
        if definition is not None and definition.has_micro_batches:
            self.main = self._load_micro_batches("main", TRAIN, {PART: (plan, key)})
        else:  # a measuring session has one program, called "evaluate"
            measures_only = definition is not None and definition.measures_only
            self.main = self.load(EVALUATE if measures_only else "main", plan, key)
        self.stepped = self.main

    def load(self, name: str, plan: Plan, key: str) -> EntryPoint:
        """Load an entry point that is one program."""
        self._measure(name, name, [plan])
        return self._keep(name, EntryPoint(self._load_program(plan, key), self.turns, self.measured[name]))

    def _load_micro_batches(
        self,
        name: str,
        kind: str,
        planned: Mapping[str, tuple[Plan, str]] | None = None,
        compiled: Plans | None = None,
    ) -> EntryPoint:
        """The programs of micro-batches over one state, as one entry point."""
        compiled = compiled or self.need("micro-batches")
        definition = compiled.definition
        names = [f"{kind}.{phase}" for phase in definition.micro_batches(kind).phases]
        plans = {n: (planned or {}).get(n) or compiled.plan(n) for n in names}
        programs = [self._load_program(*plan_and_key) for plan_and_key in plans.values()]
        part, last = plans[f"{kind}.part"][0], plans[names[-1]][0]
        # imported here because most steps have no micro-batches
        from wholestep.session.running.micro_batches import outer_plan, shape_of

        outside = outer_plan(definition, kind, part, last)
        program = self.where.device.load_micro_batches(outside, programs, self.place, shape_of(definition, kind))
        if name == "main":
            self.of_micro_batches = programs
        self._measure(name, kind, [part, last])
        return self._keep(name, EntryPoint(program, self.turns, self.measured[name]))

    def _measure(self, name: str, kind: str, plans: Sequence[Plan]) -> None:
        """Register the metrics of an entry point; all kinds of `evaluate` share theirs."""
        shown = EVALUATE if kind == VALIDATE else kind
        metrics = self.measured[name] = EntryMetrics(
            self.step_options, self.state, plans, EVALUATE if shown == EVALUATE else ""
        )
        self.measured.setdefault(shown, metrics)

    def _keep(self, name: str, entry: EntryPoint) -> EntryPoint:
        if self.where.device.runs:
            refused = REFUSED if REFUSED in entry.outputs else None  # output of a step function with `ws.LossScale`
            is_step = name == "main" or name.startswith(WITH_ROWS)
            unless = None if not is_step else NONFINITE if self.step_options.may_skip else refused
            stops = (
                self.raises and self.step_options.loss_scale is None
            )  # without it, no smaller scale can remedy the step
            entry.program.count_steps(bool(entry.plan.updated) and is_step, unless, stops)
        self.entries[name] = entry
        self.state.take_turn(None)  # the next step sets its counters
        return entry

    def _load_program(self, plan: Plan, key: str) -> Program:
        with explain_memory_errors(plan, self.where.threads):
            program = self.where.device.load(plan, self.place, key, partial(self._reserve, plan))
        for scalar in plan.scalars:
            if not is_counter(scalar.name):
                program.scalar(scalar.name, self.scalars.declare(scalar.name, scalar.default))
        return program

    def _reserve(self, plan: Plan) -> None:
        """Allocate the states and scratch memory of a plan; a backend notifies programs whose memory moves."""
        buffers = {name: plan.buffers[id] for name, id in plan.states}
        types = {name: buffer.user_type for name, buffer in buffers.items()}
        by_columns = {name for name, buffer in buffers.items() if buffer.by_columns}
        owners = {} if self.compiled is None else self.compiled.definition.graph.owners
        existing = [name for name in types if (owners[name].slot is not None if name in owners else name in self.state)]
        if existing:
            log.info("%d states exist in the model and keep their values: %s", len(existing), ", ".join(existing))
        first = nonzero_values(plan, self.where, self.state, owners)
        for names, memory in memories(plan, self.where):
            self.state.add({name: types[name] for name in names}, first, owners, memory, by_columns)
        self.place.scratch.reserve(plan, self.where.threads)


def memories(plan: Plan, where: Placement) -> Iterator[tuple[list[str], StateMemory]]:
    """The memory of a plan's states: the device's, except for sharded states."""
    divided = [plan.buffers[id] for _, id in plan.states if plan.buffers[id].is_part]
    yield [name for name, id in plan.states if not plan.buffers[id].is_part], where.device.memory
    if divided:
        # imported here because most plans have none
        from wholestep.compiler.runtime.state.partitioned_state import memories_of_parts

        group, memory = where.group, where.device.memory
        assert group is not None, "ranks divide a state"
        memory_of = memories_of_parts(divided, memory, group)
        for each in dict.fromkeys(memory_of.values()):
            yield [name for name, state_memory in memory_of.items() if state_memory is each], each


def refuse_closed() -> NoReturn:
    """Raise UsageError: a session was used after it was closed."""
    raise UsageError("this session is closed; build another one. The model still works: predict, evaluate, save.")


class _Closed:
    """Replaces the main entry point and its metrics after `close`."""

    def __call__(self, *_: object) -> NoReturn:
        refuse_closed()

    def __getattr__(self, name: str) -> NoReturn:
        refuse_closed()

    def __contains__(self, name: object) -> NoReturn:
        refuse_closed()


def _broadcast(entries: Mapping[str, EntryPoint]) -> Callable[[str, float], None]:
    """A function that sets a scalar in all entry points.  It holds no reference to the session: no cycle."""

    def changed(name: str, value: float) -> None:
        for entry in [*entries.values()]:  # a copy, since another thread may load an entry point
            entry.program.scalar(name, value)

    return changed
