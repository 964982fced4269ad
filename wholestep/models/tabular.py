"""A network for tables: standardised numbers and embeddings of categories and words, concatenated, then a perceptron.

After "Entity Embeddings of Categorical Variables", Guo and Berkhahn 2016 (arXiv:1604.06737).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from wholestep.compiler.frontend.functions.primitives import concat, maximum
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, UsageError
from wholestep.nn import GELU, Dropout, Embedding, Linear, Module, ReLU, Sequential, Sigmoid, SiLU, Tanh
from wholestep.nn.layers.table_encoding import UNMET, encoding_of
from wholestep.nn.module.parameter import buffer

if TYPE_CHECKING:
    from wholestep.data.tables.encoding import Encoding

ACTIVATIONS: dict[str, Callable[[], list[Module]]] = {  # under scikit-learn's names
    "relu": lambda: [ReLU()],
    "tanh": lambda: [Tanh()],
    "logistic": lambda: [Sigmoid()],
    "gelu": lambda: [GELU()],
    "silu": lambda: [SiLU()],
    "identity": list,
}


class Tabular(Module):
    """A perceptron over the columns of a frame: numbers, text, categories and dates, also with missing values.

    Its layers are built when it is first trained or a file of its weights is loaded: the number of columns is known
    then.  It outputs scores of classes, or numbers in the units of the target; `predict_classes` returns labels.
    `print(model.encoder)` shows how each column is encoded.

    Args:
        hidden: the width of each hidden layer.
        embedding: the width of a category's, or word's, embedding.
        dropout: after each hidden layer.
        activation: "relu", "tanh", "logistic", "gelu", "silu" or "identity".

    Example: `ws.fit(ws.models.Tabular(), (frame, "species"), loss="cross_entropy", epochs=20)`.
    """

    middle: Tensor  # for numeric targets: their mean, in their units
    spread: Tensor

    def __init__(
        self, hidden: Sequence[int] = (64, 64), embedding: int = 8, dropout: float = 0.0, activation: str = "relu"
    ) -> None:
        widths = tuple(hidden) if isinstance(hidden, Sequence) else (hidden,)
        for what, value in (("embedding", embedding), *(("hidden", width) for width in widths)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                fail(OptionError, f"Tabular: {what} must be an integer of at least 1; received {value!r}.")
        if activation not in ACTIVATIONS:
            names = ", ".join(map(repr, ACTIVATIONS))
            fail(OptionError, f"Tabular: the activation must be one of {names}; received {activation!r}.")
        self.hidden, self.embedding, self.dropout, self.activation = widths, embedding, dropout, activation
        self.layers: Sequential | None = None

    @property
    def encoder(self) -> Encoding | None:
        """The fitted encoder, None before training: `print(model.encoder)` shows how each column is encoded."""
        return encoding_of(self)

    def meet(self, encoding: Encoding) -> None:
        """Build the layers for the columns of a table encoding."""
        categories, words = encoding.entries
        self.make(encoding.width, len(encoding.categories), categories, len(encoding.words), words, encoding.outputs)
        if (scale := encoding.units) is not None:
            self.middle, self.spread = (buffer((self.outputs,), np.array(part, np.float32)) for part in scale)
            self.in_units = True

    def make(self, width: int, categories: int, entries: int, texts: int, words: int, outputs: int) -> None:
        """Build the layers for these numbers of numeric, categorical and text columns and embedding sizes."""
        inputs = width + self.embedding * (categories + texts)
        if categories:
            self.categories = Embedding(entries, self.embedding)
        if texts:
            self.words = Embedding(words, self.embedding)
        layers: list[Module] = []
        for size in self.hidden:
            layers += [Linear(inputs, size), *ACTIVATIONS[self.activation]()]
            layers += [Dropout(self.dropout)] if self.dropout else []
            inputs = size
        self.layers = Sequential(*layers, Linear(inputs, outputs))
        self.outputs, self.in_units = outputs, False

    def forward(self, x: Any = None, categories: Any = None, words: Any = None) -> Tensor:
        if self.layers is None:
            fail(UsageError, f"Tabular {UNMET}")
        parts = [] if x is None else [x]
        parts += [] if categories is None else [self._embed_category(self.categories, categories)]
        parts += [] if words is None else [self._mean(words)]
        out: Tensor = self.layers(parts[0] if len(parts) == 1 else concat(parts, axis=1))  # (batch, outputs)
        if self.in_units:
            out = out * self.spread + self.middle
        return out.reshape((out.shape[0],)) if self.outputs == 1 else out

    def _embed_category(self, table: Module, codes: Tensor) -> Tensor:
        """The embedding of a category; zeros for a category that was not in the training data, which has code 0."""
        is_known = (codes > 0).astype("float32")
        vectors: Tensor = table(codes) * is_known.reshape((*is_known.shape, 1))  # (batch, columns, width)
        return vectors.reshape((codes.shape[0], -1))

    def _mean(self, words: Tensor) -> Tensor:
        """The mean of the embeddings of each text's known words."""
        is_known = (words > 0).astype("float32")  # (batch, columns, words)
        sums: Tensor = (self.words(words) * is_known.reshape((*is_known.shape, 1))).sum(axis=2)
        count = maximum(is_known.sum(axis=2), 1.0)
        mean = sums / count.reshape((*count.shape, 1))  # (batch, columns, width)
        return mean.reshape((words.shape[0], -1))
