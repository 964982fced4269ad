"""Self-verified plans: a new plan runs once on scratch numbers, at small sizes and at capacity, and is compared with
what its trace means.  Everything behind the trace is checked with it: passes, planner, renderer, C compiler, runtime.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wholestep.compiler.ir.graph import Graph
from wholestep.compiler.ir.types import evaluate, product
from wholestep.compiler.plan.kernel import Kernel, Plan
from wholestep.compiler.runtime.device import Device, Place
from wholestep.compiler.runtime.memory import Scratch
from wholestep.compiler.runtime.state import State
from wholestep.compiler.runtime.store import cache_of
from wholestep.compiler.spans import Spans
from wholestep.errors import VerificationError
from wholestep.options import CompileOptions
from wholestep.session.result import EntryPoint
from wholestep.session.verdict import Verdict, parse_verdict, sizes_text

if TYPE_CHECKING:
    from wholestep.compiler.ir.interpret import Result
    from wholestep.session.compare import Comparison
    from wholestep.session.trial import Recipe, Trial

Sizes = Mapping[str, int]

SUFFIX = ".verdict"
CHEAP_SECONDS = 0.05
ATTEMPTS = 3  # one flip of a relu at 0 is bad luck; a wrong plan is wrong on every draw

# What a check spends, in seconds, measured on two cores of a server: on a node (three evaluations), a flop of a
# contraction, a byte that the plan moves, an element of a state (drawn, packed, updated three times, compared), and an
# element of an op that NumPy does not have.
NODE, DOT_FLOP, BYTE, ELEMENT, SLOW = 55e-6, 1e-10, 1.5e-9, 0.3e-6, 0.4e-6
SLOW_OP = "erf"


@dataclass(frozen=True)
class Subject:
    """A plan to check, what it was made from, and where it will run.  `key` stands for the plan in caches."""

    graph: Graph  # as it was traced
    plan: Plan
    key: str
    device: Device
    threads: int
    options: CompileOptions

    @property
    def program_key(self) -> str:
        return self.device.program_key(self.plan, self.options, self.key)


def verdict_on(subject: Subject, spans: Spans, *, new: bool) -> Verdict:
    """Check a plan unless its verdict is known or the options say not to; VerificationError where it is wrong.

    A verdict is kept with the compiled program it is about: another C compiler's needs its own.
    """
    known = None if new else _find(subject)
    if known is not None:
        return known
    if reason := _reason_to_skip(subject):
        return Verdict(skipped=reason)
    with spans.span("self_check"):
        verdict = check(subject)
    _store(subject, verdict)
    return verdict


def _reason_to_skip(subject: Subject) -> str:
    wanted = subject.options.verify
    if not subject.device.runs:
        return f"device={subject.device.name!r} does not run plans"
    if wanted is False:
        return "verify=False"
    seconds = estimated_seconds(subject.plan)
    if wanted is None and seconds > CHEAP_SECONDS:
        return f"estimated {1e3 * seconds:.0f} ms; options=ws.CompileOptions(verify=True) checks it"
    return ""


def estimated_seconds(plan: Plan) -> float:
    """What a check will take: a function of the plan, so that equal builds decide alike."""
    nodes = sum(len(k.origin) for k in plan.kernels)
    dots = sum(k.flops for k in plan.kernels if k.dot is not None)
    elements = sum(plan.buffers[id].bytes // plan.buffers[id].type.dtype.size for _, id in plan.states)
    slow = sum(
        _elements(k, plan.sizes) for k in plan.kernels for level in k.levels for i in level.body if i.op == SLOW_OP
    )
    return nodes * NODE + dots * DOT_FLOP + plan.bytes_moved * BYTE + elements * ELEMENT + slow * SLOW


def _elements(kernel: Kernel, sizes: Sizes) -> int:
    """How often a kernel's body runs: a contraction's, once for each of its results."""
    summed = kernel.dot.k if kernel.dot is not None else None
    return evaluate(product(e for axis, e in enumerate(kernel.axes) if axis != summed), sizes)


def _find(subject: Subject) -> Verdict | None:
    if not subject.device.runs:
        return None
    path = cache_of(subject.options).get(subject.program_key, SUFFIX)
    return None if path is None else parse_verdict(path.read_text())


def _store(subject: Subject, verdict: Verdict) -> None:
    cache_of(subject.options).put(subject.program_key, verdict.to_json().encode(), SUFFIX)


# -- the check ---------------------------------------------------------------------------------------------------


def check(subject: Subject) -> Verdict:
    """Run a plan against the interpreter.  A wrong one leaves nothing in the cache."""
    from wholestep.session.trial import recipe_for, small_sizes  # a warm start needs neither these nor the passes

    graph, bench = _meaning(subject.graph), Bench(subject)
    begun = time.perf_counter()
    sizes = small_sizes(graph, subject.plan.sizes, subject.plan.least)
    recipe = recipe_for(graph, subject.plan.bounds, sizes)
    every = [sizes] if sizes == subject.plan.sizes else [sizes, subject.plan.sizes]
    runs = [_settled(subject, graph, bench, recipe, each) for each in every]
    worst = max(runs, key=lambda r: r.worst)
    odd = {name: sum(r.not_finite.get(name, 0) for r in runs) for r in runs for name in r.not_finite}
    return Verdict(tuple(every), worst.worst, worst.where, odd, time.perf_counter() - begun)


def _meaning(graph: Graph) -> Graph:
    """The trace with its gradients, and nothing else, written out."""
    from wholestep.compiler.passes.autodiff.reverse import expand_gradients
    from wholestep.compiler.passes.inline import inline_calls, strip_stop_gradients

    return strip_stop_gradients(expand_gradients(inline_calls(graph)))


def _settled(subject: Subject, graph: Graph, bench: Bench, recipe: Recipe, sizes: Sizes) -> Comparison:
    """The comparison at one choice of sizes; an error where every draw has a mismatch.

    A draw after the first also finds out what rounding alone does to the step: near a jump, or where large numbers
    cancel, float32 may be far from float64 and right.
    """
    from wholestep.session.compare import compared, noise_of, tolerance_of

    tolerance = tolerance_of(graph, subject.options.exactness)
    for attempt in range(ATTEMPTS):
        trial = recipe.trial(sizes, attempt)
        got, wanted = bench.run(trial), trial.interpret(graph)
        noise = noise_of(graph, trial, attempt) if attempt else None
        comparison = compared(trial, got, wanted, tolerance, noise)
        if not comparison.mismatches:
            return comparison
    _forget(subject)
    raise VerificationError(_complaint(comparison, sizes))


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
    store = cache_of(subject.options)
    for key in filter(None, (subject.program_key, subject.key)):
        store.discard(key)


class Bench:
    """A plan loaded over a scratch state in memory of its own."""

    def __init__(self, subject: Subject) -> None:
        from wholestep.session.trial import SEED

        plan, self._state, scratch = subject.plan, State(), Scratch()
        self._state.add({n: plan.buffers[id].type for n, id in plan.states}, lambda name: None)
        scratch.reserve(plan.arena_bytes, plan.work_bytes, subject.threads)
        scratch.region.view(0, scratch.region.size, np.dtype(np.uint8))[:] = 255  # NaN: no kernel may rely on zeros
        place = Place(self._state, scratch, subject.threads, SEED, subject.options)
        self._entry = EntryPoint(subject.device.load(plan, place, subject.key))

    def run(self, trial: Trial) -> Result:
        """One native step."""
        from wholestep.compiler.ir.interpret import Result
        from wholestep.session.names import WINDOW_DIMS
        from wholestep.session.trial import STEP

        for name in self._state.names:
            self._state.set(name, trial.state[name])
        for name, value in trial.scalars.items():
            self._entry.program.set_scalar(name, value)
        self._state.step = STEP
        self._entry.inputs.fix({s: n for s, n in trial.sizes.items() if s in WINDOW_DIMS})
        outputs = self._entry(trial.inputs).outputs
        return Result(outputs, {name: self._state.get(name) for name in self._state.names})
