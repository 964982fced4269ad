"""Layouts of the CPU: matrices lie in panels of 16 columns, which contractions read without packing."""

from __future__ import annotations

from wholestep.compiler.ir.types import TensorType
from wholestep.compiler.plan.kernel import Layout

# Logical lanes of every reduction, and columns of a panel.  No field of a target: in which order a sum is added follows
# from it, and a step has the same bits on every CPU; the native code is written for it.
LANES = 16
PANELS = Layout("panels", LANES)
PAIRS = Layout("pairs", LANES, 2)  # panels of half elements, two rows side by side: what their products read
PANEL_COLUMNS = 8  # narrower matrices would be mostly padding


def state_layout(type: TensorType) -> Layout:
    """How a state is stored: a function of its type alone, so that every plan over a State agrees on it."""
    columns = type.shape[-1] if type.rank == 2 else 0
    wide = isinstance(columns, int) and columns >= PANEL_COLUMNS
    return PANELS if type.dtype.is_float and wide else Layout.ROWS
