"""What the e-graph pass did, as data.  Alone in its module: reading a report must not load the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from wholestep.records import dataclass


@dataclass(frozen=True)
class EGraphReport:
    """What one run of the pass did.  `failure` says why the program was left as it was, where it was.

    Of a graph that repeats itself the e-graph holds what is distinct: e-nodes, matches and modelled cost are of that,
    nodes and applied rules of the whole.
    """

    exactness: str
    nodes_before: int
    nodes_after: int
    enodes: int = 0
    rounds: int = 0
    stopped: str = ""  # "saturated", or the budget that was hit
    cost_before: float = 0.0  # modelled nanoseconds
    cost_after: float = 0.0
    fired: Mapping[str, int] = field(default_factory=dict)  # rule -> matches
    applied: Mapping[str, int] = field(default_factory=dict)  # rule -> how often its result was chosen
    seconds: Mapping[str, float] = field(default_factory=dict)
    paused: Mapping[str, int] = field(default_factory=dict)  # rules set aside as the e-graph grew -> after which round
    entered: int = 0  # nodes that entered the e-graph; less than nodes_before where a graph repeats itself
    stage: str = ""
    skipped: str = ""  # why there was nothing to do
    failure: str = ""
    dropped: Mapping[str, str] = field(default_factory=dict)  # laws that failed and were not used -> why

    @property
    def complete(self) -> bool:
        """Did everything work, whether or not there was something to do?"""
        return not self.failure and not self.dropped

    def given_up(self, why: str) -> EGraphReport:
        """The report of a run whose program was not used."""
        return replace(
            self, nodes_after=self.nodes_before, cost_after=self.cost_before, applied={}, skipped="", failure=why
        )

    @property
    def budgets(self) -> tuple[str, ...]:
        """The budgets that were hit, in words."""
        found = [f"{self.rounds} rounds were not enough to saturate"] if self.stopped == "rounds" else []
        if self.stopped == "grown":
            found.append(f"the e-graph grew to {self.enodes} e-nodes in {self.rounds} rounds and was used as it was")
        if self.paused:
            last = max(self.paused.values())
            rules = ", ".join(sorted({rule.split("@")[0] for rule in self.paused}))
            found.append(f"the e-graph grew too much: set aside by round {last}: {rules}")
        return tuple(found)

    def __str__(self) -> str:
        place = f"e-graph ({self.exactness})" + (f", {self.stage}" if self.stage else "")
        without = [f"  not used: {law}: {why}" for law, why in self.dropped.items()]
        if self.failure:
            return "\n".join([f"{place}: the program was left as it was: {self.failure}", *without])
        if self.skipped:
            return "\n".join([f"{place}: nothing to do: {self.skipped}", *without])
        used = ", ".join(f"{rule} {n}" for rule, n in sorted(self.applied.items(), key=lambda x: (-x[1], x[0])))
        distinct = f" of {self.entered} distinct nodes" if 0 < self.entered < self.nodes_before else ""
        lines = [
            f"{place}: {self.nodes_before} -> {self.nodes_after} nodes; applied: {used or 'nothing'}",
            f"  {self.enodes} e-nodes{distinct}, {sum(self.fired.values())} matches of {len(self.fired)} rules, "
            f"{self.rounds} rounds ({self.stopped}), modelled cost {self.cost_before:.0f} -> {self.cost_after:.0f} ns",
            f"  time: {self._times()}",
            *(f"  budget: {text}" for text in self.budgets),
            *without,
        ]
        return "\n".join(lines)

    def _times(self) -> str:
        total = sum(s for part, s in self.seconds.items() if ":" not in part)
        parts = ", ".join(f"{part} {1e3 * s:.0f}" for part, s in self.seconds.items())
        return f"{1e3 * total:.0f} ms ({parts})"


def describe_error(error: BaseException) -> str:
    """An exception of ours in one line: what it says and where it was raised."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" ({Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno})" if last is not None else ""
    return f"{type(error).__name__}: {error}{where}"
