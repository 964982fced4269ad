"""What a plan consists of: kernels, their bodies, memory accesses and layouts, as plain data."""
