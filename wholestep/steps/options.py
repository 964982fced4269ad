"""`StepOptions`: clipping, micro-batches, non-finite gradients, schedules, metrics, precision, memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from wholestep.compiler.frontend.precision import as_precision
from wholestep.compiler.frontend.step import Step
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.types import DType, float16, float32
from wholestep.errors import OptionError, UsageError
from wholestep.records import dataclass
from wholestep.schedules.base import Schedule
from wholestep.steps.loss_scale import LossScale

if TYPE_CHECKING:
    from wholestep.compiler.frontend.graph import Graph
    from wholestep.metrics import Metric
    from wholestep.privacy.settings import Privacy

NONFINITE = ("ignore", "skip", "raise")
RATE = "optimizer.lr"
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
ROW_LOSS, ROW_NORM = "row_loss", "row_gradient_norm"
BUFFERS = "metrics.row_values."  # prefix of the states that store the values of an epoch
STORED = f"{BUFFERS}rows"  # the number of rows stored so far
ROW_OUTPUTS = {"loss": ROW_LOSS, "gradient_norm": ROW_NORM}  # the names of `per_row=`, and the outputs of the step
GRAD_NORM = "grad_norm"  # the global norm of gradients, in results and logs


@dataclass(frozen=True)
class Measure:
    """A metric with the names of its output and input; None: the default ones of the graph."""

    metric: Metric
    prediction: str | None = None
    target: str | None = None


@dataclass(frozen=True)
class RowValues:
    """What a step computes for every row, and the rows of an epoch that it stores; 0: they are outputs alone."""

    names: tuple[str, ...] = ()
    capacity: int = 0


@dataclass(frozen=True)
class StepOptions:
    """The options of `build_session` that are part of the step.  An option that is off leaves no trace in the plan."""

    clip_norm: float | None = None
    clip_value: float | None = None
    clip_each: float | None = None
    nonfinite: str = "ignore"
    accumulate: int = 1  # micro-batches of an update
    per_micro_batch: bool = False
    measures: tuple[Measure, ...] = ()
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    unused: tuple[str, ...] = ()  # name patterns of parameters that may lack a path to the loss
    precision: DType = float32  # dtype of products, convolutions and attention
    loss_scale: LossScale | None = None
    gradient_norm: bool = False  # report the global norm of gradients
    memory: int | float | None = None  # the limit in bytes, or as a fraction of the peak without a limit
    per_row: RowValues = RowValues()  # values of every row
    privacy: Privacy | None = None  # with its noise and the expected rows of a batch
    parts_per_batch: int = 1  # micro-batches that `memory=` splits each batch into

    def __post_init__(self) -> None:
        for name in ("clip_norm", "clip_value", "clip_each"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and 0 < value < math.inf):
                fail(OptionError, f"{name}={value!r}: expected a number above 0, or None to leave gradients alone.")
        if self.nonfinite not in NONFINITE:
            fail(OptionError, f"nonfinite={self.nonfinite!r}: expected one of {', '.join(map(repr, NONFINITE))}.")
        if not isinstance(self.accumulate, int) or isinstance(self.accumulate, bool) or self.accumulate < 1:
            fail(OptionError, f"accumulate={self.accumulate!r}: expected an integer of at least 1 micro-batch.")
        if self.gradient_norm and any(m.metric.name == GRAD_NORM for m in self.measures):
            fail(OptionError, f"a metric is called {GRAD_NORM!r}, the name of the gradient norm; give it another name.")

    @property
    def batches_per_update(self) -> int:
        """The argument `accumulate=`."""
        return self.accumulate // self.parts_per_batch

    @property
    def may_skip(self) -> bool:
        """Can a step be skipped, leaving every state unchanged?"""
        return self.nonfinite != "ignore" or self.loss_scale is not None


PLAIN = StepOptions()


def with_parts(options: StepOptions, graph: Graph) -> StepOptions:
    """The options with a metric for each part of the loss: `reconstruction_loss` and so on."""
    if not graph.loss_parts:
        return options
    # imported here because most losses have no parts
    from wholestep.metrics.means import LossTracker

    rows = next(iter(graph.inputs))
    parts = [Measure(LossTracker(name=f"{name}_loss"), name, rows) for name in graph.loss_parts]
    for name in {m.metric.name for m in options.measures} & {p.metric.name for p in parts}:
        fail(OptionError, f"a metric is called {name!r}, the name of a part of the loss; rename it: name='other'.")
    return replace(options, measures=(*options.measures, *parts))


def as_loss_scale(value: object, precision: DType) -> LossScale | None:
    """Checks `loss_scale=`: the default one for float16, an error for any other precision."""
    if value is not None and not isinstance(value, LossScale):
        fail(OptionError, f"loss_scale must be a description, ws.LossScale(init=1024.0), or None; received {value!r}.")
    if value is not None and precision != float16:
        fail(
            OptionError,
            f"loss_scale= is for precision='float16', whose smallest gradients vanish; received it with {precision}, "
            "which has the range of float32. Leave it out.",
        )
    return value or (LossScale() if precision == float16 else None)


def precision_of(model: object, precision: str | None, loss_scale: LossScale | None) -> tuple[DType, LossScale | None]:
    """The dtype of products, and the loss scale that it needs."""
    half = as_precision(precision)
    if not isinstance(model, Step):
        return half, as_loss_scale(loss_scale, half)
    if loss_scale is not None:
        raise UsageError(
            "a @ws.step function scales its own loss: grads = ws.LossScale().gradients(g, loss, params), then "
            ".update(g, optimizer, params, grads). Leave loss_scale= out."
        )
    return half, None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def as_schedules(schedule: object) -> dict[str, Schedule]:
    """Converts `schedule=`, a schedule of the learning rate or a dict by runtime scalar, to a dict."""
    if schedule is None:
        return {}
    # imported here because it imports every schedule, and most steps have none
    from wholestep.schedules import TorchSchedule

    named = dict(schedule) if isinstance(schedule, Mapping) else {RATE: schedule}
    if isinstance(schedule, TorchSchedule):
        named |= schedule.of_groups
    schedules: dict[str, Schedule] = {}
    for name, schedule in named.items():
        plain = schedule.schedule if isinstance(schedule, TorchSchedule) else schedule
        if not isinstance(plain, Schedule):
            from wholestep.schedules.checks import refuse_schedule

            refuse_schedule(plain)
        schedules[name] = plain
    return schedules


def as_measures(metrics: object) -> tuple[Measure, ...]:
    """Converts `metrics=`: metrics or names, each alone or with the names of a prediction and a target."""
    if isinstance(metrics, tuple) and not metrics:
        return ()
    from wholestep.metrics.table import is_one  # imported here because a step without metrics does not need it

    # otherwise the to_config() of one metric
    by_output = isinstance(metrics, Mapping) and not isinstance(metrics.get("kind"), str)
    items = _by_output(metrics) if by_output else metrics  # type: ignore[arg-type]
    items = [items] if is_one(items) else items
    if not isinstance(items, list | tuple):
        fail(UsageError, f"metrics must be a list of metrics, e.g. [ws.metrics.Accuracy()]; received {metrics!r}.")
    measures = tuple(_once(_as_measure(item) for item in items))
    names = [m.metric.name for m in measures]
    for name in names:
        if names.count(name) > 1:
            fail(OptionError, f"two metrics are called {name!r}; give one of them a name: name='other'.")
    return measures


def _by_output(metrics: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Metrics of each output, whose target has the output's name: `{"mask": ["iou"], "kind": ["accuracy"]}`.

    Of several outputs the metrics are called `mask_iou`, `kind_accuracy`; a model with one has `{"output": [...]}`.
    """
    from wholestep.metrics.table import get, is_one

    measures: list[tuple[object, ...]] = []
    for output, several in metrics.items():
        for one in [several] if is_one(several) else several:
            metric = get(one)
            named = metric if len(metrics) == 1 else replace(metric, name=f"{output}_{metric.name}")
            measures.append((named, output) if output == "output" else (named, output, output))
    return measures


