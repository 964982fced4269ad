"""Keras: its names, and the arguments of its `fit`."""
