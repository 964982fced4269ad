"""Column panels: a matrix is stored as [columns/16][rows][16], which contractions read sequentially without packing."""

from __future__ import annotations

from wholestep.compiler.ir.types import TensorType, symbols_of, transpose_type
from wholestep.compiler.plan.model.kernel import Layout
from wholestep.compiler.plan.model.layout import layout_bytes
from wholestep.compiler.runtime.state.storage import HostMemory

# Logical lanes of every reduction, and columns of a panel.  Not a field of a target: it determines the order of every
# sum, steps have the same bits on every CPU, and the native code is written for it.
LANES = 16
PANELS = Layout("panels", LANES)
PAIRS = Layout("pairs", LANES, 2)  # panels of half elements with two rows interleaved, as half products read them
PADDING = 1.125  # a transpose may need up to this many times the bytes of the state as declared
PANEL_COLUMNS = 8  # columns; panels of narrower matrices would be mostly padding


def state_layout(type: TensorType) -> Layout:
    """The layout of a state: a function of its stored type alone, so that every plan over a state agrees on it."""
    columns = type.shape[-1] if type.rank == 2 else 0
    wide = isinstance(columns, int) and columns >= PANEL_COLUMNS
    return PANELS if type.dtype.is_float and wide else Layout.ROWS


def is_stored_transposed(type: TensorType, by_columns: bool) -> bool:
    """Is the transpose stored instead of the state?  Yes if products read the transpose and padding adds little."""
    if not by_columns or type.rank != 2 or symbols_of(type.shape):
        return False
    transposed = transpose_type(type)
    limit = PADDING * layout_bytes(type, state_layout(type), {})
    return state_layout(transposed) == PANELS and layout_bytes(transposed, PANELS, {}) <= limit


MEMORY = HostMemory("cpu", state_layout, is_stored_transposed)  # the memory of states on the CPU: in this process