def modes_of(measures: Iterable[Measure]) -> dict[str, str]:
    """The modes of metrics, "min" or "max", for all that have `higher_is_better`."""
    directions = {m.metric.name: m.metric.higher_is_better for m in measures}
    return {name: "max" if up else "min" for name, up in directions.items() if up is not None}


def _once(measures: Iterable[Measure]) -> list[Measure]:
    """The measures without duplicates."""
    by_key: dict[str, Measure] = {}
    for m in measures:
        by_key.setdefault(repr((type(m.metric), m.metric.to_config(), m.prediction, m.target)), m)
    return list(by_key.values())


def _as_measure(item: object) -> Measure:
    metric, *about = item if isinstance(item, tuple) and item else (item,)
    if len(about) > 2 or not all(isinstance(x, str) for x in about):
        fail(
            UsageError,
            "a metric is ws.metrics.Accuracy(), 'accuracy' or a function of predictions and targets, or (metric, "
            f"prediction, target) with the names of an output and an input; received {item!r}.",
        )
    from wholestep.metrics.table import get

    return Measure(get(metric), *about)


# -- memory= -----------------------------------------------------------------------------------------------------


def bytes_of(memory: object) -> int:
    """`"2GB"`, `"512 MiB"` or a number as bytes."""
    if isinstance(memory, int) and not isinstance(memory, bool) and memory > 0:
        return memory
    match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?I?)B?\s*", memory.upper()) if isinstance(memory, str) else None
    try:
        size = int(float(match[1]) * UNITS[match[2]]) if match is not None else 0
    except (ValueError, KeyError):
        size = 0
    if size < 1:
        raise OptionError(f"memory={memory!r}: expected a number of bytes, or a text such as '2GB' or '512MiB'.")
    return size


