"""A session: the entry points of a program, loaded over one state."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from wholestep.compiler.backend import Place, Slice
from wholestep.compiler.devices import device_named
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.step import Step
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.runtime.memory import Scratch
from wholestep.compiler.runtime.state import State
from wholestep.compiler.runtime.threads import MAX_THREADS, default_threads
from wholestep.compiler.spans import OptimizeReport, Span
from wholestep.errors import GraphError, UnknownNameError, UsageError
from wholestep.nn.module import Module
from wholestep.options import CompileOptions, thread_count
from wholestep.session.by_hand import Staged
from wholestep.session.check.verdict import Verdict
from wholestep.session.epochs import Look, RunOptions, batches, evaluate_rows, run_in_slices
from wholestep.session.metrics import raise_if_refused
from wholestep.session.results import StepResult
from wholestep.session.source import Source
from wholestep.session.state_dict import counts_in, load_state_dict, state_dict
from wholestep.steps.module import only_module
from wholestep.steps.train import EVALUATE

if TYPE_CHECKING:
    from wholestep.compiler.explain import Explanation
    from wholestep.compiler.plan.report import PlanReport
    from wholestep.session.inspect.profile import Profile

log = logging.getLogger("wholestep")


class Session(Staged):
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
        source: Source | None = None,
        key: str = "",
    ) -> None:
        count = thread_count(threads, default_threads(), MAX_THREADS)
        place = Place(state or State(), Scratch(), count, seed, options or CompileOptions())
        super().__init__(device_named(device), place, source)
        self._averages = False  # does evaluate_all take batches one by one?
        self._mixes_rows: str | None = None  # why predict needs all rows at once; None: nobody asked
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
        if self._observer is not None:
            self._observe(inputs)
        if self._counts.turn is not self._turn:
            with self._turns:
                self._take_turn()
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
        self._check_calls(arrays, epochs, batch_size)
        found = [part.losses for part in self._slices(arrays, epochs, shuffle, start, batch_size)]
        return np.concatenate(found) if found else np.zeros(0)

    def _check_calls(self, arrays: Mapping[str, object], epochs: int, batch_size: int | None) -> None:
        """A schedule under torch's names counts updates here: where epochs were meant, it ends early."""
        called = {t: s for t, s in self._recipe.schedules.items() if s.unit == "call"}
        if not called or not (rows := self._need_source("a schedule").rows_in(arrays)):
            return
        from wholestep.schedules.horizons import unlike

        batch, most = rows
        updates = epochs * -(-batch // (batch_size or most))
        for target in called:
            schedule = called[target].with_numbers(self.schedules[target].numbers())
            if odd := unlike(schedule, updates, "step"):
                warnings.warn(f"the schedule of {target}, {odd}", stacklevel=3)

    def run_in_slices(
        self,
        arrays: Mapping[str, object],
        *,
        epochs: int = 1,
        shuffle: bool = True,
        start: int = 0,
        batch_size: int | None = None,
        every: int | None = None,
        order_seed: int | None = None,
    ) -> Iterator[Slice]:
        """`run`, handing over the losses of every slice as it is done: about 50 ms of steps, `every` of them at most.

        `order_seed` keys the order of the rows; None: the session's own seed does.  Between two slices the session may
        be read, saved, evaluated; whoever stops iterating stops training there.

        Example: `for part in session.run_in_slices({"x": X, "labels": Y}): print(part.losses[-1])`.
        """
        return self._slices(arrays, epochs, shuffle, start, batch_size, every, order_seed)

    def _slices(
        self,
        arrays: Mapping[str, object],
        epochs: int,
        shuffle: bool,
        start: int,
        batch_size: int | None,
        every: int | None = None,
        order_seed: int | None = None,
    ) -> Iterator[Slice]:
        seed = self.seed if order_seed is None else order_seed
        self._held = {}  # their memory is where batches are gathered
        self._take_turn()
        main = self._main

        def begin_slice() -> None:
            if self.state.turn is not self._turn:
                self._take_turn()
            if self._main is not main:
                raise UsageError("the session was compiled anew between two slices of a run; start the run again.")

        options = RunOptions(
            epochs, shuffle, start, batch_size, self.reset_metrics, begin_slice, self._raises, every, seed
        )
        if self._observer is not None:
            look = Look(max(1, getattr(self._observer, "every", 1)), self._observe)
            options = replace(options, look=look)
        return run_in_slices(main, self.state, arrays, options)

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
            return given.predict(*arrays, **inputs)
        named = {**(self._mapping("predict", given, arrays) if given is not None else {}), **inputs}
        if self._source is not None and isinstance(self._source.model, Step):
            module = only_module(self._source.graph)
            if module is not None:
                return module.predict(*named.values()) if len(named) == 1 else module.predict(**named)
        outputs = self._predicted(named)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _predicted(self, named: Mapping[str, object]) -> dict[str, AnyArray]:
        """The outputs of any number of rows, by name; an error where a part of them would have other outputs."""
        entry = self._entry("predict")
        given = list(entry.parts(named))
        if len(given) > 1:
            self._need_rows_apart()
        parts = [entry(part).outputs for part in given]
        return parts[0] if len(parts) == 1 else {n: np.concatenate([p[n] for p in parts]) for n in parts[0]}

    def _need_rows_apart(self) -> None:
        from wholestep.steps.by_rows import what_mixes_rows

        if self._mixes_rows is None:
            self._mixes_rows = what_mixes_rows(self._need_source("the entry point 'predict'").trace("predict"))
        if self._mixes_rows:
            raise UsageError(
                f"predict was given more rows than the capacity, and parts of them would have other outputs: "
                f"{self._mixes_rows}. Give fewer rows at once, or build the session with a larger batch_size."
            )

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
            return given.evaluate(*data, **inputs)
        named = {**(self._mapping("evaluate", given, data) if given is not None else {}), **inputs}
        fits = self._need_source("the entry point 'evaluate'").fits(named)
        entry = self._entry(EVALUATE) if fits else self._entry_for_all_rows()
        self.reset_metrics(EVALUATE)
        return entry(named) if fits else evaluate_rows(entry, named)

    def evaluate_all(self, arrays: Mapping[str, object]) -> dict[str, Any]:
        """The loss over all rows of data sets of any length, and the metrics, with nothing changed.

        A loss that cannot be cut into batches is averaged over them, by their rows, and a warning says so once.

        Example: `session.evaluate_all({"x": X, "labels": Y})["loss"]`.
        """
        self._averages = self._averages or self._need_source("evaluate_all").has_fixed_batch
        if not self._averages:
            try:
                return {"loss": self.evaluate(arrays).loss, **self.metrics(EVALUATE)}
            except GraphError as error:
                log.warning("the loss over all rows is the mean of the losses of batches, by rows: %s", error)
                self._averages = True
        loss = self._mean_of_batches(arrays)
        return {"loss": loss, **self.metrics(EVALUATE)}

    def _mean_of_batches(self, arrays: Mapping[str, object]) -> float:
        entry = self._entry(EVALUATE)
        self.reset_metrics(EVALUATE)
        total = count = 0.0
        for part in batches(entry, arrays):
            rows = len(next(iter(part.values())))
            total, count = total + rows * entry(part).loss, count + rows
        return total / count

    def set_input(self, name: str, array: object) -> None:
        """Give an input ahead of `step()`: it is copied, and holds until it is given again."""
        item = self._main.inputs.named(name)
        self._held[name] = self._main.inputs.hold(item, array)

    def wait(self) -> None:
        """Return when all steps are done, which on a CPU they are; raises what went wrong in one of them."""
        for entry in self._entries.values():
            entry.program.wait()

    def read_loss(self) -> float:
        """The first output of the last step."""
        if not self._main.ran:
            raise UsageError("there is no loss yet: call session.step first.")
        return self._main.loss()

    # -- numbers -------------------------------------------------------------------------------------------------

    def get(self, name: str) -> AnyArray:
        """A copy of a parameter or state, or of an output or kept tensor of the last step."""
        if name in self.state:
            return self.state.get(name)
        outputs = list(self._main.outputs)
        if name not in outputs:
            known = ", ".join(map(repr, [*self.state.names, *outputs])) or "none"
            raise UnknownNameError(
                f"there is nothing named {name!r} to read; there are: {known}. Keep a tensor to read it: tensor.keep()."
            )
        if not self._main.ran:
            raise UsageError(f"the output {name!r} has no value yet: call session.step first.")
        return self._main.read(name)

    def set(self, name: str, array: object) -> None:
        """Replace a parameter or state."""
        self.state.replace(name, array)

    def state_dict(self) -> dict[str, AnyArray]:
        """Everything that a bit-exact resume needs: states, runtime scalars, counters."""
        self._need_averages("state_dict")
        return state_dict(self.state, self._scalars, self._turn, self._clocks)

    def prepare_to_load(self, values: Mapping[str, object]) -> None:
        """Compile the program that `values` were made by, where counts of updates differ that are one here."""
        self._count_apart(counts_in(values))

    def load_state_dict(self, values: Mapping[str, object], *, strict: bool = True) -> None:
        """Restore what `state_dict` gave.  Nothing is written unless all of it fits."""
        load_state_dict(self.state, self._scalars, self._turn, self._clocks, values, strict=strict)

    # -- inspection ----------------------------------------------------------------------------------------------

    @property
    def spans(self) -> tuple[Span, ...]:
        """What was timed so far: the stages of the builds, epochs, inputs."""
        return () if self._source is None else tuple(self._source.spans.all)

    def span(self, name: str) -> AbstractContextManager[Any]:
        """Time what happens inside, under a name; it is listed with the spans of the build."""
        return nullcontext() if self._source is None else self._source.spans.span(name)

    def profile(self, given: Mapping[str, object] | None = None, /, *, steps: int = 10, **inputs: object) -> Profile:
        """The time, GFLOP/s and GB/s of every kernel of a step, from some steps whose effects are undone.

        It compiles the plan once more with clocks around its kernels; what `step` runs is not touched, nor are bits.

        Example: `print(session.profile(x=xb, labels=yb))`.
        """
        from wholestep.session.inspect.profile import profile

        named = {**(self._mapping("profile", given) if given is not None else {}), **inputs}
        return profile(self, self._with_held(named) if self._held else named, steps)

    def trace(self, path: str | PathLike[str], profile: Profile | None = None) -> None:
        """Write the spans of builds and epochs, and the kernels of a profile, for Chrome's and Perfetto's viewers.

        Example: `session.trace("trace.json", session.profile(x=xb, labels=yb))`.
        """
        from wholestep.session.inspect.trace import write_trace

        source = self._need_source("spans")
        write_trace(path, source.spans.all, source.spans.origin, profile)

    @property
    def plan(self) -> Plan:
        """The plan of the main entry point."""
        return self._main.plan

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
        from wholestep.compiler.plan.report import plan_report  # no step needs it

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
        from wholestep.session.inspect.listing import annotated  # no step needs it

        if self._programs:
            return "\n".join(annotated(p.source, p.plan) for p in self._programs)
        return annotated(self._main.program.source, self.plan)

    def __repr__(self) -> str:
        return f"<Session: {len(self.plan.kernels)} kernels, {self.threads} threads, {self.peak_bytes:,} bytes>"


_RUN_OPTIONS = ("epochs", "shuffle", "start", "batch_size")


def _refuse_typos(arrays: Mapping[str, object], inputs: Sequence[str]) -> None:
    """An option of `run` that is misspelt would be taken for an input."""
    from difflib import get_close_matches  # a start that makes single steps does without

    for name in arrays:
        close = get_close_matches(name, _RUN_OPTIONS, 1, 0.7)
        if name not in inputs and close:
            raise UsageError(f"run has no option {name!r}; did you mean {close[0]}={arrays[name]!r}?")
