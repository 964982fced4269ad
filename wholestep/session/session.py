"""`Session`: the entry points of a program, loaded over one state.

It delegates each call to one of these parts:

    Programs         programs.py              entry points, compiled on first use; update counters
    Training         running/run.py           epochs over whole data sets
    Evaluation       running/evaluation.py    evaluation and prediction
    Measurements     metrics.py               metrics
    StateAccess      state_dict.py            parameters and states
    Hyperparameters  hyperparameters.py       hyper-parameters, schedules, the optimizer
    ManualStep       running/manual_step.py   forward, backward, clip, apply
    Inspect          inspect/                 reports, profiles, source
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar
from weakref import WeakSet

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.precision import TF32
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.process_group import RankGroup
from wholestep.compiler.runtime.state.state import State
from wholestep.compiler.spans import Span
from wholestep.compiler.target import Target
from wholestep.errors import UsageError
from wholestep.lazy import interop
from wholestep.options import CompileOptions
from wholestep.session.building.arguments import SessionArguments
from wholestep.session.building.plans import Plans
from wholestep.session.hyperparameters import Hyperparameters
from wholestep.session.inspect.inspect import Inspect
from wholestep.session.metrics import Measurements, raise_if_refused
from wholestep.session.programs import Programs
from wholestep.session.running.entry_point import StepResult
from wholestep.session.running.evaluation import Evaluation
from wholestep.session.running.manual_step import ManualStep
from wholestep.session.running.run import Training
from wholestep.session.runtime_scalars import LiveOptimizer, LiveSchedule, RuntimeScalars
from wholestep.session.state_dict import StateAccess
from wholestep.steps.loss_scale import LOSS_SCALE, SCALE
from wholestep.steps.train import SKIPPED

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


def delegate(part: str, method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """A method of the owner that calls `method` of the attribute `part`, with its signature and docstring."""
    return delegate_overloaded(part, method)


def delegate_overloaded(part: str, method: F) -> F:
    """As `delegate`, for a method with overloads: those declare `self: Any`, so the type of the method is kept."""

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return method(getattr(self, part), *args, **kwargs)

    return call  # type: ignore[return-value]


log = logging.getLogger("wholestep")
alive: WeakSet[Session] = WeakSet()  # the sessions of this process


def only_trained() -> Session | None:
    """The only session with an optimizer; None if there are several or none."""
    sessions = [session for session in alive if not session._programs.closed and session.optimizers]
    return sessions[0] if len(sessions) == 1 else None


class Session:
    """A compiled step, ready to run.  `ws.build_session` makes one from a graph; `Session(plan)` from a plan alone.

    Threads may share a session: its lock serialises their steps, and each thread gets the results of its inputs.  To
    run in parallel, give each thread a separate session.

    Args:
        plan: a plan from `compile_training_graph` or `load_plan`.
        state: the parameters and states of a model; by default a new state.
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
        seed: int | None = None,
        device: str = "cpu",
        threads: int | None = None,
        options: CompileOptions | None = None,
        compiled: Plans | None = None,
        key: str = "",
    ) -> None:
        placement = None if compiled is None else compiled.where
        arguments = SessionArguments(device=device, threads=threads, seed=seed, options=options)
        where = placement or arguments.placement()
        self._programs = programs = Programs(where, state or State(), compiled)
        self._inspect = Inspect(programs)
        self._measurements = Measurements(programs)
        self._training = Training(programs, self._measurements, self._inspect)
        self._evaluation = Evaluation(programs, self._measurements)
        self._hyperparameters = Hyperparameters(programs)
        self._manual_step = ManualStep(programs, self._hyperparameters)
        self._state_access = StateAccess(programs)
        programs.load_main(plan, key)
        alive.add(self)
        if compiled is not None and isinstance(compiled.definition.model, Graph):
            compiled.definition.model.sessions.add(self)
        log.info("session: peak %d bytes on %d threads", self.peak_bytes, where.threads)

    # -- running -------------------------------------------------------------------------------------------------

    def step(
        self,
        batch: Mapping[str, object] | None = None,
        /,
        *more: object,
        per_row: Sequence[str] = (),
        **inputs: object,
    ) -> StepResult:
        """Run one step: forward, backward and update in one native call.

        Inputs are named; a mapping may contain names that are not Python identifiers.  Inputs given by `set_input` hold
        until they are given here.

        Args:
            per_row: values of every row that this step also returns, "loss" and "gradient_norm": `result["row_loss"]`,
                `result["row_gradient_norm"]`.  The step with them is compiled when it is first asked for.
        """
        programs = self._programs
        if batch is not None:
            inputs = {**programs.by_name("step", batch, more), **inputs}
        if programs.held:
            inputs = programs.with_held(inputs)
        if programs.observer is not None:
            self._inspect.observe(inputs)
        main = programs.main if not per_row else programs.main_with_rows(per_row)
        # Taking the turn may replace the step; its values of rows are compiled then, which needs a second turn.
        for _ in range(2):
            if programs.counts.turn is programs.turn:
                break
            with programs.turns:
                programs.take_turn()
            main = programs.main if not per_row else programs.main_with_rows(per_row)
        programs.stepped = main
        result = main(inputs)
        if programs.raises:
            raise_if_refused(main, programs.state)
        return result

    run = delegate("_training", Training.run)
    run_in_slices = delegate("_training", Training.run_in_slices)
    prepare_to_run = delegate("_training", Training.prepare_to_run)

    predict = delegate_overloaded("_evaluation", Evaluation.predict)
    evaluate = delegate_overloaded("_evaluation", Evaluation.evaluate)
    evaluate_all = delegate("_evaluation", Evaluation.evaluate_all)
    evaluate_together = delegate("_evaluation", Evaluation.evaluate_together)
    prepare_to_evaluate = delegate("_evaluation", Evaluation.prepare)
    evaluate_batches = delegate("_evaluation", Evaluation.evaluate_batches)

    def set_input(self, name: str, array: object) -> None:
        """Set an input before `step()`: it is copied, and used by every step until it is set again."""
        inputs = self._programs.main.inputs
        with self._inspect.span("set_input"):
            self._programs.held[name] = inputs.hold(inputs.named(name), array)

    def wait(self) -> None:
        """Block until all steps are done, which on a CPU they always are; raises the error of a failed step."""
        self._programs.wait()

    def read_loss(self) -> float:
        """The first output of the last step."""
        stepped = self._programs.stepped
        if not stepped.ran:
            raise UsageError("there is no loss yet: call session.step first.")
        return stepped.loss()

    def export(self, folder: str | PathLike[str], *, to: str = "c", target: str | None = None) -> Path:
        """Write the step as a folder that trains, evaluates and predicts without Python.

        Args:
            to: "c": C source that needs nothing but one block of memory; "wasm": a WebAssembly module.
            target: the instruction set of the C source, such as "cpu/portable"; None: the session's.

        Example: `session.export("step")`, then `cmake -S step -B build && cmake --build build`.
        """
        from wholestep.session.export.write import write_folder  # imported here because few sessions are exported

        return write_folder(self._programs, Path(folder), to, target)

    # -- closing ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release the memory of the session; the model keeps its parameters.

        Example: `with ws.build_session(g) as session:` closes it at the end.
        """
        self._programs.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- states -------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Parameters and other states, which all sessions over the same model share."""
        return self._programs.state

    get = delegate("_state_access", StateAccess.get)
    set = delegate("_state_access", StateAccess.set)
    state_dict = delegate("_state_access", StateAccess.state_dict)
    own_pieces = delegate("_state_access", StateAccess.own_pieces)
    share_parts = delegate("_state_access", StateAccess.share_parts)
    have_whole_weights = delegate("_state_access", StateAccess.have_whole_weights)
    prepare_to_load = delegate("_state_access", StateAccess.prepare_to_load)
    load_state_dict = delegate("_state_access", StateAccess.load_state_dict)

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            return interop.foreign_attribute("a session", self, name, "'Session' object")

    @property
    def lasting_states(self) -> dict[str, bool]:
        """The states whose values persist between steps; True: the states of the model."""
        return self._programs.lasting_states

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """The parameters that a step reads; for a session built from a plan, which does not distinguish them, all
        states.
        """
        return self._programs.parameter_names

    # -- hyper-parameters ----------------------------------------------------------------------------------------

    @property
    def optimizer(self) -> LiveOptimizer:
        """The optimizer's hyper-parameters, which can be assigned: `session.optimizer.lr = 1e-4`."""
        return self._hyperparameters.optimizer

    @property
    def optimizers(self) -> dict[str, LiveOptimizer]:
        """Every optimizer of the step by its name."""
        return self._hyperparameters.optimizers

    @property
    def schedule(self) -> LiveSchedule:
        """The schedule of the learning rate, or else the only schedule."""
        return self._hyperparameters.schedule

    @property
    def schedules(self) -> dict[str, LiveSchedule]:
        """Every schedule by the runtime scalar that it governs."""
        return self._hyperparameters.schedules

    @property
    def scalars(self) -> RuntimeScalars:
        """All runtime scalars by name."""
        return self._programs.scalars

    set_schedule = delegate("_hyperparameters", Hyperparameters.set_schedule)
    set_learning_rate = delegate("_hyperparameters", Hyperparameters.set_learning_rate)
    set_adam = delegate("_hyperparameters", Hyperparameters.set_adam)
    set_optimizer = delegate("_hyperparameters", Hyperparameters.set_optimizer)
    reset_optimizer = delegate("_hyperparameters", Hyperparameters.reset_optimizer)
    restart_schedules = delegate("_hyperparameters", Hyperparameters.restart_schedules)

    @property
    def updates_made(self) -> int:
        """Updates by this session since its optimizer or its schedules were reset."""
        return self.state.updates_in(self._programs.turn)

    @property
    def nonfinite(self) -> str:
        """The policy of the step for gradients that are not finite: "ignore", "skip" or "raise"."""
        return self._programs.step_options.nonfinite

    @property
    def skipped_steps(self) -> int:
        """How many steps were skipped because a gradient was not finite (nonfinite="skip", or a loss scale)."""
        return int(self.state.get(SKIPPED)) if SKIPPED in self.state else 0

    @property
    def precision(self) -> str:
        """The precision of products: "float32", "tf32", "bfloat16" or "float16"; the report has convolutions' too."""
        return TF32 if self.target.name.endswith(f"+{TF32}") else self._programs.step_options.precision.name

    @property
    def loss_scale(self) -> float | None:
        """The factor of the loss in the next step (precision="float16"); None without loss scaling."""
        scale = float(self.state.get(SCALE)) if SCALE in self.state else None
        return self.scalars[f"{LOSS_SCALE}.init"] if scale == 0 else scale

    # -- metrics -------------------------------------------------------------------------------------------------

    metrics = delegate("_measurements", Measurements.metrics)
    reset_metrics = delegate("_measurements", Measurements.reset_metrics)
    row_values = delegate("_measurements", Measurements.row_values)
    end_epoch = delegate("_measurements", Measurements.end_epoch)

    @property
    def metric_modes(self) -> dict[str, str]:
        """The modes of metrics, "min" or "max", for all that have a direction."""
        return self._measurements.modes

    # -- manual steps ------------------------------------------------------------------------------------------

    forward = delegate("_manual_step", ManualStep.forward)
    backward = delegate("_manual_step", ManualStep.backward)
    clip_gradients = delegate("_manual_step", ManualStep.clip_gradients)
    apply_gradients = delegate("_manual_step", ManualStep.apply_gradients)
    gradients = delegate("_manual_step", ManualStep.gradients)
    gradient_stats = delegate("_manual_step", ManualStep.gradient_stats)
    print_gradient_stats = delegate("_manual_step", ManualStep.print_gradient_stats)

    # -- inspection -------------------------------------------------------------------------------------------------

    activation_stats = delegate("_inspect", Inspect.activation_stats)
    tensors = delegate("_inspect", Inspect.tensors)
    first_nonfinite = delegate("_inspect", Inspect.first_nonfinite)
    set_observer = delegate("_inspect", Inspect.set_observer)
    span = delegate("_inspect", Inspect.span)
    profile = delegate("_inspect", Inspect.profile)
    trace = delegate("_inspect", Inspect.trace)
    report = delegate("_inspect", Inspect.report)
    optimization = delegate("_inspect", Inspect.optimization)
    explain = delegate("_inspect", Inspect.explain)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The timed spans so far: stages of builds, epochs, inputs."""
        return self._inspect.spans

    @property
    def plan(self) -> Plan:
        """The plan of the main entry point."""
        return self._programs.main.plan

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans that a step runs: one plan, or the plans of its micro-batches."""
        return self._programs.plans

    @property
    def device(self) -> str:
        """The device, as `device=` names it: "cpu/portable", "null:cuda/sm_90"."""
        return self._programs.where.device.name

    @property
    def target(self) -> Target:
        """The target of the session's plans."""
        return self._programs.where.device.target

    @property
    def threads(self) -> int:
        return self._programs.where.threads

    @property
    def group(self) -> RankGroup | None:
        """The ranks that run its steps together; None in a single process."""
        group = self._programs.where.group
        return None if group is None or group.engine == "threads" else group

    @property
    def seed(self) -> int:
        """The seed of random nodes and of the order of rows in epochs."""
        return self._programs.where.seed

    @property
    def peak_bytes(self) -> int:
        """The bytes that this session and its state map; known before the first step."""
        return self._inspect.peak_bytes

    @property
    def source(self) -> str:
        """The source code of the program, each kernel with the nodes that it computes."""
        return self._inspect.source

    def __call__(self, *arrays: object, **named: object) -> Session:
        """The session itself, so that `trainer.session()` equals `trainer.session`; it does not accept data."""
        if arrays or named:
            raise UsageError(
                "a session is not callable: session.step(x=..., labels=...) trains, session.predict(x=...) does not."
            )
        return self

    def __repr__(self) -> str:
        if self._programs.closed:
            return "<Session: closed>"
        return f"<Session: {len(self.plan.kernels)} kernels, {self.threads} threads, {self.peak_bytes:,} bytes>"
