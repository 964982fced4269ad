"""A plan that takes no more bytes than it may, found by making plans: nothing is compiled, mapped or run.

What costs least comes first: values are made again of others (`passes/rematerialize/memory_budget.py`), the largest value in more parts,
then products are computed again.  Of each as few as the limit asks for.
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

MOST_HALVINGS = 2
FAR = 0.05  # of a limit: what choices are expected to free is that exact

Planner = Callable[[PlanRequest], Plan]


def plan_within(request: PlanRequest, planner: Planner, limit: Limit) -> Plan:
    """The plan of a request whose bytes keep a limit; LimitError with the least that there is, where none does."""
    plain = planner(request)
    search = _BudgetSearch(request, planner, limit, plain)
    if search.taken(plain) <= search.most:
        return search.noted(plain, None, 0)
    return search.find()


class _BudgetSearch:
    def __init__(self, request: PlanRequest, planner: Planner, limit: Limit, plain: Plan) -> None:
        self.request, self.planner, self.limit, self.plain = request, planner, limit, plain
        self.most = limit.bytes_of(self.taken(plain))

    def taken(self, plan: Plan) -> int:
        """The bytes of a session that runs a plan."""
        return footprint(plan, self.limit.threads).peak_bytes + self.limit.beside

    def find(self) -> Plan:
        self.kept = RecomputeCandidates(self.request.graph, self.request.capacity, self.request.target.costs)
        cheap, products = self.kept.choices()
        every = [*cheap, *products]
        least, known = self.plain, 0  # so many choices were not enough
        for choices, halvings in _levels(cheap, every):
            if not halvings and self.taken(self.plain) - _bytes(choices) > (1 + FAR) * self.most:
                continue  # a plan would say the same
            plan = self._plan(choices, halvings)
            if self.taken(plan) <= self.most:
                return self._fewest(choices, halvings, min(known, len(choices)), plan)
            known = len(choices)
            least = min(least, plan, key=self.taken)
        raise LimitError(
            f"a step takes {self.taken(least):,} bytes at least, {self.taken(self.plain):,} where nothing is computed "
            f"twice, and memory= allows {self.most:,}. Its largest tensors: {largest_tensors(least)}.",
            self.taken(least),
            ADVICE,
            limit=self.most,
        )

    def _fewest(self, choices: Sequence[RecomputeChoice], halvings: int, low: int, plan: Plan) -> Plan:
        """The plan with the fewest choices; `low` of them were too few, all of them give `plan`."""
        high, found = len(choices), plan
        while high - low > 1:
            spare = self.most - self.taken(found)
            count, gone = high, 0
            while count > low + 1 and gone + choices[count - 1].bytes <= spare:
                count, gone = count - 1, gone + choices[count - 1].bytes
            guess = min(max(count, low + 1), high - 1)
            tried = self._plan(choices[:guess], halvings)
            if self.taken(tried) <= self.most:
                high, found = guess, tried
            else:
                low = guess
        return self.noted(found, choices[:high], halvings)

    def _plan(self, choices: Sequence[RecomputeChoice], halvings: int) -> Plan:
        graph = self.kept.without(choices)
        return self.planner(replace(self.request, graph=graph, frugal=True, halvings=halvings))

    def noted(self, plan: Plan, choices: Sequence[RecomputeChoice] | None, halvings: int) -> Plan:
        """The plan, with what was done for the limit among its notes."""
        done = ["no need to save any"] if choices is None else ["kernels in an order that keeps less"]
        if choices:
            again = {p for c in choices for p in c.products}
            done.append(f"{sum(len(c.values) for c in choices)} values made again, {len(again)} products twice")
        if halvings:
            done.append(f"the largest value in {2 << halvings} parts")
        flops, bytes = plan.flops - self.plain.flops, plan.bytes_moved - self.plain.bytes_moved
        cost = f"; {flops:,} flops and {bytes:,} bytes moved more" if choices or halvings else ""
        text = f"memory: {self.taken(plan):,} bytes of {self.most:,}, {self.taken(self.plain):,} without a limit: "
        return replace(plan, notes=(*plan.notes, text + ", ".join(done) + cost))


def _bytes(choices: Sequence[RecomputeChoice]) -> int:
    return sum(c.bytes for c in choices)


def _levels(cheap: list[RecomputeChoice], every: list[RecomputeChoice]) -> list[tuple[list[RecomputeChoice], int]]:
    """Choices and halvings of the largest value, from what costs least on."""
    return [([], 0), (cheap, 0), (cheap, 1), (every, 1), (every, MOST_HALVINGS)]
