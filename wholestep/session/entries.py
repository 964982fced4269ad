"""The programs behind a session: entry points over one state, compiled when they are asked for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from wholestep.compiler.backend import Device, Place, Program
from wholestep.compiler.frontend.clocks import AVERAGE, RAW, START, Clocks, is_counter
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.counting import Counting, Turn
from wholestep.compiler.runtime.memory import explained
from wholestep.compiler.runtime.state import State
from wholestep.compiler.target import Target
from wholestep.errors import UsageError
from wholestep.schedules.bind import scalar_name
from wholestep.session.metrics import Measured
from wholestep.session.micro_batches import seen_from_outside, window_shape
from wholestep.session.results import EntryPoint
from wholestep.session.scalars import Scalars, governor
from wholestep.session.source import PART, TRAIN, Source, Stand
from wholestep.session.turns import Turns
from wholestep.steps.micro_batch_names import PREFIX as WINDOW_STATES
from wholestep.steps.recipe import Recipe
from wholestep.steps.states import nonzero_values
from wholestep.steps.train import EVALUATE, NONFINITE, PLAIN

log = logging.getLogger("wholestep")

WHOLE = "evaluate all rows"


class Programs:
    """Entry points by name, the runtime scalars that they share, and what they measure."""

    def __init__(self, device: Device, place: Place, source: Source | None) -> None:
        self._device, self._place, self._source = device, place, source
        self._entries: dict[str, EntryPoint] = {}
        self._measured: dict[str, Measured] = {}
        self._programs: list[Program] = []  # of a window, in order
        self._held: dict[str, AnyArray] = {}  # inputs given by set_input
        self._scalars = Scalars(_broadcast(self._entries))
        self._turn = Turn()  # what its steps count for
        self._counts: Counting = place.state  # whose turn it is: looked at in every step
        self._turns = Turns()  # of threads that share the session
        self._main: EntryPoint
        self._govern()

    @property
    def state(self) -> State:
        """Parameters and other states, shared by all sessions over the same model."""
        return self._place.state

    @property
    def threads(self) -> int:
        return self._place.threads

    @property
    def device(self) -> str:
        """What runs its steps, as `device=` names it: "cpu/portable", "null:cuda/sm_90"."""
        return self._device.name

    @property
    def target(self) -> Target:
        """What its plans are made for."""
        return self._device.target

    @property
    def seed(self) -> int:
        """Keys random nodes and the order of epochs."""
        return self._place.seed

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that a step runs: one, or those of a window."""
        return tuple(p.plan for p in self._programs) or (self._main.plan,)

    @property
    def lasting_states(self) -> dict[str, bool]:
        """The states that a step reads or writes and that mean something between steps; True: the model's own."""
        used = [name for plan in self.plans for name, _ in plan.states]
        own = self._source.model.states if self._source is not None and isinstance(self._source.model, Graph) else {}
        names = dict.fromkeys(n for n in (*own, *used) if n in self.state and not n.startswith(WINDOW_STATES))
        return {name: not own or name in own for name in names}

    def _recompile(self, source: Source, why: str) -> None:
        log.info("recompiling the step for %s; parameters are kept", why)
        self._source = source
        self._govern()
        plan, key = source.plan(source.main, self._place.options, self._stand)
        self._main = self._load("main", plan, key)

    @property
    def _recipe(self) -> Recipe:
        return PLAIN if self._source is None else self._source.recipe

    @property
    def _raises(self) -> bool:
        return self._recipe.nonfinite == "raise"

    def _govern(self) -> None:
        """Scalars that follow a schedule have its value now."""
        state, schedules = self.state, self._recipe.schedules
        self._scalars.governed = {target: governor(target, s, state, self._turn) for target, s in schedules.items()}
        for target, schedule in schedules.items():
            for number, value in schedule.numbers().items():
                if value is not None:  # else the plan knows it
                    self._scalars.declare(scalar_name(target, number), value)

    # -- counting ------------------------------------------------------------------------------------------------

    def _take_turn(self) -> None:
        """From now on steps count for this session: its own, and those of the parameters that they update."""
        if not self._main.plan.updated:
            return
        self._need_averages("a step")
        self._count_apart(self.state.updates_of)
        self._begin_averages()
        for name, start in self._starts().items():
            for entry in self._entries.values():
                entry.program.scalar(name, start)
        self._turn.keys = tuple(self._clocks.starts)
        self.state.take_turn(self._turn)

    def _need_averages(self, what: str) -> None:
        if self.state.shows_raw:
            raise UsageError(f"{what} is not possible inside `with ws.optim.raw_weights(...)`; leave it first.")

    def _begin_averages(self) -> None:
        """An average begins with the weights as they are; where they are trained without it, it has ended."""
        state, averaged = self.state, set() if self._source is None else self._source.averaged
        if not state.family.averages or not self._device.runs:
            return
        for name in {name for plan in self.plans for name in plan.updated} - averaged:
            for other, own in state.averaging(name):
                other.set_updates({own + AVERAGE: 0})
        for name in averaged:
            if not state.updates_of(name + AVERAGE):
                state.set(name + RAW, state.get(name))

    @property
    def _clocks(self) -> Clocks:
        return Clocks() if self._source is None else self._source.clocks

    def _count_apart(self, count_of: Callable[[str], int]) -> None:
        """Compile anew where parameters that the program counts as one have had different numbers of updates."""
        if any(len({count_of(key) for key in keys}) > 1 for keys in self._clocks.cohorts().values()):
            source = self._need_source("a step for parameters that have had different numbers of updates")
            self._recompile(source.recounted(count_of), "the numbers of updates that its parameters have had")

    def _starts(self) -> dict[str, float]:
        """The steps from which a program counts."""
        state, cohorts = self.state, self._clocks.cohorts()
        starts = {name: state.step - state.updates_of(keys[0]) for name, keys in cohorts.items()}
        return {START: state.step - state.updates_in(self._turn), **starts}

    # -- entry points --------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> EntryPoint:
        """An entry point beside the main one, compiled when it is first asked for."""
        if name not in self._entries:
            plan, key = self._need_source(f"the entry point {name!r}").plan(name, self._place.options, self._stand)
            self._load(name, plan, key)
        return self._entries[name]

    def _entry_with_room(self, name: str, given: Mapping[str, object]) -> EntryPoint:
        """An entry point that takes all rows of what is given, be they more than the session's capacity."""
        source = self._need_source(f"the entry point {name!r}")
        larger = source.with_room(given)
        if larger is source:
            return self._entry(name)
        key = f"{name} of {larger.capacity}"
        if key not in self._entries:
            self._load(key, *larger.plan(name, self._place.options, self._stand))
        return self._entries[key]

    def _entry_for_all_rows(self) -> EntryPoint:
        """`evaluate` for data of any size, batch after batch, compiled when it is first asked for."""
        return self._entries.get(WHOLE) or self._load_window(WHOLE, EVALUATE)

    @property
    def _stand(self) -> Stand:
        return Stand(self._device, self.threads)

    def _need_source(self, what: str) -> Source:
        if self._source is None:
            raise UsageError(
                f"this session was made from a plan alone and cannot compile {what}. Use ws.build_session(graph)."
            )
        return self._source

    def _load(self, name: str, plan: Plan, key: str) -> EntryPoint:
        """Load an entry point that is one program, or `main` as it is."""
        if name == "main" and self._source is not None and self._source.is_windowed:
            return self._load_window(name, TRAIN, {PART: (plan, key)})
        if name == "main" and self._source is not None and self._source.measures_only:
            name = EVALUATE  # one program under the name by which it is asked for
        self._measured[name] = Measured(self._recipe, self.state, plan, EVALUATE if name == EVALUATE else "")
        return self._keep(name, EntryPoint(self._load_program(plan, key), self._turns, self._measured[name]))

    def _load_window(self, name: str, kind: str, known: Mapping[str, tuple[Plan, str]] | None = None) -> EntryPoint:
        """The programs of a window over one state, as one entry point."""
        source = self._need_source("windows")
        names = [f"{kind}.{phase}" for phase in source.window(kind).phases]
        plans = {n: (known or {}).get(n) or source.plan(n, self._place.options, self._stand) for n in names}
        programs = [self._load_program(*found) for found in plans.values()]
        part, last = plans[f"{kind}.part"][0], plans[names[-1]][0]
        shape, outside = window_shape(source, kind), seen_from_outside(source, kind, part, last)
        program = self._device.load_window(outside, programs, self._place, shape)
        if name == "main":
            self._programs = programs
        self._measured[name] = Measured(self._recipe, self.state, part, EVALUATE if kind == EVALUATE else "")
        self._measured.setdefault(kind, self._measured[name])
        return self._keep(name, EntryPoint(program, self._turns, self._measured[name]))

    def _keep(self, name: str, entry: EntryPoint) -> EntryPoint:
        if self._device.runs:
            unless = None if self._recipe.nonfinite == "ignore" or name != "main" else NONFINITE
            entry.program.count_steps(bool(entry.plan.updated) and name == "main", unless, self._raises)
        self._entries[name] = entry
        self.state.take_turn(None)  # the next step tells it what to count from
        return entry

    def _load_program(self, plan: Plan, key: str) -> Program:
        with explained(plan, self._place.threads):
            program = self._device.load(plan, self._place, key, partial(self._reserve, plan))
        for scalar in plan.scalars:
            if not is_counter(scalar.name):
                program.scalar(scalar.name, self._scalars.declare(scalar.name, scalar.default))
        return program

    def _reserve(self, plan: Plan) -> None:
        """Memory for the states and scratch that a plan needs; a backend tells programs whose memory it moves."""
        types = {name: plan.buffers[id].type for name, id in plan.states}
        owners = {} if self._source is None else self._source.graph.owners
        kept = [name for name in types if (owners[name].slot is not None if name in owners else name in self.state)]
        if kept:
            log.info("%d states are the model's own and keep their numbers: %s", len(kept), ", ".join(kept))
        self.state.add(types, nonzero_values(plan, self._place.seed), owners)
        self._place.scratch.reserve(plan.arena_bytes, plan.work_bytes, self._place.threads)


def _broadcast(entries: Mapping[str, EntryPoint]) -> Callable[[str, float], None]:
    """Tells every entry point of a changed scalar.  It knows the entry points alone: no cycle keeps a session alive."""

    def changed(name: str, value: float) -> None:
        for entry in entries.values():
            entry.program.scalar(name, value)

    return changed
