# What the package exports, and from where; `lazy.py` makes its names of it.

from wholestep.aten.network import from_torch as from_torch, torch_coverage as torch_coverage
from wholestep.aten.table import torch_op as torch_op
