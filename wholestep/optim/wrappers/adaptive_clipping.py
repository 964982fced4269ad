"""AGC: a wrapper that clips gradients relative to the norm of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.optim.core.gradient_transforms import clip_adaptively
from wholestep.optim.core.options import EPS_TRIED, Number, number
from wholestep.optim.wrappers.weight_averaging import Wrapper


@dataclass(frozen=True)
class AGC(Wrapper):
    """A wrapper for adaptive gradient clipping (arXiv:2102.06171); see `ws.optim.clip_adaptively`:

        g ← g·min(1, clipping·max(‖w‖, eps)/‖g‖), for each row of a weight

    `clip_norm=` and the other clipping options are applied before.

    Args:
        optimizer: the optimizer that gets the clipped gradients.
        clipping: the largest length of a gradient relative to its weights; smaller for larger batches.
        eps: lower bound of the weight norm, so that weights that start as 0 can change.
        exclude: name patterns of parameters that are left alone; the paper leaves out the last layer.

    Example: `ws.optim.AGC(ws.SGD(lr=0.1, momentum=0.9), clipping=0.01, exclude=("head.*",))`.
    """

    clipping: Number = number(0.01, trial=0.05)
    eps: Number = number(1e-3, trial=EPS_TRIED)
    exclude: str | tuple[str, ...] = ()
    name: str = field(default="agc", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "exclude", self._patterns)

    @property
    def _patterns(self) -> tuple[str, ...]:
        return (self.exclude,) if isinstance(self.exclude, str) else tuple(self.exclude)

    def structure(self) -> tuple[object, ...]:
        return (*super().structure(), self._patterns)

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        s = self.scalars(graph)
        for pattern in self._patterns:
            if not any(fnmatchcase(w.name, pattern) for w in params):
                names = [w.name for w in params]
                fail(OptionError, f"AGC: exclude={pattern!r} matches none of the parameters {names}.")
        clipped = [
            g if self._excludes(w) else clip_adaptively([g], [w], s["clipping"], s["eps"])[0]
            for w, g in zip(params, grads, strict=True)
        ]
        return self.optimizer.apply(graph, params, clipped)

    def _excludes(self, w: Tensor) -> bool:
        return any(fnmatchcase(w.name, pattern) for pattern in self._patterns)
