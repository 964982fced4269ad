"""`ws.gradients`: records a gradient node, which passes/autodiff expands by reverse-mode differentiation.

The module is not in the package's top folder because importing it there would replace the function `ws.gradients`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, overload

from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import fail, locate, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import toposort
from wholestep.compiler.ir.types import shape_text
from wholestep.errors import GradientError, ShapeError, UsageError


@overload
def gradients(loss: Tensor, params: Tensor | Sequence[Tensor]) -> list[Tensor]: ...
@overload
def gradients(loss: Tensor, params: Mapping[str, Tensor]) -> dict[str, Tensor]: ...
@overload
def gradients(loss: Tensor, params: Any) -> Any: ...
def gradients(loss: Tensor, params: Any) -> Any:
    """∂loss/∂p for each p, as tensors of the same program; they can be differentiated again.

    Args:
        loss: a scalar tensor.
        params: a tensor or a sequence of tensors (gives a list in the same order), a dict (gives a dict with the same
            keys), or a module with `parameters()` (gives a dict by parameter name).

    Example::

        dw, db = ws.gradients(loss, [w, b])
    """
    if isinstance(params, Tensor):
        return OneGradient(_record(loss, [params]))
    if hasattr(params, "traced") and isinstance(loss, Tensor):  # a module that was called in the loss's graph
        params = params.traced(loss.graph)
    elif not isinstance(params, Mapping | Sequence) and hasattr(params, "parameters"):
        params = params.parameters() if callable(params.parameters) else params.parameters
        params = params if isinstance(params, Mapping) else {p.name: p for p in params}
    if isinstance(params, Mapping):
        return dict(zip(params, _record(loss, list(params.values())), strict=True))
    if isinstance(params, Sequence) and not isinstance(params, str):
        return _record(loss, list(params))
    raise locate(UsageError(f"params must be a tensor, a list, a dict or a module; received {params!r}."))


class OneGradient(list[Tensor]):
    """The gradients of a list of one tensor; use as if it were a single gradient raises an error with the remedy."""

    def _refuse(self, *_: object) -> NoReturn:
        name = self[0].name.removesuffix(".grad") or "x"
        fail(UsageError, f"ws.gradients gives a list: take the gradient out, (slope,) = ws.gradients(loss, {name}).")

    __mul__ = __rmul__ = __add__ = __radd__ = __sub__ = __rsub__ = __truediv__ = __neg__ = __pow__ = _refuse
    __matmul__ = __rmatmul__ = __array__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(Tensor, name):
            raise AttributeError(f"'list' object has no attribute {name!r}")
        self._refuse()


def _record(loss: Tensor, params: list[Tensor]) -> list[Tensor]:
    for t in (loss, *params):
        if not isinstance(t, Tensor):
            fail(UsageError, f"gradients needs tensors; received {t!r}.")
    if loss.shape != ():
        text = shape_text(loss.shape)
        fail(ShapeError, f"gradients are taken of a scalar; the loss has shape {text}. Reduce it first: loss.mean().")
    if not params:
        return []
    reachable = set(toposort([loss.node]))
    for p in params:
        if p.node not in reachable:
            name = repr(p.name) if p.name else repr(p)
            fail(GradientError, f"the loss does not depend on {name}. Use it, or remove it from params.")
    graph = common_graph(loss, *params)
    node = record("gradient", [loss.node, *(p.node for p in params)])
    names = [f"{p.name}.grad" if p.name else "" for p in params]
    return [Tensor(record("item", [node], at.ItemAttrs(i), name), graph) for i, name in enumerate(names)]
