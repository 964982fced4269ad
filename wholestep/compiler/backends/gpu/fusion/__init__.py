"""Kernel fusion: horizontal (independent kernels in one launch) and vertical (dependent rows in one block)."""
