"""From a graph to a session: the same stages, different tuples."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wholestep.compiler.devices import device_named, target_named
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.step import Step
from wholestep.compiler.ir.fingerprint import fingerprint
from wholestep.compiler.plan import serialize
from wholestep.compiler.plan.kernel import Plan
from wholestep.compiler.runtime.cache import CacheWarning
from wholestep.compiler.runtime.threads import MAX_THREADS, default_threads
from wholestep.compiler.spans import OptimizeReport
from wholestep.compiler.target import Target
from wholestep.errors import OptionError, PlanError, UsageError
from wholestep.nn.module import Module
from wholestep.optim import SGD, Optimizer
from wholestep.options import CompileOptions, thread_count
from wholestep.session.session import Session
from wholestep.session.source import Source, Stand, merged_capacity
from wholestep.steps.module import Inputs, training_graph
from wholestep.steps.recipe import Recipe, as_measures, as_schedules
from wholestep.steps.states import clocks_of, state_of
from wholestep.steps.train import PLAIN

if TYPE_CHECKING:
    from wholestep.compiler.plan.report import PlanReport

log = logging.getLogger("wholestep")

Model = Module | Graph | Step


def build_session(
    model_or_graph: Model,
    *,
    inputs: Inputs | None = None,
    targets: Inputs | None = None,
    loss: Any = None,
    optimizer: Optimizer | None = None,
    metrics: Any = (),
    schedule: Any = None,
    batch_size: int | None = None,
    capacity: Mapping[str, int] | None = None,
    accumulate: int = 1,
    per_micro_batch: bool = False,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    clip_each: float | None = None,
    nonfinite: str = "ignore",
    unused: Sequence[str] = (),
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    options: CompileOptions | None = None,
) -> Session:
    """Compile a whole training step and load it.

    Args:
        model_or_graph: a `ws.nn.Module`, a `ws.Graph` whose first output is the loss, or a `@ws.step` function.
        inputs, targets: of a module, `ws.Spec(shape, dtype)`; a step then takes `x` and `labels`.  Several are a dict
            by name; a target called `sample_weight` weighs the rows of the loss.
        loss: of a module: a name such as "cross_entropy", a `ws.losses.Loss`, a function of (output, target), or a dict
            of these by output.
        optimizer: how parameters change; SGD with lr 0.01 when None.  A `@ws.step` function has its own.
        metrics: e.g. `["accuracy", ws.metrics.TopKAccuracy(k=5)]`, counted inside the step.  A metric is about the
            output after the loss and the input called `labels` (or `targets`, `target`, `y`); `(metric, output, input)`
            names others.  An input `sample_weight` weighs the rows.
        schedule: of the learning rate; or a dict by runtime scalar: `{"optimizer.lr": ..., "random0.rate": ...}`.
        batch_size: the largest batch, short for `capacity={"batch": n}`; smaller ones work without a recompile.
        capacity: the largest size of every symbolic dimension.
        accumulate: a step takes up to this many batches, computes them one after the other, and equals the step over
            all their rows at once.  A loss that cannot be cut into batches is an error, unless `per_micro_batch=True`
            accepts the mean of the batches' losses.  Such a step returns the loss, not the other outputs.
        clip_norm: shorten all gradients together to this global norm; `result.metrics["grad_norm"]` is the norm before.
        clip_value: bring every element of the gradients into [-clip_value, clip_value]; done before `clip_norm`.
        clip_each: shorten the gradient of each parameter to this norm by itself.
        nonfinite: where the loss or a gradient is not finite: "ignore" it, "skip" the update and leave every state as
            it is (`session.skipped_steps` counts), or "raise" an error.
        unused: names, or patterns of names, of parameters that the loss need not depend on; they are not trained.
        seed: keys initial values, random nodes and the order of epochs.
        device: "cpu", as the best target that this machine has, or "cpu/portable" and the like, as that one;
            "reference" to run in NumPy, slowly, without a C compiler; "null" to plan and report only, for this CPU or,
            "null:cuda/sm_90", for a target that need not be here.
        threads: None uses the cores that this process may run on.

    Example::

        session = ws.build_session(g, optimizer=ws.Adam(lr=1e-3), batch_size=32)
        print(float(session.step(x=xb, labels=yb)))
    """
    target = Destination(seed, device, threads, options or CompileOptions()).prepared()
    recipe = Recipe(
        clip_norm,
        clip_value,
        clip_each,
        nonfinite,
        accumulate,
        per_micro_batch,
        as_measures(metrics),
        as_schedules(schedule),
        tuple(unused),
    )
    model = as_graph(model_or_graph, inputs, targets, loss)
    session, report = _build(_source(model, optimizer, target.target, batch_size, capacity, recipe), target)
    log.info("%s", report)
    return session


def build_session_with_report(model_or_graph: Model, **arguments: Any) -> tuple[Session, OptimizeReport]:
    """`build_session`, and what the build did."""
    source, target = _split(model_or_graph, **arguments)
    return _build(source, target.prepared())


def build_session_unoptimized(model_or_graph: Model, **arguments: Any) -> Session:
    """`build_session` without the whole-graph pass, to tell its work from the rest."""
    source, target = _split(model_or_graph, **arguments)
    options = replace(target.options, optimize=False)
    return _build(source, replace(target, options=options))[0]


def build_inference_session(
    graph: Graph,
    *,
    batch_size: int | None = None,
    capacity: Mapping[str, int] | None = None,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    options: CompileOptions | None = None,
) -> Session:
    """A session that computes the graph's outputs: no backward pass, no optimizer, nothing changes."""
    _need_graph(graph, "build_inference_session")
    target = Destination(seed, device, threads, options or CompileOptions()).prepared()
    return _build(_sized(Source(graph, None, target.target), batch_size, capacity), target)[0]


