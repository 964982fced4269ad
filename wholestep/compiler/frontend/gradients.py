"""`ws.gradients`: records a gradient node, which passes/autodiff expands by reverse-mode differentiation.

The module is not in the package's top folder because importing it there would replace the function `ws.gradients`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, overload

from wholestep.compiler.frontend.functions.primitives import stack
from wholestep.compiler.frontend.tensor import Tensor, common_graph
from wholestep.compiler.frontend.trace import fail, locate, record
from wholestep.compiler.ir import attrs as at
from wholestep.compiler.ir.graph import toposort
from wholestep.compiler.ir.types import product, shape_text
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


MOST_ROWS = 256  # largest number of rows of a Jacobian: each needs a backward pass


def jacobian(y: Tensor, x: Tensor) -> Tensor:
    """∂y/∂x for each element of y and each of x, a tensor of shape (*y.shape, *x.shape) of the same program.

    Every element of y is differentiated by itself, in reverse mode: y has a fixed size of at most 256 elements.  For
    products with a vector v, one pass is enough: `ws.gradients((y * v).sum(), [x])`.

    Example: `ws.jacobian(ws.tanh(w @ x), x)`.
    """
    _need_tensors("jacobian", y, x)
    count = product(y.shape)
    if not isinstance(count, int) or not 1 <= count <= MOST_ROWS:
        fail(
            ShapeError,
            f"jacobian differentiates each element of y, a fixed number of them from 1 to {MOST_ROWS}; received "
            f"{shape_text(y.shape)}. Of a batch, take the rows' own: ws.gradients(y.sum(0)[i], [x]).",
        )
    flat = y.reshape((count,))
    rows = [_record(flat[i], [x])[0] for i in range(count)]
    return stack(rows).reshape((*y.shape, *x.shape))


def hessian(loss: Tensor, x: Tensor) -> Tensor:
    """∂²loss/∂x² of a scalar, a tensor of shape (*x.shape, *x.shape); 0 where the loss is linear.

    Example: `ws.hessian((x * x * x).sum(), x)`.
    """
    _need_tensors("hessian", loss, x)
    (slope,) = _record(loss, [x])
    return jacobian(slope + 0.0 * x, x)  # a path to x, which the slope of a linear loss lacks


def _need_tensors(name: str, *tensors: object) -> None:
    for t in tensors:
        if not isinstance(t, Tensor):
            fail(UsageError, f"{name} takes two tensors; received {t!r}. Of several parameters, call it for each.")


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
