"""The arguments of `build_session` as one record, and the placement of a session: device, threads, seed and ranks.

`SessionArguments` is the only declaration of these arguments: each function that accepts them parses them with it, and
`ws.Experiment` passes the fields that both share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from wholestep.compiler.backend import Device, Placement
from wholestep.compiler.devices import device_named, device_text, has_variant
from wholestep.compiler.frontend.precision import TF32, TF32_CONVOLUTIONS
from wholestep.compiler.frontend.trace import fail
from wholestep.compiler.ir.attrs import GraphAttrs
from wholestep.compiler.ir.types import float32
from wholestep.compiler.runtime import process_group
from wholestep.compiler.runtime.process_group import RankGroup
from wholestep.compiler.runtime.threads import MAX_THREADS, default_threads
from wholestep.errors import OptionError, UsageError
from wholestep.options import CompileOptions, thread_count
from wholestep.records import dataclass
from wholestep.steps.definition import Definition, Model, as_graph, define_step
from wholestep.steps.options import (
    RowValues,
    StepOptions,
    as_measures,
    as_memory_limit,
    as_private,
    as_row_values,
    as_schedules,
    precision_of,
)
from wholestep.steps.states import check_seed, seed_or_default

if TYPE_CHECKING:
    from wholestep.compiler.ir.graph import IRGraph
    from wholestep.data.augment import Augmentations
    from wholestep.distributed.workers import Workers
    from wholestep.optim import Optimizer
    from wholestep.privacy.settings import Privacy
    from wholestep.steps.loss_scale import LossScale
    from wholestep.steps.module import Inputs

P = ParamSpec("P")
R = TypeVar("R")

SHARDS = (None, "optimizer")  # the values of `shard=`
CONVOLUTIONS = ("conv2d", "conv2d_grad_input")  # the second is a transposed convolution
Shards = int | tuple[int, int] | None  # simulated ranks in one process: their number, or (data, model)
# Fields that `SessionArguments` and `StepOptions` share under one name.
SAME = ("clip_norm", "clip_value", "clip_each", "nonfinite", "accumulate", "per_micro_batch", "gradient_norm")


@dataclass(frozen=True, kw_only=True)
class SessionArguments:
    """The arguments of `build_session`, which documents them, as the caller gave them."""

    inputs: Inputs | None = None
    targets: Inputs | None = None
    loss: Any = None
    loss_weights: Mapping[str, float] | None = None
    augment: Augmentations | None = None
    optimizer: Optimizer | str | None = None
    metrics: Any = ()
    schedule: Any = None
    batch_size: int | None = None
    capacity: Mapping[str, int] | None = None
    accumulate: int = 1
    per_micro_batch: bool = False
    clip_norm: float | None = None
    clip_value: float | None = None
    clip_each: float | None = None
    gradient_norm: bool = False
    per_row: Sequence[str] | RowValues = ()
    privacy: Privacy | None = None
    nonfinite: str = "ignore"
    unused: Sequence[str] = ()
    precision: str | None = None
    loss_scale: LossScale | None = None
    memory: int | float | str | None = None
    seed: int | None = None
    device: str = "cpu"
    threads: int | None = None
    shards: int | tuple[int, int] | None = None
    shard: str | None = None
    workers: Workers | None = None
    options: CompileOptions | None = None

    @staticmethod
    def parse(arguments: Mapping[str, Any]) -> SessionArguments:
        """Arguments by name; UsageError for a name that is no argument of `build_session`."""
        names = [field.name for field in fields(SessionArguments)]
        for name in arguments:
            if name not in names:
                from difflib import get_close_matches

                close = get_close_matches(name, names, 1, 0.6)
                hint = f" Did you mean {close[0]}=?" if close else ""
                fail(UsageError, f"a session has no argument {name!r}.{hint} There are: {', '.join(sorted(names))}.")
        return SessionArguments(**arguments)

    def placement(self) -> Placement:
        """The placement of the session; OptionError for an argument outside its range."""
        if self.seed is not None:
            check_seed(self.seed)
        need_workers(self.workers)
        count = thread_count(self.threads, default_threads(), MAX_THREADS)
        if self.workers is not None and _is_gpu(self.device):
            # imported here because most sessions have one rank
            from wholestep.distributed.transport.nccl_group import take_gpu

            take_gpu(self.workers)
        backend = device_named(self.device, TF32 if self.precision == TF32 else "")
        shard = shard_of(self.shard, self.shards, self.workers)
        need_whole_layers(self.workers, backend)
        group, seed = group_of(self.shards, self.workers, backend), seed_or_default(self.seed)
        options, seeded = self.options or CompileOptions(), self.seed is not None
        return Placement(backend, count, seed, options, group, shard, seeded=seeded)

    def step_options(self, model: Model) -> StepOptions:
        """The arguments that are part of the step, checked and converted."""
        dtype, loss_scale = precision_of(model, self.precision, self.loss_scale)
        return StepOptions(
            measures=as_measures(self.metrics),
            schedules=as_schedules(self.schedule),
            unused=tuple(self.unused),
            precision=dtype,
            loss_scale=loss_scale,
            memory=as_memory_limit(self.memory),
            per_row=as_row_values(self.per_row),
            privacy=as_private(self.privacy, self.batch_size),
            **{name: getattr(self, name) for name in SAME},
        )

    def define(self, model: Model, where: Placement) -> Definition:
        """The step that the session runs: the model with its loss, its optimizer and its capacity."""
        options = self.step_options(model)
        graph = as_graph(model, self.inputs, self.targets, self.loss, self.loss_weights, self.augment)
        return define_step(graph, self.optimizer, self.batch_size, self.capacity, options, *where.among)

    def in_default_precision(self, definition: Definition, where: Placement) -> Placement:
        """`precision=None` on a GPU: float32 convolutions round to tf32 as in PyTorch, matrix products do not."""
        if self.precision is not None or not has_variant(where.device.target, TF32_CONVOLUTIONS):
            return where
        if not _convolves_float32(definition.trace(definition.main)):
            return where
        return replace(where, device=device_named(self.device, TF32_CONVOLUTIONS))


def _convolves_float32(graph: IRGraph) -> bool:
    """Does a graph, or a graph nested in it, have a convolution of float32 operands?"""
    return any(
        (n.op in CONVOLUTIONS and n.inputs[0].type.dtype == float32)
        or (isinstance(n.attrs, GraphAttrs) and _convolves_float32(n.attrs.graph))
        for n in graph.nodes
    )


def shared_arguments(record: Any, **replaced: Any) -> dict[str, Any]:
    """The fields of an experiment that are arguments of `build_session`, by name, some of them `replaced`."""
    names = {field.name for field in fields(record)}
    shared = {f.name: getattr(record, f.name) for f in fields(SessionArguments) if f.name in names}
    return {**shared, **replaced}


def takes_fields_of(
    record: Callable[P, SessionArguments],
) -> Callable[[Callable[[Model, SessionArguments], R]], Callable[Concatenate[Model, P], R]]:
    """Decorator: a function of (model, record) becomes one of the model and the fields of the record by name."""

    def decorate(build: Callable[[Model, SessionArguments], R]) -> Callable[Concatenate[Model, P], R]:
        @wraps(build)
        def call(model_or_graph: Model, **arguments: Any) -> R:
            return build(model_or_graph, SessionArguments.parse(arguments))

        model, *_ = signature(build).parameters.values()
        named = [
            Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
            for f in fields(SessionArguments)
        ]
        call.__signature__ = signature(build).replace(parameters=[model, *named])  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate


def _is_gpu(device: object) -> bool:
    device = device_text(device)
    return isinstance(device, str) and device.partition(":")[0].partition("/")[0] == "cuda"


def need_workers(workers: object) -> None:
    """Raise OptionError for an integer, because Keras' `workers=` is a number of threads that load data."""
    if isinstance(workers, int):
        raise OptionError(
            f"workers={workers}: workers are processes that train together, workers=ws.Workers({workers}), started by "
            f"`wholestep launch -n {workers}`. A thread prepares batches: ws.DataLoader(data, prefetch=2)."
        )


