"""L-BFGS: a quasi-Newton direction from the last gradients and steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce, wraps
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from wholestep.compiler.frontend.control.scan import scan
from wholestep.compiler.frontend.functions import primitives as fn
from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.graph import Node
from wholestep.compiler.ir.types import product
from wholestep.errors import OptionError, UsageError
from wholestep.optim.core.base import Optimizer
from wholestep.optim.core.gradient_transforms import sum_in_float64
from wholestep.optim.core.options import Number, number, whole, with_aliases
from wholestep.optim.wrappers.sam import substitute_tensors

Vector = Sequence[Tensor]  # one tensor for each parameter
LEAST_CURVATURE = 1e-10  # the least y·s of a stored pair
ENOUGH = 1e-4  # the required fraction of the predicted descent: Armijo's condition
LOSSES: WeakKeyDictionary[Graph, Node] = WeakKeyDictionary()  # the loss of a graph, for its line search
TORCHS = {
    "max_iter": "a step is one iteration, and an epoch of one batch is one step: epochs=20, batch_size=len(x)",
    "max_eval": "a step evaluates the loss once, and once for each length that line_search= tries",
    "line_search_fn": "lengths are tried by line_search=10, which halves them until the loss has fallen enough",
}


def _refuse_torch_options(cls: type[LBFGS]) -> type[LBFGS]:
    """Raise UsageError for options of torch's LBFGS that a step compiled once cannot have."""
    original: Callable[..., None] = cls.__init__

    @wraps(original)
    def init(self: LBFGS, *args: Any, **options: Any) -> None:
        for name in TORCHS.keys() & options.keys():
            fail(UsageError, f"LBFGS has no {name}=: {TORCHS[name]}.")
        original(self, *args, **options)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


