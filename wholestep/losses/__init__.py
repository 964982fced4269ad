"""Losses: scalar tensors of the form numerator / denominator, so that a batch can be computed in micro-batches.

Element-wise losses are averaged over elements; cross entropy and KL sum over classes (the last axis) and are averaged
over rows.  Losses take raw scores if possible, `reduction="mean"`, `"sum"` or `"none"`, and row weights as
`sample_weight`.  Numbers such as `delta` or `label_smoothing` are runtime scalars: changing one never recompiles.  Dice
and InfoNCE are not separable by rows.
"""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __dir__, __all__ = _exports.load, _exports.dir, _exports.names
