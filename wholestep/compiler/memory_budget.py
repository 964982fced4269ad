"""Searches for a plan within a memory budget, by planning with more and more rematerialization.

Candidates are complete plans, compared by their exact bytes; nothing is compiled, mapped or run.  The cheapest measures
come first: recomputing elementwise values (`passes/rematerialize/memory_budget.py`), chunking the largest value, then
recomputing products.  An interpolation search finds the fewest recomputations that satisfy the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from wholestep.compiler.passes.rematerialize.memory_budget import RecomputeCandidates, RecomputeChoice
from wholestep.compiler.plan.memory.peak_memory import ADVICE, Limit
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.plan.model.request import PlanRequest
from wholestep.compiler.plan.model.target_formats import footprint
from wholestep.compiler.runtime.memory import largest_tensors
from wholestep.errors import LimitError

MOST_HALVINGS = 2  # halvings of the largest value beyond the backend's own
FAR = 0.05  # fraction of the limit: assumed error of the estimated savings of choices

Planner = Callable[[PlanRequest], Plan]


def plan_within_budget(request: PlanRequest, planner: Planner, limit: Limit) -> Plan:
    """The plan of a request within a limit; LimitError with the smallest footprint found if there is none."""
    unlimited = planner(request)
    search = _BudgetSearch(request, planner, limit, unlimited)
    if search.bytes_of(unlimited) <= search.budget:
        return search.with_note(unlimited, None, 0)
    return search.find()


class _BudgetSearch:
    def __init__(self, request: PlanRequest, planner: Planner, limit: Limit, unlimited: Plan) -> None:
        self.request, self.planner, self.limit, self.unlimited = request, planner, limit, unlimited
        self.budget = limit.bytes_of(self.bytes_of(unlimited))

    def bytes_of(self, plan: Plan) -> int:
        """The bytes that a session needs to run a plan."""
        return footprint(plan, self.limit.threads).peak_bytes + self.limit.beside

    def find(self) -> Plan:
        self.candidates = RecomputeCandidates(self.request.graph, self.request.capacity, self.request.target.costs)
        cheap, products = self.candidates.choices()
        all_choices = [*cheap, *products]
        least, insufficient = self.unlimited, 0  # the smallest plan so far; the number of choices that did not suffice
        for choices, halvings in _levels(cheap, all_choices):
            if not halvings and self.bytes_of(self.unlimited) - _bytes(choices) > (1 + FAR) * self.budget:
                continue  # the estimate already exceeds the limit: planning would only confirm it
            plan = self._plan(choices, halvings)
            if self.bytes_of(plan) <= self.budget:
                return self._fewest(choices, halvings, min(insufficient, len(choices)), plan)
            insufficient = len(choices)
            least = min(least, plan, key=self.bytes_of)
        raise LimitError(
            f"a step takes at least {self.bytes_of(least):,} bytes ({self.bytes_of(self.unlimited):,} without "
            f"recomputation), but memory= allows {self.budget:,}. Its largest tensors: {largest_tensors(least)}.",
            self.bytes_of(least),
            ADVICE,
            limit=self.budget,
        )

    def _fewest(self, choices: Sequence[RecomputeChoice], halvings: int, low: int, plan: Plan) -> Plan:
        """Interpolation search for the plan with the fewest choices; `low` do not suffice, all of them give `plan`."""
        high, best = len(choices), plan
        while high - low > 1:
            # Guess: drop the last choices while their estimated bytes fit into the memory that the best plan spares.
            spare = self.budget - self.bytes_of(best)
            count, dropped_bytes = high, 0
            while count > low + 1 and dropped_bytes + choices[count - 1].bytes <= spare:
                count, dropped_bytes = count - 1, dropped_bytes + choices[count - 1].bytes
            guess = min(max(count, low + 1), high - 1)
            tried = self._plan(choices[:guess], halvings)
            if self.bytes_of(tried) <= self.budget:
                high, best = guess, tried
            else:
                low = guess
        return self.with_note(best, choices[:high], halvings)

    def _plan(self, choices: Sequence[RecomputeChoice], halvings: int) -> Plan:
        graph = self.candidates.without(choices)
        return self.planner(replace(self.request, graph=graph, frugal=True, halvings=halvings))

    def with_note(self, plan: Plan, choices: Sequence[RecomputeChoice] | None, halvings: int) -> Plan:
        """The plan with a note on the measures that were taken for the limit."""
        done = ["no need to save any"] if choices is None else ["kernels ordered for less memory"]
        if choices:
            products = {p for c in choices for p in c.products}
            done.append(
                f"{sum(len(c.values) for c in choices)} values recomputed, {len(products)} products computed twice"
            )
        if halvings:
            done.append(f"the largest value in {2 << halvings} chunks")
        flops, bytes = plan.flops - self.unlimited.flops, plan.bytes_moved - self.unlimited.bytes_moved
        cost = f"; {flops:,} flops and {bytes:,} moved bytes more" if choices or halvings else ""
        text = (
            f"memory: {self.bytes_of(plan):,} bytes of {self.budget:,}, "
            f"{self.bytes_of(self.unlimited):,} without a limit: "
        )
        return replace(plan, notes=(*plan.notes, text + ", ".join(done) + cost))


def _bytes(choices: Sequence[RecomputeChoice]) -> int:
    return sum(c.bytes for c in choices)


def _levels(
    cheap: list[RecomputeChoice], all_choices: list[RecomputeChoice]
) -> list[tuple[list[RecomputeChoice], int]]:
    """The measures to try, cheapest first: choices to recompute, and halvings of the largest value."""
    return [([], 0), (cheap, 0), (cheap, 1), (all_choices, 1), (all_choices, MOST_HALVINGS)]
