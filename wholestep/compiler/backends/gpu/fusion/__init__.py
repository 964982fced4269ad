"""Fusion of launches: horizontal (independent kernels) and vertical (rows of one block)."""
