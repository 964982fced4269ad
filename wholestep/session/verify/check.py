"""Self-verified plans: a new plan runs once on scratch numbers, at small sizes and, where it is cheap, at capacity.

It is compared with the interpreted trace, so everything after the trace is checked: passes, planner, renderer, C
compiler, runtime.  `trials.py` makes the comparison; this module decides when, and caches the result.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING

from wholestep.compiler.backend import Placement
from wholestep.compiler.ir.graph import IRGraph
from wholestep.compiler.ir.type_rules.collectives import BATCH, MODEL_RANK, OWN, RANK, ROWS, SHARES
from wholestep.compiler.ir.types import evaluate, product
from wholestep.compiler.plan.model.bodies import Call, Dot
from wholestep.compiler.plan.model.kernel import Kernel, Plan
from wholestep.compiler.plan.model.target_formats import footprint
from wholestep.compiler.runtime.cache.content_store import open_cache
from wholestep.compiler.spans import Spans
from wholestep.errors import PlanError, VerificationError
from wholestep.records import dataclass

if TYPE_CHECKING:
    from wholestep.session.verify.compare import Comparison


Sizes = Mapping[str, int]

SUFFIX = ".verdict"
CHEAP_SECONDS = 0.05  # a default check runs at capacity only if its estimate is lower
HEAVY_FLOPS = 4e9  # if a step at the smallest sizes takes more, the number of rows is reduced, down to one

# Estimated seconds of a check at capacity, measured on two cores of a server: per node, per flop of a contraction, per
# byte that the plan moves, per state element (drawn, converted, read), and per element of an op that NumPy lacks.
NODE, DOT_FLOP, BYTE, ELEMENT, SLOW = 40e-6, 1e-10, 1.5e-9, 0.02e-6, 0.4e-6
SLOW_OP = "erf"
# Estimated seconds of the smallest check of a large step: per flop of a product, of a call such as attention, and of
# one in a half type, whose roundings NumPy emulates; and the longest check that runs by default.
LARGE_FLOP, CALL_FLOP, HALF_CALL_FLOP, TOO_LONG = 2e-11, 1.5e-10, 1e-9, 60.0


@dataclass(frozen=True)
class Verdict:
    """The result of checking a plan against the interpreter, or the reason why it was `skipped`."""

    sizes: tuple[Sizes, ...] = ()  # the sizes of the symbolic dimensions in each run
    worst: float = 0.0  # the largest error, relative to the scale of its tensor
    where: str = ""  # the output or state with the largest error
    # output or state -> positions that are not finite in both
    not_finite: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    skipped: str = ""

    @property
    def checked(self) -> bool:
        """Was the plan run?"""
        return not self.skipped

    def __str__(self) -> str:
        if self.skipped:
            return f"not checked against the interpreter: {self.skipped}"
        runs = " and ".join(sizes_text(s) for s in self.sizes)
        worst = f"worst error {self.worst:.1e} of its tensor's scale"
        worst += f" ({self.where})" if self.where else ""
        odd = "".join(f"; {n} positions of {name} are not finite in both" for name, n in self.not_finite.items())
        return f"checked against the interpreter at {runs}: {worst}{odd}; {1e3 * self.seconds:.0f} ms"

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def sizes_text(sizes: Sizes) -> str:
    return ", ".join(f"{s}={n}" for s, n in sizes.items()) or "its fixed sizes"


def parse_verdict(text: str) -> Verdict:
    """The verdict of a `Verdict.to_json()`; PlanError for any other text."""
    try:
        fields = json.loads(text)
        return Verdict(**{**fields, "sizes": tuple(fields["sizes"])})
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PlanError(f"this is not a verdict on a plan: {error!r}. Build again.") from None


@dataclass(frozen=True)
class Subject:
    """A plan to check, its trace, its cache key, and where it will run."""

    graph: IRGraph  # the recorded graph
    plan: Plan
    key: str
    where: Placement

    @property
    def program_key(self) -> str:
        return self.where.device.program_key(self.plan, self.where.options, self.key)


def verdict_on(subject: Subject, spans: Spans, *, new: bool) -> Verdict:
    """Check a plan unless its verdict is cached or `verify=False`; raise VerificationError if it is wrong.

    A verdict is cached with its compiled program: another C compiler needs its own.
    """
    stored = None if new else _find(subject)
    if stored is not None and (not subject.where.options.verify or subject.plan.sizes in stored.sizes):
        return stored
    if reason := _reason_to_skip(subject):
        return Verdict(skipped=reason)
    with spans.span("self_check"):
        verdict = check(subject)
    _store(subject, verdict)
    return verdict


def _reason_to_skip(subject: Subject) -> str:
    if not subject.where.device.runs:
        return f"device={subject.where.device.name!r} does not run plans"
    if subject.where.options.verify is False:
        return "verify=False"
    adds = not subject.plan.divided and any(name.startswith(SHARES) for name, _ in subject.plan.states)
    if adds and axes_of(subject.plan):
        return "it adds sums that ranks have computed before"
    if subject.where.options.verify is None and (reason := _reason_of_ranks(subject)):
        return reason
    seconds = least_seconds(subject.plan)
    if subject.where.options.verify is None and seconds > TOO_LONG:
        return f"a row of this step would take NumPy about {seconds:.0f} s; CompileOptions(verify=True) checks it"
    return ""


def _reason_of_ranks(subject: Subject) -> str:
    """Ranks with sharded states are checked together on one device: the reason if its memory is too small."""
    axes, free = axes_of(subject.plan), getattr(subject.where.device.memory, "free_bytes", None)
    if axes is None or free is None:
        return ""
    needed = math.prod(axes) * footprint(subject.plan, subject.where.threads).peak_bytes
    if needed <= free:
        return ""
    return (
        f"{math.prod(axes)} ranks side by side need {needed:,} bytes, and this device has {free:,} left; a smaller "
        "batch_size= or network checks the same rules"
    )


def least_seconds(plan: Plan) -> float:
    """The estimated seconds of a check of one row."""
    share = 1 / math.prod(plan.sizes.values())
    calls = [(k.flops, k.body.dtype) for k in plan.kernels if isinstance(k.body, Call)]
    called = sum(flops * (HALF_CALL_FLOP if dtype.is_half else CALL_FLOP) for flops, dtype in calls)
    others = sum(k.flops for k in plan.kernels) - sum(flops for flops, _ in calls)
    return share * (called + others * LARGE_FLOP + plan.bytes_moved * BYTE)


def estimate_seconds(plan: Plan) -> float:
    """The estimated seconds of a check at capacity: a function of the plan, so that equal builds agree."""
    nodes = sum(len(k.origin) for k in plan.kernels)
    dots = sum(k.flops for k in plan.kernels if isinstance(k.body, Dot))
    elements = sum(plan.buffers[id].bytes // plan.buffers[id].type.dtype.size for _, id in plan.states)
    slow = sum(
        _elements(k, plan.sizes) for k in plan.kernels for level in k.levels for i in level.body if i.op == SLOW_OP
    )
    return nodes * NODE + dots * DOT_FLOP + plan.bytes_moved * BYTE + elements * ELEMENT + slow * SLOW


def _elements(kernel: Kernel, sizes: Sizes) -> int:
    """How often a kernel's body runs; for a contraction, once per result."""
    summed = kernel.body.k if isinstance(kernel.body, Dot) else None
    return evaluate(product(e for axis, e in enumerate(kernel.axes) if axis != summed), sizes)


