"""What is better of a number, by its name: more of an accuracy, less of a loss.  Whoever watches a number asks here."""

from __future__ import annotations

from wholestep.errors import UsageError

ALIASES = {"acc": "accuracy", "val_acc": "val_accuracy"}

# Words of names, between underscores.  A name with a word of both kinds is of the first: "log_loss" falls.
# fmt: off
FALLING = frozenset({
    "loss", "error", "errors", "mse", "rmse", "mae", "mape", "perplexity", "nll", "bce", "kl", "divergence", "deviance",
    "cost", "hinge", "brier", "wer", "cer",
})
RISING = frozenset({
    "accuracy", "acc", "precision", "recall", "sensitivity", "specificity", "f1", "fbeta", "auc", "ap", "map", "r2",
    "iou", "miou", "dice", "jaccard", "mcc", "kappa", "pearson", "spearman", "bleu", "rouge", "ndcg", "mrr", "score",
})
# fmt: on


def canonical(monitor: str) -> str:
    """The name that an alias stands for."""
    return ALIASES.get(monitor, monitor)


def known_mode(monitor: str) -> str | None:
    """ "min" or "max"; None where the name does not tell."""
    words = set(canonical(monitor).lower().split("_"))
    return "min" if words & FALLING else "max" if words & RISING else None


def mode_of(kind: str, monitor: str) -> str:
    """What is better of a number that somebody watches and says no more about."""
    found = known_mode(monitor)
    if found is None:
        raise UsageError(
            f"{kind} watches {monitor!r}, of which it cannot tell whether less or more is better. Say mode='min' or "
            "mode='max'."
        )
    return found
