"""Trial steps of a plan: run natively on scratch numbers, and compared with expected values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from wholestep.compiler.backend import LoadContext
from wholestep.compiler.frontend.precision import TF32, TF32_CONVOLUTIONS
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.ops import Family
from wholestep.compiler.ir.semantics.interpret import Result
from wholestep.compiler.ir.semantics.values import StepValues, interpreter_dtype
from wholestep.compiler.passes.autodiff.reverse import expand_gradients
from wholestep.compiler.passes.lower.attention_precision import adapt_attention_routines
from wholestep.compiler.passes.lower.decompose import decompose
from wholestep.compiler.passes.simplify.inline import inline_calls, strip_stop_gradients
from wholestep.compiler.passes.simplify.recognize_attention import recognize_attention
from wholestep.compiler.plan.model.bodies import Call
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.background import run_all
from wholestep.compiler.runtime.blas_threads import on_one_thread
from wholestep.compiler.runtime.memory import explain_memory_errors
from wholestep.compiler.runtime.process_group import Shards
from wholestep.compiler.runtime.state.state import State
from wholestep.compiler.runtime.threads import default_threads
from wholestep.session.programs import memories
from wholestep.session.running.entry_point import EntryPoint, SessionLock
from wholestep.session.verify.check import Subject, axes_of
from wholestep.session.verify.compare import Comparison, compare_step, distances, perturb_by_rounding, tolerance_of
from wholestep.session.verify.expected import ExpectedValues, Settle, demand_of, dependents_of, evaluation
from wholestep.session.verify.random_inputs import (
    SEED,
    STEP,
    RepeatedState,
    Trial,
    TrialDraw,
    adapt_draw,
    all_finite,
    names_changed_by_adapting,
)
from wholestep.session.verify.state_samples import InterpretedStates, sample_state, shape_of
from wholestep.steps.capacity import MICRO_BATCH_DIMS

Sizes = Mapping[str, int]

FEW_CORES = 4  # other processes use the cores too: threads of a NumPy product would wait for each other
ROUNDED_TO_TF32 = {  # variant of a target -> families of ops whose float32 operands it rounds
    TF32: frozenset({Family.CONTRACTION, Family.WINDOW}),
    TF32_CONVOLUTIONS: frozenset({Family.WINDOW}),
}
ATTEMPTS = 3  # a ReLU input near 0 may flip in one draw; a wrong plan fails in every draw


class Trials:
    """Trial steps of a plan, compared with expected values."""

    def __init__(self, subject: Subject) -> None:
        self.graph, self._subject = _expected_graph(subject.graph), subject
        self.draw = TrialDraw(self.graph, subject.plan.bounds)
        self._tf32 = ROUNDED_TO_TF32.get(subject.plan.target.partition("+")[2], frozenset())
        self._tolerance = tolerance_of(self.graph, subject.where.options.exactness, bool(self._tf32))
        self._first: tuple[Sizes, ExpectedValues] | None = None

    def rehearse(self, sizes: Sizes) -> None:
        """Load the plan; meanwhile determine suitable numbers from the effect of a first draw on the states."""
        self._session = TrialSession(self._subject, lambda session: self._rehearse(session, sizes))

    def _rehearse(self, session: TrialSession, sizes: Sizes) -> None:
        self._session = session
        values, before = self._run_rehearsal(sizes)
        if not all_finite(values.result(self.graph, before)):
            # Logarithms, roots and probabilities need numbers between 0 and 1.
            self.draw = replace(self.draw, centred=False)
            values, before = self._run_rehearsal(sizes)
        self.draw = adapt_draw(self.draw, before, values.result(self.graph, before))
        self._first = sizes, values

    def _run_rehearsal(self, sizes: Sizes) -> tuple[ExpectedValues, Mapping[str, AnyArray]]:
        trial = self.draw.trial(sizes, SEED)
        self._session.place(trial)
        before = self._session.looked_at()
        return self._evaluate(self.graph, trial, before), before

    def _evaluate(
        self, graph: IRGraph, trial: Trial, before: Mapping[str, AnyArray], settle: Settle | None = None
    ) -> ExpectedValues:
        first = trial.seed == SEED and graph is self.graph
        later = dependents_of(graph, names_changed_by_adapting(graph)) if first else frozenset()
        earlier = self._first[1] if first and self._first is not None and self._first[0] == trial.sizes else None
        reading = self._session.reading(graph, trial)
        is_compiling = self._first is None  # the first draw is evaluated while the plan is compiled
        with on_one_thread() if is_compiling or default_threads() <= FEW_CORES else nullcontext():
            return evaluation(graph, demand_of(graph, trial.sizes), reading, before, settle, later, earlier)

    def settled(self, sizes: Sizes) -> Comparison:
        """The comparison for one choice of sizes; it has mismatches only if every draw has some.

        In that case the effect of rounding alone is measured: near a jump, or where large numbers
        cancel, float32 may be far from float64 and right.
        """
        for attempt in range(ATTEMPTS):
            trial = self.draw.trial(sizes, SEED + attempt)
            self._session.place(trial)
            before = self._session.looked_at()
            wanted = self._evaluate(self.graph, trial, before).result(self.graph, before)
            got, shapes = self._session.run(trial), self._session.shapes
            comparison = compare_step(shapes, before, got, wanted, self._tolerance)
            if comparison.mismatches:
                self._session.place(trial)  # restore the states that the step has changed
                noise = self._noise(trial, before, attempt)
                comparison = compare_step(shapes, before, got, wanted, self._tolerance, noise)
            if not comparison.mismatches:
                return comparison
        return comparison

    def _noise(self, trial: Trial, before: Mapping[str, AnyArray], seed: int) -> Result:
        """The rounding noise: how much every output and state changes if each node's value is off by a few roundings of
        its dtype.

        Named ops round inside: they are written out first, with half results where the plan's routines have them.
        Both evaluations are of that graph, so that a decomposition that is wrong counts as no noise; they run in
        parallel, since the compilers have finished.
        """
        graph, results = rounding_graph(self._subject.graph, self._subject.plan), dict[bool, Result]()

        def evaluate(is_shaken: bool) -> None:
            settle = perturb_by_rounding(seed, self._tf32) if is_shaken else None
            results[is_shaken] = self._evaluate(graph, trial, before, settle).result(graph, before)

        run_all([partial(evaluate, is_shaken) for is_shaken in (True, False)], default_threads())
        return distances(results[False], results[True])


def rounding_graph(graph: IRGraph, plan: Plan) -> IRGraph:
    """The step in primitives, with a cast wherever the plan rounds to a half type.

    Gradients of keys, which routines round, may cancel when they are summed: the gradient of a key's bias is 0.
    """
    calls = [k.body for k in plan.kernels if isinstance(k.body, Call)]
    rounds = any(plan.buffers[r.load.buffer].type.dtype.is_half for call in calls for r in call.results)
    graph = _expected_graph(recognize_attention(graph) if rounds else graph)
    return decompose(adapt_attention_routines(graph) if rounds else graph)


def _expected_graph(graph: IRGraph) -> IRGraph:
    """The recorded graph with its gradients expanded, and no other pass applied."""
    return strip_stop_gradients(expand_gradients(inline_calls(graph)))


class TrialSession:
    """A plan loaded over private states and scratch memory."""

    def __init__(self, subject: Subject, meanwhile: Callable[[TrialSession], None] = lambda session: None) -> None:
        """Load the plan; `meanwhile` is called while it is compiled and may use everything but `run`."""
        device = subject.where.device
        self._state, self._scratch = State(), device.scratch()
        axes = axes_of(subject.plan)  # a plan for several ranks runs here as threads
        self._where = replace(subject.where, seed=SEED, seeded=True, group=None if axes is None else Shards(*axes))
        place = LoadContext(self._where, self._state, self._scratch)

        def get_ready() -> None:
            self._make_room(subject)
            meanwhile(self)
            self._make_scratch(subject)  # last, since its memory is still being allocated

        self._entry = EntryPoint(subject.where.device.load(subject.plan, place, subject.key, get_ready), SessionLock())

    def _make_scratch(self, subject: Subject) -> None:
        with explain_memory_errors(subject.plan, subject.where.threads):
            self._scratch.reserve(subject.plan, subject.where.threads)
        self._scratch.spoil()

    def _make_room(self, subject: Subject) -> None:
        plan = subject.plan
        with explain_memory_errors(plan, subject.where.threads):
            buffers = {n: plan.buffers[id] for n, id in plan.states}
            by_columns = {n for n, b in buffers.items() if b.by_columns}
            for names, memory in memories(plan, self._where):
                types = {name: buffers[name].user_type for name in names}
                self._state.add(types, lambda name: None, memory=memory, by_columns=by_columns)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of all states."""
        return {name: shape_of(self._state.slot(name)) for name in self._state.names}

    def place(self, trial: Trial) -> None:
        """Set every state to its trial values."""
        for name in self._state.names:
            numbers = trial.state[name]
            if isinstance(numbers, RepeatedState):
                self._state.slot(name).newest.fill(numbers.numbers)
            else:
                self._state.set(name, numbers)
        self._state.version += 1

    def looked_at(self) -> dict[str, AnyArray]:
        """The current states; large ones on their grids."""
        return {name: sample_state(self._state.slot(name)) for name in self._state.names}

    def reading(self, graph: IRGraph, trial: Trial) -> StepValues:
        """The values of a graph's leaves."""
        leaves = graph.leaves("input").items()
        inputs = {name: trial.inputs[name].astype(interpreter_dtype(node.type.dtype)) for name, node in leaves}
        scalars = {**trial.scalars, "step": float(STEP)}
        return StepValues(inputs, InterpretedStates(self._state), scalars, trial.sizes, SEED, STEP)

    def run(self, trial: Trial) -> Result:
        """Run one native step."""
        for name, value in trial.scalars.items():
            self._entry.program.scalar(name, value)
        self._state.step = STEP
        self._entry.inputs.fix({s: n for s, n in trial.sizes.items() if s in MICRO_BATCH_DIMS})
        outputs = self._entry(trial.inputs).outputs
        return Result(outputs, self.looked_at())
