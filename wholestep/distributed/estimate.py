"""Estimate of a step on many ranks: the report of one rank's plan, its bytes on the wire, and seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil

from wholestep.compiler.backend import Placement
from wholestep.compiler.ir.mesh import MODEL, Mesh
from wholestep.compiler.ir.types import Dim, evaluate
from wholestep.compiler.plan.io.report import PlanReport
from wholestep.compiler.plan.io.traffic import collectives_of, price_kernel
from wholestep.compiler.plan.model.kernel import Plan
from wholestep.compiler.plan.model.target_formats import footprint
from wholestep.compiler.target import Target
from wholestep.distributed.network import CollectiveCost, Network, as_network
from wholestep.distributed.workers import Workers
from wholestep.errors import OptionError, UsageError
from wholestep.session.building.plans import Plans
from wholestep.steps.definition import Definition


@dataclass(frozen=True, kw_only=True)
class WorkersReport(PlanReport):
    """The plan of one rank and the cost of a step over all ranks; `str()` is the table."""

    workers: int
    grid: Mesh
    network: Network
    exchanges: tuple[CollectiveCost, ...]
    compute_seconds: float  # time of one rank's kernels, by the target's cost model

    @property
    def wire_bytes(self) -> int:
        """Bytes that a rank sends in a step, on average over ranks, rounded up: 2(n - 1) / n of what it reduces.

        It reduces gradients, the loss and the sums of metrics.
        """
        return ceil(sum(e.bytes_sent(self.grid.axis_size(e.axis)) for e in self.exchanges))

    def wire_bytes_along(self, axis: str) -> Fraction:
        """The bytes sent along one axis of the mesh, "data" or "model"."""
        return sum((e.bytes_sent(self.grid.axis_size(axis)) for e in self.exchanges if e.axis == axis), Fraction(0))

    @property
    def wire_bytes_of_all(self) -> int:
        """Bytes that all ranks together send in a step, exactly: 2(n - 1) times what each reduces."""
        return int(sum(self.workers * e.bytes_sent(self.grid.axis_size(e.axis)) for e in self.exchanges))

    @property
    def gradient_bytes(self) -> int:
        """The bytes of all gradients, most of what is exchanged."""
        types = [self.plan.buffers[parameter].type for parameter, _ in self.plan.param_grad_pairs]
        return sum(evaluate(t.elements, self.plan.sizes) * t.dtype.size for t in types)

    @property
    def exchange_seconds(self) -> float:
        """The time of all collectives of a step."""
        return sum(e.seconds(self.grid.axis_size(e.axis), self.network) for e in self.exchanges)

    @property
    def step_seconds(self) -> float:
        """The seconds of computing and then exchanging, without overlap."""
        return self.compute_seconds + self.exchange_seconds

    @property
    def efficiency(self) -> float:
        """The fraction of a step in which a rank computes."""
        return self.compute_seconds / self.step_seconds if self.step_seconds else 1.0

    def __str__(self) -> str:
        latency = sum(replace(e, bytes=0).seconds(self.grid.axis_size(e.axis), self.network) for e in self.exchanges)
        shown = f"{self.workers:,}" if self.grid.model == 1 else str(self.grid)
        return "\n".join(
            [
                super().__str__(),
                "",
                f"{shown} workers, {self.network}",
                f"  {'collectives':<16}{len(self.exchanges):>14,}  of {sum(e.bytes for e in self.exchanges):,} bytes",
                f"  {'sent by a rank':<16}{self.wire_bytes:>14,}  bytes a step",
                *[f"  {'along model':<16}{ceil(self.wire_bytes_along(MODEL)):>14,}  of them"] * (self.grid.model > 1),
                f"  {'computing':<16}{1e3 * self.compute_seconds:>11,.3f} ms  by the prices of {self.plan.target}",
                f"  {'exchanging':<16}{1e3 * self.exchange_seconds:>11,.3f} ms  {1e3 * latency:,.3f} ms of it latency",
                f"  {'step':<16}{1e3 * self.step_seconds:>11,.3f} ms  {self.efficiency:.1%} of it computing",
            ]
        )


def workers_report(
    definition: Definition,
    placement: Placement,
    workers: int | Workers,
    network: str | Network,
    shard: str | None = None,
) -> WorkersReport:
    """The estimate of a step whose batch is divided among ranks."""
    network, target, grid = as_network(network), placement.device.target, _mesh_of(workers)
    shard = shard or (workers.shard if isinstance(workers, Workers) else None)
    _need_rows(definition, grid.data)
    of_rank = definition
    if grid.size > 1:
        of_rank = replace(definition, ranks=grid.data, shard=shard, model_ranks=grid.model, traced={}, splits={})
    plan, _ = Plans(of_rank, replace(placement.options, cache=False), target).plan_with_report(definition.main)
    return WorkersReport(
        plan,
        placement.threads,
        footprint(plan, placement.threads),
        f"estimate of one of {grid.size:,} ranks",
        workers=grid.size,
        grid=grid,
        network=network,
        exchanges=tuple(exchanges_of(plan)) if grid.size > 1 else (),
        compute_seconds=compute_seconds(plan, target, placement.threads),
    )


def compute_seconds(plan: Plan, target: Target, threads: int) -> float:
    """The time of a step's kernels by the target's cost model, which prices one thread of a CPU, or a whole GPU."""
    total = sum(max(price_kernel(kernel, plan.buffers, target.costs)) for kernel in plan.kernels)
    return 1e-9 * total / (threads if target.family == "cpu" else 1)


def exchanges_of(plan: Plan) -> Iterator[CollectiveCost]:
    """The collectives of a rank's plan, in the order of execution."""
    return (CollectiveCost(*collective) for collective in collectives_of(plan))


def _mesh_of(workers: object) -> Mesh:
    """The number of ranks along each axis."""
    if isinstance(workers, Workers):
        if workers.count is None:
            raise OptionError("estimate has to know how many workers there are: ws.Workers(data=4, model=2).")
        return Mesh(workers.count // (workers.model or 1), workers.model or 1)
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise OptionError(f"workers must be an integer of at least 1, or ws.Workers(...); received {workers!r}.")
    return Mesh(workers)


def _need_rows(definition: Definition, workers: int) -> None:
    """Raise unless the inputs have a batch axis with at least one row for each worker."""
    first = next(iter(definition.graph.inputs.values()), None)
    extent = first.shape[0] if first is not None and first.shape else None
    symbol = str(extent)
    if not isinstance(extent, Dim) or symbol not in definition.capacity:
        raise UsageError(
            "workers= divides the batch: the first axis of the first input is a symbol such as 'batch', and "
            f"batch_size= its size over all workers. Received a first axis of {extent!r}."
        )
    rows = definition.capacity[symbol]
    if rows < workers:
        raise OptionError(
            f"batch_size={rows:,} is the whole batch, and {workers:,} workers would not have a row each. Give at "
            f"least batch_size={workers:,}."
        )
