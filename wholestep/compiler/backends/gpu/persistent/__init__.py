"""Persistent kernels: grids that stay resident on the multiprocessors for all steps of a scan or of an epoch."""
