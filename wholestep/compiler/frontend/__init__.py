"""What users call: tensors, functions and graphs that record nodes."""
