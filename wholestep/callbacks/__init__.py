"""Callbacks, which observe, log and stop training."""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __dir__, __all__ = _exports.load, _exports.dir, _exports.names
