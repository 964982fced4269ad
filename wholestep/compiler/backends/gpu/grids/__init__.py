"""Grids of all kernels: one module per kind of kernel; `choose.py` has the table of scheduling functions."""
