"""Terms that are added to the loss for weights and activations: regularizers of layers, and `ws.add_loss`.

The graph stores a term under the name of its part of the loss; `fit` and sessions over models add them to
the loss and log them, user-defined steps call `ws.penalties`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.graph import Graph, current_graph
from wholestep.compiler.frontend.tensor import Tensor, ratio
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import OptionError, ShapeError, UsageError
from wholestep.records import dataclass

if TYPE_CHECKING:
    from wholestep.nn.module.module import Module
    from wholestep.nn.module.trace import Trace

WEIGHTS, ACTIVITY = "regularization", "activity"  # names of these parts of the loss


@dataclass(frozen=True)
class L1L2:
    """The regularizer l1·Σ|x| + l2·Σ x², for the weights of a layer or for its output.

    Both numbers are runtime scalars, `<layer>.weight_regularizer.l2` and so on: changing one never recompiles.

    Example: `ws.nn.Linear(64, 10, weight_regularizer=ws.nn.L1L2(1e-5, 1e-4))`.
    """

    l1: float = 0.0
    l2: float = 0.0

    def __post_init__(self) -> None:
        for name in ("l1", "l2"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0:
                fail(OptionError, f"a regulariser's {name} must be a number of at least 0; received {value!r}.")

    def penalty(self, x: Tensor, name: str) -> Tensor | None:
        """The penalty of one tensor; None if both factors are 0."""
        assert x.graph is not None
        sums = {"l1": lambda: abs(x).sum(), "l2": lambda: (x * x).sum()}
        terms = [
            _rate(x.graph, f"{name}.{kind}", value).astype(x.dtype) * sums[kind]()
            for kind, value in (("l1", self.l1), ("l2", self.l2))
            if value
        ]
        return None if not terms else terms[0] if len(terms) == 1 else terms[0] + terms[1]


def L1(rate: float = 0.01) -> L1L2:
    """The regularizer rate · Σ|x|.  Example: `ws.nn.Linear(64, 10, activity_regularizer=ws.nn.L1(1e-4))`."""
    return L1L2(l1=rate)


def L2(rate: float = 0.01) -> L1L2:
    """The regularizer rate · Σ x².  Example: `ws.nn.Linear(64, 10, weight_regularizer=ws.nn.L2(1e-4))`."""
    return L1L2(l2=rate)


Regularizer = L1L2 | Callable[[Tensor], Tensor] | str | None
BY_NAME = {"l1": L1(), "l2": L2(), "l1_l2": L1L2(0.01, 0.01)}


def _rate(graph: Graph, name: str, value: float) -> Tensor:
    scalar = graph.scalars.get(name)
    return scalar if scalar is not None else graph.scalar(name, float(value))


def as_regularizer(kind: str, option: str, value: Regularizer) -> L1L2 | Callable[[Tensor], Tensor] | None:
    """The regularizer for a user's argument."""
    if isinstance(value, str) and value in BY_NAME:
        return BY_NAME[value]
    if not (value is None or isinstance(value, L1L2) or (callable(value) and not isinstance(value, type | str))):
        fail(
            OptionError,
            f"{kind}: {option} is ws.nn.L2(1e-4), ws.nn.L1(1e-4), a function of a tensor that gives a number, or "
            f"{', '.join(map(repr, BY_NAME))}; received {value!r}.",
        )
    return value


def record(trace: Trace, module: Module, output: object) -> None:
    """Add the penalties of a module that was called; its weights count once, however often it is called."""
    path = trace.paths[module]
    before = f"{path}." if path else ""
    weights = as_regularizer(type(module).__name__, "weight_regularizer", module.weight_regularizer)
    if weights is not None and module not in trace.regularized:
        trace.regularized.add(module)
        name = f"{before}weight_regularizer"
        for owned in module.named_arrays().values():
            if owned.trained and len(owned.shape) > 1:
                _add(trace.graph, WEIGHTS, _term(weights, trace.tensors[owned], name))
    activity = as_regularizer(type(module).__name__, "activity_regularizer", module.activity_regularizer)
    if activity is not None:
        if not isinstance(output, Tensor) or not output.ndim:
            fail(UsageError, f"activity_regularizer needs a tensor as output of {type(module).__name__}.")
        term = _term(activity, output, f"{before}activity_regularizer")
        _add(trace.graph, ACTIVITY, term if term is None or callable(activity) else ratio(term, output.shape[0]))


def _term(regularizer: Any, x: Tensor, name: str) -> Tensor | None:
    if isinstance(regularizer, L1L2):
        return regularizer.penalty(x, name)
    term = regularizer(x)
    if not isinstance(term, Tensor) or term.shape != () or not term.dtype.is_float:
        fail(ShapeError, f"{name}: the function must give one number, a float scalar; it gave {term!r}. Write .sum().")
    return term


def _add(graph: Graph, part: str, term: Tensor | None) -> None:
    if term is not None:
        total = graph.penalties.get(part)
        graph.penalties[part] = term if total is None else total + term


def add_loss(term: Tensor, name: str = "added") -> None:
    """Add a scalar to the loss inside `forward`: `fit` adds it to the training loss and logs it as `<name>_loss`.

    Args:
        term: a float scalar, such as the commitment of a vector quantiser or a divergence of a latent.
        name: the name of the part of the loss; terms of one name are added up.

    Example: `ws.add_loss(0.25 * ((z - ws.stop_gradient(q)) ** 2).mean(), "commitment")` in `forward`.
    """
    if not isinstance(term, Tensor) or term.shape != () or not term.dtype.is_float:
        fail(ShapeError, f"add_loss takes one number, a float scalar; received {term!r}. Reduce it: term.mean().")
    if term.graph is None:
        fail(UsageError, "add_loss: this number belongs to no graph; compute it from the inputs or the weights.")
    if not isinstance(name, str) or not name.isidentifier():
        fail(OptionError, f"add_loss: a name is a word, such as 'commitment'; received {name!r}.")
    _add(term.graph, name, term)


def penalties(graph: Graph | None = None) -> dict[str, Tensor]:
    """The terms that the modules called in a step add to its loss, by name: regularizers and `ws.add_loss`.

    A model's own sessions and `ws.fit` add them automatically; a user-defined step adds them explicitly:
    `loss = loss + sum(ws.penalties(g).values())`.

    Example: `parts = ws.penalties(g)`.
    """
    current = graph if graph is not None else current_graph()
    if current is None:
        fail(UsageError, "penalties: give the graph of the step, ws.penalties(g).")
    current.penalties_read = True
    return dict(current.penalties)
