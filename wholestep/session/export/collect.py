"""A session as an `ExportedStep`: its plans, states, numbers and metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from wholestep.compiler.backends.cpu.export.spec import BATCH_DIMS, ExportedEntry, ExportedMetric, ExportedStep
from wholestep.compiler.backends.cpu.render.call import has_half
from wholestep.compiler.backends.cpu.target import TARGETS
from wholestep.compiler.frontend.update_counters import is_counter
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.errors import GraphError, OptionError, UsageError
from wholestep.metrics import Metric
from wholestep.metrics.accuracy import Accuracy
from wholestep.metrics.means import RMSE, Mean
from wholestep.session.building.plans import Plans
from wholestep.session.metrics import EntryMetrics
from wholestep.session.programs import Programs
from wholestep.session.running.micro_batches import shape_of
from wholestep.steps.definition import PART, TRAIN
from wholestep.steps.evaluate import EVALUATE
from wholestep.steps.loss_scale import REFUSED
from wholestep.steps.states import first_values
from wholestep.steps.train import NONFINITE

# The numerator and denominator of a quotient, by the function that computes it.
RATIOS: Mapping[Callable[..., object], tuple[str, str, bool]] = {
    Accuracy.result: ("correct", "total", False),
    Mean.result: ("sum", "weight", False),
    RMSE.result: ("sum", "weight", True),
}


def collect(programs: Programs, target: str | None) -> ExportedStep:
    """The entry points of a session and all that they need; an error says what cannot be exported."""
    compiled = programs.need("an exported step")
    _check(programs, compiled)
    name = _target_named(target, programs)
    if programs.main.plan.updated:
        programs.take_turn()
    entries = {
        key: replace(entry, plans=tuple(replace(plan, target=name) for plan in entry.plans))
        for key, entry in _entries(programs, compiled).items()
    }
    main = [plan for key in ("train", "evaluate", "predict") if key in entries for plan in entries[key].plans]
    clocks = programs.clocks.starts
    train = entries["train"].plans if "train" in entries else ()
    measured = [_metrics(programs, train, ""), _metrics(programs, _plans_of(entries, "evaluate"), EVALUATE)]
    return ExportedStep(
        target=name,
        seed=programs.where.seed,
        entries=entries,
        scalars=_scalars(programs, train or tuple(main)),
        counts=dict(clocks),
        saved=tuple(programs.lasting_states),
        parameters=programs.parameter_names,
        metrics=(measured[0][0], measured[1][0]),
        fills=(measured[0][1], measured[1][1]),
    )


def _check(programs: Programs, compiled: Plans) -> None:
    where, options = programs.where, programs.step_options
    if where.device.target.name not in TARGETS:
        raise UsageError(
            f"a step for {where.device.name!r} cannot be exported; expected one for a CPU. Build the session with "
            "device='cpu'."
        )
    if where.group is not None or compiled.definition.ranks:
        raise UsageError("a step of several workers cannot be exported; build the session without workers and shards.")
    if options.per_row.capacity:
        raise UsageError("a step with per_row= cannot be exported; train without it.")
    symbols = {s for plan in programs.plans for s in plan.symbols} - {*_roles(compiled).values()}
    if symbols:
        raise UsageError(
            f"a step with the symbolic dimensions {', '.join(sorted(symbols))} besides the batch cannot be exported; "
            "give them sizes: ws.Spec(('batch', 128), ...)."
        )


def _target_named(target: str | None, programs: Programs) -> str:
    own = programs.where.device.target
    if target is None:
        return own.name
    if target not in TARGETS:
        names = ", ".join(map(repr, TARGETS))
        raise OptionError(f"target={target!r}: expected one of {names}.")
    if TARGETS[target].dtypes != own.dtypes and any(map(has_half, programs.plans)):
        raise OptionError(
            f"target={target!r}: this session computes half types as {own.name!r} does. Build it with "
            f"device={target!r}."
        )
    return target


# -- entry points ------------------------------------------------------------------------------------------------


def _roles(compiled: Plans) -> dict[str, str]:
    """The symbols of a batch and its parts, each with the dimension that it is."""
    definition = compiled.definition
    first = next(iter(definition.graph.inputs.values()), None)
    batch = str(first.shape[0]) if first is not None and first.shape else ""
    if definition.has_micro_batches:
        return dict(shape_of(definition, TRAIN).dims)
    return {**dict.fromkeys(BATCH_DIMS, ""), "batch_dim": batch}


def _entries(programs: Programs, compiled: Plans) -> dict[str, ExportedEntry]:
    definition, roles = compiled.definition, _roles(compiled)
    batch = definition.capacity.get(roles["batch_dim"]) or int(next(iter(definition.graph.inputs.values())).shape[0])
    entry = partial(ExportedEntry, dims=roles, batch=batch, part=batch)
    entries = {}
    if definition.main in (TRAIN, PART):
        outputs = dict(programs.plans[-1].outputs)
        refused = REFUSED if REFUSED in outputs else None
        entries["train"] = entry(
            programs.plans,
            batch=batch * definition.step_options.accumulate,
            refused=NONFINITE if programs.step_options.may_skip else refused,
            stops=programs.raises and programs.step_options.loss_scale is None,
        )
    for name in (EVALUATE, "predict"):
        if (plan := _plan(compiled, name)) is not None:
            entries[name] = entry((plan,))
    if EVALUATE in entries and not definition.has_fixed_batch:
        try:
            split = definition.micro_batches(EVALUATE)
        except GraphError:  # not a quotient of sums: evaluated as the mean over batches
            return entries
        plans = tuple(compiled.plan(f"{EVALUATE}.{phase}")[0] for phase in split.phases)
        entries["evaluate_all"] = ExportedEntry(plans, shape_of(definition, EVALUATE).dims, batch, batch)
    return entries


def _plan(compiled: Plans, entry: str) -> Plan | None:
    """The plan of an entry point; None if the graph has no loss, or nothing to predict."""
    try:
        return compiled.plan(entry)[0]
    except GraphError:
        return None


def _plans_of(entries: Mapping[str, ExportedEntry], name: str) -> tuple[Plan, ...]:
    return tuple(plan for key in (name, f"{name}_all") if key in entries for plan in entries[key].plans)


# -- numbers -----------------------------------------------------------------------------------------------------


def _scalars(programs: Programs, plans: Sequence[Plan]) -> dict[str, float]:
    """The runtime scalars that users may set: the scalars of the step, and the numbers of its schedules."""
    used = {scalar.name for plan in plans for scalar in plan.scalars if not is_counter(scalar.name)}
    return {name: value for name, value in programs.scalars.items() if name in used}


def _metrics(
    programs: Programs, plans: Sequence[Plan], prefix: str
) -> tuple[tuple[ExportedMetric, ...], dict[str, float]]:
    """The metrics of an entry point, and their states with their first values."""
    if not plans:
        return (), {}
    named = EntryMetrics(programs.step_options, programs.state, plans, prefix).state_prefixes
    fills = {}
    for plan in plans:
        fresh = first_values(plan, 0)
        for name, _ in plan.states:
            if name.startswith(tuple(state for _, state in named)):
                fills[name] = _constant(name, fresh(name))
    return tuple(_metric(metric, state) for metric, state in named), fills


def _constant(name: str, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> float:
    values = np.unique(array)
    if len(values) > 1:
        raise UsageError(f"the state {name!r} of a metric does not begin with one value; export without the metric.")
    return float(values[0]) if len(values) else 0.0


def _metric(metric: Metric, state: str) -> ExportedMetric:
    form = RATIOS.get(type(metric).result)
    ratio = None if form is None else (state + form[0], state + form[1])
    return ExportedMetric(metric.name, metric.kind, metric.higher_is_better, ratio, form is not None and form[2])
