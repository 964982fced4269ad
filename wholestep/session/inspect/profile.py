"""Profiles: the time of every kernel of a step, from a build of its plan with timers; traces for viewers."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from wholestep.compiler.backends.cpu.runtime.profiler import KernelEvent
from wholestep.compiler.plan.io.report import describe_kernel
from wholestep.compiler.plan.io.traffic import price_kernel
from wholestep.compiler.plan.model.kernel import Buffer, Kernel, Plan
from wholestep.compiler.spans import Span
from wholestep.compiler.target import CostTable, Target
from wholestep.errors import OptionError, UsageError
from wholestep.session.inspect.slow_kernels import SLOW_LINES, advice_on, is_slow
from wholestep.session.programs import Programs
from wholestep.session.running.entry_point import EntryPoint
from wholestep.session.running.micro_batches import shape_of
from wholestep.session.state_dict import undone_steps
from wholestep.steps.definition import TRAIN

if TYPE_CHECKING:
    from wholestep.compiler.backend import Program
    from wholestep.session.building.plans import Plans
    from wholestep.session.inspect.layers import LayerProfile, Parts

BARRIER = -1


class ProfileRecorder(Protocol):
    """Records the times of a profiled program."""

    row: str  # the executor of the kernels: "thread", …

    def clear(self) -> None:
        """Discard the events so far."""

    def take(self) -> list[KernelEvent]:
        """The events since `clear`."""


@dataclass(frozen=True)
class KernelTime:
    """One kernel of a step: the time of its slowest thread, and what it does in it at capacity (0: not at capacity)."""

    program: int  # index of the micro-batch program; 0 if the step is one program
    kernel: int
    name: str
    seconds: float
    flops: int
    bytes: int
    expected: float = 0.0  # seconds: the larger cost of its flops and its bytes by the target's table
    bound: str = ""  # which of the two costs is larger: "flops" or "bytes"

    @property
    def intensity(self) -> float:
        """Floating-point operations for every byte moved."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def of_expected(self) -> float:
        """Expected time / measured time; above 1 the data came from caches."""
        return self.expected / self.seconds if self.seconds else 0.0

    @property
    def gflops(self) -> float:
        """Billions of floating-point operations per second."""
        return 1e-9 * self.flops / self.seconds if self.seconds else 0.0

    @property
    def gbytes(self) -> float:
        """Billions of bytes moved per second."""
        return 1e-9 * self.bytes / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class KernelLayers:
    """The layers of a profile's kernels, computed on first use."""

    compiled: Plans | None
    plans: tuple[Plan, ...]

    @cached_property
    def parts(self) -> Mapping[tuple[int, int], Parts]:
        """The layers of every kernel."""
        if self.compiled is None:
            raise UsageError(
                "this session was built from a plan alone, which does not store the layers of its kernels. Use "
                "ws.build_session(model)."
            )
        from wholestep.session.inspect.layers import parts_of

        return parts_of(self.compiled, self.plans)


