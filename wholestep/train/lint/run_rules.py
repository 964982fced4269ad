"""Rules about the settings of a run: optimizer, learning rate, schedule and metrics."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from wholestep.losses.table import LOSSES
from wholestep.metrics.table import METRICS
from wholestep.nn.module.module import Module
from wholestep.optim import Optimizer
from wholestep.schedules.base import Schedule
from wholestep.schedules.checks import length_warning
from wholestep.steps.options import as_measures
from wholestep.train.learning_rates import resolve_schedule
from wholestep.train.lint.rules import LintedRun, rule
from wholestep.train.step_source import updates_of

# The usual rates of an optimizer are within these factors of its default.
LARGEST_RATE, SMALLEST_RATE = 50.0, 1e-4
NUMBER_MODULES = ("means", "correlation")  # metrics of numbers; the others of the table are of classes


@rule(
    "WS301",
    "weight decay on biases and norms",
    reason="decay draws offsets and scales of norms towards 0, which limits the model without regularising it.",
    fix="leave decay_on out: by default decay acts on parameters with two or more axes.",
)
def decay_of_vectors(run: LintedRun) -> Iterator[str]:
    optimizer, model = run.experiment.optimizer, run.experiment.model
    assert isinstance(model, Module)
    if not isinstance(optimizer, Optimizer) or optimizer.decay_on is None or not getattr(optimizer, "weight_decay", 0):
        return
    vectors = [
        name
        for name, parameter in model.named_arrays().items()
        if parameter.trained and len(parameter.shape) < 2 and any(fnmatchcase(name, p) for p in optimizer.decay_on)
    ]
    if vectors:
        yield f"decay_on={list(optimizer.decay_on)} includes {len(vectors)} vectors, the first is {vectors[0]!r}."


@rule(
    "WS302",
    "a learning rate far outside the usual range of the optimizer",
    reason="a much larger rate diverges, and a much smaller one does not train within a usual run.",
    fix="start from the default, or measure: ws.find_lr(model, data, loss=...).",
)
def unusual_rate(run: LintedRun) -> Iterator[str]:
    optimizer = run.experiment.optimizer
    if run.experiment.schedule is not None or not isinstance(optimizer, Optimizer):
        return
    if run.experiment.privacy is not None:  # gradients are clipped per row to a norm of the user
        return
    usual, rate = getattr(type(optimizer), "lr", None), getattr(optimizer, "lr", None)
    if not isinstance(usual, float) or not isinstance(rate, int | float) or rate == 0:
        return
    if not SMALLEST_RATE < rate / usual < LARGEST_RATE:
        yield f"lr={rate:g} is {rate / usual:.3g} times the default of {type(optimizer).__name__}, {usual:g}."


@rule(
    "WS303",
    "a schedule that does not span the run",
    reason="a run that ends early never reaches the low rates, and a longer one trains with the last rate.",
    fix="give the schedule the length of the run, or use ws.schedules.cosine(), which takes it from the run.",
    on_request=True,
)
def schedule_of_another_length(run: LintedRun) -> Iterator[str]:
    epochs, updates = run.experiment.epochs, updates_of(run.loader, run.experiment.accumulate)
    resolved = resolve_schedule(run.experiment.schedule, epochs, updates)
    for schedule in resolved.values() if isinstance(resolved, dict) else [resolved]:
        if isinstance(schedule, Schedule) and (schedule.unit == "epoch" or updates):
            length = epochs if schedule.unit == "epoch" else epochs * (updates or 0)
            if text := length_warning(schedule, length, schedule.unit):
                yield text


@rule(
    "WS304",
    "a metric that does not measure what the loss trains",
    reason="a metric of classes cannot measure numbers, nor a metric of numbers class scores.",
    fix="use metrics such as 'mae' or 'r2' for numbers, 'accuracy' or 'roc_auc' for classes.",
)
def metric_of_another_kind(run: LintedRun) -> Iterator[str]:
    kinds = {LOSSES[loss.kind].home.partition(".")[0] for loss in run.losses.values()}
    if len(kinds) != 1 or not kinds <= {"regression", "classification"}:
        return
    trains_numbers = kinds == {"regression"}
    for measure in as_measures(run.experiment.metrics):
        kind = type(measure.metric)
        if kind not in METRICS.values() or kind.kind == "loss":
            continue
        measures_numbers = kind.__module__.rpartition(".")[2] in NUMBER_MODULES
        if measures_numbers != trains_numbers:
            loss = next(iter(run.losses.values())).kind
            of = "numbers" if measures_numbers else "classes"
            yield f"{measure.metric.name!r} is a metric of {of}, and the loss is {loss!r}."
