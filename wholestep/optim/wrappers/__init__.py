"""Wrappers of optimizers."""
