"""Import of PyTorch networks: `torch.export` yields their ATen ops, which a table maps to our ops."""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __all__ = _exports.load, _exports.names
