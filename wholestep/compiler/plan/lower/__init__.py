"""Lowering of fused clusters to kernels."""