def shard_of(shard: str | None, shards: Shards, workers: Workers | None) -> str | None:
    """The value of `shard=`: what is divided among ranks in addition to the batch."""
    need_shard(shard)
    if shard is not None and shards is None and workers is None:
        raise OptionError(f"shard={shard!r} divides among workers, and there are none: give shards=4, or workers=.")
    return shard or (None if workers is None else workers.shard)


def need_whole_layers(workers: Workers | None, device: Device) -> None:
    """Raise OptionError for tensor parallelism on a device that does not support it."""
    model = 1 if workers is None else workers.model or 1
    if model > 1 and device.runs and not _has_ranks(device):
        raise OptionError(
            f"model={model}: layers are divided among CPUs or GPUs; device={device.name!r} does not divide them. Train "
            "with device='cpu' or device='cuda'."
        )


def _has_ranks(device: Device) -> bool:
    return device.name.startswith("cpu") or _is_gpu(device.name)


def group_of(shards: Shards, workers: Workers | None, device: Device) -> RankGroup | None:
    """The ranks that run a step together; None for a single rank."""
    if workers is not None and shards is not None:
        raise OptionError("shards= simulates workers in one process, and workers= are processes; give one of them.")
    if workers is not None:
        group = workers.join()
        if device.runs and _is_gpu(device.name):
            # imported here because most sessions train on CPUs
            from wholestep.distributed.transport.nccl_group import join_gpus

            return join_gpus(workers, group, int(device.name.partition(":")[2]))
        if device.runs and workers.engine == "nccl":
            raise OptionError(
                f"workers=ws.Workers(engine='nccl'): NCCL exchanges between GPUs, and device={device.name!r} is none. "
                "Train with device='cuda', or leave engine= out."
            )
        if group is not None and device.runs and not _has_ranks(device):
            raise OptionError(
                f"workers=: processes exchange what their CPUs or GPUs have computed; device={device.name!r} has "
                "collectives of one rank alone. Train with device='cpu' or device='cuda', or in one process."
            )
        return group
    if shards is None:
        return None
    data, model = _axes_of(shards)
    if device.runs and not _has_ranks(device):
        raise OptionError(
            f"shards={shards}: the ranks of one process run on its CPU or on one GPU; device={device.name!r} has none. "
            "Train with device='cpu' or device='cuda'."
        )
    return process_group.Shards(data, model)


def _axes_of(shards: object) -> tuple[int, int]:
    """The number of ranks along each axis."""
    axes = shards if isinstance(shards, tuple | list) else (shards, 1)
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in axes)
    if len(axes) != 2 or not whole or axes[0] * axes[1] > MAX_THREADS:
        raise OptionError(
            f"shards={shards!r}: expected an integer from 1 to {MAX_THREADS}, or two of them, (data, model), whose "
            "product is one."
        )
    return axes[0], axes[1]


def need_shard(shard: str | None) -> str | None:
    """Raise OptionError for an unknown value of `shard=`."""
    if shard not in SHARDS:
        raise OptionError(f"shard={shard!r}: expected 'optimizer', or None to keep all of its state in each worker.")
    return shard
