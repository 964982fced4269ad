"""Shared parts of GPU backends: grids, fusion, tiled GEMM, persistent kernels and rendered source."""
