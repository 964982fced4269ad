"""Wholestep: a whole training step - forward, loss, backward, update - compiled as one graph into one native call.

Names are loaded on first use, which keeps the import fast; `__init__.pyi` lists them.
"""

import sys

from wholestep.lazy import AdaptOnImport, Exports

__version__ = "0.1.0"

_exports = Exports(__name__, __file__)
__getattr__, __all__ = _exports.load, [*_exports.names, "__version__"]

# Modules whose public functions and layers accept argument names of PyTorch and Keras: see `adapt` in interop.
_ADAPTED = (
    "compiler.frontend.functions.", "compiler.frontend.layers.", "compiler.frontend.shape.", "nn.", "models.",
    "callbacks.", "data.", "interop.torch.functions.",
)  # fmt: skip
sys.meta_path.insert(0, AdaptOnImport(tuple(f"{__name__}.{prefix}" for prefix in _ADAPTED)))


def __dir__() -> list[str]:
    return sorted(__all__)
