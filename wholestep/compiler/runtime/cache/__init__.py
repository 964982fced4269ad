"""Persistent caches in the user's cache folder: plans and compiled code."""
