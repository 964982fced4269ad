"""Networks of this library for others."""
