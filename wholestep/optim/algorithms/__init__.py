"""Optimizers, one file per family."""
