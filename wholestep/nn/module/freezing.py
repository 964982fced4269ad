"""Assignments to attributes of a module that Keras or PyTorch have: `trainable`, `training`, `requires_grad`, ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from wholestep.compiler.frontend.tensor import Tensor
from wholestep.compiler.frontend.trace import fail
from wholestep.errors import HabitError, UsageError
from wholestep.nn.module.module import TRAINABLE, Module
from wholestep.nn.module.parameter import Parameter

ANSWERS: Mapping[str, str] = {
    "training": "whether a step trains belongs to the entry point (session.step trains, predict and evaluate do not); "
    "nothing is to be assigned",
    "stop_training": "a callback stops the run: self.run.stop('reason')",
}


LAYER_ANSWERS: Mapping[str, str] = {
    "dtype": "write model.astype('float64') before it is built",
    "device": "the device belongs to the run: ws.fit(..., device='cuda')",
    "rate": "the rate of a dropout is called p: layer.p = 0.1, for sessions built from then on",
    "activation": "an activation is a layer of its own: ws.nn.Sequential(layer, ws.nn.ReLU())",
}  # attributes that built-in layers do not read


def is_trainable(module: Module) -> bool:
    """Is any parameter trained, or would a parameter be trained that is assigned later?"""
    owned = module.parameters().values()
    return bool(module.__dict__.get(TRAINABLE, True)) and (not owned or any(not p.frozen for p in owned))


def set_trainable(module: Module, value: bool) -> None:
    """Keras' `layer.trainable = value`: for all parameters of the module and the statistics of its batch norms."""
    for part in _modules(module):
        part.__dict__[TRAINABLE] = value
    for owned in module.parameters().values():
        owned.frozen = not value


def assign(module: Module, name: str, value: object) -> bool:
    """Carry out an assignment to one of `SPECIAL`; False if it is an ordinary attribute."""
    kind = type(module).__name__
    if name in LAYER_ANSWERS and not _does_nothing(module, name):
        return False
    if name in LAYER_ANSWERS or name in ANSWERS:
        text = {**ANSWERS, **LAYER_ANSWERS}[name]
        fail(HabitError, f"{kind}.{name} = {value!r} would do nothing: {text}.")
    if isinstance(value, Module | Parameter | Tensor):
        fail(UsageError, f"{kind}.{name} says whether the module is trained; assign {value!r} under another name.")
    if name == "trainable":
        set_trainable(module, bool(value))
    else:
        for owned in module.parameters().values():
            owned.requires_grad = bool(value)
    return True


def _does_nothing(module: Module, name: str) -> bool:
    """Is it a built-in layer that does not read the attribute?  User-defined classes may read it."""
    has_weight = "weight" in module.__dict__.get("_owned", {})
    unread = {"rate": hasattr(type(module), "p") or "p" in module.__dict__, "activation": has_weight}
    return type(module).__module__.startswith("wholestep.") and unread.get(name, True)


def freeze_assigned(value: object) -> None:
    """Freeze a parameter or module that is assigned to a module with `trainable = False`."""
    if isinstance(value, Parameter):
        value.frozen = True
    elif isinstance(value, Module):
        set_trainable(value, False)


def refuse_all_frozen(model: Module) -> None:
    """Raise UsageError if a run would change nothing: all parameters are frozen, and there is no buffer to update."""
    parameters = model.parameters().values()
    if parameters and all(p.frozen for p in parameters) and not any(map(_updates_buffers, _modules(model))):
        raise UsageError(
            f"all {len(parameters)} parameters of this {type(model).__name__} are frozen: fit would train nothing. "
            "Unfreeze what is to learn: model[-1].trainable = True, or model.unfreeze('head.*')."
        )


def _modules(model: Module) -> list[Module]:
    return [part for _, part in model.named_modules()]


def _updates_buffers(module: Module) -> bool:
    owned = module.__dict__.get("_owned", {}).values()
    return bool(module.__dict__.get(TRAINABLE, True)) and any(not p.trained for p in owned)


class Mode:
    """The value of `module.training`: it can be passed on, `training=self.training`, but is not a bool."""

    def __bool__(self) -> NoReturn:
        fail(
            UsageError,
            "whether a step trains belongs to the entry point (session.step trains, predict and evaluate do not), so "
            "self.training is neither True nor False while a model is recorded. Write both: "
            "ws.by_mode(in_training, otherwise).",
        )

    def __repr__(self) -> str:
        return "BY_ENTRY_POINT"


BY_ENTRY_POINT = Mode()
