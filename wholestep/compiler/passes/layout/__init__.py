"""Passes that choose the shape in which values are computed."""