def as_row_values(names: Sequence[str] | RowValues) -> RowValues:
    """The names of `per_row=`, without duplicates; OptionError for another name."""
    if isinstance(names, RowValues):
        return names
    chosen = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
    if unknown := [name for name in chosen if name not in ROW_OUTPUTS]:
        fail(OptionError, f"per_row={unknown}: expected some of {', '.join(map(repr, ROW_OUTPUTS))}.")
    return RowValues(chosen)


def as_private(value: object, batch_size: int | None) -> Privacy | None:
    """Checks `privacy=` of a session, whose noise is known."""
    if value is None:
        return None
    from wholestep.privacy.settings import Privacy  # imported here because most steps have none

    if not isinstance(value, Privacy):
        fail(OptionError, f"privacy is ws.Privacy(noise=1.1, clip=1.0), or epsilon= in ws.fit; received {value!r}.")
    return value.for_batches(batch_size)


def as_memory_limit(value: object) -> int | float | None:
    """The limit in bytes, or as a fraction of the bytes without a limit; None: no limit."""
    if value is None:
        return None
    part = value
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(0?\.[0-9]+|1\.0*|[0-9.]+\s*%)\s*", value)):
        text = match[1]
        part = float(text.rstrip("% ")) / 100 if text.endswith("%") else float(text)
    if isinstance(part, float):
        if not 0 < part <= 1:
            fail(
                OptionError,
                f"memory={value!r}: a fraction of the bytes without a limit must be above 0 and at most 1.0.",
            )
        return part
    try:
        return bytes_of(value)
    except OptionError:
        fail(
            OptionError,
            f"memory={value!r}: expected a number of bytes, a text such as '5.5GB' or '512 MiB', or a fraction of the "
            "bytes that the step takes without a limit: 0.7.",
        )
