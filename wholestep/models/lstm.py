"""An LSTM language model as in "Recurrent neural network regularization", Zaremba et al. 2014 (arXiv:1409.2329)."""

from __future__ import annotations

from wholestep.compiler.frontend import initializers as init
from wholestep.compiler.frontend.layers.composites import Switchable
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import ShapeError
from wholestep.models.generation import KeyValueCache, LanguageModel
from wholestep.nn import LSTM, Dropout, Embedding, Linear


def lstm_lm(
    vocabulary: int,
    width: int = 256,
    layers: int = 2,
    dropout: float | Switchable = 0.0,
    tied: bool = False,
    dtype: object = "float32",
) -> LSTMLanguageModel:
    """A language model: token embedding, LSTM layers, and a linear layer to the scores of the next token.

    Args:
        vocabulary: the number of tokens.
        width: the width of the embedding and of every layer.
        dropout: the rate of dropout after the embedding, between layers and before the scores.
        tied: the embedding is also the output layer (arXiv:1608.05859).

    Example: `model = ws.models.lstm_lm(65, width=256, layers=2)`.
    """
    return LSTMLanguageModel(vocabulary, width, layers, dropout, tied, dtype)


class LSTMLanguageModel(LanguageModel):
    """Tokens (batch, time) -> scores of the next token (batch, time, vocabulary); with a cache, of the last one."""

    context = 2**20  # the most tokens that `generate` may produce; the network itself has no limit

    def __init__(
        self,
        vocabulary: int,
        width: int,
        layers: int,
        dropout: float | Switchable = 0.0,
        tied: bool = False,
        dtype: object = "float32",
    ) -> None:
        self.encoder = Embedding(vocabulary, width, init.uniform(-0.1, 0.1), dtype)
        self.drop, self.drop_out = Dropout(dropout), Dropout(dropout)
        self.lstm = LSTM(width, width, num_layers=layers, dropout=dropout, dtype=dtype)
        self.decoder = Linear(width, vocabulary, dtype=dtype)
        if tied:
            self.decoder.weight = self.encoder.weight

    def forward(self, tokens: Tensor, cache: KeyValueCache | None = None) -> Tensor:
        if tokens.ndim != 2:
            fail(ShapeError, f"lstm_lm takes tokens of shape (batch, time); received {tokens!r}.")
        x = self.drop(self.encoder(tokens.T))  # (time, batch, width): each step is contiguous in memory
        if cache is not None:
            shape = (self.lstm.num_layers, tokens.shape[0], self.lstm.hidden)
            state = tuple(cache.carried_value(name, shape, x.dtype) for name in ("h", "c"))
            outputs, after = self.lstm(x, state)
            for name, value in zip(("h", "c"), after, strict=True):
                cache.carry(name, value)
            last: Tensor = self.decoder(self.drop_out(outputs[-1]))
            return last
        outputs, _ = self.lstm(x)
        scores: Tensor = self.decoder(self.drop_out(outputs))
        return scores.transpose(0, 1)  # (batch, time, vocabulary)