def build_measuring_session(
    model: Module,
    *,
    inputs: Inputs,
    targets: Inputs | None,
    loss: Any,
    metrics: Any = (),
    batch_size: int,
    device: str = "cpu",
    threads: int | None = None,
    options: CompileOptions | None = None,
) -> Session:
    """A session that evaluates a model: the loss, the outputs and the metrics, and nothing that trains."""
    recipe = Recipe(measures=as_measures(metrics))
    target = Destination(0, device, threads, options or CompileOptions())
    graph = training_graph(model, inputs, targets, loss)
    source = Source(graph, None, target.target, recipe=recipe, measures_only=True)
    return _build(_sized(source, batch_size, None), target)[0]


def build_session_cached(graph: Graph, path: str | PathLike[str], **arguments: Any) -> Session:
    """`build_session` with the plan kept in a file of the caller's choice.

    A file that fits the graph and arguments skips every stage after the trace; one that does not is replaced; one
    that cannot be read or written is warned about.
    """
    source, target = _split(graph, **arguments)
    if source.is_windowed:
        raise UsageError(
            "build_session_cached keeps one plan, and accumulate needs several; ws.build_session caches all."
        )
    key, file = source.key(source.main, target.options), Path(path)
    plan = _read_cached(file, key)
    if plan is not None:
        source.check(source.main, plan, target.options, target.stand, new=False)
        return _load(source, plan, target)
    session, _ = _build(source, target)
    try:
        file.write_bytes(serialize.dump(session.plan, graph=_graph_key(graph), key=key))
    except OSError as error:
        warnings.warn(
            f"the plan could not be written to {file}: {error}. The session works.", CacheWarning, stacklevel=2
        )
    return session


def compile_training_graph(
    graph: Model,
    *,
    inputs: Inputs | None = None,
    targets: Inputs | None = None,
    loss: Any = None,
    optimizer: Optimizer | None = None,
    batch_size: int | None = None,
    capacity: Mapping[str, int] | None = None,
    device: str = "cpu",
    options: CompileOptions | None = None,
) -> tuple[Plan, OptimizeReport]:
    """The plan of a training step and what was done to get it; needs neither the device nor a C compiler.

    Example::

        plan, report = ws.compile_training_graph(g, batch_size=32, device="null:cuda/sm_90")
    """
    source = _source(as_graph(graph, inputs, targets, loss), optimizer, target_named(device), batch_size, capacity)
    return source.plan_with_report("train", replace(options or CompileOptions(), cache=False))


def estimate(model_or_graph: Model, **arguments: Any) -> PlanReport:
    """What a training step will do and need, before anything is compiled or mapped: kernels, flops, exact peak bytes.

    Takes the arguments of `build_session`; a session built with them maps `peak_bytes`, not a byte more or less.

    Example::

        print(ws.estimate(model, inputs=x, targets=y, loss="mse", batch_size=64).peak_bytes)
    """
    source, target = _split(model_or_graph, **arguments)
    if source.is_windowed:
        raise UsageError("estimate is about one plan, and accumulate needs several; build_session(...).peak_bytes.")
    from wholestep.compiler.plan.report import plan_report

    plan, _ = source.plan_with_report(source.main, replace(target.options, cache=False))
    return plan_report(plan, target.stand.threads, "estimate")


def save_plan(plan: Plan, graph: Graph, path: str | PathLike[str]) -> None:
    """Write a plan made from `graph` to a file."""
    Path(path).write_bytes(serialize.dump(plan, graph=_graph_key(graph)))


def load_plan(graph: Graph, path: str | PathLike[str]) -> Plan | None:
    """The plan in a file; None where there is no file or it was made from another graph; PlanError if it is damaged."""
    try:
        data = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    return serialize.load(data) if serialize.read_header(data).graph == _graph_key(graph) else None


