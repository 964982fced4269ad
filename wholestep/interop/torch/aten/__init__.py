"""Networks of PyTorch: `torch.export` gives their ATen ops, one table says what each is here."""

from wholestep.lazy import Exports

_exports = Exports(__name__, __file__)
__getattr__, __all__ = _exports.load, _exports.names
