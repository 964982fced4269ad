"""The data model of plans: kernels, their bodies, memory accesses and layouts."""
