"""Persistent kernels: grids that stay resident over the steps of a scan or of an epoch."""
