"""Optimizers: immutable configurations that record their update as tensor expressions."""

from wholestep.lazy import Exports
from wholestep.optim.core.on_graph import sgd as sgd  # the function; a module of the same name was loaded before

_exports = Exports(__name__, __file__)
__getattr__, __dir__, __all__ = _exports.load, _exports.dir, _exports.names