@dataclass(frozen=True)
class Profile:
    """The kernels of a step with their times; `str()` is a table, slowest first."""

    kernels: tuple[KernelTime, ...]
    step_seconds: float  # the median step, including the timers
    waiting_seconds: float  # time at barriers, for the thread that waits longest
    steps: int
    row: str  # the executor of the kernels: "thread", …
    timeline: tuple[tuple[int, KernelEvent], ...]  # (program, event) of all steps
    names: Mapping[tuple[int, int], str]  # (program, kernel) -> what it computes
    layers: KernelLayers = field(repr=False, compare=False)
    # (program, kernel) -> why its schedule is slow; None if the target's prices are too coarse to judge a kernel
    advice: Mapping[tuple[int, int], str] | None = None

    @property
    def slow(self) -> tuple[KernelTime, ...]:
        """The kernels that take more than `SLOW` times their expected time, by decreasing loss of time."""
        late = [k for k in self.kernels if self.advice is not None and is_slow(k.expected, k.seconds)]
        return tuple(sorted(late, key=lambda k: k.expected - k.seconds))

    def by_layer(self) -> LayerProfile:
        """The same times by layer: forward, backward and update of every module, in the order in which they run.

        The first call plans once more, to find the modules that recorded the nodes of each kernel.

        Example: `print(session.profile(x=xb, labels=yb).by_layer())`.
        """
        from wholestep.session.inspect.layers import sum_by_layer

        return sum_by_layer(self.layers.parts, {(k.program, k.kernel): k.seconds for k in self.kernels})

    def _repr_html_(self) -> str:
        """The table below its total, for notebooks."""
        from wholestep.notebook import text_html

        return text_html(
            f"{len(self.kernels)} kernels; the median of {self.steps} steps took {1e6 * self.step_seconds:,.1f} us",
            str(self),
        )

    def __str__(self) -> str:
        head = (
            f"{'kernel':>6}  {'time':>10}  {'share':>6}  {'GFLOP/s':>8}  {'GB/s':>7}  {'FLOP/B':>6}  {'expected':>10}  "
            f"{'bound':<5}  nodes -> results"
        )
        lines = [self._line(k) for k in sorted(self.kernels, key=lambda k: -k.seconds)]
        total = f"{self.steps} steps on {self._where}; the median step took {1e6 * self.step_seconds:,.1f} us"
        if any(e.kernel == BARRIER for _, e in self.timeline):
            total += f", of which {1e6 * self.waiting_seconds:,.1f} us waiting at barriers"
        return "\n".join([head, *lines, *map(self._advice, self.slow[:SLOW_LINES]), total, *self._roofline()])

    def _advice(self, k: KernelTime) -> str:
        why = (self.advice or {}).get((k.program, k.kernel), "")
        return (
            f"kernel {k.kernel} ({k.name}) runs at {k.of_expected:.1%} of the speed that its work allows: expected "
            f"{1e6 * k.expected:,.1f} us, measured {1e6 * k.seconds:,.1f} us{f'; {why}' if why else ''}"
        )

    def _roofline(self) -> list[str]:
        expected, measured = sum(k.expected for k in self.kernels), sum(k.seconds for k in self.kernels)
        if not expected or not measured:
            return []
        return [
            f"by the target's cost table its kernels take {1e6 * expected:,.1f} us on {self._where}; measured "
            f"{1e6 * measured:,.1f} us, {expected / measured:.0%} of that speed"
        ]

    @property
    def rows(self) -> Mapping[int, str]:
        """The names of threads, or of the GPU, by `KernelEvent.thread`."""
        return {number: f"{self.row} {number}" for number in sorted({e.thread for _, e in self.timeline})}

    @property
    def _where(self) -> str:
        count = len(self.rows)
        return f"{count} {self.row}{'s' if count != 1 else ''}"

    def _line(self, k: KernelTime) -> str:
        share = k.seconds / self.step_seconds if self.step_seconds else 0.0
        rates = f"{'-':>8}  {'-':>7}  {'-':>6}  {'-':>10}  {'-':<5}"
        if k.bytes:
            rates = (
                f"{k.gflops:>8.1f}  {k.gbytes:>7.1f}  {k.intensity:>6.1f}  {1e6 * k.expected:>7.1f} us  {k.bound:<5}"
            )
        return f"{k.kernel:>6}  {1e6 * k.seconds:>7.1f} us  {share:>6.1%}  {rates}  {k.name}"


def profile(programs: Programs, inputs: Mapping[str, object], steps: int) -> Profile:
    """Run some steps with timers, and restore the state afterwards."""
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise OptionError(f"profile: steps must be an integer of at least 1; received {steps!r}.")
    entry, recorders = _profiled_program(programs)
    with undone_steps(programs):
        entry(inputs).wait()  # warm up: pages, caches, a GPU's graphs
        runs = [_one_step(entry, recorders, inputs) for _ in range(steps)]
    times = _times(programs) if _at_capacity(entry) else [0 for _ in recorders]
    layers = KernelLayers(programs.compiled, programs.plans)
    return _summary(runs, times, recorders[0].row, layers, programs.where.device.target)


def _profiled_program(programs: Programs) -> tuple[EntryPoint, list[ProfileRecorder]]:
    """The main entry point with profiled programs, over the same state and scratch memory; their recorders."""
    place, device, main_plan = replace(programs.place, profile=True), programs.where.device, programs.main.plan
    if not device.runs:
        raise UsageError(f"device={device.name!r} does not run plans; profile a session on device='cpu'.")
    with nullcontext() if programs.compiled is None else programs.compiled.spans.span("profiled_build"):
        profiled: list[Program] = [device.load(plan, place) for plan in programs.plans]
    for program in profiled:
        for name, value in (*programs.scalars.items(), *programs.starts().items()):
            program.scalar(name, value)
    main = profiled[0]
    if programs.of_micro_batches:
        shape = shape_of(programs.need("micro-batches").definition, TRAIN)
        main = device.load_micro_batches(main_plan, profiled, place, shape)
    main.count_steps(bool(main_plan.updated))
    return EntryPoint(main, programs.turns), [_recorder_of(p) for p in profiled]


def _recorder_of(program: Program) -> ProfileRecorder:
    recorder: ProfileRecorder | None = getattr(program, "recorder", None)
    if recorder is None:
        raise UsageError(
            f"the device of {program.plan.target!r} has no timers for kernels; profile a session on device='cpu'."
        )
    return recorder


Run = tuple[float, list[tuple[int, KernelEvent]]]


def _one_step(entry: EntryPoint, recorders: Sequence[ProfileRecorder], inputs: Mapping[str, object]) -> Run:
    for recorder in recorders:
        recorder.clear()
    begun = time.perf_counter()
    entry(inputs).wait()
    took = time.perf_counter() - begun
    return took, [(i, event) for i, recorder in enumerate(recorders) for event in recorder.take()]


