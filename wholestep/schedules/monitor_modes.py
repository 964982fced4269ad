"""Decides by the name of a monitored number whether a smaller or a larger value is better."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from wholestep.errors import UsageError

MODES = "modes"  # the key of the metrics' modes in a checkpoint's configuration
ALIASES = {"acc": "accuracy", "val_acc": "val_accuracy"}

# Words in names of user-defined metrics (separated by underscores) that tell whether smaller or larger is better; our
# own metrics have `higher_is_better`.  For a name with words of both kinds, smaller is better.
FALLING = frozenset((
    "error", "errors", "nll", "bce", "kl", "divergence", "deviance", "cost", "hinge", "brier", "wer", "cer",
))  # fmt: skip
RISING = frozenset((
    "acc", "sensitivity", "specificity", "ap", "map", "miou", "jaccard", "bleu", "rouge", "ndcg", "mrr", "score",
))  # fmt: skip


def canonical(monitor: str) -> str:
    """The canonical name for an alias."""
    return ALIASES.get(monitor, monitor)


def mode_of_name(monitor: str) -> str | None:
    """ "min" or "max"; None if the name does not determine it."""
    falling, rising, whole = _words()
    name = canonical(monitor).lower()
    words = {*name.split("_"), *(kind for kind in whole if name.endswith(kind))}
    return "min" if words & falling else "max" if words & rising else None


@cache
def _words() -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Words that mean smaller is better, words that mean larger is better, and metrics matched by their full name.

    The words are the last ones of our metrics' names and the two lists above; "variance" alone has no direction.
    """
    from wholestep.metrics.table import METRICS  # imported here because a step without a monitor does not need it

    whole = frozenset({"explained_variance", "hit_rate"})
    directions = {k if k in whole else k.rpartition("_")[2]: cls.higher_is_better for k, cls in METRICS.items()}
    falling, rising = ({word for word, up in directions.items() if up is way} for way in (False, True))
    return FALLING | falling, RISING | rising, whole


def mode_of(kind: str, monitor: str, modes: Mapping[str, str] | None = None) -> str:
    """The mode of a monitored number: from `modes`, the modes of the run's metrics, or else from its name."""
    mode = (modes or {}).get(canonical(monitor)) or mode_of_name(monitor)
    if mode is None:
        raise UsageError(
            f"{kind} monitors {monitor!r}, whose name does not say whether less or more is better. Give mode='min' or "
            "mode='max'."
        )
    return mode
