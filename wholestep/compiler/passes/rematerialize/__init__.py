"""Rematerialization: values are recomputed by their readers instead of being stored, to save traffic or memory."""
