"""Layouts of matrices and weights in the memory of a CPU."""
