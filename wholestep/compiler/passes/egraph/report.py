"""The report of the e-graph pass, as data.  A separate module, so that reading a report does not load the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path

from wholestep.records import dataclass


@dataclass(frozen=True)
class EGraphReport:
    """The results of one run of the pass.  `failure`: why the program is unchanged, if the pass failed.

    If a graph was outlined, e-nodes, matches and modelled cost refer to its distinct blocks; nodes and applied rules
    refer to the full graph.
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
    applied: Mapping[str, int] = field(default_factory=dict)  # rule -> how often its result was extracted
    seconds: Mapping[str, float] = field(default_factory=dict)
    paused: Mapping[str, int] = field(default_factory=dict)  # rule disabled because of growth -> after which round
    entered: int = 0  # nodes that were encoded; fewer than nodes_before if the graph was outlined
    stage: str = ""
    skipped: str = ""  # why there was nothing to do
    failure: str = ""
    dropped: Mapping[str, str] = field(default_factory=dict)  # law that failed on this program -> why

    @property
    def complete(self) -> bool:
        """Did the run finish without failures?"""
        return not self.failure and not self.dropped

    def as_failure(self, why: str) -> EGraphReport:
        """The report of a run whose result was discarded."""
        return replace(
            self, nodes_after=self.nodes_before, cost_after=self.cost_before, applied={}, skipped="", failure=why
        )

    @property
    def budgets(self) -> tuple[str, ...]:
        """The budgets that were exceeded, as text."""
        texts = [f"{self.rounds} rounds were not enough to saturate"] if self.stopped == "rounds" else []
        if self.stopped == "grown":
            texts.append(f"the e-graph grew to {self.enodes} e-nodes in {self.rounds} rounds and was used unsaturated")
        if self.paused:
            last = max(self.paused.values())
            rules = ", ".join(sorted({rule.split("@")[0] for rule in self.paused}))
            texts.append(f"the e-graph grew too much: rules disabled by round {last}: {rules}")
        return tuple(texts)

    def __str__(self) -> str:
        title = f"e-graph ({self.exactness})" + (f", {self.stage}" if self.stage else "")
        dropped_lines = [f"  not used: {law}: {why}" for law, why in self.dropped.items()]
        if self.failure:
            return "\n".join([f"{title}: the program is unchanged: {self.failure}", *dropped_lines])
        if self.skipped:
            return "\n".join([f"{title}: nothing to do: {self.skipped}", *dropped_lines])
        used = ", ".join(f"{rule} {n}" for rule, n in sorted(self.applied.items(), key=lambda x: (-x[1], x[0])))
        distinct = f" of {self.entered} distinct nodes" if 0 < self.entered < self.nodes_before else ""
        lines = [
            f"{title}: {self.nodes_before} -> {self.nodes_after} nodes; applied: {used or 'nothing'}",
            f"  {self.enodes} e-nodes{distinct}, {sum(self.fired.values())} matches of {len(self.fired)} rules, "
            f"{self.rounds} rounds ({self.stopped}), modelled cost {self.cost_before:.0f} -> {self.cost_after:.0f} ns",
            f"  time: {self._times()}",
            *(f"  budget: {text}" for text in self.budgets),
            *dropped_lines,
        ]
        return "\n".join(lines)

    def _times(self) -> str:
        total = sum(s for part, s in self.seconds.items() if ":" not in part)
        parts = ", ".join(f"{part} {1e3 * s:.0f}" for part, s in self.seconds.items())
        return f"{1e3 * total:.0f} ms ({parts})"


def describe_error(error: BaseException) -> str:
    """One line for an exception: its text and where it was raised."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    where = f" ({Path(last.tb_frame.f_code.co_filename).name}:{last.tb_lineno})" if last is not None else ""
    return f"{type(error).__name__}: {error}{where}"
