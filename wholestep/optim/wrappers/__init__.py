"""Optimizers around an optimizer."""
