"""What the e-graph pass did, as data.  Alone in its module: reading a report must not load the compiler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EGraphReport:
    """What one run of the pass did.  `failure` says why the program was left as it was, where it was."""

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
    failure: str = ""

    def __str__(self) -> str:
        if self.failure:
            return f"e-graph: the program was left as it was: {self.failure}"
        used = ", ".join(f"{rule} {n}" for rule, n in sorted(self.applied.items(), key=lambda x: (-x[1], x[0])))
        total = sum(s for part, s in self.seconds.items() if ":" not in part)
        return (
            f"e-graph ({self.exactness}): {self.nodes_before} -> {self.nodes_after} nodes, modelled cost "
            f"{self.cost_before:.0f} -> {self.cost_after:.0f} ns; applied: {used or 'nothing'}; "
            f"{sum(self.fired.values())} matches of {len(self.fired)} rules, {self.enodes} e-nodes, "
            f"{self.rounds} rounds ({self.stopped}), {1e3 * total:.0f} ms"
        )
