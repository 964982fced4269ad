"""Passes that lower a step to the primitives and dtypes that a target has kernels for."""
