"""What is better of a number, by its name: more of an accuracy, less of a loss.  Whoever watches a number asks here."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from wholestep.errors import UsageError

MODES = "modes"  # under this name a checkpoint notes what is better of the run's metrics
ALIASES = {"acc": "accuracy", "val_acc": "val_accuracy"}

# Words, between underscores, in the names of numbers that people measure themselves; our own metrics say what is better
# of them.  A name with a word of both kinds is of the first: "log_loss" falls.
# fmt: off
FALLING = frozenset({
    "error", "errors", "nll", "bce", "kl", "divergence", "deviance", "cost", "hinge", "brier", "wer", "cer",
})
RISING = frozenset({
    "acc", "sensitivity", "specificity", "ap", "map", "miou", "jaccard", "bleu", "rouge", "ndcg", "mrr", "score",
})
# fmt: on


def canonical(monitor: str) -> str:
    """The name that an alias stands for."""
    return ALIASES.get(monitor, monitor)


def mode_of_name(monitor: str) -> str | None:
    """ "min" or "max"; None where the name does not tell."""
    falling, rising, whole = _words()
    name = canonical(monitor).lower()
    words = {*name.split("_"), *(kind for kind in whole if name.endswith(kind))}
    return "min" if words & falling else "max" if words & rising else None


@cache
def _words() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The words of names that fall and of those that rise: the last ones of our metrics' names, and other people's.

    And the names of our metrics whose last word says nothing by itself: more variance is good only if it is explained.
    """
    from wholestep.metrics.table import METRICS  # a step that nobody watches starts without them

    whole = frozenset({"explained_variance"})
    directions = {k if k in whole else k.rpartition("_")[2]: cls.higher_is_better for k, cls in METRICS.items()}
    falling, rising = ({word for word, up in directions.items() if up is way} for way in (False, True))
    return FALLING | falling, RISING | rising, whole


def mode_of(kind: str, monitor: str, modes: Mapping[str, str] | None = None) -> str:
    """What is better of a number that somebody watches and says no more about; `known` are the run's own numbers."""
    mode = (modes or {}).get(canonical(monitor)) or mode_of_name(monitor)
    if mode is None:
        raise UsageError(
            f"{kind} watches {monitor!r}, of which it cannot tell whether less or more is better. Say mode='min' or "
            "mode='max'."
        )
    return mode
