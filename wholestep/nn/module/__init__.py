"""`Module` and what it owns: parameters, tracing, methods."""
