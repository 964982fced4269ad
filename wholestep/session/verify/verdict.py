"""What is known about a plan's numbers, as data.  Alone in its module: a warm start reads one and checks nothing."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import field

from wholestep.errors import PlanError
from wholestep.records import dataclass

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Verdict:
    """A plan was run against the interpreter; or it was not, and `skipped` says why."""

    sizes: tuple[Sizes, ...] = ()  # the sizes of the symbolic dimensions in each run
    worst: float = 0.0  # the largest error, relative to the scale of its tensor
    where: str = ""  # the output or state that has it
    not_finite: Mapping[str, int] = field(default_factory=dict)  # output or state -> positions, in both
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
    """What `Verdict.to_json` wrote; PlanError where it is another text."""
    try:
        fields = json.loads(text)
        return Verdict(**{**fields, "sizes": tuple(fields["sizes"])})
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise PlanError(f"this is no verdict on a plan: {error!r}. Build again.") from None
