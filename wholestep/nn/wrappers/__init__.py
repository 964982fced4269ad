"""Wrappers of existing layers: LoRA, weight norms, precision, tensor parallelism."""
