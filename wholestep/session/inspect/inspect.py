"""Looking at a session without changing it: what was built, what it costs, where its time goes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from wholestep.compiler.spans import OptimizeReport, Span
from wholestep.errors import UsageError
from wholestep.session.programs import Programs
from wholestep.session.verify.check import Verdict

if TYPE_CHECKING:
    from wholestep.callbacks.observers import Observer
    from wholestep.compiler.explain import Explanation
    from wholestep.compiler.plan.io.report import PlanReport
    from wholestep.session.inspect.nonfinite import Origin
    from wholestep.session.inspect.profile import Profile
    from wholestep.session.inspect.statistics import Stats


class Inspect:
    """Reports, times and texts of a session's programs.  What they need is loaded when they are asked for."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    @property
    def spans(self) -> tuple[Span, ...]:
        """What was timed so far."""
        return () if self._programs.compiled is None else tuple(self._programs.compiled.spans.all)

    def span(self, name: str) -> AbstractContextManager[Any]:
        """Time what happens inside, under a name; it is listed with the spans of the build."""
        return nullcontext() if self._programs.compiled is None else self._programs.compiled.spans.span(name)

    def profile(self, given: Mapping[str, object] | None = None, /, *, steps: int = 10, **inputs: object) -> Profile:
        """The time, GFLOP/s and GB/s of every kernel of a step, from some steps whose effects are undone.

        Beside them stands what the target's prices expect; `profile.by_layer()` is the time of every module.
        It compiles the plan once more with clocks around its kernels; what `step` runs is not touched, nor are bits.

        Example: `print(session.profile(x=xb, labels=yb))`.
        """
        from wholestep.session.inspect.profile import profile

        programs = self._programs
        named = {**(programs.by_name("profile", given) if given is not None else {}), **inputs}
        return profile(programs, programs.with_held(named) if programs.held else named, steps)

    def trace(self, path: str | PathLike[str], profile: Profile | None = None) -> None:
        """Write the spans of builds and epochs, and the kernels of a profile, for Chrome's and Perfetto's viewers.

        Example: `session.trace("trace.json", session.profile(x=xb, labels=yb))`.
        """
        from wholestep.session.inspect.profile import write_trace

        spans = self._programs.need("spans").spans
        write_trace(path, spans.all, spans.origin, profile)

    @property
    def peak_bytes(self) -> int:
        """What is mapped."""
        programs = self._programs
        if not programs.where.device.runs:
            return self.report().peak_bytes
        program_bytes = sum(e.program.mapped_bytes for e in programs.entries.values())
        return programs.state.mapped_bytes + programs.place.scratch.mapped_bytes + program_bytes

    def report(self) -> PlanReport:
        """Kernels, flops, bytes moved, exact peak memory, and where each byte goes."""
        from wholestep.compiler.plan.io.report import plan_report

        plan = self._programs.main.plan
        heading = "train" if plan.updated else "inference"
        where = self._programs.where
        plan = replace(plan, notes=where.device.notes(plan))
        if where.ranks and self._norms_per_worker():
            plan = replace(plan, notes=(*plan.notes, "batch norms with per_worker=True are over each rank's own rows"))
        return plan_report(plan, where.threads, heading, self._verdict(), where.ranks, where.model_ranks)

    def _norms_per_worker(self) -> bool:
        compiled = self._programs.compiled
        nodes = () if compiled is None else compiled.definition.trace(compiled.definition.main).nodes
        return any(getattr(node.attrs, "per_worker", False) for node in nodes)

    def _verdict(self) -> str:
        """Whether the main plan was checked against the interpreter."""
        compiled = self._programs.compiled
        verdict = None if compiled is None else compiled.verdicts.get(compiled.definition.main)
        return str(verdict or Verdict(skipped="the session was made from a plan alone"))

    def optimization(self) -> OptimizeReport:
        """What the e-graph did: rules with counts, time by step, budgets, and the plan's integers before and after.

        The integers without the e-graph are those of a second plan, which is made when this is first called and kept
        in the cache; nothing else is compiled again.
        """
        compiled = self._programs.need("the plan to compare with")
        return compiled.optimization(compiled.definition.main)

    def explain(self, name: str) -> Explanation:
        """Why a tensor is computed as it is: gradient rules, and rewrites with their numeric class, at your lines.

        Args:
            name: an output, a kept tensor, a state that the step changes, or a gradient ("w1.grad").

        Example::

            print(session.explain("w1.grad"))
        """
        compiled = self._programs.need("an explanation")
        return compiled.explain(compiled.definition.main, name)

    @property
    def source(self) -> str:
        """The text that runs, with names."""
        from wholestep.session.inspect.annotated_source import annotate_source

        running = self._programs.of_micro_batches or [self._programs.main.program]
        plans = self._programs.plans
        return "\n".join(annotate_source(p.source, plan) for p, plan in zip(running, plans, strict=True))

    def activation_stats(self, given: Mapping[str, object] | None = None, /, **inputs: object) -> dict[str, Stats]:
        """Statistics of every layer's output, in the order in which they are computed.

        Example: `session.activation_stats(x=xb)["0"].max`.
        """
        from wholestep.session.inspect.statistics import stats_of

        named = {**(given or {}), **inputs}
        entry = self._programs.entry_with_room("observe", named)
        names = {i.name for i in entry.inputs.all}
        return stats_of(entry({n: a for n, a in named.items() if n in names}).outputs)

    def first_nonfinite(self, given: Mapping[str, object] | None = None, /, **inputs: object) -> Origin | None:
        """Where the first value comes from that is not finite, in the loss of these inputs or in its gradients.

        The step is evaluated in NumPy, as the session's state is now; nothing changes.  None where all is finite.

        Example: `print(session.first_nonfinite(x=xb, labels=yb))`.
        """
        from wholestep.session.inspect.nonfinite import first_nonfinite

        return first_nonfinite(self._programs, {**(given or {}), **inputs})

    def set_observer(self, observer: Observer | None) -> None:
        """Show the activations of every layer before each step from now on; None ends it.  The step is unchanged.

        `run`, `ws.Trainer` and `ws.fit` show them too; where the observer has a number `every`, of every so many steps,
        and those between run natively, many at a time.
        """
        if observer is not None and not hasattr(observer, "on_activations"):
            raise UsageError(f"an observer has on_activations(step, stats), as ws.ConsoleObserver; got {observer!r}.")
        self._programs.observer = observer

    def observe(self, inputs: Mapping[str, object]) -> None:
        """Show the activations of these inputs to whoever observes."""
        observer = self._programs.observer
        assert observer is not None
        observer.on_activations(self._programs.state.step, self.activation_stats(inputs))
