"""A session: the entry points of a program, loaded over one state."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.plan.report import PlanReport, plan_report
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.device import Place, Program, device_named
from wholestep.compiler.runtime.memory import Scratch
from wholestep.compiler.runtime.state import State
from wholestep.compiler.runtime.threads import MAX_THREADS, default_threads
from wholestep.compiler.spans import OptimizeReport
from wholestep.errors import UnknownNameError, UsageError
from wholestep.optim import Optimizer
from wholestep.optim.build import EVALUATE, NONFINITE, PLAIN, SKIPPED
from wholestep.optim.recipe import RATE, Recipe, as_schedules
from wholestep.options import CompileOptions, thread_count
from wholestep.schedules.bind import PREFIX, scalar_name
from wholestep.session.checkpoint import load_state_dict, state_dict
from wholestep.session.listing import annotated
from wholestep.session.live import LiveOptimizer, LiveSchedule, Scalars, governor
from wholestep.session.loop import RunOptions, Slice, batches, run_in_slices
from wholestep.session.measuring import Measured, raise_if_refused
from wholestep.session.result import EntryPoint, StepResult
from wholestep.session.source import PART, Source, Stand, first_values
from wholestep.session.verdict import Verdict
from wholestep.session.window import seen_from_outside, window_shape

if TYPE_CHECKING:
    from wholestep.compiler.explain import Explanation

log = logging.getLogger("wholestep")


class Session:
    """A compiled step, ready to run.  `ws.build_session` makes one from a graph; `Session(plan)` from a plan alone.

    Args:
        plan: what `compile_training_graph` or `load_plan` gave.
        state: the model's numbers; without it the session has its own.
        seed: keys random nodes and the order of epochs.
        threads: None uses $WHOLESTEP_THREADS, else the cores that this process may run on.

    Example::

        plan, report = ws.compile_training_graph(g, batch_size=32)
        session = ws.Session(plan)
    """

    def __init__(
        self,
        plan: Plan,
        *,
        state: State | None = None,
        seed: int = 0,
        device: str = "cpu",
        threads: int | None = None,
        options: CompileOptions | None = None,
        source: Source | None = None,
        key: str = "",
    ) -> None:
        self._device = device_named(device)
        self._source = source
        count = thread_count(threads, default_threads(), MAX_THREADS)
        self._place = Place(state or State(), Scratch(), count, seed, options or CompileOptions())
        self._entries: dict[str, EntryPoint] = {}
        self._measured: dict[str, Measured] = {}
        self._programs: list[Program] = []  # of a window, in order
        self._held: dict[str, AnyArray] = {}  # inputs given by set_input
        self._scalars = Scalars(_broadcast(self._entries))
        self._govern()
        self._main = self._load("main", plan, key)
        if source is not None and isinstance(source.model, Graph):
            source.model.sessions.add(self)
        log.info("session: peak %d bytes on %d threads", self.peak_bytes, count)

    # -- running -------------------------------------------------------------------------------------------------

    def step(self, given: Mapping[str, object] | None = None, /, *more: object, **inputs: object) -> StepResult:
        """One step: forward, backward and update in one native call.

        Inputs are named; a mapping may hold names that are no Python identifiers.  Inputs given by `set_input` hold
        until they are given here.
        """
        if given is not None:
            inputs = {**self._mapping("step", given, more), **inputs}
        if self._held:
            inputs = self._with_held(inputs)
        result = self._main(inputs)
        if self._raises:
            raise_if_refused(self._main, self.state)
        return result

    def _mapping(self, what: str, given: object, more: tuple[object, ...] = ()) -> Mapping[str, object]:
        if isinstance(given, Mapping) and not more:
            return given
        names = ", ".join(f"{i.name}=..." for i in self._main.inputs.all)
        raise UsageError(
            f"{what} takes its inputs by name: session.{what}({names}); received {1 + len(more)} by position."
        )

    def _with_held(self, inputs: dict[str, object]) -> dict[str, object]:
        self._held = {name: a for name, a in self._held.items() if name not in inputs}
        return {**self._held, **inputs}

    def run(
        self,
        given: Mapping[str, object] | None = None,
        /,
        *more: object,
        epochs: int = 1,
        shuffle: bool = True,
        start: int = 0,
        batch_size: int | None = None,
        **arrays: object,
    ) -> AnyArray:
        """Epochs over whole data sets; returns the loss of every update.

        Batches are gathered inside the native loop.  The order of an epoch is a function of (seed, epochs done);
        `start` skips that many updates of the first epoch, to go on where another run stopped.
        """
        if given is not None:
            arrays = {**self._mapping("run", given, more), **arrays}
        _refuse_typos(arrays, [i.name for i in self._main.inputs.all])
        found = [part.losses for part in self._slices(arrays, epochs, shuffle, start, batch_size)]
        return np.concatenate(found) if found else np.zeros(0)

    def run_in_slices(
        self,
        arrays: Mapping[str, object],
        *,
        epochs: int = 1,
        shuffle: bool = True,
        start: int = 0,
        batch_size: int | None = None,
        every: int | None = None,
    ) -> Iterator[Slice]:
        """`run`, handing over the losses of every slice as it is done: about 50 ms of steps, `every` of them at most.

        Between two slices the session may be read, saved, evaluated; whoever stops iterating stops training there.

        Example: `for part in session.run_in_slices({"x": X, "labels": Y}): print(part.losses[-1])`.
        """
        return self._slices(arrays, epochs, shuffle, start, batch_size, every)

    def _slices(
        self,
        arrays: Mapping[str, object],
        epochs: int,
        shuffle: bool,
        start: int,
        batch_size: int | None,
        every: int | None = None,
    ) -> Iterator[Slice]:
        self._held = {}  # their memory is where batches are gathered
        options = RunOptions(epochs, shuffle, start, batch_size, self.reset_metrics, self._raises, every)
        return run_in_slices(self._main, self.state, arrays, options)

    def predict(self, given: Mapping[str, object] | None = None, /, **inputs: object) -> AnyArray | dict[str, AnyArray]:
        """The outputs other than the loss, with nothing changed: an array, or a dict where there are several.

        More rows than the capacity are taken part by part, where every input and output has one row for each.
        """
        entry = self._entry("predict")
        parts = [entry(part).outputs for part in entry.parts({**(given or {}), **inputs})]
        outputs = parts[0] if len(parts) == 1 else {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def evaluate(self, given: Mapping[str, object] | None = None, /, **inputs: object) -> StepResult:
        """The loss, all outputs and the metrics of these rows, with nothing changed."""
        entry = self._entry("evaluate")
        self.reset_metrics("evaluate")
        return entry({**(given or {}), **inputs})

    def evaluate_all(self, arrays: Mapping[str, object]) -> dict[str, Any]:
        """The loss over all rows of data sets of any length, and the metrics, with nothing changed.

        Example: `session.evaluate_all({"x": X, "labels": Y})["loss"]`.
        """
        entry = self._entry("evaluate")
        self.reset_metrics("evaluate")
        total = count = 0.0
        for part in batches(entry, arrays):
            rows = len(next(iter(part.values())))
            total, count = total + rows * entry(part).loss, count + rows
        return {"loss": total / count, **(self.metrics("evaluate") if "evaluate" in self._measured else {})}

    def set_input(self, name: str, array: object) -> None:
        """Give an input ahead of `step()`: it is copied, and holds until it is given again."""
        item = self._main.inputs.named(name)
        self._held[name] = self._main.inputs.hold(item, array)

    def wait(self) -> None:
        """Return when all steps are done; on a CPU they are."""

    def read_loss(self) -> float:
        """The first output of the last step."""
        if not self._main.ran:
            raise UsageError("there is no loss yet: call session.step first.")
        return self._main.loss()

    # -- numbers -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Parameters and other states, shared by all sessions over the same model."""
        return self._place.state

    def get(self, name: str) -> AnyArray:
        """A copy of a parameter or state, or of an output or kept tensor of the last step."""
        if name in self.state:
            return self.state.get(name)
        outputs = [o.name for o in self._main.outputs]
        if name not in outputs:
            known = ", ".join(map(repr, [*self.state.names, *outputs])) or "none"
            raise UnknownNameError(
                f"there is nothing named {name!r} to read; there are: {known}. Keep a tensor to read it: tensor.keep()."
            )
        if not self._main.ran:
            raise UsageError(f"the output {name!r} has no value yet: call session.step first.")
        return self._main.read(name, self._main.inputs.sizes)

    def set(self, name: str, array: object) -> None:
        """Replace a parameter or state."""
        self.state.set(name, array)

    def state_dict(self) -> dict[str, AnyArray]:
        """Everything that a bit-exact resume needs: states, runtime scalars, counters."""
        return state_dict(self.state, self._scalars)

    def load_state_dict(self, values: Mapping[str, object], *, strict: bool = True) -> None:
        """Restore what `state_dict` gave.  Nothing is written unless all of it fits."""
        load_state_dict(self.state, self._scalars, values, strict=strict)

    # -- hyper-parameters ----------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> LiveOptimizer:
        """The live numbers of the optimizer: `session.optimizer.lr = 1e-4`."""
        live = self.optimizers
        if len(live) == 1:
            return next(iter(live.values()))
        if "optimizer" in live:
            return live["optimizer"]
        raise UsageError(f"this session has {len(live)} optimizers ({', '.join(live)}); use session.optimizers[name].")

    @property
    def optimizers(self) -> dict[str, LiveOptimizer]:
        """Every optimizer of the step by its name."""
        scalars = [*(name for name, _ in self._scalars.items()), *self._scalars.governed]
        names = [name.removesuffix(".lr") for name in scalars if name.endswith(".lr") and not name.startswith(PREFIX)]
        return {name: LiveOptimizer(name, self._scalars) for name in names}

    @property
    def schedule(self) -> LiveSchedule:
        """The schedule of the learning rate, or the only one there is."""
        live = self.schedules
        if not live:
            raise UsageError("this session has no schedule; build it with schedule=ws.schedules.Cosine(1e-3, 1000).")
        return live.get(RATE) or next(iter(live.values()))

    @property
    def schedules(self) -> dict[str, LiveSchedule]:
        """Every schedule by the runtime scalar that it governs."""
        found = self._recipe.schedules
        return {target: LiveSchedule(target, schedule, self._scalars) for target, schedule in found.items()}

    def set_schedule(self, schedule: object) -> None:
        """Follow other schedules, as `build_session(schedule=...)` takes them; None ends them all.

        Where only numbers differ nothing is compiled; else the step is compiled once more and all states are kept.
        """
        source, new = self._need_source("another schedule"), as_schedules(schedule)
        if source.same_schedules(new):
            for target, item in new.items():
                self.schedules[target].set_numbers({k: v for k, v in item.numbers().items() if v is not None})
            return
        self._scalars.drop(PREFIX)
        self._recompile(source.with_recipe(replace(source.recipe, schedules=new)), "another schedule")

    @property
    def scalars(self) -> Scalars:
        """All runtime scalars by name."""
        return self._scalars

    def set_learning_rate(self, lr: float) -> None:
        """Change the learning rate from the next step on; nothing else changes and nothing is compiled."""
        self.optimizer.lr = lr

    def set_adam(self, lr: float = 1e-3, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        """Train with Adam.  If the optimizer was another, the step is compiled once more; parameters are kept."""
        from wholestep.optim import Adam

        self.set_optimizer(Adam(lr=lr, betas=(beta1, beta2), eps=eps))

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Train with another optimizer: without a recompile where only numbers differ; parameters are kept."""
        source = self._need_source("another optimizer")
        if not isinstance(optimizer, Optimizer):
            raise UsageError(f"an optimizer is a description such as ws.Adam(lr=1e-3); received {optimizer!r}.")
        if source.same_program(optimizer):
            present = dict(self._scalars.items())  # decay that acts on no parameter is not part of the program
            for name, value in source.hyperparameters(optimizer).items():
                if name in present and name not in self._scalars.governed:
                    self._scalars[name] = value
            return
        for name in source.hyperparameters(source.optimizer):
            self._scalars.drop(name)
        self._recompile(source.with_optimizer(optimizer), repr(optimizer))
        self._need_source("").reset_optimizer_state(self.state, self.plan)

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
        self._scalars.governed = {target: governor(target, s, state) for target, s in schedules.items()}
        for target, schedule in schedules.items():
            for number, value in schedule.numbers().items():
                if value is not None:  # else the plan knows it
                    self._scalars.declare(scalar_name(target, number), value)

    def span(self, name: str) -> AbstractContextManager[Any]:
        """Time what happens inside, under a name; it is listed with the spans of the build."""
        return nullcontext() if self._source is None else self._source.spans.span(name)

    # -- metrics -------------------------------------------------------------------------------------------------

    def metrics(self, entry: str = "main") -> dict[str, Any]:
        """The metrics of the epoch so far; of the last `evaluate` where entry="evaluate"."""
        if entry not in self._measured:
            raise UsageError(f"metrics of {entry!r}: expected 'main', or 'evaluate' after session.evaluate.")
        return self._measured[entry].values()

    def reset_metrics(self, entry: str = "main") -> None:
        """Count anew; `run` does it before each epoch, `evaluate` each time."""
        if entry in self._measured:
            self._measured[entry].reset()

    def end_epoch(self) -> dict[str, Any]:
        """Of a loop over `step`: the epoch's metrics, which start anew, and schedules in epochs advance."""
        values = self.metrics()
        self.reset_metrics()
        self.state.epoch += 1
        return values

    @property
    def skipped_steps(self) -> int:
        """How many steps changed nothing since a gradient was not finite (nonfinite="skip")."""
        return int(self.state.get(SKIPPED)) if SKIPPED in self.state else 0

    # -- inspection ----------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan of the main entry point."""
        return self._main.plan

    @property
    def threads(self) -> int:
        return self._place.threads

    @property
    def peak_bytes(self) -> int:
        """The bytes that this session and its state map; known before the first step."""
        if not self._device.runs:
            return self.report().peak_bytes
        programs = sum(e.program.mapped_bytes for e in self._entries.values())
        return self.state.mapped_bytes + self._place.scratch.region.size + programs

    def report(self) -> PlanReport:
        """Kernels, flops, bytes moved, exact peak memory, and where each byte goes."""
        heading = "train" if self.plan.updated else "inference"
        return plan_report(self.plan, self.threads, heading, self._verdict())

    def _verdict(self) -> str:
        """Whether the main plan was checked against the interpreter."""
        known = self._source.verdicts if self._source is not None else {}
        main = self._source.main if self._source is not None else ""
        return str(known.get(main, Verdict(skipped="the session was made from a plan alone")))

    def optimization(self) -> OptimizeReport:
        """What the e-graph did: rules with counts, time by step, budgets, and the plan's integers before and after.

        The integers without the e-graph are those of a second plan, which is made when this is first called and kept
        in the cache; nothing else is compiled again.
        """
        source = self._need_source("the plan to compare with")
        return source.optimization(source.main, self._place.options)

    def explain(self, name: str) -> Explanation:
        """Why a tensor is computed as it is: the rules behind it, with their numeric class, down to your lines.

        Args:
            name: an output, a kept tensor, a state that the step changes, or a gradient ("w1.grad").

        Example::

            print(session.explain("w1.grad"))
        """
        source = self._need_source("an explanation")
        return source.explain(source.main, self._place.options, name)

    @property
    def source(self) -> str:
        """The C that runs, each kernel with the nodes it came from."""
        if self._programs:
            return "\n".join(annotated(p.source, p.plan) for p in self._programs)
        return annotated(self._main.program.source, self.plan)

    def __repr__(self) -> str:
        return f"<Session: {len(self.plan.kernels)} kernels, {self.threads} threads, {self.peak_bytes:,} bytes>"

    # -- entry points --------------------------------------------------------------------------------------------

    def _entry(self, name: str) -> EntryPoint:
        """An entry point beside the main one, compiled when it is first asked for."""
        if name not in self._entries:
            plan, key = self._need_source(f"the entry point {name!r}").plan(name, self._place.options, self._stand)
            self._load(name, plan, key)
        return self._entries[name]

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
        self._measured[name] = Measured(self._recipe, self.state, plan, EVALUATE if name == "evaluate" else "")
        if name == "main" and self._source is not None and self._source.is_windowed:
            entry = self._load_window(self._source, plan, key)
        else:
            entry = EntryPoint(self._load_program(plan, key), self._measured[name])
        if self._device.runs:
            unless = None if self._recipe.nonfinite == "ignore" or name != "main" else NONFINITE
            entry.program.count_steps(bool(entry.plan.updated) and name == "main", unless, self._raises)
        self._entries[name] = entry
        return entry

    def _load_window(self, source: Source, part: Plan, key: str) -> EntryPoint:
        """The programs of a window over one state, as one entry point."""
        names = [f"train.{phase}" for phase in source.window().phases]
        known = {PART: (part, key)}
        plans = [known.get(n) or source.plan(n, self._place.options, self._stand) for n in names]
        self._programs = [self._load_program(*found) for found in plans]
        outside, shape = seen_from_outside(source, part, plans[-1][0]), window_shape(source)
        program = self._device.load_window(outside, self._programs, self._place, shape)
        return EntryPoint(program, self._measured["main"], self._programs[-1])

    def _load_program(self, plan: Plan, key: str) -> Program:
        if self._device.runs:
            self._reserve(plan)
        program = self._device.load(plan, self._place, key)
        for scalar in plan.scalars:
            if scalar.name not in ("step", "epoch"):  # the state counts them
                program.set_scalar(scalar.name, self._scalars.declare(scalar.name, scalar.default))
        return program

    def _reserve(self, plan: Plan) -> None:
        """Memory for the states and scratch that a plan needs; programs loaded before follow if addresses changed."""
        types = {name: plan.buffers[id].type for name, id in plan.states}
        kept = [name for name in types if name in self.state]
        if kept:
            log.info("%d states are the model's own and keep their numbers: %s", len(kept), ", ".join(kept))
        self.state.add(types, first_values(plan, self._place.seed))
        self._place.scratch.reserve(plan.arena_bytes, plan.work_bytes, self._place.threads)
        for entry in self._entries.values():
            entry.program.bind()


def _broadcast(entries: Mapping[str, EntryPoint]) -> Callable[[str, float], None]:
    """Tells every entry point of a changed scalar.  It knows the entry points alone: no cycle keeps a session alive."""

    def changed(name: str, value: float) -> None:
        for entry in entries.values():
            entry.program.set_scalar(name, value)

    return changed


_RUN_OPTIONS = ("epochs", "shuffle", "start", "batch_size")


def _refuse_typos(arrays: Mapping[str, object], inputs: Sequence[str]) -> None:
    """An option of `run` that is misspelt would be taken for an input."""
    for name in arrays:
        close = get_close_matches(name, _RUN_OPTIONS, 1, 0.7)
        if name not in inputs and close:
            raise UsageError(f"run has no option {name!r}; did you mean {close[0]}={arrays[name]!r}?")
