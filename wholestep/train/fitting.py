"""`ws.fit`: a model, data, a loss; everything else has a default.  Its arguments are the fields of `Experiment`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from difflib import get_close_matches
from inspect import Parameter, getdoc, signature
from typing import Any, TypeVar

from wholestep.compiler.frontend.step import Step
from wholestep.data.loader import DataLoader
from wholestep.errors import UsageError
from wholestep.lazy import interop
from wholestep.nn.module.module import Module
from wholestep.train.experiment import Experiment
from wholestep.train.history import TrainHistory
from wholestep.train.trainer import Trainer

F = TypeVar("F", bound=Callable[..., Any])
SETTINGS = {f.name: f for f in fields(Experiment) if f.name not in ("model", "data", "loss", "test")}


def takes_settings(function: F) -> F:
    """Show an experiment's fields in the signature of a function, and their descriptions in its docstring."""
    function_signature = signature(function)
    settings = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type) for name, f in SETTINGS.items()
    ]
    assert all(p.default is not MISSING for p in settings), "a field without a default is an explicit argument"
    parameters = [p for p in function_signature.parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    # The data may be given as x= and y=, and a step has its own loss.
    parameters = [p.replace(default=Parameter.empty) if p.name in ("data", "loss") else p for p in parameters]
    function.__signature__ = function_signature.replace(parameters=[*parameters, *settings])  # type: ignore[attr-defined]
    about = getdoc(Experiment) or ""
    arguments = about[about.index("Args:") : about.index("Example::")]
    reference = "Args: those of `ws.Experiment`.\n\n"
    text = getdoc(function) or ""  # Python 3.13 removes the indentation of docstrings, 3.11 does not
    assert reference in text, "the docstring of the function refers to the arguments of the experiment"
    function.__doc__ = text.replace(reference, arguments)
    return function


@takes_settings
def fit(model: Module | Step, data: object = None, *more: object, loss: Any = None, **settings: Any) -> TrainHistory:
    """Train a model, or a step of your own, on data and return what happened in each epoch.

    Args: those of `ws.Experiment`.

    Example::

        history = ws.fit(model, (x, y), validation=0.1, loss="cross_entropy", metrics=["accuracy"], epochs=5)
    """
    if more:
        raise UsageError(
            f"data is one argument: ws.fit(model, (x, y), loss=...); received {1 + len(more)} by position."
        )
    data = _data(data, settings)
    return Experiment(model=model, data=data, loss=loss, **check_settings("fit", settings)).fit()


def _data(data: object, settings: dict[str, Any]) -> object:
    """The training data; `x=` and `y=`, Keras' names, are removed from the settings."""
    if data is None and "x" in settings:
        parts = [settings.pop(name) for name in ("x", "y", "sample_weight") if name in settings]
        return parts[0] if len(parts) == 1 else tuple(parts)
    if data is None:
        raise UsageError("there is no data: ws.fit(model, (x, y), loss=...).")
    return data


def trainer_for(model: Module, data: object, *, loss: Any, **settings: Any) -> tuple[Trainer, DataLoader]:
    """Everything that `fit` does before the first step: the data, the session, the trainer."""
    return Experiment(model=model, data=data, loss=loss, **settings).trainer()


def check_settings(function: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Arguments by the names of an experiment's fields; names of other libraries are translated or refused."""
    if settings.keys() <= SETTINGS.keys():
        return settings
    translated = interop.translate_fit_arguments(function, SETTINGS, settings)
    for name in translated:
        if name not in SETTINGS:
            close = get_close_matches(name, SETTINGS, 1)
            hint = f" Did you mean {close[0]}=?" if close else ""
            raise UsageError(f"ws.{function} has no argument {name!r}.{hint} It has: loss, {', '.join(SETTINGS)}.")
    return translated