def _find(subject: Subject) -> Verdict | None:
    if not subject.where.device.runs:
        return None
    path = open_cache(subject.where.options).get(subject.program_key, SUFFIX)
    try:
        return None if path is None else parse_verdict(path.read_text(encoding="utf-8"))
    except (OSError, PlanError):
        return None  # an unreadable verdict: check again


def _store(subject: Subject, verdict: Verdict) -> None:
    open_cache(subject.where.options).put(subject.program_key, verdict.to_json().encode(), SUFFIX)


# -- the check ---------------------------------------------------------------------------------------------------


def check(subject: Subject) -> Verdict:
    """Check a plan against the interpreter.  A wrong one is removed from the cache."""
    # imported here because a warm start needs neither these nor the passes
    from wholestep.session.verify.trials import Trials

    begun = time.perf_counter()
    trials = Trials(subject)
    every = _sizes_to_try(subject, trials.graph)
    trials.rehearse(every[0])
    runs = []
    for sizes in every:
        runs.append(trials.settled(sizes))
        if runs[-1].mismatches:
            _forget(subject)
            raise VerificationError(_complaint(runs[-1], sizes))
    worst = max(runs, key=lambda r: r.worst)
    odd = {name: sum(r.not_finite.get(name, 0) for r in runs) for r in runs for name in r.not_finite}
    return Verdict(tuple(every), worst.worst, worst.where, odd, time.perf_counter() - begun)


