"""Inspection of a session: kernel times, traces, source code, statistics."""
