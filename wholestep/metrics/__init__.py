"""Metrics: sums inside the compiled step or on arrays, whose result does not depend on the batches.

Every metric has both forms.  On arrays: `update`, `compute`, `reset`, `merge`.  Inside a step: `record` declares states
and their updates, `result` computes the metric from them (`ws.build_session(..., metrics=["accuracy"])` does both).
"""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __dir__, __all__ = _exports.load, _exports.dir, _exports.names
