"""What a session was built from: traces and compiles its entry points when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from wholestep.compiler.backend import Device
from wholestep.compiler.frontend.clocks import Clocks
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.step import Step
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.plans import find_plan, find_report, plan_key, store_plan, store_report
from wholestep.compiler.runtime.state import State
from wholestep.compiler.runtime.store import cache_of
from wholestep.compiler.spans import OptimizeReport, Spans
from wholestep.compiler.target import Target
from wholestep.errors import OptionError, UsageError
from wholestep.optim import SGD, Optimizer
from wholestep.options import CompileOptions
from wholestep.schedules import Schedule
from wholestep.schedules.bind import with_schedules
from wholestep.session.check.check import Subject, verdict_on
from wholestep.session.check.verdict import Verdict
from wholestep.steps.by_hand import apply_graph, backward_graph, clip_graph, gradient_graph, observe_graph
from wholestep.steps.micro_batch_names import FIRST, PARTS, ROWS, WINDOW_DIMS
from wholestep.steps.recipe import Recipe
from wholestep.steps.states import clocks_of, first_values
from wholestep.steps.train import EVALUATE, PLAIN, evaluate_graph, forward_only, predict_graph, train_graph

if TYPE_CHECKING:
    from wholestep.compiler.explain import Explanation
    from wholestep.steps.micro_batches import Cut

STAGES: dict[str, Callable[[Graph, Optimizer], ir.Graph]] = {
    "backward": lambda graph, optimizer: backward_graph(graph),
    "gradients": lambda graph, optimizer: gradient_graph(graph),
    "clip": lambda graph, optimizer: clip_graph(graph),
    "apply": apply_graph,
    "observe": lambda graph, optimizer: observe_graph(graph),
}

TRAIN = "train"
FORWARD = "forward"  # `predict` with the weights that are being trained
PART = f"{TRAIN}.part"  # the program of a window that `session.plan` shows


@dataclass(frozen=True)
class Stand:
    """Where a plan will run."""

    device: Device
    threads: int


@dataclass(frozen=True)
class Source:
    """A graph or step, its optimizer (None: inference), the target and the largest sizes to compile for."""

    model: Graph | Step
    optimizer: Optimizer | None
    target: Target  # what its plans are made for
    capacity: Mapping[str, int] = field(default_factory=dict)
    recipe: Recipe = PLAIN
    measures_only: bool = False  # is `evaluate` what `step` runs?
    cuts: dict[str, Cut] = field(default_factory=dict)  # what `window` found
    clocks: Clocks = field(default_factory=Clocks)  # what its programs count
    spans: Spans = field(default_factory=Spans)
    recorded: list[Graph] = field(default_factory=list)  # of a step: what its function recorded
    traced: dict[str, ir.Graph] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)  # entry point -> what is known of its plan's numbers
    reports: dict[str, OptimizeReport] = field(default_factory=dict)  # entry point -> what its build did

    @property
    def main(self) -> str:
        """The name of the entry point that `step` runs."""
        if self.is_windowed:
            return PART
        if self.measures_only:
            return EVALUATE
        return "train" if self.optimizer is not None or isinstance(self.model, Step) else "inference"

    @property
    def graph(self) -> Graph:
        """The graph; of a step, what its function recorded, once."""
        if isinstance(self.model, Graph):
            return self.model
        if not self.recorded:
            self.recorded.append(self.model.graph(self.clocks))
        return self.recorded[0]

    @property
    def is_windowed(self) -> bool:
        """Does a step take several batches?"""
        return self.recipe.accumulate > 1 and self.optimizer is not None

    def window(self, kind: str) -> Cut:
        """The programs of a window of "train" or "evaluate"; each is an entry point, `train.part` and so on."""
        if kind not in self.cuts:
            from wholestep.steps.micro_batches import (
                cut,  # it brings autodiff along, which a step of one batch may not need
            )

            assert kind != TRAIN or isinstance(self.model, Graph), "a step written by hand is not cut"
            self.cuts[kind] = cut(self._recording, self.optimizer if kind == TRAIN else None, self.recipe)
        return self.cuts[kind]

    def sizes_of(self, graph: ir.Graph) -> dict[str, int]:
        """The capacity of every symbol of an entry point; a window's own follow from the batch's."""
        if not set(WINDOW_DIMS) & set(graph.symbols):
            return capacity_of(graph, self.capacity)
        from wholestep.steps.micro_batches import batch_symbol

        rows = self.capacity.get(batch_symbol(self.graph), 1) * self.recipe.accumulate
        return capacity_of(graph, {**self.capacity, FIRST: rows, ROWS: rows, PARTS: self.recipe.accumulate})

    @property
    def has_fixed_batch(self) -> bool:
        """Is the first axis of the first input a number?"""
        first = next(iter(self.graph.inputs.values()), None)
        return first is not None and bool(first.shape) and isinstance(first.shape[0], int)

    def fits(self, given: Mapping[str, object]) -> bool:
        """Are there no more rows than the capacity?  What is no array is refused later."""
        name, first = next(iter(self.graph.inputs.items()), ("", None))
        rows = given.get(name)
        if first is None or not first.shape or not isinstance(rows, Sized):
            return True
        return len(rows) <= self.capacity.get(str(first.shape[0]), len(rows))

    def rows_in(self, given: Mapping[str, object]) -> tuple[int, int] | None:
        """The rows of what is given and of the largest step; None where nobody can tell."""
        name, first = next(iter(self.graph.inputs.items()), ("", None))
        rows = given.get(name)
        if first is None or not first.shape or not isinstance(rows, Sized):
            return None
        most = self.capacity.get(str(first.shape[0]), first.shape[0])
        return len(rows), most * self.recipe.accumulate if isinstance(most, int) else len(rows)

    def with_room(self, given: Mapping[str, object]) -> Source:
        """The same for as many rows as are given, up to a power of two; itself where they fit."""
        if self.fits(given):
            return self
        name, first = next(iter(self.graph.inputs.items()))
        rows = len(given[name])  # type: ignore[arg-type]
        capacity = {**self.capacity, str(first.shape[0]): 1 << (rows - 1).bit_length()}
        return replace(self, capacity=capacity, cuts={}, verdicts={}, reports={})

    def trace(self, entry: str) -> ir.Graph:
        """The graph of an entry point, recorded once."""
        if entry not in self.traced:
            traced = self._trace(entry)
            if self._trains(entry):
                from wholestep.optim.averages import showing_averages  # few average

                traced = showing_averages(traced, self.averaged)
            self.traced[entry] = traced
        return self.traced[entry]

    @property
    def averaged(self) -> set[str]:
        """The weights that its optimizer averages, as far as a program that trains was recorded."""
        return self.clocks.averaged

    def _trains(self, entry: str) -> bool:
        """Is it about the weights that are being trained, where the model shows their averages?"""
        return bool(self.averaged) and (entry.partition(".")[0] == TRAIN or entry in STAGES or entry == FORWARD)

    @property
    def _recording(self) -> Graph:
        """The user's graph, to record an update in."""
        graph = self.graph.copy()
        graph.clocks = self.clocks
        return graph

    def _trace(self, entry: str) -> ir.Graph:
        if isinstance(self.model, Step) and entry == "train":
            return with_schedules(self.graph.to_ir(), self.recipe.schedules)
        if isinstance(self.model, Step) and entry in STAGES and entry != "observe":
            raise UsageError(
                f"{entry} takes gradients and updates apart, and a @ws.step function has its own. Read what it "
                "computes: return it, or tensor.keep('name')."
            )
        kind, _, phase = entry.partition(".")
        if phase:
            return self._trace_phase(kind, phase)
        if entry == "train":
            assert self.optimizer is not None
            graph = train_graph(self._recording, self.optimizer, recipe=self.recipe)
            return with_schedules(graph, self.recipe.schedules)
        if entry == EVALUATE:
            return evaluate_graph(self.graph, self.recipe)
        if entry in STAGES:
            return STAGES[entry](self._recording, self.optimizer or SGD())
        predicts = entry in ("predict", FORWARD)
        return predict_graph(self.graph) if predicts and _has_loss(self.graph) else forward_only(self.graph)

    def _trace_phase(self, kind: str, phase: str) -> ir.Graph:
        """A program of a window under the schedules of what it uses."""
        phases, schedules = self.window(kind).phases, self.recipe.schedules if kind == TRAIN else {}
        used = {name: graph.leaves("scalar").keys() for name, graph in phases.items()}
        unused = {t: s for t, s in schedules.items() if not any(t in names for names in used.values())}
        here = {t: s for t, s in schedules.items() if t in used[phase]}
        return with_schedules(phases[phase], unused or here)  # what no program uses is refused by name

    def key(self, entry: str, options: CompileOptions) -> str:
        """The key of an entry point's plan, from its trace."""
        graph = self.trace(entry)
        return plan_key(graph, self.sizes_of(graph), options, self.target)

    def plan(self, entry: str, options: CompileOptions, stand: Stand) -> tuple[Plan, str]:
        """The plan of an entry point, from the cache or compiled, and its key."""
        return self.plan_with_report(entry, options, stand)[0], self.key(entry, options)

    def plan_with_report(
        self, entry: str, options: CompileOptions, stand: Stand | None = None
    ) -> tuple[Plan, OptimizeReport]:
        """The plan and what was done to get it.  A new one is checked where it will run, before it is kept."""
        graph = self.trace(entry)
        capacity = self.sizes_of(graph)
        store = cache_of(options) if options.cache else None
        key = self.key(entry, options) if store is not None else ""
        found = find_plan(store, key) if store is not None else None
        if found is not None:
            self.check(entry, found, options, stand, new=False)
            known = find_report(store, key) if store is not None else None
            report = known or OptimizeReport(len(graph.nodes), len(graph.nodes))
            self.reports[entry] = replace(report, spans=tuple(self.spans.all), cached=True)
            return found, self.reports[entry]
        from wholestep.compiler.pipeline import Compiler  # a hit needs no pass: it starts without loading them

        plan, report = Compiler(options, self.spans).plan(graph, capacity, self.target)
        self.check(entry, plan, options, stand, new=True)
        self.reports[entry] = report
        if store is not None and report.complete:
            store_plan(store, key, plan)
            store_report(store, key, report)
        return plan, report

    def optimization(self, entry: str, options: CompileOptions) -> OptimizeReport:
        """What the build of an entry point did, with the integers that its plan would have without the e-graph.

        These take a second plan, which is made here, once, and kept in the cache.
        """
        report = self.reports.get(entry) or self.plan_with_report(entry, options)[1]
        if report.before is None:
            from wholestep.compiler.pipeline import Compiler

            graph = self.trace(entry)
            plain = Compiler(replace(options, egraph=False), Spans())
            _, without = plain.plan(graph, self.sizes_of(graph), self.target)
            report = self.reports[entry] = replace(report, before=without.after)
            if options.cache and report.complete:
                store_report(cache_of(options), self.key(entry, options), report)
        return report

    def explain(self, entry: str, options: CompileOptions, name: str) -> Explanation:
        """Why a tensor of an entry point is computed as it is."""
        from wholestep.compiler.explain import explain_tensor

        return explain_tensor(self.trace(entry), options, self.target, name)

    def check(self, entry: str, plan: Plan, options: CompileOptions, stand: Stand | None, *, new: bool) -> None:
        """Run a plan against the interpreter unless that was done, is not wanted, or there is nowhere to run it."""
        if stand is None:
            return
        subject = Subject(self.trace(entry), plan, self.key(entry, options), stand.device, stand.threads, options)
        self.verdicts[entry] = verdict_on(subject, self.spans, new=new)

    # -- the optimizer -------------------------------------------------------------------------------------------

    def same_program(self, optimizer: object) -> bool:
        """Would the step with `optimizer` be the same program, up to runtime scalars?"""
        return type(optimizer) is type(self.optimizer) and _structure(optimizer) == _structure(self.optimizer)

    def hyperparameters(self, optimizer: object) -> dict[str, float]:
        """The runtime scalars of an optimizer."""
        assert isinstance(optimizer, Optimizer)
        return optimizer.runtime_values()

    def with_optimizer(self, optimizer: object) -> Source:
        """The same model trained by another optimizer."""
        assert isinstance(optimizer, Optimizer)
        if isinstance(self.model, Step):
            raise UsageError("a @ws.step function names its own optimizers; change them there and build again.")
        return replace(self, optimizer=optimizer, **self._unrecorded())

    def with_recipe(self, recipe: Recipe) -> Source:
        """The same model trained by another recipe."""
        return replace(self, recipe=recipe, **self._unrecorded())

    def recounted(self, count_of: Callable[[str], int] | None = None) -> Source:
        """The same, to be recorded for the updates that the parameters have had by now, or for given ones."""
        return replace(self, **{**self._unrecorded(), "clocks": clocks_of(self.model, count_of)})

    def _unrecorded(self) -> dict[str, Any]:
        clocks = clocks_of(self.model)
        made: dict[str, Any] = {"recorded": [], "cuts": {}, "traced": {}, "verdicts": {}, "reports": {}}
        return {**made, "spans": Spans(), "clocks": clocks}

    def same_schedules(self, schedules: Mapping[str, Schedule]) -> bool:
        """Would the step with these be the same program, up to runtime scalars?"""
        structure = [{t: (s.unit, s.structure()) for t, s in x.items()} for x in (self.recipe.schedules, schedules)]
        return structure[0] == structure[1]

    def reset_optimizer_state(self, state: State, own: Container[str], plans: Sequence[Plan]) -> None:
        """Moments and their counts start anew; what the model itself declares is kept."""
        for plan in plans:
            fresh = first_values(plan, 0)
            for name, _ in plan.states:
                if name in state and name not in own:
                    state.set(name, fresh(name))
        state.set_updates(dict.fromkeys(self.clocks.starts, 0))


