"""Layout passes: they choose the shape (merged or split axes) in which values are computed, to enable fusion."""
