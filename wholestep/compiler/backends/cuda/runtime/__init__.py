"""Loads and launches plans on a GPU."""
