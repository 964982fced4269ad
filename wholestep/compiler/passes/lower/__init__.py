"""Lowering passes: composites, dtypes, loops and layouts become what a target has kernels for."""
