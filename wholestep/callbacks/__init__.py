"""Callbacks, which observe, log and stop training."""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __all__ = _exports.load, _exports.names


def __dir__() -> list[str]:
    return sorted(__all__)
