"""Metrics of generated sequences, on arrays: edit distance (Levenshtein, 1966), word error rate, BLEU (Papineni, 2002).

Sequences have different lengths, so these metrics are computed outside of a step: call `update` with generated texts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from wholestep.errors import InputError, OptionError

Array = np.ndarray[Any, Any]
Tokens = Sequence[Any]
UNITS = ("words", "characters")


def edit_distance(a: Tokens, b: Tokens) -> int:
    """The least number of insertions, deletions and substitutions that turn `a` into `b`: strings, lists or arrays.

    Example: `ws.metrics.edit_distance("kitten", "sitting")` is 3.
    """
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (x != y))
    return row[-1]


class OfSequences(ABC):
    """The base class of metrics of generated sequences: sums over pairs of sequences, and a result from them."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard everything that was counted."""
        self._sums: Array | None = None

    def update(self, predictions: Sequence[Any], targets: Sequence[Any]) -> None:
        """Count some pairs.

        Args:
            predictions: one generated sequence for each pair.
            targets: the truth of each.
        """
        if isinstance(predictions, str) or isinstance(targets, str) or len(predictions) != len(targets):
            raise InputError(
                "update takes a list of predictions and a list of targets of the same length; received "
                f"{predictions!r:.60} and {targets!r:.60}. One pair is update([prediction], [target])."
            )
        for prediction, target in zip(predictions, targets, strict=True):
            counts = self._count(prediction, target)
            self._sums = counts if self._sums is None else self._sums + counts

    def compute(self) -> float:
        """The metric over everything counted; NaN before any update."""
        return float("nan") if self._sums is None else self._result(self._sums)

    @abstractmethod
    def _count(self, prediction: Any, target: Any) -> Array:
        """The sums of one pair."""

    @abstractmethod
    def _result(self, sums: Array) -> float:
        """The metric from all sums."""


def _tokens(text: Any, unit: str = "words") -> Tokens:
    """The tokens of a text; sequences of tokens are returned as lists."""
    if isinstance(text, str):
        return text.split() if unit == "words" else text
    return np.asarray(text).tolist() if isinstance(text, np.ndarray) else list(text)


class WER(OfSequences):
    """The word error rate: the edit distances of all pairs, divided by the number of words in all targets.

    Args:
        unit: "words" or "characters" (the character error rate), into which strings are split.  Lists and arrays are
            sequences of tokens.

    Example: `ws.metrics.WER()`, then `metric.update(["the cat sat"], ["the cat sat down"])` and `metric.compute()`,
    which is 0.25.
    """

    def __init__(self, unit: str = "words") -> None:
        if unit not in UNITS:
            raise OptionError(f"unit={unit!r}: expected one of {', '.join(map(repr, UNITS))}.")
        self.unit = unit
        super().__init__()

    def _count(self, prediction: Any, target: Any) -> Array:
        a, b = _tokens(prediction, self.unit), _tokens(target, self.unit)
        return np.array([edit_distance(a, b), len(b)], np.float64)

    def _result(self, sums: Array) -> float:
        return float(sums[0] / sums[1]) if sums[1] else float("nan")


class BLEU(OfSequences):
    """BLEU of a corpus: the geometric mean of the precisions of 1-grams to n-grams, times the brevity penalty.

    An n-gram of a prediction counts at most as often as in the reference that contains it most often.  The brevity
    penalty uses the length of the reference nearest in length to the prediction, the shorter one in a tie.  If no
    n-gram of some n matches, the result is 0, unless `smooth` adds 1 to the counts of 2-grams and longer (Lin and Och,
    2004).

    Args:
        n: the longest n-gram.
        smooth: add 1 to matches and totals of all n-grams but the shortest.

    Example: `ws.metrics.BLEU()`, then `metric.update([generated], [[reference, another]])`: a target is one string, or
    a list of references, strings or lists of tokens.
    """

    def __init__(self, n: int = 4, smooth: bool = False) -> None:
        if not isinstance(n, int) or isinstance(n, bool) or n < 1:
            raise OptionError(f"n={n!r}: expected an integer of at least 1, the longest n-gram.")
        self.n, self.smooth = n, smooth
        super().__init__()

    def _count(self, prediction: Any, target: Any) -> Array:
        """Matches and totals of each n, the length of the prediction, and the length of the nearest reference."""
        hypothesis = _tokens(prediction)
        references = [_tokens(t) for t in ([target] if isinstance(target, str) else target)]
        nearest = min((abs(len(r) - len(hypothesis)), len(r)) for r in references)[1]
        matches = []
        for n in range(1, self.n + 1):
            grams, allowed = _grams(hypothesis, n), Counter[tuple[Any, ...]]()
            for reference in references:
                allowed |= _grams(reference, n)
            matches += [(grams & allowed).total(), grams.total()]
        return np.array([*matches, len(hypothesis), nearest], np.float64)

    def _result(self, sums: Array) -> float:
        matches, total = sums[:-2:2].copy(), sums[1:-2:2].copy()
        if self.smooth:
            matches[1:], total[1:] = matches[1:] + 1.0, total[1:] + 1.0
        if not matches.all():
            return 0.0
        length, reference = sums[-2:]
        penalty = min(0.0, 1.0 - reference / length)
        return float(np.exp(penalty + np.log(matches / total).mean()))


def _grams(tokens: Tokens, n: int) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))
