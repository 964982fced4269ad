"""The step of a run, built again from its experiment: layers, measured kernel times, and predictions of held-out rows.

Plans store neither layers nor times, so the step is built, profiled on a batch of the training data and undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from wholestep.errors import WholestepError
from wholestep.nn.module.module import Module
from wholestep.session.inspect.layers import BACKWARD, FORWARD, Parts, activations_by_layer
from wholestep.session.inspect.profile import Profile
from wholestep.train.data.loaders import table_of
from wholestep.train.experiment import Experiment
from wholestep.train.trainer import Trainer
from wholestep.web.steps import describe_plan

STEPS = 10  # number of timed steps
MOST_ROWS, MOST_CLASSES = 2000, 40  # limits: rows of predictions, classes of a confusion matrix
PHASES = {FORWARD: "forward", BACKWARD: "backward"}


def describe_experiment(experiment: Experiment) -> dict[str, Any]:
    """The step of an experiment with layers and times, and its predictions of validation or test rows."""
    trainer, loader = experiment.trainer()
    profile = trainer.session.profile(trainer.batch_at(loader, 0, 0), steps=STEPS)
    return {"step": _describe_step(trainer, profile), "predictions": _predictions(experiment, trainer)}


def _describe_step(trainer: Trainer, profile: Profile) -> dict[str, Any]:
    session = trainer.session
    program = next(i for i, plan in enumerate(session.plans) if plan is session.plan)
    described = describe_plan(session.plan)
    times = {k.kernel: k for k in profile.kernels if k.program == program}
    for kernel in described["kernels"]:
        timed = times[kernel["id"]]
        kernel |= _main_layer(profile.layers.parts[program, kernel["id"]])
        kernel |= {"measured": timed.seconds, "seconds": timed.expected, "of_expected": timed.of_expected}
    by_layer = {
        row.layer: {"forward": row.forward, "backward": row.backward, "update": row.update, "share": row.share}
        for row in profile.by_layer()
    }
    compiled = session._programs.need("layers of the report")
    return {
        **described,
        "times": by_layer,
        "activations": activations_by_layer(compiled, session.plans, program),
        "step_seconds": profile.step_seconds,
        "waiting": profile.waiting_seconds,
        "executors": f"{len(profile.rows)} {profile.row}{'s' * (len(profile.rows) != 1)}",
    }


def _main_layer(parts: Parts) -> dict[str, str]:
    """The layer and phase with the largest share of a kernel."""
    layer, phase = max(parts, key=lambda key: parts[key])
    return {"layer": layer, "phase": PHASES.get(phase, "update")}


# -- predictions -----------------------------------------------------------------------------------------------------


def _predictions(experiment: Experiment, trainer: Trainer) -> dict[str, Any]:
    """A confusion matrix, or pairs of actual and predicted numbers; `problem` where the outputs are neither."""
    table, rows_of = trainer.validation, "validation"
    try:
        if table is None and experiment.test is not None:
            table, rows_of = table_of(experiment.test), "test"
        if table is None or not isinstance(experiment.model, Module) or len(table.targets) != 1:
            return {}
        part = table.select(np.linspace(0, len(table) - 1, min(len(table), MOST_ROWS)).astype(np.int64))
        inputs = next(iter(part.inputs.values())) if len(part.inputs) == 1 else dict(part.inputs)
        outputs = np.asarray(experiment.model.predict(inputs, device=experiment.device))
    except WholestepError as error:
        return {"problem": f"no predictions: {error}"}
    compared = _compare(outputs, next(iter(part.targets.values())))
    return {"rows": len(part), "of": len(table), "data": rows_of, **compared} if compared else {}


def _compare(outputs: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> Mapping[str, Any]:
    if outputs.ndim == 2 and targets.ndim == 1 and targets.dtype.kind in "iu" and outputs.shape[1] <= MOST_CLASSES:
        counts = np.zeros((outputs.shape[1],) * 2, np.int64)
        rows = targets >= 0  # a negative class is ignored, as in the loss
        np.add.at(counts, (targets[rows], outputs.argmax(1)[rows]), 1)
        return {"matrix": counts.tolist()}
    if targets.dtype.kind == "f" and outputs.size == targets.size and outputs.shape[0] == targets.size:
        pairs = np.stack([targets.ravel(), outputs.ravel()], 1).astype(np.float64)
        return {"pairs": pairs[np.isfinite(pairs).all(1)].tolist()}
    return {}