@_refuse_torch_options
@with_aliases(learning_rate="lr", tolerance_gradient="tolerance_grad")
@dataclass(frozen=True)
class LBFGS(Optimizer):
    """Limited-memory BFGS (Nocedal, 1980): one iteration per step, as torch's with `max_iter=1`; over all parameters,

        s = the last step, y = g - the last g; the pair is kept if y·s > 1e-10, with H = y·s/y·y
        d = -B·g, B being H changed by the last `history_size` pairs
        w ← w + lr·d;  the first step is lr·min(1, 1/‖g‖₁) long

    The step is compiled once, so it cannot evaluate the loss until something holds (decision 022).  With
    `line_search=k` the losses at lr, lr/2, …, lr/2ᵏ⁻¹ are part of it: the longest of these steps that satisfies
    Armijo's condition is taken, or none if no loss falls.  That costs k forward passes in every step.

    For whole data sets, `batch_size=len(x)`: pairs of different batches say nothing about the curvature.  Weight decay
    belongs to the loss.  Groups may be frozen, nothing else.

    Args:
        lr: the length of a step, in units of d.
        history_size: the number of stored pairs; torch keeps 100.
        tolerance_grad: no step is made if no element of the gradient is larger than this.
        tolerance_change: no step is made if the decrease of the loss that g·d predicts is smaller.
        line_search: the number of step sizes that are tried; 0 makes every step.

    Example: `ws.LBFGS(line_search=8)`.
    """

    lr: Number = number(1.0)
    history_size: int = whole(10)
    tolerance_grad: Number = number(1e-7, trial=1e-7)
    tolerance_change: Number = number(1e-9, trial=1e-9)
    line_search: int = whole(0, low=0)

    slot: ClassVar[str] = "lbfgs"

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not g.frozen for g in self.groups):
            fail(
                OptionError,
                "LBFGS has one history over all parameters, so a group may be frozen and nothing else; received "
                f"{[str(g) for g in self.groups]}.",
            )
        if self.maximize and self.line_search:
            fail(
                OptionError, "LBFGS: a line search looks for a smaller loss; with maximize=True leave line_search out."
            )

    def gradients(self, loss: Tensor, params: Any) -> Any:
        if self.line_search and loss.graph is not None:
            LOSSES[loss.graph] = loss.node
        return gradients(loss, params)

    def descend(self, graph: Graph, params: Vector, grads: Vector) -> list[Tensor]:
        s = self.scalars(graph)
        first = self.by_update(graph, params[:1], lambda t: t < 2.0)[0]
        last = [(self.state(graph, w, "step"), self.state(graph, w, "gradient")) for w in params]
        direction = self._direction(graph, params, grads, last, first)
        slope = _dot(grads, direction)
        length = s["lr"] * fn.where(first, fn.minimum(sum_in_float64([g.abs().sum() for g in grads]).recip(), 1.0), 1.0)
        if self.line_search:
            length = self._line_search(graph, params, direction, (length, slope))
        largest = reduce(fn.maximum, [g.abs().max().astype("float64") for g in grads])
        rests = (largest <= s["tolerance_grad"]) | (slope > -s["tolerance_change"])
        length = fn.where(rests, 0.0, length)
        new = []
        for w, g, d, (last_step, last_gradient) in zip(params, grads, direction, last, strict=True):
            step = length.astype(w.dtype) * d
            graph.update(last_step, step)
            graph.update(last_gradient, g)
            new.append(w + step)
        return new

    # -- the direction -----------------------------------------------------------------------------------------------

    def _direction(
        self, graph: Graph, params: Vector, grads: Vector, last: Sequence[tuple[Tensor, Tensor]], first: Tensor
    ) -> list[Tensor]:
        """The direction -B·g in the compact form (Byrd, Nocedal and Schnabel, 1994), so that a step has few and large
        products:

            p = R⁻¹·Sᵀg      B·g = H·g + S·R⁻ᵀ((D + H·YᵀY)·p - H·Yᵀg) - H·Y·p

        R is the upper triangle of SᵀY and D its diagonal.  Pairs that are not there yet are rows of zeros.
        """
        steps, changes, h = self._history(graph, params, grads, last, first)
        flat = [g.reshape((-1,)) for g in grads]
        crossed = sum_in_float64([s @ y.permute(1, 0) for s, y in zip(steps, changes, strict=True)])  # (pairs, pairs)
        squares = sum_in_float64([y @ y.permute(1, 0) for y in changes])
        along_s, along_y = (
            sum_in_float64([a @ g for a, g in zip(rows, flat, strict=True)]) for rows in (steps, changes)
        )
        diagonal = (crossed * self._identity()).sum(1)
        whole = fn.where(diagonal > 0.0, diagonal, 1.0)
        p = self._solve_triangular(crossed, along_s, whole, reverse=True)
        inner = diagonal * p + h * (squares * p).sum(1) - h * along_y
        q = self._solve_triangular(crossed.permute(1, 0), inner, whole, reverse=False)
        out = []
        for g, s, y in zip(grads, steps, changes, strict=True):
            in_s, in_y = (c.astype(g.dtype) for c in (q, h * p))
            out.append(-(h.astype(g.dtype) * g + (in_s @ s - in_y @ y).reshape(g.shape)))
        return out

    def _identity(self) -> Tensor:
        pairs = (self.history_size, self.history_size)
        return (fn.iota(pairs, 0) == fn.iota(pairs, 1)).astype("float64")

    def _solve_triangular(self, rows: Tensor, right: Tensor, diagonal: Tensor, *, reverse: bool) -> Tensor:
        """Solve R·x = right for a triangular R of `rows`, element by element; elements of x not yet computed are 0."""

        def next_element(x: Tensor, row_data: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            row, b, d, place = row_data
            value = (b - (row * x).sum()) / d
            return x + place * value, value

        start = right * 0.0
        x, _ = scan(next_element, start, (rows, right, diagonal, self._identity()), reverse=reverse)
        solution: Tensor = x
        return solution

    def _history(
        self, graph: Graph, params: Vector, grads: Vector, last: Sequence[tuple[Tensor, Tensor]], first: Tensor
    ) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """The pairs S and Y of each parameter, (pairs, elements), the newest last, including this step's; and H."""
        newest_s = [step for step, _ in last]
        newest_y = [g - before for g, (_, before) in zip(grads, last, strict=True)]
        along = _dot(newest_y, newest_s)
        is_useful = (along > LEAST_CURVATURE) & ~first
        old_scale = self._scalar_state(graph, "scale")
        square = fn.where(is_useful, _dot(newest_y, newest_y), 1.0)
        scale = fn.where(first, 1.0, fn.where(is_useful, along / square, old_scale))
        graph.update(old_scale, scale)
        steps, changes = (
            [
                self._shift_history(graph, w, what, new, (is_useful, first))
                for w, new in zip(params, newest, strict=True)
            ]
            for what, newest in (("s", newest_s), ("y", newest_y))
        )
        return steps, changes, scale

    def _shift_history(self, graph: Graph, w: Tensor, what: str, newest: Tensor, now: tuple[Tensor, Tensor]) -> Tensor:
        """The history with the newest pair appended if it is useful; zeros in the first step."""
        is_useful, first = now
        size = product(w.shape)
        history = self.state(graph, w, what, shape=(self.history_size, size))
        later = (
            fn.concat([history[1:], newest.reshape((1, size))], 0)
            if self.history_size > 1
            else newest.reshape((1, size))
        )
        value = fn.where(first, 0.0, fn.where(is_useful, later, history))
        graph.update(history, value)
        return value

    # -- the line search ---------------------------------------------------------------------------------------------

    def _line_search(self, graph: Graph, params: Vector, direction: Vector, ray: tuple[Tensor, Tensor]) -> Tensor:
        """The longest of the halved step sizes whose loss has decreased enough; 0 if there is none."""
        length, slope = ray
        node = LOSSES.get(graph)
        if node is None:
            fail(
                UsageError,
                "LBFGS: a line search evaluates the loss, and was given gradients only. In a step of your "
                "own compute them by it, grads = optimizer.gradients(loss, params); with accumulate= and on arrays "
                "leave line_search out.",
            )
        loss = Tensor(node, graph)
        here, longest = loss.astype("float64"), length * 0.0
        for k in reversed(range(self.line_search)):  # the longest step is tried last and wins
            tried = length * 0.5**k
            moved = {w: w + tried.astype(w.dtype) * d for w, d in zip(params, direction, strict=True)}
            there = substitute_tensors(loss, moved).astype("float64")
            longest = fn.where(there <= here + ENOUGH * tried * slope, tried, longest)
        return longest


def _dot(a: Vector, b: Vector) -> Tensor:
    """The dot product a·b over all parameters."""
    return sum_in_float64([(x * y).sum() for x, y in zip(a, b, strict=True)])
