"""Functions of tensors: each records nodes, or is composed of functions that do."""
