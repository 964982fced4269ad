"""Wholestep: a whole training step - forward, loss, backward, update - compiled as one graph into one native call.

Names are loaded when they are first asked for, so that importing stays quick; `__init__.pyi` lists them.
"""

from wholestep.lazy import Exports

__version__ = "0.1.0"

_exports = Exports(__name__, __file__)
__getattr__, __all__ = _exports.load, [*_exports.names, "__version__"]


def __dir__() -> list[str]:
    return sorted(__all__)
