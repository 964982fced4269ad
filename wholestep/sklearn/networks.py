"""A pool of compiled networks: a fit or a prediction borrows one, and the trained weights are copied out of it.

A search makes hundreds of small fits of the same shape.  Their sizes, and nothing else, are compiled: numbers of rows,
learning rates and penalties are runtime values, and a network that was returned to the pool is reset by the next fit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from wholestep import platforms
from wholestep.compiler.frontend.initializers import materialize
from wholestep.compiler.frontend.step import Spec
from wholestep.compiler.frontend.update_counters import RAW
from wholestep.data.tables.column import Array
from wholestep.models.tabular import Tabular
from wholestep.optim import EMA, SGD, Adam, AdamW, Optimizer
from wholestep.options import CompileOptions
from wholestep.session import build_session

KEPT = 16  # the largest number of idle networks in a process
AVERAGE = 0.99  # predictions use an average of the weights over about the last hundred steps
Weights = Mapping[str, Array]


@dataclass(frozen=True)
class InputColumns:
    """The input columns of a network: how many numbers, categories and text columns, and the sizes of their tables."""

    numbers: int
    categories: int = 0
    entries: int = 1
    texts: int = 0
    length: int = 0  # the most words of a text
    words: int = 1

    def specs(self) -> dict[str, Spec]:
        specs = {"x": Spec(("batch", self.numbers))} if self.numbers else {}
        if self.categories:
            specs["categories"] = Spec(("batch", self.categories), "int32")
        if self.texts:
            specs["words"] = Spec(("batch", self.texts, self.length), "int32")
        return specs


@dataclass(frozen=True)
class NetworkKey:
    """The key of a compiled network: fits with equal keys share one."""

    columns: InputColumns
    outputs: int
    hidden: tuple[int, ...]
    activation: str
    dropout: float
    solver: str
    decays: bool
    loss: str
    weighted: bool
    capacity: int
    device: str
    threads: int | None
    options: CompileOptions | None = None

    def optimizer(self) -> Optimizer:
        decay = 1e-4 if self.decays else 0.0  # a runtime value, so that changing it does not recompile
        if self.solver == "sgd":
            return EMA(SGD(lr=1e-3, momentum=0.9, nesterov=True, weight_decay=decay), decay=AVERAGE)
        return EMA((AdamW if self.solver == "adamw" else Adam)(lr=1e-3, weight_decay=decay), decay=AVERAGE)

    def targets(self) -> dict[str, Spec]:
        labels = Spec(("batch",), "int32" if self.loss == "cross_entropy" else "float32")
        if self.loss != "cross_entropy" and self.outputs > 1:
            labels = Spec(("batch", self.outputs))
        return {"labels": labels, **({"sample_weight": Spec(("batch",))} if self.weighted else {})}


class SharedNetwork:
    """A network with its session."""

    def __init__(self, kind: NetworkKey) -> None:
        model, c = Tabular(kind.hidden, dropout=kind.dropout, activation=kind.activation), kind.columns
        model.make(c.numbers, c.categories, c.entries, c.texts, c.words, kind.outputs)
        specs = c.specs()
        self.model, self.kind = model, kind
        self.session = build_session(
            model,
            inputs=specs["x"] if list(specs) == ["x"] else specs,
            targets=kind.targets(),
            loss=kind.loss,
            optimizer=kind.optimizer(),
            batch_size=kind.capacity,
            seed=0,  # `restart` initializes the weights
            device=kind.device,
            threads=kind.threads,
            options=kind.options,
        )
        self._first = self.session.state_dict()
        self._holds: object = None  # the owner of the current weights

    def restart(self, seed: int) -> None:
        """Reset the network: initialize the weights from the seed, and set the step count to 0."""
        drawn = {
            name: materialize(owned.init, owned.shape, owned.dtype, seed, name)
            for name, owned in self.model.named_arrays().items()
        }
        trained = {name + RAW: value for name, value in drawn.items()}  # the raw weights, which are averaged
        self.session.load_state_dict({**self._first, **drawn, **trained})
        self._holds = None

    def weights(self) -> Weights:
        return self.model.state_dict()

    def load(self, weights: Weights) -> None:
        if self._holds is not weights:
            self.model.load_state_dict(weights)
            self._holds = weights

    def outputs(self, arrays: Mapping[str, Array]) -> Array:
        """The outputs (rows, outputs), or (rows,) for a single output."""
        outputs = self.session.predict(dict(arrays))
        assert isinstance(outputs, np.ndarray), "it has one output"
        return outputs


class Pool:
    """The idle networks of the process, the most recently used ones last."""

    def __init__(self) -> None:
        self._idle: list[SharedNetwork] = []
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self, kind: NetworkKey) -> Iterator[SharedNetwork]:
        """Borrow a network with a key for one thread; it is returned to the pool unless an error occurs."""
        network = self._take(kind) or SharedNetwork(kind)
        yield network
        with self._lock:
            self._idle = [*self._idle, network][-KEPT:]

    def _take(self, kind: NetworkKey) -> SharedNetwork | None:
        with self._lock:
            network = next((n for n in reversed(self._idle) if n.kind == kind), None)
            if network is not None:
                self._idle.remove(network)
            return network

    def forget(self) -> None:
        """Called in a forked process: it builds its own networks, and a lock that was held is replaced."""
        self._idle, self._lock = [], threading.Lock()


POOL = Pool()
platforms.after_fork(POOL.forget)
