"""Building sessions: define a step, plan it, load it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, TextIO, overload

from wholestep.compiler.backend import Placement
from wholestep.compiler.devices import target_named
from wholestep.compiler.frontend.graph import Graph
from wholestep.compiler.frontend.precision import as_precision
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.runtime.memory import recycle_pages
from wholestep.compiler.spans import OptimizeReport, Spans
from wholestep.errors import LimitError, OutOfMemoryError, UsageError
from wholestep.nn.module.module import Module
from wholestep.optim import Optimizer
from wholestep.options import CompileOptions
from wholestep.session.building.arguments import SessionArguments, need_shard, takes_fields_of
from wholestep.session.building.plans import Plans
from wholestep.session.session import Session
from wholestep.steps.definition import TRAIN, Definition, Model, as_graph, define_step, need_graph, with_capacity
from wholestep.steps.module import Inputs, forward_graph, training_graph
from wholestep.steps.options import StepOptions, as_measures, as_memory_limit, with_parts
from wholestep.steps.states import agree_on_network, state_of, state_with_numbers

if TYPE_CHECKING:
    from wholestep.compiler.plan.io.report import PlanReport
    from wholestep.distributed.estimate import WorkersReport
    from wholestep.distributed.network import Network
    from wholestep.distributed.workers import Workers
    from wholestep.session.inspect.estimate import StepEstimate


log = logging.getLogger("wholestep")


@takes_fields_of(SessionArguments)
def build_session(model_or_graph: Model, arguments: SessionArguments) -> Session:
    """Compile a whole training step and load it.

    Args:
        model_or_graph: a `ws.nn.Module`, a `ws.Graph` whose first output is the loss, or a `@ws.step` function.
        inputs, targets: of a module, `ws.Spec(shape, dtype)`; a step then takes `x` and `labels`.  Several are a dict
            by name; a target called `sample_weight` weighs the rows of the loss.
        loss: of a module: a name such as "cross_entropy", a `ws.losses.Loss`, a function of (output, target), or a dict
            of these by output.  A function may return a dict of parts.  The loss is the sum of its parts; each is
            measured, as the metric `<part>_loss`.
        loss_weights: factors of the parts of the loss, by name; the runtime scalars `loss_weights.<part>`.
        augment: of a module, changes of its inputs in training steps, keyed by the input `row_numbers`; `ws.fit` makes
            it of its own `augment=`.
        optimizer: how parameters change, e.g. `ws.Adam(lr=1e-3)` or "adam"; SGD with lr 0.01 when None.  A `@ws.step`
            function has its own.
        metrics: e.g. `["accuracy", ws.metrics.TopKAccuracy(k=5)]`, counted inside the step.  A metric is about the
            output after the loss and the input called `labels` (or `targets`, `target`, `y`); `(metric, output, input)`
            names others.  An input `sample_weight` weighs the rows.
        schedule: the schedule of the learning rate; or a dict by runtime scalar: `{"optimizer.lr": ..., "random0.rate":
            ...}`.
        batch_size: the largest batch, short for `capacity={"batch": n}`; smaller ones work without a recompile.
        capacity: the largest size of every symbolic dimension.
        accumulate: a step takes up to this many batches, computes them one after the other, and equals the step over
            all their rows at once.  A loss that is not separable is an error, unless `per_micro_batch=True`
            accepts the mean of the batches' losses.  Such a step returns the loss, not the other outputs.
        clip_norm: shorten all gradients together to this global norm; `result.metrics["grad_norm"]` is the norm before.
        clip_value: bring every element of the gradients into [-clip_value, clip_value]; done before `clip_norm`.
        clip_each: scale the gradient of each parameter to at most this norm.
        gradient_norm: measure the global norm of gradients, `result.metrics["grad_norm"]`, and its mean over an epoch's
            steps, `session.metrics()["grad_norm"]`.
        per_row: values of every row of a step, as its outputs: "loss" is `result["row_loss"]`; "gradient_norm" is
            `result["row_gradient_norm"]`, the norm of the row's contribution to the gradients times the number of rows
            (for a mean over rows: of the gradient of the row's own loss).
        privacy: clip the gradient of every row, and add noise to their sum: `ws.Privacy(noise=1.1, clip=1.0)`.  The
            batches have to be drawn by `ws.data.Poisson`; `ws.fit` does that, finds the noise for an ε, and counts it.
        nonfinite: if the loss or a gradient is not finite: "ignore" it, "skip" the update and keep every state
            (`session.skipped_steps` counts), or "raise" an error.
        unused: names, or patterns of names, of parameters that the loss need not depend on; they are not trained.
        precision: "float32", "bfloat16" or "float16": the dtype of products, convolutions and attention, with sums in
            float32.  Weights, their updates and everything else stay float32.  "tf32", on a GPU: products and
            convolutions that a library makes read float32 numbers with a mantissa of 10 bits.  None: float32; on a GPU
            convolutions are then as with "tf32", as in PyTorch by default, and "float32" keeps them exact.
        loss_scale: the loss scaling of float16, `ws.LossScale()` unless given.  A step whose gradients are not
            finite lowers the scale and changes nothing else.  `session.loss_scale` is the scale.
        memory: the most bytes that the step may take: a number, a text such as "5.5GB", or 0.7, a part of what it takes
            without a limit.  Values that the backward pass reads are then recomputed instead of stored, as few as the
            limit requires; if that is not enough, batches are split into micro-batches, as with `accumulate`.  Losses
            and updates are the same up to rounding.  The report lists the changes and their cost.
        seed: the seed of the initial weights, of dropout and other random values, and of the order of epochs.  None:
            the seed of `ws.manual_seed` (0 if it was not called); then successively built modules start differently.
        device: "cpu", compiled for this machine's CPU, or "cpu/portable" and the like for a named instruction set;
            "cuda" or "cuda:1" for an NVIDIA GPU; "reference" to run in NumPy, slowly, without a C compiler; "null" to
            plan and report only, for this CPU or, "null:cuda/sm_90", for a target that this machine need not have.
        threads: None uses the cores that this process may run on.
        shards: compute each step as this many workers would, in this process, with the same bits; `(2, 3)` as those
            of `ws.Workers(data=2, model=3)`.
        shard: "optimizer": each of the shards, or workers, holds a part of the optimizer's state.
        workers: the processes that make each step together; started by `wholestep launch`.

    Example::

        session = ws.build_session(g, optimizer=ws.Adam(lr=1e-3), batch_size=32)
        print(float(session.step(x=xb, labels=yb)))
    """
    session, report = build(
        *_definition_and_placement(model_or_graph, arguments, _prepare_device(arguments.placement()))
    )
    log.info("%s", report)
    return session


def build_session_with_report(model_or_graph: Model, **arguments: Any) -> tuple[Session, OptimizeReport]:
    """`build_session`, and the report of the build."""
    definition, where = define_session(model_or_graph, arguments)
    return build(definition, _prepare_device(where))


def build_session_unoptimized(model_or_graph: Model, **arguments: Any) -> Session:
    """`build_session` without the whole-graph optimizer, for comparisons."""
    definition, where = define_session(model_or_graph, arguments)
    return build(definition, replace(where, options=replace(where.options, optimize=False)))[0]


def build_inference_session(
    model_or_graph: Module | Graph,
    *,
    inputs: Inputs | None = None,
    batch_size: int | None = None,
    capacity: Mapping[str, int] | None = None,
    precision: str = "float32",
    seed: int | None = None,
    device: str = "cpu",
    threads: int | None = None,
    options: CompileOptions | None = None,
) -> Session:
    """A session that computes the outputs of a graph or of a model, without a backward pass, an optimizer or updates.

    Args:
        inputs: types of a model's inputs, as for `build_session`.
        precision: the dtype of products, as for `build_session`.

    Example: `ws.build_inference_session(model, inputs=ws.Spec(("batch", 784)), batch_size=64).step(x=images)`.
    """
    graph = model_or_graph
    if isinstance(graph, Module):
        if inputs is None:
            raise UsageError(
                "build_inference_session needs the types of the inputs: inputs=ws.Spec(('batch', 784)). "
                "model.predict(x) does not."
            )
        state_with_numbers(graph, seed)
        graph, _ = forward_graph(graph, inputs)
    need_graph(graph, "build_inference_session")
    arguments = SessionArguments(device=device, threads=threads, seed=seed, options=options, precision=precision)
    where = _prepare_device(arguments.placement())
    definition = Definition(graph, None, step_options=StepOptions(precision=as_precision(precision)))
    return build(with_capacity(definition, batch_size, capacity), where)[0]


def build_measuring_session(
    model: Module,
    *,
    inputs: Inputs,
    targets: Inputs | None,
    loss: Any,
    loss_weights: Mapping[str, float] | None = None,
    metrics: Any = (),
    batch_size: int,
    device: str = "cpu",
    threads: int | None = None,
    options: CompileOptions | None = None,
) -> Session:
    """A session that evaluates a model: loss, outputs and metrics, without an optimizer."""
    graph = training_graph(model, inputs, targets, loss, loss_weights)
    step_options = with_parts(StepOptions(measures=as_measures(metrics)), graph)
    definition = Definition(graph, None, {}, step_options, measures_only=True)
    where = SessionArguments(device=device, threads=threads, seed=0, options=options).placement()
    return build(with_capacity(definition, batch_size, None), where)[0]


def compile_training_graph(
    graph: Model,
    *,
    inputs: Inputs | None = None,
    targets: Inputs | None = None,
    loss: Any = None,
    optimizer: Optimizer | str | None = None,
    batch_size: int | None = None,
    capacity: Mapping[str, int] | None = None,
    memory: int | float | str | None = None,
    device: str = "cpu",
    options: CompileOptions | None = None,
) -> tuple[Plan, OptimizeReport]:
    """The plan of a training step and the report of its build; needs neither the device nor a C compiler.

    `memory=` is as in `build_session`, on a CPU for one thread.

    Example::

        plan, report = ws.compile_training_graph(g, batch_size=32, device="null:cuda/sm_90")
    """
    step_options = StepOptions(memory=as_memory_limit(memory))
    definition = define_step(as_graph(graph, inputs, targets, loss), optimizer, batch_size, capacity, step_options)
    compiled = Plans(definition, replace(options or CompileOptions(), cache=False), target_named(device))
    return compiled.plan_with_report(TRAIN)


@overload
def estimate(model_or_graph: Model, *, workers: None = None, **arguments: Any) -> StepEstimate: ...
@overload
def estimate(
    model_or_graph: Model,
    *,
    workers: int | Workers,
    network: str | Network = "100Gb",
    shard: str | None = None,
    **arguments: Any,
) -> WorkersReport: ...
def estimate(
    model_or_graph: Model,
    *,
    workers: int | Workers | None = None,
    network: str | Network | None = None,
    shard: str | None = None,
    **arguments: Any,
) -> PlanReport:
    """What a training step will do and need, before anything is compiled or mapped: kernels, flops, exact peak bytes.

    Takes the arguments of `build_session`; a session built with them maps `peak_bytes`, not a byte more or less.

    Args:
        workers: ranks that divide the batch, or `ws.Workers(data=64, model=4)`, which divide layers too.  The report is
            then of one of them, with the bytes that it sends in a step (`wire_bytes`, exact, of which
            `wire_bytes_along("model")`) and predicted times: `compute_seconds` by the target's prices,
            `exchange_seconds` by the network, `step_seconds`.
        shard: "optimizer": each of them stores a part of the optimizer's state; `peak_bytes` is per worker.
        network: between them: "10Gb", "25Gb", "100Gb" (unless given), "400Gb", "shm", or a `ws.Network`.

    Example::

        estimate = ws.estimate(model, inputs=x, targets=y, loss="mse", batch_size=64)
        print(estimate.peak_bytes, estimate.fits("8GB"), estimate.memory, estimate.epoch_seconds(rows=60_000))
        print(estimate.changes())  # with bfloat16, two workers, other batches, accumulation
        print(ws.estimate(model, inputs=x, targets=y, loss="mse", batch_size=4096, workers=64, network="25Gb"))
    """
    if workers is None:
        arguments["shard"] = shard
    definition, where = define_session(model_or_graph, arguments)
    if workers is not None:
        if definition.has_micro_batches:
            raise UsageError("the estimate for several workers covers one plan, and accumulate= needs several.")
        from wholestep.distributed.estimate import workers_report

        return workers_report(definition, where, workers, "100Gb" if network is None else network, need_shard(shard))
    if network is not None:
        raise UsageError(f"network={network!r} is for several workers: give workers=64, for example, or leave it out.")
    from wholestep.session.inspect.estimate import step_estimate

    compiled = Plans(definition, replace(where.options, cache=False), where.device.target, threads=where.threads)
    batch = definition.capacity.get("batch", 0)
    others: dict[str, dict[str, Any]] = {"bfloat16": {"precision": "bfloat16"}, "two workers": {"workers": 2}}
    for size in sorted({2 * batch, 256} - {batch, 0}) if batch else ():
        others[f"batch {size}"] = {"batch_size": size, "capacity": None}
    if batch > 1 and not definition.has_micro_batches:
        half = -(-batch // 2)
        others[f"accumulate 2 x {half}"] = {"batch_size": half, "capacity": None, "accumulate": 2}
    variants = {name: partial(estimate, model_or_graph, **{**arguments, **other}) for name, other in others.items()}
    return step_estimate(compiled, batch, variants)


# -- helpers ---------------------------------------------------------------------------------------------


def _prepare_device(where: Placement) -> Placement:
    """Start the device's initialization, which runs while the step is traced and planned."""
    where.device.prepare(where.options)
    return where


def define_session(model_or_graph: Model, arguments: Mapping[str, Any]) -> tuple[Definition, Placement]:
    """The definition and the placement of a session with these arguments of `build_session`."""
    parsed = SessionArguments.parse(arguments)
    return _definition_and_placement(model_or_graph, parsed, parsed.placement())


def _definition_and_placement(
    model_or_graph: Model, arguments: SessionArguments, where: Placement
) -> tuple[Definition, Placement]:
    definition = arguments.define(model_or_graph, where)
    return definition, arguments.in_default_precision(definition, where)


def build(definition: Definition, where: Placement) -> tuple[Session, OptimizeReport]:
    """Plan the main entry point, and load it."""
    compiled = Plans.for_definition(definition, where)
    if where.group is not None and not where.seeded:
        agree_on_network(state_of(definition.model), where.group)
    try:
        with compiled.spans.span("build_session"), show_build_progress(compiled.spans), recycle_pages():
            compiled, plan, report = _plan_main(compiled)
            session = load(compiled, plan)
    except LimitError:
        raise
    except OutOfMemoryError as error:
        from wholestep.session.building.batch_size import with_solution

        raise with_solution(error, definition, where) from None
    return session, replace(report, spans=tuple(compiled.spans.all))


def _plan_main(compiled: Plans) -> tuple[Plans, Plan, OptimizeReport]:
    """The main plan; with `memory=` split into micro-batches if no other plan keeps the limit."""
    if compiled.definition.step_options.memory is None:
        return (compiled, *compiled.plan_with_report(compiled.definition.main))
    from wholestep.session.building.memory_budget import plan_within_budget

    return plan_within_budget(compiled)


def load(compiled: Plans, plan: Plan) -> Session:
    """A session over the model's own state."""
    model, main = compiled.definition.model, compiled.definition.main
    with compiled.spans.span("device_init"):
        return Session(plan, state=state_of(model), compiled=compiled, key=compiled.key(main))


PATIENCE = 2.0  # seconds before anything is printed
EVERY = 0.5  # seconds between two redraws
# span -> text for the user; any other span is "planning"
WORDS = {
    "gcc": "compiling",
    "nvrtc": "compiling",
    "self_check": "checking the numbers",
    "device_init": "allocating memory",
}


@contextmanager
def show_build_progress(spans: Spans) -> Iterator[None]:
    """Show the stage of a build on standard error if it is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    done = Event()
    line = Thread(target=_draw, args=(spans, done, sys.stderr), daemon=True)
    line.start()
    try:
        yield
    finally:
        done.set()
        line.join()


def _draw(spans: Spans, done: Event, terminal: TextIO) -> None:
    began = time.perf_counter()
    if done.wait(PATIENCE):
        return
    while not done.is_set():
        doing = WORDS.get(spans.all[-1].name, "planning") if spans.all else "planning"
        terminal.write(f"\rbuilding the step: {doing}, {time.perf_counter() - began:.0f} s\x1b[K")
        terminal.flush()
        done.wait(EVERY)
    terminal.write("\r\x1b[K")
    terminal.flush()
