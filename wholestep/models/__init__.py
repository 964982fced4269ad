"""Networks from the papers, in short files."""

from wholestep.models.gpt2 import GPT2, gpt2
from wholestep.models.lstm import LSTMLanguageModel, lstm_lm

__all__ = ["GPT2", "LSTMLanguageModel", "gpt2", "lstm_lm"]
