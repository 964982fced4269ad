"""User-defined `autograd.Function`s: their backward is exported together with their forward.

`torch.export` traces the forward alone.  While a module is exported, `apply` runs both: the backward on stand-ins for
what will arrive, and an op says which results have which gradients.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

import wholestep as ws
from wholestep.compiler.frontend.control.custom_gradient import custom_gradient_outputs, upstream_gradient
from wholestep.compiler.frontend.tensor import Tensor
from wholestep.interop.torch.aten.record import AtenRecorder
from wholestep.interop.torch.aten.table import INTERRUPTED, row


@torch.library.custom_op("wholestep::arriving", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def upstream_placeholder(x: torch.Tensor, number: int) -> torch.Tensor:
    """A placeholder for the incoming gradient of x; it is tagged as random, so that it is neither merged nor folded."""
    return torch.zeros_like(x)


@upstream_placeholder.register_fake
def _(x: Any, number: int) -> Any:
    return torch.empty_like(x)


@torch.library.custom_op("wholestep::told_gradient", mutates_args=())
def with_gradients(
    outputs: Sequence[torch.Tensor],
    upstream: Sequence[torch.Tensor],
    inputs: Sequence[torch.Tensor],
    slopes: Sequence[torch.Tensor],
    name: str,
) -> list[torch.Tensor]:
    """Marks `slopes` as the custom gradients of `inputs`; at run time it returns the outputs unchanged."""
    return [x.clone() for x in outputs]


@with_gradients.register_fake
def _(outputs: Any, upstream: Any, inputs: Any, slopes: Any, name: str) -> Any:
    return [torch.empty_like(x) for x in outputs]


@row("wholestep.arriving")
def _record_upstream(r: AtenRecorder, x: Any, number: int) -> Tensor:
    return upstream_gradient(r.tensor(x), number)


@row("wholestep.told_gradient")
def _record_with_gradients(
    r: AtenRecorder, outputs: Any, upstream: Any, inputs: Any, slopes: Any, name: str
) -> list[Tensor]:
    values = [ws.stop_gradient(r.tensor(x)) for x in outputs]
    pairs = [(x, r.tensor(s)) for x, s in zip(inputs, slopes) if isinstance(x, Tensor)]
    return custom_gradient_outputs(name, values, [r.tensor(u) for u in upstream], pairs) if pairs else values


# -- while a module is exported ----------------------------------------------------------------------------------


@contextmanager
def keep_autograd_functions() -> Iterator[set[str]]:
    """Export autograd functions with their backward; yields the names of those whose backward could not be traced."""
    original, forgotten = torch.autograd.Function.__dict__["apply"], set()

    def apply(cls: Any, *args: Any, **named: Any) -> Any:
        if cls is CheckpointFunction:
            return _run_checkpointed(*args)
        if cls.__module__.startswith("torch."):
            return original.__func__(cls, *args, **named)
        with _ignore_no_grad():
            context, result = _forward(cls, args, named)
            try:
                return _with_backward(cls, context, args, result)
            except INTERRUPTED:
                raise
            except Exception:  # torch cannot trace it, for whatever reason: the gradient of the forward may be the same
                forgotten.add(cls.__qualname__)
                return result

    torch.autograd.Function.apply = classmethod(apply)
    try:
        yield forgotten
    finally:
        torch.autograd.Function.apply = original


def _run_checkpointed(function: Any, _: Any, *args: Any) -> Any:
    """Run a checkpointed function; without inputs that require a gradient it would give none at all."""
    results = function(*args)
    if any(isinstance(a, torch.Tensor) and a.requires_grad for a in args):
        return results
    stopped = lambda x: torch.ops.wholestep.stop_gradient(x) if x.is_floating_point() else x  # noqa: E731
    return torch.utils._pytree.tree_map_only(torch.Tensor, stopped, results)


@contextmanager
def _ignore_no_grad() -> Iterator[None]:
    """Ignore `no_grad`: in the forward of an autograd function it only saves memory, and does not stop gradients.

    A backward that lets autograd differentiate what it computes again, as that of reversible layers, has no trace.
    """
    originals, backward = (torch.no_grad.__enter__, torch.no_grad.__exit__), torch.autograd.backward
    torch.no_grad.__enter__, torch.no_grad.__exit__ = lambda self: None, lambda self, *error: None
    torch.autograd.backward = _refuse
    try:
        yield
    finally:
        torch.no_grad.__enter__, torch.no_grad.__exit__ = originals
        torch.autograd.backward = backward


def _refuse(*_: Any, **__: Any) -> None:
    raise NotImplementedError("autograd runs inside a backward")


class _Context:
    """The `ctx` in which a forward stores values for its backward."""

    def __init__(self, args: Sequence[Any]) -> None:
        self.needs_input_grad = tuple(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args)
        self.saved_tensors: tuple[Any, ...] = ()
        self.without: list[Any] = []
        self.materialize, self.dirty = True, False

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    save_for_forward = save_for_backward

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.without += tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize = value

    def mark_dirty(self, *_: Any) -> None:
        self.dirty = True


def _forward(cls: Any, args: Sequence[Any], named: Any) -> tuple[_Context, Any]:
    context = _Context(args)
    if cls.setup_context is torch.autograd.Function.setup_context:
        return context, cls.forward(context, *args, **named)
    bound = inspect.signature(cls.forward).bind(*args, **named)
    bound.apply_defaults()
    result = cls.forward(*bound.args, **bound.kwargs)
    cls.setup_context(context, bound.args, result)
    return context, result


def _with_backward(cls: Any, context: _Context, args: Sequence[Any], result: Any) -> Any:
    """The results of a forward with their custom gradients."""
    if context.dirty:
        raise NotImplementedError("an argument is changed in place")
    outputs = list(result) if isinstance(result, tuple | list) else [result]
    places = [
        i for i, x in enumerate(outputs)
        if isinstance(x, torch.Tensor) and x.is_floating_point() and not any(x is other for other in context.without)
    ]  # fmt: skip
    if not places:
        return result
    upstream = {i: torch.ops.wholestep.arriving(outputs[i], n) for n, i in enumerate(places)}
    arriving = [upstream.get(i, _zero_gradient(x, context.materialize)) for i, x in enumerate(outputs)]
    gradients = inspect.unwrap(cls.backward)(context, *arriving)
    slopes = gradients if isinstance(gradients, tuple | list) else (gradients,)
    pairs = [
        (x, _reduce_to_shape(slope, x)) for x, slope, needed in zip(args, slopes, context.needs_input_grad)
        if needed and slope is not None
    ]  # fmt: skip
    outputs_with_gradient = torch.ops.wholestep.told_gradient(
        [outputs[i] for i in places],
        list(upstream.values()),
        [x for x, _ in pairs],
        [s for _, s in pairs],
        cls.__name__,
    )
    for i, value in zip(places, outputs_with_gradient):
        outputs[i] = value
    return type(result)(outputs) if isinstance(result, tuple | list) else outputs[0]


def _zero_gradient(x: Any, materialize: bool) -> Any:
    return torch.zeros_like(x) if materialize and isinstance(x, torch.Tensor) and x.is_floating_point() else None


def _reduce_to_shape(slope: Any, x: Any) -> Any:
    """Sum a gradient over broadcast axes and cast it to the argument's dtype, as autograd does."""
    return (slope if slope.shape == x.shape else slope.sum_to_size(x.shape)).to(x.dtype)
