"""Makes Python code in `forward` that does not affect the numbers traceable for `torch.export`; refuses other code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode

from wholestep.compiler.frontend.trace import fail, record_at_line
from wholestep.errors import UsageError
from wholestep.interop.torch.aten.user_lines import calling_line


class NotTraceableError(UsageError):
    """Raised inside `forward`, through torch's own frames: no other export strategy is tried."""


@contextmanager
def traceable() -> Iterator[None]:
    """While the context is open, distributions do not validate arguments, and transformers do not test whether masks
    are causal.

    A mask that is not known to be causal is added unchanged, with the same result.  `torch.einsum` contracts from
    left to right: opt_einsum would choose another order for each batch size, and so fix it.
    """
    validates, detects = torch.distributions.Distribution._validate_args, transformer._detect_is_causal_mask
    torch.distributions.Distribution.set_default_validate_args(False)
    transformer._detect_is_causal_mask = lambda mask, is_causal=None, size=None: is_causal is True
    try:
        with torch.backends.opt_einsum.flags(enabled=False), _Functions():
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(validates)
        transformer._detect_is_causal_mask = detects


class _Functions(TorchFunctionMode):  # type: ignore[misc]
    """Makes `x.data` a traceable `x.detach()`; a function that cannot be traced raises an error at its line."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function == _GET_DATA:
            return args[0].detach()
        if function == _SET_DATA and args[0].shape == args[1].shape:
            with torch.no_grad():
                args[0].copy_(args[1])
            return None
        reason = _REFUSED.get(function)
        if reason is not None:
            _refuse(reason)
        return function(*args, **(kwargs or {}))


_GET_DATA, _SET_DATA = torch.Tensor.data.__get__, torch.Tensor.data.__set__
_GRADIENT = (
    "forward differentiates ({}), and torch exports no gradients. Return the value and differentiate in a step: "
    "ws.gradients(y, [x]) inside @ws.step; or write the derivative out"
)
_REFUSED = {
    torch._VF._pack_padded_sequence: "pack_padded_sequence reads lengths from the data, and the shapes of a step are "
    "fixed. Run the recurrent layer on the padded batch and take each sequence's output at its last position: "
    "out[torch.arange(x.shape[0]), lengths - 1]",
    torch.autograd.grad: _GRADIENT.format("torch.autograd.grad"),
    torch.Tensor.backward: _GRADIENT.format("backward()"),
}


def _refuse(reason: str) -> NoReturn:
    with record_at_line(calling_line()):
        fail(NotTraceableError, f"{reason}.")
