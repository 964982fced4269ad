"""`Pruning`: computes the masks of `ws.optim.Pruned` between the steps of a run."""

from __future__ import annotations

from wholestep.callbacks.base import Callback
from wholestep.callbacks.list import CallbackList
from wholestep.callbacks.run import Logs
from wholestep.optim import Optimizer
from wholestep.optim.wrappers.pruning import Pruned, pruning_rules

SPARSITY = "sparsity"


class Pruning(Callback):
    """Computes new masks after every `rule.every` updates of an epoch and at its end, and logs the `sparsity`.

    `ws.fit` and `ws.Trainer` have one for each `ws.optim.Pruned` of their optimizer; give it yourself for the rule of a
    `@ws.step`.  Which updates get new masks depends on their position in the epoch only, so that a resumed run computes
    the same ones.

    Example: `ws.fit(step, data, callbacks=[ws.callbacks.Pruning(rule)])`.
    """

    def __init__(self, rule: Pruned) -> None:
        self.rule = rule
        self.pause = rule.every
        self.sparsity = 0.0

    def on_slice(self, steps: int, loss: float) -> None:
        run = self.run
        if run is not None and (run.step % self.rule.every == 0 or run.step == run.steps_per_epoch):
            self.sparsity = self.rule.update_masks(self.session)

    def epoch_numbers(self, epoch: int) -> Logs:
        if self.run is not None and self.run.steps_per_epoch is None:  # `on_slice` did not know the last step
            self.sparsity = self.rule.update_masks(self.session)
        return {SPARSITY: self.sparsity}


def add_pruning(callbacks: CallbackList, optimizer: Optimizer | None) -> None:
    """Append a `Pruning` for each `Pruned` of an optimizer that no callback serves yet."""
    served = [c.rule for c in callbacks if isinstance(c, Pruning)]
    for rule in pruning_rules(optimizer):
        if rule not in served:
            callbacks.append(Pruning(rule))
