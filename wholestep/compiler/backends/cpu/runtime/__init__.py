"""Compiling, loading and running plans on the CPU."""
