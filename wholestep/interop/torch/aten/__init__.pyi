# What the package exports, and from where; `lazy.py` makes its names of it.

from wholestep.interop.torch.aten.network import from_torch as from_torch, torch_coverage as torch_coverage
from wholestep.interop.torch.aten.table import torch_op as torch_op
