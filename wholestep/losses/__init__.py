"""Losses: scalar tensors of the form numerator / denominator, so that micro-batches can be summed to one batch.

Element-wise losses divide by elements; cross entropy and KL sum over classes (the last axis) and divide by rows.
Losses take raw scores if possible, and `reduction="mean"`, `"sum"` or `"none"`; `sample_weight` has the weights of
rows.  Numbers such as `delta` or `label_smoothing` are runtime scalars: changing one never recompiles.  Dice and
InfoNCE are not separable by rows.
"""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __dir__, __all__ = _exports.load, _exports.dir, _exports.names
