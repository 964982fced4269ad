"""Rematerialization: values that are recomputed by their readers instead of being stored."""
