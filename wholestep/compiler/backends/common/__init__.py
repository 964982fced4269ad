"""What several backends share: programs over NumPy memory, micro-batches, shares of ranks."""
