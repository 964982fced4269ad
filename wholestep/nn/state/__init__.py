"""Weights of a model in files and state dicts."""
