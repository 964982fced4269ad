"""Interoperability with PyTorch, Keras, ONNX and scikit-learn: their networks, names, arguments and files.

This package imports all others, and none imports it: they call its functions, which `__init__.pyi` lists, through
`wholestep.lazy.interop`.
"""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __all__ = _exports.load, _exports.names


def __dir__() -> list[str]:
    return sorted(__all__)
