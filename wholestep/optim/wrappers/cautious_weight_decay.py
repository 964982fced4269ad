"""CautiousWeightDecay: a wrapper whose weight decay acts only where the step shrinks the weight, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.groups import Group, assign
from wholestep.optim.core.options import Number, is_off, number
from wholestep.optim.wrappers.weight_averaging import Wrapper


@dataclass(frozen=True)
class CautiousWeightDecay(Wrapper):
    """Cautious weight decay (arXiv:2510.12402); u is the step of the optimizer, w ← w - u:

        w ← w - u - lr·weight_decay·w where u·w > 0,  else  w - u

    lr is that of the parameter's group, and the parameters that decay are those of the optimizer's `decay_on`.

    Args:
        optimizer: an optimizer without a weight decay of its own.
        weight_decay: the fraction of a weight that a learning rate of 1 would remove.

    Example: `ws.optim.CautiousWeightDecay(ws.AdamW(lr=1e-3, weight_decay=0.0), weight_decay=0.1)`.
    """

    weight_decay: Number = number(0.01, trial=0.1)
    name: str = field(default="cautious", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for rule in self._rules_inside():
            if any(f.name == "weight_decay" for f in fields(rule)) and not is_off(getattr(rule, "weight_decay", 0.0)):
                kind = type(rule).__name__
                fail(
                    OptionError,
                    f"CautiousWeightDecay decays the weights itself; received {kind} with weight_decay="
                    f"{getattr(rule, 'weight_decay', None)}. Write ws.{kind}(..., weight_decay=0.0).",
                )

    def _rules_inside(self) -> list[Optimizer]:
        inner = self._innermost
        return [inner, *(group.member(inner)[0] for group in inner.groups)]

    @property
    def _innermost(self) -> Optimizer:
        rule = self.optimizer
        while isinstance(rule, Wrapper):
            rule = rule.optimizer
        return rule

    def descend(self, graph: Graph, params: Sequence[Tensor], grads: Sequence[Tensor]) -> list[Tensor]:
        moved, inner = self.optimizer.apply(graph, params, grads), self._innermost
        decay, new = self.scalars(graph)["weight_decay"], []
        for w, value, group in zip(params, moved, assign(inner.groups, params, graph), strict=True):
            if value is w or not inner.decays(w):  # frozen, or without decay
                new.append(value)
                continue
            factor = fn.where((w - value) * w > 0.0, decay * self._rate(graph, group), 0.0)
            new.append(value - factor.astype(w.dtype) * w)
        return new

    def _rate(self, graph: Graph, group: Group | None) -> Tensor:
        """The learning rate of a group, from the runtime scalars that the optimizer has recorded."""
        scalars, rate = graph.scalars, graph.scalars[self.lr_name]
        if group is None:
            return rate
        prefix = f"{self._innermost.name}.{group.name}"
        rate = scalars.get(f"{prefix}.lr", rate)
        return rate * scalars[f"{prefix}.lr_scale"] if group.lr_scale is not None else rate
