"""Records the graphs of the entry points (train, evaluate, manual, micro-batches) from a model, a loss and an
optimizer.

The package cannot be called `step`: importing it would replace `ws.step` by a module.
"""
