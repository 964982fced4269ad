"""What users of other frameworks type by habit, and what to write here instead."""

from __future__ import annotations

_AFTER = "a value exists only after a step. Make it an output, or keep(name) it and read session.get(name)."

HABITS: dict[str, str] = {
    "backward": "gradients are recorded, not run. Use ws.gradients(loss, params), or give the loss to ws.build_session.",
    "grad": "ask for it while recording: grads = ws.gradients(loss, params).",
    "item": _AFTER,
    "numpy": _AFTER,
    "tolist": _AFTER,
    "cpu": _AFTER,
    "detach": "write ws.stop_gradient(x).",
    "requires_grad": "parameters have gradients (g.parameter), inputs and states are not trained; ws.stop_gradient(x) cuts one.",
    "requires_grad_": "parameters have gradients (g.parameter), inputs and states are not trained; ws.stop_gradient(x) cuts one.",
    "to": "the device belongs to the session, ws.build_session(..., device='cpu'); another dtype is x.astype('float64').",
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
    "zero_": "tensors are never changed in place; a state takes a new value with g.update(state, value).",
    "add_": "tensors are never changed in place; a state takes a new value with g.update(state, value).",
    "copy_": "tensors are never changed in place; a state takes a new value with g.update(state, value).",
    "set": "give the value when the tensor is made: g.named_tensor(name, value); later, session.set(name, value).",
}
