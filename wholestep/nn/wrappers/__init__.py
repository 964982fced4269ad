"""Changes to existing layers: LoRA, weight norms, precision, tensor parallelism."""
