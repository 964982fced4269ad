"""Memory layouts of the CPU: column panels, transposed weights, packed operands."""
