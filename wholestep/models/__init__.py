"""Networks from the papers, in short files."""

from wholestep.models.gpt2 import GPT2, gpt2

__all__ = ["GPT2", "gpt2"]