def _sizes_to_try(subject: Subject, graph: IRGraph) -> list[dict[str, int]]:
    """The sizes to check: small ones, and the capacity with `verify=True` or if that is cheap."""
    from wholestep.session.verify.random_inputs import SMALL, small_sizes

    plan, capacity = subject.plan, dict(subject.plan.sizes)
    flops = sum(k.flops for k in plan.kernels) / math.prod(capacity.values())  # flops per row
    for first in (SMALL, (2, 1), (1,)):
        small = small_sizes(graph, capacity, plan.least, first)
        if flops * math.prod(small.values()) <= HEAVY_FLOPS:
            break
    wanted = subject.where.options.verify or estimate_seconds(plan) <= CHEAP_SECONDS
    every = [small, capacity] if wanted and small != capacity else [small]
    return [_of_one_rank(plan, sizes) for sizes in every]


def _of_one_rank(plan: Plan, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes of a single rank, which has all rows."""
    if not plan.divided:
        return {s: n for s, n in sizes.items() if s not in (RANK, MODEL_RANK)}
    rows = sizes[plan.divided]
    axes = axes_of(plan)
    if axes and axes[0] > 1:  # all ranks along the data axis run, each with one row
        rows = plan.whole if sizes == plan.sizes else max(rows, axes[0])
    row_sizes = {s: rows for s in (plan.divided, ROWS, BATCH) if s in plan.sizes}  # the trace may lack some of these
    return {**{s: n for s, n in sizes.items() if s not in (OWN, RANK, MODEL_RANK)}, **row_sizes}


def axes_of(plan: Plan) -> tuple[int, int] | None:
    """The number of ranks along each axis that share the states of a plan; None: states are not sharded."""
    states = [plan.buffers[id] for _, id in plan.states]
    if not any(buffer.is_part for buffer in states):
        return None
    return max(b.parts or 1 for b in states), max(b.split[2] if b.split else 1 for b in states)


def _complaint(comparison: Comparison, sizes: Sizes) -> str:
    worst = max(comparison.mismatches, key=lambda m: m.error)
    others = [m.what for m in comparison.mismatches if m is not worst]
    also = f" Also wrong: {', '.join(others[:8])}{', ...' if len(others) > 8 else ''}." if others else ""
    return (
        f"the compiled step does not compute what the graph means. At {sizes_text(sizes)}, {worst}: an error of "
        f"{worst.error:.1e} of its scale, where {comparison.tolerance:.0e} was expected at most.{also} This is a bug "
        "in Wholestep; nothing was cached. Please report it with your graph, and go on with "
        "options=ws.CompileOptions(optimize=False), or with verify=False to use the plan as it is."
    )


def _forget(subject: Subject) -> None:
    store = open_cache(subject.where.options)
    for key in filter(None, (subject.program_key, subject.key)):
        store.discard(key)
