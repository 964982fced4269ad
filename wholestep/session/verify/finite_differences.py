"""`ws.gradcheck`: compare gradients of a function, a module or a loss with finite differences."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wholestep import losses
from wholestep.compiler.frontend.gradients import gradients
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.step import Spec, Step
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.graph import toposort
from wholestep.compiler.ir.ops import Trait, ops_with
from wholestep.compiler.ir.types import as_dtype, letter_of
from wholestep.errors import OptionError, UsageError
from wholestep.nn.module.module import Module
from wholestep.options import CompileOptions

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CheckedArray:
    """The result for one input or parameter: its element with the largest error."""

    name: str
    shape: tuple[int, ...]
    checked: int  # elements
    # |compiled - finite difference| relative to the larger of the two, or to a thousandth of the largest gradient
    error: float
    position: tuple[int, ...]
    compiled: float
    by_differences: float

    def __str__(self) -> str:
        count = int(np.prod(self.shape, dtype=int))
        return (
            f"{self.name} {self.shape}: {self.checked} of {count} elements, worst error {self.error:.1e} at "
            f"{list(self.position)}: {self.compiled:.6g} compiled, {self.by_differences:.6g} by differences"
        )


@dataclass(frozen=True)
class GradientReport:
    """The result of `ws.gradcheck`, which is true if every error is within the tolerance, and prints as a table."""

    arrays: tuple[CheckedArray, ...]
    tolerance: float

    @property
    def worst(self) -> float:
        """The entry with the largest error."""
        return max((a.error for a in self.arrays), default=0.0)

    def __bool__(self) -> bool:
        return self.worst <= self.tolerance

    def __str__(self) -> str:
        verdict = (
            "gradients agree with finite differences" if self else "gradients do not agree with finite differences"
        )
        lines = [f"{verdict}: worst error {self.worst:.1e}, tolerance {self.tolerance:.1e}"]
        lines += [("  " if a.error <= self.tolerance else "! ") + str(a) for a in self.arrays]
        if not self:
            lines.append("A kink (relu at 0, a tie of a max, a rounding) has no slope to compare: try other numbers.")
        return "\n".join(lines)

    __repr__ = __str__


def gradcheck(
    function: Callable[..., Any] | Module | str,
    *inputs: object,
    loss: Any = None,
    targets: object = None,
    elements: int = 20,
    eps: float | None = None,
    tolerance: float | None = None,
    dtype: str = "float64",
    seed: int = 0,
    device: str = "cpu",
) -> GradientReport:
    """Compare compiled gradients with finite differences.

    The output of the function is multiplied by random numbers and summed: every element has an upstream gradient of its
    own.  Then each input of floats, and each parameter of a module, is moved a little, element by element.

    Args:
        function: of tensors, giving a tensor or a tuple of them; a module, of which a copy in float64 is checked, with
            its numbers; or the name of a loss.
        inputs: arrays.  Whole numbers and bools are given as they are.
        loss, targets: a loss on top, as for `ws.fit`, and what it compares with.
        elements: the number of elements of each array to check, drawn at random.
        eps: the difference; 1e-6 of an element's size, or 1e-2 in float32.
        tolerance: the largest error, relative; 1e-5, or 1e-2 in float32.
        device: as for `ws.build_session`.

    Returns:
        A report that is true if all gradients agree: `assert ws.gradcheck(f, x)`; print it to see each array.

    Example: `ws.gradcheck(lambda x: ws.tanh(x) * x, np.ones((2, 3)))`.
    """
    exact = as_dtype(dtype).name == "float64"
    if as_dtype(dtype).name not in ("float32", "float64") or elements < 1:
        fail(
            OptionError,
            f"gradcheck: dtype is 'float32' or 'float64', elements at least 1; received {dtype!r}, {elements}.",
        )
    probe = _Probe(_call_function(function, loss, targets), [np.asarray(a) for a in inputs], dtype, seed)
    session = probe.session(device)
    far = (1e-6 if exact else 1e-2) if eps is None else eps
    rng = np.random.default_rng(seed)
    slopes = [_check(session, probe, name, rng, elements, far) for name in probe.names]
    largest = max((abs(v) for rows in slopes for _, *both in rows for v in both), default=0.0)
    rows = tuple(
        _worst(probe.label(name), tuple(session.get(name).shape), checked, 1e-3 * largest)
        for name, checked in zip(probe.names, slopes, strict=True)
    )
    return GradientReport(rows, (1e-5 if exact else 1e-2) if tolerance is None else tolerance)


Slopes = list[tuple[tuple[int, ...], float, float]]  # position, compiled gradient, finite difference


def _check(session: Any, probe: _Probe, name: str, rng: np.random.Generator, elements: int, far: float) -> Slopes:
    start = session.get(name)
    compiled = session.step(probe.given)[f"{name}.grad"]
    chosen = rng.permutation(start.size)[:elements]
    out: Slopes = []
    for flat in chosen:
        at = tuple(int(i) for i in np.unravel_index(int(flat), start.shape))
        h = far * max(1.0, abs(float(start[at])))
        values = []
        for move in (h, -h):
            moved = start.copy()
            moved[at] += move
            session.set(name, moved)
            values.append((float(session.step(probe.given)["value"]), float(moved[at])))
        session.set(name, start)
        (above, high), (below, low) = values
        out.append((at, float(compiled[at]), (above - below) / (high - low)))
    return out


def _worst(name: str, shape: tuple[int, ...], slopes: Slopes, least: float) -> CheckedArray:
    errors = [abs(a - b) / max(abs(a), abs(b), least, 1e-30) for _, a, b in slopes]
    worst = int(np.argmax(errors)) if errors else 0
    position, a, b = slopes[worst] if slopes else ((), 0.0, 0.0)
    return CheckedArray(name, shape, len(slopes), errors[worst] if errors else 0.0, position, a, b)


class _Probe:
    """A step that computes the function of states, multiplied by random numbers, and its gradients."""

    def __init__(self, function: Callable[..., Any], inputs: Sequence[Array], dtype: str, seed: int) -> None:
        self.function, self.dtype, self.seed = function, dtype, seed
        self.module = _in_dtype(function, dtype) if isinstance(function, Module) else None
        self.inputs = [a.astype(dtype) if letter_of(a.dtype) == "f" else a for a in inputs]
        self.given = {f"input{i}": a for i, a in enumerate(self.inputs) if letter_of(a.dtype) != "f"}
        self.names: list[str] = []

    def session(self, device: str) -> Any:
        from wholestep.session.building.build import build_session

        specs = {name: Spec(a.shape, a.dtype) for name, a in self.given.items()}
        options = CompileOptions(verify=False)
        session = build_session(Step(self.record, specs), device=device, options=options)
        if not self.names:
            raise UsageError("gradcheck needs an input of floats or a parameter; there is neither.")
        if self.module is not None:
            for name, value in self.module.state_dict().items():
                if f"model.{name}" in self.names:
                    session.set(f"model.{name}", value)
        return session

    def record(self, g: Graph, **indices: Tensor) -> Mapping[str, Tensor]:
        floats = {i: a for i, a in enumerate(self.inputs) if f"input{i}" not in indices}
        moved = {f"input{i}": g.state(f"input{i}", a.shape, init=a, dtype=self.dtype) for i, a in floats.items()}
        tensors = [{**moved, **indices}[f"input{i}"] for i in range(len(self.inputs))]
        if self.module is not None:
            with g.scope("model"):
                out = self.module(*tensors)
            moved |= {t.name: t for t in self.module.traced(g).values()}
        else:
            out = self.function(*tensors)
        value = self._weighted_output(_flat(out))
        drawing = [n for n in toposort([value.node]) if n.op in ops_with(Trait.DRAWS)]
        if drawing:
            fail(
                UsageError,
                f"gradcheck: {drawing[0].op} at {drawing[0].line} draws new numbers in every step; set it to 0.",
            )
        self.names = list(moved)
        slopes = gradients(value, moved)
        return {"value": value, **{f"{name}.grad": slope for name, slope in slopes.items()}}

    def _weighted_output(self, outputs: Sequence[Any]) -> Tensor:
        rng = np.random.default_rng(self.seed)
        terms = []
        for out in outputs:
            if not isinstance(out, Tensor) or not out.dtype.is_float:
                fail(UsageError, f"gradcheck: the function gives tensors of floats; it gave {out!r}.")
            shape = tuple(int(e) for e in out.shape)
            terms.append((out * rng.normal(size=shape).astype(out.dtype.numpy)).sum() if shape else out * 1.7)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def label(self, name: str) -> str:
        """The name of an array for the user."""
        return name.removeprefix("model.")


def _flat(out: Any) -> list[Any]:
    if isinstance(out, Mapping | tuple | list):
        return [t for one in (out.values() if isinstance(out, Mapping) else out) for t in _flat(one)]
    return [out]


def _in_dtype(module: Module, dtype: str) -> Module:
    """A copy of a module in another dtype, with the same weights."""
    numbers, twin = module.state_dict(), copy.deepcopy(module)
    for owned in twin.named_arrays().values():
        owned.slot = None
        if owned.dtype.is_float:
            owned.astype(as_dtype(dtype))
    twin.load_state_dict(numbers)
    return twin


def _call_function(function: Any, loss: Any, targets: object) -> Any:
    if isinstance(function, str):
        function = losses.get(function)
    if not callable(function):
        fail(
            UsageError, f"gradcheck takes a function of tensors, a module or the name of a loss; received {function!r}."
        )
    if loss is None:
        return function
    return (
        _WithLoss(function, loss, targets) if isinstance(function, Module) else _compose_loss(function, loss, targets)
    )


def _compose_loss(function: Any, loss: Any, targets: object) -> Callable[..., Any]:
    measure = losses.get(loss)
    return lambda *tensors: measure(function(*tensors), targets)


class _WithLoss(Module):
    """A module followed by a loss."""

    def __init__(self, model: Module, loss: Any, targets: object) -> None:
        self.model, self.loss, self.targets = model, losses.get(loss), np.asarray(targets)

    def forward(self, *tensors: Tensor) -> Any:
        target = self.targets.astype(tensors[0].dtype.numpy) if letter_of(self.targets.dtype) == "f" else self.targets
        return self.loss(self.model(*tensors), target)
