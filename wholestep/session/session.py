"""A session: the entry points of a program, loaded over one state.

`Session` is what users see.  It holds the parts that do the work and hands each call to one of them:

    Programs       entries.py     entry points, compiled when they are asked for; what their steps count for
    Training       training.py    epochs over whole data sets
    Evaluation     evaluate.py    measuring and predicting
    Measurements   metrics.py     what steps have counted
    Knobs          knobs.py       hyper-parameters, schedules, the optimizer
    ByHand         by_hand.py     a step in four parts
    Inspect        inspect/       reports, times, texts
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, overload
from weakref import WeakSet

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.step import Step
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.state import State
from wholestep.compiler.spans import Span
from wholestep.compiler.target import Target
from wholestep.errors import UnknownNameError, UsageError
from wholestep.nn.module import Module
from wholestep.options import CompileOptions
from wholestep.session.by_hand import ByHand
from wholestep.session.delegate import delegate
from wholestep.session.entries import Programs
from wholestep.session.evaluate import Evaluation
from wholestep.session.inspect.inspect import Inspect
from wholestep.session.knobs import Knobs
from wholestep.session.metrics import Measurements, raise_if_refused
from wholestep.session.plans import Plans
from wholestep.session.results import StepResult
from wholestep.session.scalars import LiveOptimizer, LiveSchedule, Scalars
from wholestep.session.state_dict import counts_in, load_state_dict, state_dict
from wholestep.session.training import Training
from wholestep.session.where import where_to
from wholestep.steps.loss_scale import LOSS_SCALE, SCALE
from wholestep.steps.module import only_module
from wholestep.steps.train import SKIPPED

log = logging.getLogger("wholestep")
alive: WeakSet[Session] = WeakSet()  # the sessions of this process


def only_trained() -> Session | None:
    """The session that a loop trains, where it is the only one that has an optimizer."""
    found = [session for session in alive if session.optimizers]
    return found[0] if len(found) == 1 else None


class Session:
    """A compiled step, ready to run.  `ws.build_session` makes one from a graph; `Session(plan)` from a plan alone.

    Threads may share a session: they take turns, and each gets the results of its own inputs.  To run side by side,
    give each thread a session of its own.

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
        compiled: Plans | None = None,
        key: str = "",
    ) -> None:
        known = None if compiled is None else compiled.where
        where = known or where_to(device, threads, seed, options)
        self._programs = programs = Programs(where, state or State(), compiled)
        self._inspect = Inspect(programs)
        self._measurements = Measurements(programs)
        self._training = Training(programs, self._measurements, self._inspect)
        self._evaluation = Evaluation(programs, self._measurements)
        self._knobs = Knobs(programs)
        self._by_hand = ByHand(programs, self._knobs)
        programs.load_main(plan, key)
        alive.add(self)
        if compiled is not None and isinstance(compiled.definition.model, Graph):
            compiled.definition.model.sessions.add(self)
        log.info("session: peak %d bytes on %d threads", self.peak_bytes, where.threads)

    # -- running -------------------------------------------------------------------------------------------------

    def step(self, given: Mapping[str, object] | None = None, /, *more: object, **inputs: object) -> StepResult:
        """One step: forward, backward and update in one native call.

        Inputs are named; a mapping may hold names that are no Python identifiers.  Inputs given by `set_input` hold
        until they are given here.
        """
        programs = self._programs
        if given is not None:
            inputs = {**programs.by_name("step", given, more), **inputs}
        if programs.held:
            inputs = programs.with_held(inputs)
        if programs.observer is not None:
            self._inspect.observe(inputs)
        if programs.counts.turn is not programs.turn:
            with programs.turns:
                programs.take_turn()
        result = programs.main(inputs)
        if programs.raises:
            raise_if_refused(programs.main, programs.state)
        return result

    run = delegate("_training", Training.run)
    run_in_slices = delegate("_training", Training.run_in_slices)

    @overload
    def predict(self, given: Module, /, *arrays: object, **inputs: object) -> Any: ...
    @overload
    def predict(
        self, given: Mapping[str, object] | None = None, /, **inputs: object
    ) -> AnyArray | dict[str, AnyArray]: ...
    def predict(self, given: Any = None, /, *arrays: object, **inputs: Any) -> Any:
        """The outputs other than the loss, with nothing changed: an array, or a dict where there are several.

        More rows than the capacity are taken part by part, where every input and output has one row for each.  Of a
        `@ws.step` function with one module, this is that module's `predict`; where there are several, name one.

        Example: `session.predict(generator, noise)`.
        """
        if isinstance(given, Module):
            return given.predict(*arrays, **{"device": self.device, **inputs})
        named = {**(self._programs.by_name("predict", given, arrays) if given is not None else {}), **inputs}
        compiled = self._programs.compiled
        if compiled is not None and isinstance(compiled.definition.model, Step):
            module = only_module(compiled.definition.graph)
            if module is not None:
                positional, others = (tuple(named.values()), {}) if len(named) == 1 else ((), named)
                return module.predict(*positional, **{"device": self.device, **others})
        outputs = self._evaluation.predict(named)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    @overload
    def evaluate(self, given: Module, /, *data: object, **options: Any) -> dict[str, Any]: ...
    @overload
    def evaluate(self, given: Mapping[str, object] | None = None, /, **inputs: object) -> StepResult: ...
    def evaluate(self, given: Any = None, /, *data: object, **inputs: Any) -> Any:
        """The loss, the outputs and the metrics of any number of rows, with nothing changed and nothing dropped.

        More rows than the capacity are taken batch by batch, the loss being that of all of them; the outputs of each
        row then come from `predict` alone.  Of a `@ws.step` function these are the outputs of its step without its
        updates.  A module comes first where it is to be measured by a loss of its own: its `evaluate`.

        Example: `session.evaluate(student, x, labels, loss="cross_entropy", metrics=["accuracy"])`.
        """
        if isinstance(given, Module):
            return given.evaluate(*data, **{"device": self.device, **inputs})
        named = {**(self._programs.by_name("evaluate", given, data) if given is not None else {}), **inputs}
        return self._evaluation.evaluate(named)

    evaluate_all = delegate("_evaluation", Evaluation.evaluate_all)

    def set_input(self, name: str, array: object) -> None:
        """Give an input ahead of `step()`: it is copied, and holds until it is given again."""
        inputs = self._programs.main.inputs
        self._programs.held[name] = inputs.hold(inputs.named(name), array)

    def wait(self) -> None:
        """Return when all steps are done, which on a CPU they are; raises what went wrong in one of them."""
        for entry in self._programs.entries.values():
            entry.program.wait()

    def read_loss(self) -> float:
        """The first output of the last step."""
        if not self._programs.main.ran:
            raise UsageError("there is no loss yet: call session.step first.")
        return self._programs.main.loss()

    # -- numbers -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Parameters and other states, shared by all sessions over the same model."""
        return self._programs.state

    def get(self, name: str) -> AnyArray:
        """A copy of a parameter or state, or of an output or kept tensor of the last step."""
        main = self._programs.main
        if name in self.state:
            return self.state.get(name)
        if name not in main.outputs:
            known = ", ".join(map(repr, [*self.state.names, *main.outputs])) or "none"
            raise UnknownNameError(
                f"there is nothing named {name!r} to read; there are: {known}. Keep a tensor to read it: tensor.keep()."
            )
        if not main.ran:
            raise UsageError(f"the output {name!r} has no value yet: call session.step first.")
        return main.read(name)

    def set(self, name: str, array: object) -> None:
        """Replace a parameter or state."""
        self.state.replace(name, array)

    def state_dict(self) -> dict[str, AnyArray]:
        """Everything that a bit-exact resume needs: states, runtime scalars, counters."""
        self._programs.need_averages("state_dict")
        return state_dict(self._programs)

    def prepare_to_load(self, values: Mapping[str, object]) -> None:
        """Compile the program that `values` were made by, where counts of updates differ that are one here."""
        self._programs.count_apart(counts_in(values))

    def load_state_dict(self, values: Mapping[str, object], *, strict: bool = True) -> None:
        """Restore what `state_dict` gave.  Nothing is written unless all of it fits."""
        load_state_dict(self._programs, values, strict=strict)

    @property
    def lasting_states(self) -> dict[str, bool]:
        """The states that a step reads or writes and that mean something between steps; True: the model's own."""
        return self._programs.lasting_states

    # -- knobs ---------------------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> LiveOptimizer:
        """The live numbers of the optimizer: `session.optimizer.lr = 1e-4`."""
        return self._knobs.optimizer

    @property
    def optimizers(self) -> dict[str, LiveOptimizer]:
        """Every optimizer of the step by its name."""
        return self._knobs.optimizers

    @property
    def schedule(self) -> LiveSchedule:
        """The schedule of the learning rate, or the only one there is."""
        return self._knobs.schedule

    @property
    def schedules(self) -> dict[str, LiveSchedule]:
        """Every schedule by the runtime scalar that it governs."""
        return self._knobs.schedules

    @property
    def scalars(self) -> Scalars:
        """All runtime scalars by name."""
        return self._programs.scalars

    set_schedule = delegate("_knobs", Knobs.set_schedule)
    set_learning_rate = delegate("_knobs", Knobs.set_learning_rate)
    set_adam = delegate("_knobs", Knobs.set_adam)
    set_optimizer = delegate("_knobs", Knobs.set_optimizer)
    reset_optimizer = delegate("_knobs", Knobs.reset_optimizer)
    restart_schedules = delegate("_knobs", Knobs.restart_schedules)

    @property
    def updates_made(self) -> int:
        """By this session, since its optimizer or its schedules began."""
        return self.state.updates_in(self._programs.turn)

    @property
    def nonfinite(self) -> str:
        """What the step was built to do about gradients that are not finite: "ignore", "skip" or "raise"."""
        return self._programs.recipe.nonfinite

    @property
    def skipped_steps(self) -> int:
        """How many steps changed nothing since a gradient was not finite (nonfinite="skip", or a loss scale)."""
        return int(self.state.get(SKIPPED)) if SKIPPED in self.state else 0

    @property
    def precision(self) -> str:
        """What products are computed in: "float32", "bfloat16" or "float16"."""
        return self._programs.recipe.precision.name

    @property
    def loss_scale(self) -> float | None:
        """What the next step multiplies the loss with (precision="float16"); None where it is not scaled."""
        found = float(self.state.get(SCALE)) if SCALE in self.state else None
        return self.scalars[f"{LOSS_SCALE}.init"] if found == 0 else found

    # -- metrics -------------------------------------------------------------------------------------------------

    metrics = delegate("_measurements", Measurements.metrics)
    reset_metrics = delegate("_measurements", Measurements.reset_metrics)
    end_epoch = delegate("_measurements", Measurements.end_epoch)

    @property
    def metric_modes(self) -> dict[str, str]:
        """Of every metric that says it: is less of it better, "min", or more, "max"?"""
        return self._measurements.modes

    # -- a step by hand ------------------------------------------------------------------------------------------

    forward = delegate("_by_hand", ByHand.forward)
    backward = delegate("_by_hand", ByHand.backward)
    clip_gradients = delegate("_by_hand", ByHand.clip_gradients)
    apply_gradients = delegate("_by_hand", ByHand.apply_gradients)
    gradient_stats = delegate("_by_hand", ByHand.gradient_stats)
    print_gradient_stats = delegate("_by_hand", ByHand.print_gradient_stats)

    # -- looking -------------------------------------------------------------------------------------------------

    activation_stats = delegate("_inspect", Inspect.activation_stats)
    set_observer = delegate("_inspect", Inspect.set_observer)
    span = delegate("_inspect", Inspect.span)
    profile = delegate("_inspect", Inspect.profile)
    trace = delegate("_inspect", Inspect.trace)
    report = delegate("_inspect", Inspect.report)
    optimization = delegate("_inspect", Inspect.optimization)
    explain = delegate("_inspect", Inspect.explain)

    @property
    def spans(self) -> tuple[Span, ...]:
        """What was timed so far: the stages of the builds, epochs, inputs."""
        return self._inspect.spans

    @property
    def plan(self) -> Plan:
        """The plan of the main entry point."""
        return self._programs.main.plan

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that a step runs: one, or those of micro-batches."""
        return self._programs.plans

    @property
    def device(self) -> str:
        """What runs its steps, as `device=` names it: "cpu/portable", "null:cuda/sm_90"."""
        return self._programs.where.device.name

    @property
    def target(self) -> Target:
        """What its plans are made for."""
        return self._programs.where.device.target

    @property
    def threads(self) -> int:
        return self._programs.where.threads

    @property
    def seed(self) -> int:
        """Keys random nodes and the order of epochs."""
        return self._programs.where.seed

    @property
    def peak_bytes(self) -> int:
        """The bytes that this session and its state map; known before the first step."""
        return self._inspect.peak_bytes

    @property
    def source(self) -> str:
        """The C that runs, each kernel with the nodes it came from."""
        return self._inspect.source

    def __repr__(self) -> str:
        return f"<Session: {len(self.plan.kernels)} kernels, {self.threads} threads, {self.peak_bytes:,} bytes>"
