"""Layouts of the CPU: matrices lie in panels of 16 columns, which contractions read without packing."""

from __future__ import annotations

from wholestep.compiler.ir.types import TensorType, symbols_of, transpose_type
from wholestep.compiler.plan.model.kernel import Layout
from wholestep.compiler.plan.model.layout import layout_bytes
from wholestep.compiler.runtime.state.storage import HostMemory

# Logical lanes of every reduction, and columns of a panel.  No field of a target: in which order a sum is added follows
# from it, and a step has the same bits on every CPU; the native code is written for it.
LANES = 16
PANELS = Layout("panels", LANES)
PAIRS = Layout("pairs", LANES, 2)  # panels of half elements, two rows side by side: what their products read
PADDING = 1.125  # times the bytes of a state as it is shown, for its transpose
PANEL_COLUMNS = 8  # narrower matrices would be mostly padding


def state_layout(type: TensorType) -> Layout:
    """How a state is stored: a function of its stored type alone, so that every plan over a State agrees on it."""
    columns = type.shape[-1] if type.rank == 2 else 0
    wide = isinstance(columns, int) and columns >= PANEL_COLUMNS
    return PANELS if type.dtype.is_float and wide else Layout.ROWS


def is_turned(type: TensorType, by_columns: bool) -> bool:
    """Is the transpose of a state stored in its place?  Where products read that, and padding takes little more."""
    if not by_columns or type.rank != 2 or symbols_of(type.shape):
        return False
    there = transpose_type(type)
    most = PADDING * layout_bytes(type, state_layout(type), {})
    return state_layout(there) == PANELS and layout_bytes(there, PANELS, {}) <= most


MEMORY = HostMemory("cpu", state_layout, is_turned)  # where states are for the CPU: in this process