def _at_capacity(entry: EntryPoint) -> bool:
    return all(entry.inputs.sizes[s] == n for s, n in entry.plan.sizes.items() if s in entry.inputs.sizes)


def _times(programs: Programs) -> list[int]:
    """How often each program runs in a step at capacity: the program of a micro-batch once for each, any other once."""
    if not programs.of_micro_batches:
        return [1]
    shape = shape_of(programs.need("micro-batches").definition, TRAIN)
    parts = -(-programs.main.plan.sizes[shape.batch] // shape.part)
    return [*(parts for _ in programs.plans[1:]), 1]


def _summary(runs: Sequence[Run], times: Sequence[int], row: str, layers: KernelLayers, target: Target) -> Profile:
    costs, advice = target.costs, advice_on(layers.plans, target)
    spent = [_slowest(events) for _, events in runs]
    typical = {key: median(t.get(key, 0.0) for t in spent) for key in {k for t in spent for k in t}}
    working = max(1, len({e.thread for _, events in runs for _, e in events}))
    kernels = [
        KernelTime(
            i,
            k.id,
            describe_kernel(k, plan),
            typical.get((i, k.id), 0.0),
            times[i] * k.flops,
            times[i] * k.bytes,
            *_expected_seconds(k, plan.buffers, costs, times[i] / working),
        )
        for i, plan in enumerate(layers.plans)
        for k in plan.kernels
    ]
    return Profile(
        tuple(kernels),
        median(took for took, _ in runs),
        sum(seconds for (_, kernel), seconds in typical.items() if kernel == BARRIER),
        len(runs),
        row,
        tuple(pair for _, events in runs for pair in events),
        {(k.program, k.kernel): k.name for k in kernels},
        layers,
        advice,
    )


def _expected_seconds(kernel: Kernel, buffers: Sequence[Buffer], costs: CostTable, times: float) -> tuple[float, str]:
    """The predicted seconds of a kernel by the cost table of one thread, and whether flops or bytes bound it."""
    computing, moving = price_kernel(kernel, buffers, costs)
    return 1e-9 * times * max(computing, moving), "flops" if computing > moving else "bytes"


def _slowest(events: Sequence[tuple[int, KernelEvent]]) -> dict[tuple[int, int], float]:
    """(program, kernel) -> seconds of the thread that spent most in it, in one step."""
    spent: defaultdict[tuple[int, int], defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for program, e in events:
        spent[program, e.kernel][e.thread] += e.seconds
    return {key: max(by_thread.values()) for key, by_thread in spent.items()}


# -- traces for Chrome (chrome://tracing) and Perfetto (ui.perfetto.dev) ----------------------------------------

PYTHON, NATIVE = 1, 2  # process numbers: rows of the trace are grouped by them


def chrome_trace(spans: Iterable[Span], origin: float, profile: Profile | None = None) -> dict[str, Any]:
    """The trace as a JSON value; times are microseconds since `origin`, which is on `time.perf_counter`'s clock."""
    events = [
        _metadata_event("process_name", "Wholestep", PYTHON, 0),
        _metadata_event("thread_name", "Python", PYTHON, 0),
    ]
    events += [_span(s) for s in spans]
    if profile is not None:
        events.append(_metadata_event("process_name", "kernels", NATIVE, 0))
        events += [_metadata_event("thread_name", name, NATIVE, number) for number, name in profile.rows.items()]
        events += _kernels(profile, origin)
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_trace(
    path: str | PathLike[str], spans: Iterable[Span], origin: float, profile: Profile | None = None
) -> None:
    """Write the trace as a file that Chrome and Perfetto open."""
    Path(path).write_text(json.dumps(chrome_trace(spans, origin, profile)), encoding="utf-8")


def _metadata_event(what: str, name: str, process: int, thread: int) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _span(span: Span) -> dict[str, Any]:
    nodes = {"nodes_before": span.nodes_before, "nodes_after": span.nodes_after}
    counts = {k: v for k, v in nodes.items() if v is not None}
    return _complete(span.name, "span", 1e6 * span.start, 1e6 * span.seconds, PYTHON, 0, counts)


def _kernels(profile: Profile, origin: float) -> list[dict[str, Any]]:
    events = []
    work = {(k.program, k.kernel): {"flops": k.flops, "bytes": k.bytes} for k in profile.kernels}
    for program, e in profile.timeline:
        waits = e.kernel == BARRIER
        name = "barrier" if waits else profile.names[program, e.kernel]
        about = {} if waits else {"kernel": e.kernel, "program": program, **work[program, e.kernel]}
        start, length = 1e6 * (e.begin - origin), 1e6 * e.seconds
        events.append(_complete(name, "wait" if waits else "kernel", start, length, NATIVE, e.thread, about))
    return events


def _complete(
    name: str, category: str, start: float, length: float, process: int, thread: int, about: dict[str, Any]
) -> dict[str, Any]:
    event = {"ph": "X", "name": name, "cat": category, "ts": start, "dur": length, "pid": process, "tid": thread}
    return {**event, "args": about} if about else event
