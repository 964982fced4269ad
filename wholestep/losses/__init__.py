"""Losses: scalar tensors that end in ratio(numerator, denominator), so that micro-batches add up to one batch.

Element-wise losses divide by elements; cross entropy and KL sum over classes (the last axis) and divide by rows.
Losses take raw scores where they can and `reduction="mean"`, `"sum"` or `"none"`; `sample_weight` says how much each
row counts.  Numbers such as `delta` or `label_smoothing` are runtime scalars: changing one never recompiles.  Dice and
InfoNCE see a batch as a whole and cannot be cut into parts.
"""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __all__ = _exports.load, _exports.names


def __dir__() -> list[str]:
    return sorted(__all__)
