"""Inspection of a session: reports, times, source, statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from os import PathLike
from typing import TYPE_CHECKING, Any

from wholestep.compiler.plan.model.target_formats import footprint
from wholestep.compiler.runtime.arrays import AnyArray
from wholestep.compiler.spans import OptimizeReport, Span
from wholestep.errors import UsageError
from wholestep.session.programs import Programs
from wholestep.session.verify.check import Verdict

NAMED = 8  # the most parameters in a line of the report

if TYPE_CHECKING:
    from wholestep.callbacks.observers import Observer
    from wholestep.compiler.explain import Explanation
    from wholestep.compiler.plan.io.report import PlanReport
    from wholestep.session.inspect.nonfinite import Origin
    from wholestep.session.inspect.profile import Profile
    from wholestep.session.inspect.statistics import Stats


class Inspect:
    """Reports, times and source of a session's programs.  Their modules are imported on first use."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs

    @property
    def spans(self) -> tuple[Span, ...]:
        """The timed spans so far."""
        return () if self._programs.compiled is None else tuple(self._programs.compiled.spans.all)

    def span(self, name: str) -> AbstractContextManager[Any]:
        """Time a block under a name; it is listed with the spans of the build."""
        return nullcontext() if self._programs.compiled is None else self._programs.compiled.spans.span(name)

    def profile(self, batch: Mapping[str, object] | None = None, /, *, steps: int = 10, **inputs: object) -> Profile:
        """The time, GFLOP/s and GB/s of every kernel of a step, from some steps whose effects are undone.

        It also has the times that the target's cost table predicts; `profile.by_layer()` is the time of every module.
        The plan is compiled once more with timers around its kernels; the program of `step` is not affected.

        Example: `print(session.profile(x=xb, labels=yb))`.
        """
        from wholestep.session.inspect.profile import profile

        programs = self._programs
        named = {**(programs.by_name("profile", batch) if batch is not None else {}), **inputs}
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
        """Bytes that the session maps."""
        programs = self._programs
        if not programs.where.device.runs:
            return footprint(programs.main.plan, programs.where.threads).peak_bytes
        program_bytes = sum(e.program.mapped_bytes for e in programs.entries.values())
        return programs.state.mapped_bytes + programs.place.scratch.mapped_bytes + program_bytes

    def report(self) -> PlanReport:
        """Kernels, flops, bytes moved, exact peak memory, and where each byte goes."""
        from wholestep.compiler.plan.io.report import plan_report
        from wholestep.session.inspect.estimate import step_seconds
        from wholestep.session.inspect.slow_kernels import slow_notes

        plan = self._programs.main.plan
        heading = "train" if plan.updated else "inference"
        where = self._programs.where
        plan = replace(plan, notes=where.device.notes(plan))
        if where.ranks and self._norms_per_worker():
            plan = replace(plan, notes=(*plan.notes, "batch norms with per_worker=True are over each rank's own rows"))
        own = (*self._programs.notes, *self._privacy(), *self._row_forms())
        plan = replace(plan, notes=(*plan.notes, *own, *slow_notes(plan, where.device.target)))
        report = plan_report(plan, where.threads, heading, self._verdict(), where.ranks, where.model_ranks)
        predicted = step_seconds(plan, where.device.target, where.threads)
        return replace(report, predicted=predicted, measured=self._programs.main.step_seconds)

    def _privacy(self) -> list[str]:
        """A description of a private step, with the current scalars."""
        if self._programs.compiled is None or self._programs.step_options.privacy is None:
            return []
        clip, noise, rows = (self._programs.scalars[f"privacy.{name}"] for name in ("clip", "noise", "rows"))
        deviation = f"noise of {noise:.4g} times that is added"
        return [
            f"privacy: gradients of rows are clipped to a norm of {clip:.4g}, {deviation}, divided by {rows:g} rows"
        ]

    def _row_forms(self) -> list[str]:
        """How the gradient norms of single rows are computed, by parameter."""
        options, compiled = self._programs.step_options, self._programs.compiled
        if compiled is None or not (options.privacy or "gradient_norm" in options.per_row.names):
            return []
        from wholestep.compiler.passes.per_row.contributions import row_forms  # imported here because it is slow

        names = (node.name for node in compiled.definition.trace(compiled.definition.main).nodes)
        forms = row_forms(names).items()
        more = {form: f" and {len(each) - NAMED} more" if len(each) > NAMED else "" for form, each in forms}
        return [f"gradient norms of rows by {form}: {', '.join(each[:NAMED])}{more[form]}" for form, each in forms]

    def _norms_per_worker(self) -> bool:
        compiled = self._programs.compiled
        nodes = () if compiled is None else compiled.definition.trace(compiled.definition.main).nodes
        return any(getattr(node.attrs, "per_worker", False) for node in nodes)

    def _verdict(self) -> str:
        """The result of the main plan's self-check as text."""
        compiled = self._programs.compiled
        verdict = None if compiled is None else compiled.verdicts.get(compiled.definition.main)
        return str(verdict or Verdict(skipped="the session was built from a plan alone"))

    def optimization(self) -> OptimizeReport:
        """The work of the e-graph: rules with counts, time by step, budgets, and the plan's integers before and after.

        The integers without the e-graph are those of a second plan, which the first call makes and caches.
        """
        compiled = self._programs.need("the plan to compare with")
        return compiled.optimization(compiled.definition.main)

    def explain(self, name: str) -> Explanation:
        """How a tensor is computed: gradient rules, and rewrites with their numeric class, at your lines.

        Args:
            name: an output, a kept tensor, a state that the step changes, or a gradient ("w1.grad").

        Example::

            print(session.explain("w1.grad"))
        """
        compiled = self._programs.need("an explanation")
        return compiled.explain(compiled.definition.main, name)

    @property
    def source(self) -> str:
        """The source code of the program, with names."""
        from wholestep.compiler.plan.io.report import annotate_source

        running = self._programs.of_micro_batches or [self._programs.main.program]
        plans = self._programs.plans
        return "\n".join(annotate_source(p.source, plan) for p, plan in zip(running, plans, strict=True))

    def activation_stats(self, batch: Mapping[str, object] | None = None, /, **inputs: object) -> dict[str, Stats]:
        """Statistics of every layer's output, in the order in which they are computed.

        Example: `session.activation_stats(x=xb)["0"].max`.
        """
        from wholestep.session.inspect.statistics import stats_of

        named = {**(batch or {}), **inputs}
        entry = self._programs.entry_with_room("observe", named)
        names = {i.name for i in entry.inputs.all}
        return stats_of(entry({n: a for n, a in named.items() if n in names}).outputs)

    def tensors(
        self, names: Sequence[str], arrays: Mapping[str, object] | None = None, /, **inputs: object
    ) -> dict[str, AnyArray]:
        """Tensors of a training step of these inputs, as they are before its update; no state changes.

        Args:
            names: outputs of layers (`"encoder.0"`), tensors that `keep(name)` named, inputs, outputs and parameters,
                and the gradients of the loss for any of them (`"encoder.0.grad"`).  The program that computes these
                alone is compiled when they are asked for.

        Example: `session.tensors(["0", "0.grad"], x=xb, labels=yb)["0.grad"]`.
        """
        from wholestep.steps.tensor_graphs import tensors_entry

        named = {**(arrays or {}), **inputs}
        entry = self._programs.entry_with_room(tensors_entry(names), named)
        wanted = {i.name for i in entry.inputs.all}
        return dict(entry({n: a for n, a in named.items() if n in wanted}).outputs)

    def first_nonfinite(self, batch: Mapping[str, object] | None = None, /, **inputs: object) -> Origin | None:
        """The operation that computes the first non-finite value of the loss of these inputs, or of its gradients.

        The step is evaluated in NumPy with the current state; nothing changes.  None if all values are finite.

        Example: `print(session.first_nonfinite(x=xb, labels=yb))`.
        """
        from wholestep.session.inspect.nonfinite import first_nonfinite

        return first_nonfinite(self._programs, {**(batch or {}), **inputs})

    def set_observer(self, observer: Observer | None) -> None:
        """Pass the activations of every layer to an observer before each step; None ends it.  The step is unchanged.

        This holds in `run`, `ws.Trainer` and `ws.fit` too.  An observer with `every` is called once in so many steps;
        the steps in between run natively, many per call.  One with `tensors`, such as `["0", "0.grad"]`, gets these
        in place of the layers' outputs: see `session.tensors`.
        """
        if observer is not None and not hasattr(observer, "on_activations"):
            raise UsageError(
                f"an observer has a method on_activations(step, stats), as ws.ConsoleObserver has; received "
                f"{observer!r}."
            )
        self._programs.observer = observer

    def observe(self, inputs: Mapping[str, object]) -> None:
        """Pass the activations of these inputs to the observer."""
        observer = self._programs.observer
        assert observer is not None
        names = getattr(observer, "tensors", ())
        if names:
            from wholestep.session.inspect.statistics import stats_of

            stats = stats_of(self.tensors(names, inputs))
        else:
            stats = self.activation_stats(inputs)
        observer.on_activations(self._programs.state.step, stats)
