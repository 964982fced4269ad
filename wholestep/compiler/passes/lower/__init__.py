"""Lowering passes: composites, dtypes, loops and layouts are rewritten to forms that a target has kernels for."""
