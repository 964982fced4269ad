"""Differential privacy: its settings, and the accountant of the noise that a run needs."""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __dir__, __all__ = _exports.load, _exports.dir, _exports.names
