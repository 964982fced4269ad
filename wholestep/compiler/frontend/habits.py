"""What users of other frameworks do by habit, and what to write here instead."""

from __future__ import annotations

from typing import NoReturn

from wholestep.compiler.frontend.trace import fail
from wholestep.errors import HabitError, UsageError

_IN_PLACE = "tensors are never changed in place; a state takes a new value with g.update(state, value)."
_TRAINED = "parameters (g.parameter) are trained, inputs and states are not; ws.stop_gradient(x) cuts a path."
_AFTER = "a value exists only after a step. Make it an output, or keep(name) it and read session.get(name)."

HABITS: dict[str, str] = {
    "backward": "gradients are recorded, ws.gradients(loss, params); a session takes those of the first output itself.",
    "grad": "ask for it while recording: grads = ws.gradients(loss, params).",
    "item": _AFTER,
    "numpy": _AFTER,
    "tolist": _AFTER,
    "cpu": _AFTER,
    "detach": "write ws.stop_gradient(x).",
    "requires_grad": _TRAINED,
    "requires_grad_": _TRAINED,
    "to": "the device belongs to the session, ws.build_session(..., device='cpu'); a dtype is x.astype('float64').",
    "cuda": "the device belongs to the session: ws.build_session(..., device=...).",
    "float": "write x.astype('float32').",
    "double": "write x.astype('float64').",
    "long": "write x.astype('int64').",
    "int": "write x.astype('int32').",
    "size": "write x.shape.",
    "dim": "write x.ndim.",
    "view": "write x.reshape(...).",
    "flatten": "write x.reshape(x.shape[0], -1), or x.reshape(-1).",
    "unsqueeze": "write x[:, None], or x.reshape(...).",
    "squeeze": "write x.reshape(...) with the axes you want to keep.",
    "zero_": _IN_PLACE,
    "add_": _IN_PLACE,
    "copy_": _IN_PLACE,
    "set": "give the value when the tensor is made: g.named_tensor(name, value); later, session.set(name, value).",
}


class Unreadable:
    """What Python asks of a value, of something that has none while the program is recorded."""

    __slots__ = ()

    def _no_value(self, what: str, instead: str) -> NoReturn:
        fail(UsageError, f"{what} of {self!r}: a tensor has no value while the program is recorded. {instead}")

    def __bool__(self) -> NoReturn:
        self._no_value("the truth value", "Choose element by element with ws.where(condition, a, b).")

    def __float__(self) -> NoReturn:
        self._no_value("float()", "Make it an output and read it after a step: float(session.step(...).loss).")

    def __int__(self) -> NoReturn:
        self._no_value("int()", "Make it an output and read it after a step.")

    def __iter__(self) -> NoReturn:
        self._no_value("iteration", "Index it, x[i], or compute on all elements at once.")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        self._no_value("a NumPy array", "Make it an output, or keep(name) it and read session.get(name) after a step.")

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute in HABITS:
            fail(HabitError, f"a tensor has no `{attribute}`: {HABITS[attribute]}")
        raise AttributeError(f"a tensor has no attribute {attribute!r}")
