"""The rows that record ATen ops, by family."""
