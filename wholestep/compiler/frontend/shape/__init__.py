"""Functions that move, select, sort and scatter elements."""
