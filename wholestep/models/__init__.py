"""Networks from published papers, one short file each."""

from wholestep.lazy import Exports
from wholestep.models.gpt2 import gpt2 as gpt2  # the function, which has the same name as its module

_exports = Exports(__name__, __file__)
__getattr__, __all__ = _exports.load, _exports.names


def __dir__() -> list[str]:
    return sorted(__all__)
