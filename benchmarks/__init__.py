"""Benchmarks of Wholestep against its peers (`python -m benchmarks mlp`) and of its fixed costs (`... overhead`)."""
