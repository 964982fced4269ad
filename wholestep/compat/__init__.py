"""What users bring with them: other libraries' names, arguments and habits, as data, and what is done with it.

`ancestors` has the names by which this library's ancestors are called.  `tables` holds, as data alone, what PyTorch's
and Keras' words are here: the same thing, or a sentence that says what to write.  `names` looks words up in it,
`arguments` lets functions and layers take theirs.
"""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __all__ = _exports.load, _exports.names


def __dir__() -> list[str]:
    return sorted(__all__)
