"""Functions of PyTorch's that are an operator, a method or a line here: `ws.mm`, `ws.addmm`, `ws.amax`.

They take PyTorch's arguments and mean what they mean there; nothing else in the package uses them.
"""

from wholestep.compat.torch_functions.pointwise import *  # noqa: F403  (its __all__)
from wholestep.compat.torch_functions.products import *  # noqa: F403  (its __all__)
from wholestep.compat.torch_functions.reductions import *  # noqa: F403  (its __all__)
from wholestep.compat.torch_functions.shapes import *  # noqa: F403  (its __all__)
