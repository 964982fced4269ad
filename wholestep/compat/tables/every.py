"""All tables of names, in the order in which they are asked."""

from wholestep.compat.rows import Names
from wholestep.compat.tables.torch_names import TORCH

EVERY_TABLE: tuple[Names, ...] = (TORCH,)
