"""From a model, its loss and an optimizer to the graphs of the entry points: train, evaluate, by hand, micro-batches.

The package cannot be called `step`: importing it would put a module in the place of `ws.step`.
"""
