"""Shared parts of several backends: programs over NumPy memory, gradient accumulation, and the data of each rank."""
