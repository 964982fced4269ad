"""Wholestep against its peers: `python -m benchmarks mlp`, and its own fixed costs: `python -m benchmarks overhead`."""
