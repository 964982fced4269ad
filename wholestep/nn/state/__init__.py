"""Weights of a model in files and in state dicts."""
