"""The tracing frontend: tensors and functions that record IR nodes into a graph as user code runs."""