def _structure(optimizer: object) -> object:
    assert isinstance(optimizer, Optimizer)
    return optimizer.structure()


def _has_loss(graph: Graph) -> bool:
    first = next(iter(graph.outputs.values()), None)
    return first is not None and first.shape == () and first.dtype.is_float


def capacity_of(graph: ir.Graph, given: Mapping[str, int]) -> dict[str, int]:
    """The capacity of every symbol of a graph; an error names the symbol that has none."""
    for symbol in graph.symbols:
        if symbol not in given:
            fix = "batch_size=32" if symbol == "batch" else f"capacity={{{symbol!r}: 64}}"
            raise OptionError(
                f"the dimension {symbol!r} has no capacity: say the largest size it may have when the program runs, "
                f"e.g. {fix}."
            )
    return {s: given[s] for s in graph.symbols}


def merged_capacity(graph: ir.Graph, batch_size: int | None, capacity: Mapping[str, int] | None) -> dict[str, int]:
    """`batch_size=n` is `capacity={"batch": n}`; both are checked against the graph's own dimensions."""
    out = dict(capacity or {})
    if batch_size is not None:
        if out.get("batch", batch_size) != batch_size:
            raise OptionError(f"batch_size={batch_size} and capacity={capacity} disagree; give one of them.")
        out["batch"] = batch_size
    symbols = [s for s in graph.symbols if s not in WINDOW_DIMS]
    known = ", ".join(map(repr, symbols)) or "none"
    for symbol, size in out.items():
        if symbol not in symbols:
            raise OptionError(f"the graph has no symbolic dimension {symbol!r}; it has: {known}. Leave its size out.")
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise OptionError(f"the capacity of {symbol!r} is a whole number of at least 1; received {size!r}.")
    return out
