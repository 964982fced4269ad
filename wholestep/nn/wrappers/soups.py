"""Model soups: the mean of the weights of several models of one architecture, fine-tuned from the same start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import UsageError
from wholestep.nn.module.module import Module

Weights = Mapping[str, np.ndarray[Any, Any]]


def soup(model: Module, ingredients: Sequence[Module], score: Callable[[Module], float] | None = None) -> list[int]:
    """Give a model the mean of the weights of others (arXiv:2203.05482); integers are copied from the first.

    Args:
        model: of the same architecture; it is changed.
        ingredients: the models whose weights are averaged.
        score: None averages all of them.  A function of a model, larger is better: the greedy soup, which begins with
            the best one and adds the others in the order of their scores, each if the score does not fall.

    Returns the indices of the ingredients in the mean.

    Example: `ws.nn.soup(model, [one, other], lambda m: m.evaluate(x, y, metrics="accuracy")["accuracy"])`.
    """
    weights = [ingredient.state_dict() for ingredient in ingredients]
    shapes = {name: array.shape for name, array in model.state_dict().items()}
    if not weights or any({n: a.shape for n, a in one.items()} != shapes for one in weights):
        fail(
            UsageError, f"a soup needs at least one model with the names and shapes of {type(model).__name__}'s arrays."
        )
    if score is None:
        model.load_state_dict(_mean(weights))
        return list(range(len(weights)))
    scores = [_score(model, one, score) for one in weights]
    first, *others = sorted(range(len(weights)), key=lambda i: -scores[i])
    chosen, best = [first], scores[first]
    for i in others:
        value = _score(model, _mean([weights[j] for j in (*chosen, i)]), score)
        if value >= best:
            chosen, best = [*chosen, i], value
    model.load_state_dict(_mean([weights[j] for j in chosen]))
    return chosen


def _score(model: Module, weights: Weights, score: Callable[[Module], float]) -> float:
    model.load_state_dict(weights)
    return float(score(model))


def _mean(weights: Sequence[Weights]) -> dict[str, np.ndarray[Any, Any]]:
    first = weights[0]
    return {
        name: np.mean([one[name] for one in weights], 0, np.float64).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in first.items()
    }
