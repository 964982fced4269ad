"""Names that only the programs of a window have; apart from `cut`, which a step of one batch does not load."""

from __future__ import annotations

# Dimensions: rows before a part, rows and parts of the window.
FIRST, ROWS, PARTS = "window.first", "window.rows", "window.parts"
WINDOW_DIMS = (FIRST, ROWS, PARTS)
PREFIX = "accumulate/"  # of states that mean nothing between steps
