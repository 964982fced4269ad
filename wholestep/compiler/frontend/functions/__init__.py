"""Functions of tensors: each records nodes, or is an expression over functions that do."""
