"""Exports a step as C source that uses one block of memory: rendered plans, tables and a small runtime."""
