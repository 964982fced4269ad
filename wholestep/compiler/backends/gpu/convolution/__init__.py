"""Convolutions on GPUs: direct shared-memory kernels, fused pooling, and the casts around library calls."""
