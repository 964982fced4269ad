"""`ws.nn.functional_call`: call a module with other tensors in place of its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import ShapeError, UnknownNameError, UsageError
from wholestep.nn.module.module import Module
from wholestep.nn.module.trace import trace_of


def functional_call(module: Module, parameters: Mapping[str, Tensor], /, *inputs: Any, **named: Any) -> Any:
    """The output of a module with some of its parameters replaced by given tensors; the module itself is unchanged.

    Gradients reach the tensors: a step that looks ahead, an inner loop of MAML, a network made by another one.

    Args:
        module: is recorded as by a call of it.
        parameters: tensors by the names of `module.parameters()`; what is not named is the module's own.

    Example::

        fast = {name: w - 0.1 * g for (name, w), g in zip(net.traced(g).items(), grads.values())}
        scores = ws.nn.functional_call(net, fast, x)
    """
    for name, value in parameters.items():
        if not isinstance(value, Tensor):
            fail(UsageError, f"functional_call: {name!r} is a tensor of the graph; received {type(value).__name__}.")
    graph = common_graph(*inputs, *named.values(), *parameters.values())
    if graph is None:
        fail(UsageError, "functional_call records a module on tensors, in a @ws.step or a graph; received none.")
    here, owned = trace_of(graph), module.parameters()
    here.open(module)
    before = {owned[_check_name(module, name, value)]: here.tensors[owned[name]] for name, value in parameters.items()}
    here.tensors.update({owned[name]: value for name, value in parameters.items()})
    try:
        return module(*inputs, **named)
    finally:
        here.tensors.update(before)


def _check_name(module: Module, name: str, value: Tensor) -> str:
    owned = module.parameters().get(name)
    if owned is None:
        names = ", ".join(module.parameters()) or "none"
        fail(UnknownNameError, f"functional_call: the module has no parameter {name!r}; it has: {names}.")
    if value.shape != owned.type.shape or value.dtype != owned.dtype:
        fail(
            ShapeError,
            f"functional_call: the parameter {name!r} is {owned.type}; received {value.dtype}{list(value.shape)}.",
        )
    return name
