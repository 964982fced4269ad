"""Functions of PyTorch that are an operator, a method or a short expression here: `ws.mm`, `ws.addmm`, `ws.amax`.

They take PyTorch's arguments and have its semantics; the rows of ATen and ONNX operators call them.
"""

from wholestep.interop.torch.functions.pointwise import *  # noqa: F403  (its __all__)
from wholestep.interop.torch.functions.reductions import *  # noqa: F403  (its __all__)
from wholestep.interop.torch.functions.shapes import *  # noqa: F403  (its __all__)
