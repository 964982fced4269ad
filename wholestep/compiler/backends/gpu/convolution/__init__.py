"""Convolutions on GPUs: direct kernels, pools and casts around them."""