# -- what they share ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Destination:
    """Where and how a plan is loaded."""

    seed: int
    device: str
    threads: int | None
    options: CompileOptions

    @property
    def target(self) -> Target:
        """What its plans are made for."""
        return target_named(self.device)

    def prepared(self) -> Destination:
        """The same, with the device's own work begun: a first start traces and plans beside it."""
        device_named(self.device).prepare(self.options)
        return self

    @property
    def stand(self) -> Stand:
        """What runs the plan, and on how many threads."""
        return Stand(device_named(self.device), thread_count(self.threads, default_threads(), MAX_THREADS))


def _split(
    model_or_graph: Model,
    *,
    optimizer: Optimizer | None = None,
    batch_size: int | None = None,
    capacity: Mapping[str, int] | None = None,
    seed: int = 0,
    device: str = "cpu",
    threads: int | None = None,
    options: CompileOptions | None = None,
    inputs: Inputs | None = None,
    targets: Inputs | None = None,
    loss: Any = None,
    metrics: Any = (),
    schedule: Any = None,
    **recipe: Any,
) -> tuple[Source, Destination]:
    """The arguments of `build_session`, sorted."""
    target = Destination(seed, device, threads, options or CompileOptions())
    known = Recipe(measures=as_measures(metrics), schedules=as_schedules(schedule), **recipe)
    model = as_graph(model_or_graph, inputs, targets, loss)
    return _source(model, optimizer, target.target, batch_size, capacity, known), target


def as_graph(model: Model, inputs: Inputs | None, targets: Inputs | None, loss: Any) -> Graph | Step:
    """A module with its loss as a graph; graphs and steps as they are."""
    if isinstance(model, Module):
        return training_graph(model, inputs, targets, loss)
    if inputs is not None or targets is not None or loss is not None:
        raise UsageError("inputs=, targets= and loss= describe a module; a graph or step declares its own.")
    return model


def _source(
    model: Graph | Step,
    optimizer: Optimizer | None,
    target: Target,
    batch_size: int | None,
    capacity: Mapping[str, int] | None,
    recipe: Recipe = PLAIN,
) -> Source:
    if isinstance(model, Step):
        if optimizer is not None:
            raise UsageError("a @ws.step function applies its own optimizers; leave optimizer= out.")
        if recipe != Recipe(schedules=recipe.schedules):
            raise UsageError(
                "a @ws.step function records its own clipping, metrics and windows (ws.optim.clip_by_global_norm, "
                "metric.record); of these options it takes schedule= alone."
            )
        return _sized(Source(model, None, target, recipe=recipe), batch_size, capacity)
    _need_graph(model, "build_session")
    if optimizer is not None and not isinstance(optimizer, Optimizer):
        raise UsageError(f"optimizer is a description such as ws.Adam(lr=1e-3); received {optimizer!r}.")
    return _sized(Source(model, optimizer or SGD(), target, recipe=recipe), batch_size, capacity)


def _need_graph(model: object, what: str) -> None:
    if not isinstance(model, Graph):
        raise UsageError(
            f"{what} takes a ws.nn.Module, a ws.Graph or a @ws.step function; received {type(model).__name__}: "
            f"{model!r}."
        )


def _sized(source: Source, batch_size: int | None, capacity: Mapping[str, int] | None) -> Source:
    source = replace(source, clocks=clocks_of(source.model))
    graph = source.trace(source.main)
    sizes = merged_capacity(graph, batch_size, capacity)
    sized = replace(source, capacity=sizes)
    sized.sizes_of(graph)  # an error names what has none
    return sized


def _build(source: Source, target: Destination) -> tuple[Session, OptimizeReport]:
    with source.spans.span("build_session"):
        plan, report = source.plan_with_report(source.main, target.options, target.stand)
        session = _load(source, plan, target)
    return session, replace(report, spans=tuple(source.spans.all))


def _load(source: Source, plan: Plan, target: Destination) -> Session:
    if not isinstance(target.seed, int) or isinstance(target.seed, bool) or not 0 <= target.seed < 2**64:
        raise OptionError(f"seed={target.seed!r}: expected a whole number from 0 to 2**64 - 1.")
    with source.spans.span("device_init"):
        return Session(
            plan,
            state=state_of(source.model),
            seed=target.seed,
            device=target.device,
            threads=target.threads,
            options=target.options,
            source=source,
            key=source.key(source.main, target.options),
        )


def _graph_key(graph: Graph) -> str:
    return fingerprint(graph.to_ir())


def _read_cached(file: Path, key: str) -> Plan | None:
    try:
        data = file.read_bytes()
        return serialize.load(data) if serialize.read_header(data).key == key else None
    except FileNotFoundError:
        return None
    except (OSError, PlanError) as error:
        warnings.warn(f"the plan in {file} is not used: {error}", CacheWarning, stacklevel=3)
        return None
