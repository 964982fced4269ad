"""Sessions: building them, running them, reading what they computed."""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __dir__, __all__ = _exports.load, _exports.dir, _exports.names
