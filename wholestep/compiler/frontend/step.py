"""`@ws.step`: an entire step written by the user, with any number of gradients and optimizers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import overload

from wholestep.compiler.frontend.graph import Graph, record_into
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.frontend.update_counters import UpdateCounters
from wholestep.compiler.ir import graph as ir
from wholestep.compiler.ir.types import DType, Shape, as_dtype, as_shape
from wholestep.errors import UsageError
from wholestep.records import dataclass

Outputs = Mapping[str, Tensor] | Tensor
Body = Callable[..., Outputs]

ROW_NUMBERS = "row_numbers"  # the input with the number of each row in the training data, for augmentations


@dataclass(frozen=True, init=False)
class Spec:
    """The shape and dtype of an input.  Example: `ws.Spec(("batch", 784))`."""

    shape: Shape
    dtype: DType

    def __init__(self, shape: object, dtype: object = "float32") -> None:
        object.__setattr__(self, "shape", as_shape(shape))
        object.__setattr__(self, "dtype", as_dtype(dtype))


class Step:
    """A function that records a step: see `step`."""

    def __init__(self, body: Body, inputs: Mapping[str, Spec]) -> None:
        self.body, self.inputs = body, dict(inputs)
        for name, spec in self.inputs.items():
            if not isinstance(spec, Spec):
                fail(UsageError, f"@ws.step: the input {name!r} needs a ws.Spec(shape, dtype); received {spec!r}.")
        update_wrapper(self, body)

    def graph(self, clocks: UpdateCounters | None = None) -> Graph:
        """A fresh graph with the step recorded in it."""
        g = Graph()
        g.clocks, g.recorded_by = clocks or g.clocks, self.body
        arguments = {name: g.input(name, spec.shape, spec.dtype) for name, spec in self.inputs.items()}
        with record_into(g):
            outputs = self.body(g, **arguments)
        outputs_by_name = {"loss": outputs} if isinstance(outputs, Tensor) else outputs
        if not isinstance(outputs_by_name, Mapping):
            fail(
                UsageError,
                f"@ws.step: {self.body.__name__} must return a tensor or a dict of tensors; it returned "
                f"{outputs_by_name!r}.",
            )
        g.set_outputs(outputs_by_name)
        numbers = list(g.outputs.items())[1:]  # all but the loss; scalars among them are logged
        g.loss_parts = {name: t.node for name, t in numbers if t.shape == () and t.dtype.is_float}
        if any(name in g.parameters for name in g.updates):
            g.need_penalties()
        return g

    def trace(self, clocks: UpdateCounters | None = None) -> ir.IRGraph:
        """The step as an IR graph."""
        return self.graph(clocks).to_ir()

    def __call__(self, *_: object, **__: object) -> None:
        fail(
            UsageError,
            f"{self.body.__name__} is recorded, not called; pass it to ws.fit or ws.build_session.",
        )


@overload
def step(body: Body, /) -> Step: ...
@overload
def step(*, inputs: Mapping[str, Spec]) -> Callable[[Body], Step]: ...
def step(body: Body | None = None, /, *, inputs: Mapping[str, Spec] | None = None) -> Step | Callable[[Body], Step]:
    """Decorator: turns a function that records one step into an entry point.

    The function gets a `ws.Graph` and one tensor per entry of `inputs`, declares its parameters, takes gradients,
    records updates with `optimizer.update(g, params, grads)` or `g.update(state, value)`, and returns its outputs by
    name; the first is the loss.  Every read sees the values at the start of the step.  Modules that it calls keep their
    parameters, under the names of the variables that refer to them.

    Example::

        @ws.step(inputs={"x": ws.Spec(("batch", 2))})
        def train(g, x):
            w = g.parameter("w", (2, 1))
            loss = (x @ w).mean()
            ws.SGD(lr=0.1).update(g, [w], ws.gradients(loss, [w]))
            return {"loss": loss}
    """
    if body is not None:
        return Step(body, {})
    return lambda function: Step(function, inputs or {})
