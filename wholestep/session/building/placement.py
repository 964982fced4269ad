"""From the arguments of `build_session` to the record of where a session runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wholestep.compiler.backend import Device, Placement
from wholestep.compiler.devices import device_named, device_text
from wholestep.compiler.frontend.precision import TF32
from wholestep.compiler.runtime.process_group import RankGroup
from wholestep.compiler.runtime.threads import MAX_THREADS, default_threads
from wholestep.errors import OptionError
from wholestep.options import CompileOptions, thread_count
from wholestep.steps.networks import check_seed, seed_or_default

if TYPE_CHECKING:
    from wholestep.distributed.workers import Workers

SHARDS = (None, "optimizer")
Shards = int | tuple[int, int] | None  # how many workers' steps one process makes, or how many along each axis


def where_to(
    device: str = "cpu",
    threads: int | None = None,
    seed: int | None = None,
    options: CompileOptions | None = None,
    precision: object = "float32",
    shards: int | tuple[int, int] | None = None,
    workers: Workers | None = None,
    shard: str | None = None,
) -> Placement:
    """What the arguments of `build_session` mean; an OptionError says which one means nothing."""
    if seed is not None:
        check_seed(seed)
    need_workers(workers)
    count = thread_count(threads, default_threads(), MAX_THREADS)
    if workers is not None and _is_gpu(device):
        from wholestep.distributed.transport.nccl_group import take_gpu  # most run alone

        take_gpu(workers)
    found = device_named(device, TF32 if precision == TF32 else "")
    divided = shard_of(shard, shards, workers)
    need_whole_layers(workers, found)
    group, number = group_of(shards, workers, found), seed_or_default(seed)
    return Placement(found, count, number, options or CompileOptions(), group, divided, seeded=seed is not None)


def _is_gpu(device: object) -> bool:
    device = device_text(device)
    return isinstance(device, str) and device.partition(":")[0].partition("/")[0] == "cuda"


def need_workers(workers: object) -> None:
    """OptionError where somebody means Keras' threads that load data."""
    if isinstance(workers, int):  # Keras' threads that load data
        raise OptionError(
            f"workers={workers}: these are processes that train together, workers=ws.Workers({workers}), started by "
            f"`wholestep launch -n {workers}`. Batches are made by a thread: ws.DataLoader(data, prefetch=2)."
        )


def shard_of(shard: str | None, shards: Shards, workers: Workers | None) -> str | None:
    """What is divided among ranks beside the batch."""
    need_shard(shard)
    if shard is not None and shards is None and workers is None:
        raise OptionError(f"shard={shard!r} divides among workers, and there are none: give shards=4, or workers=.")
    return shard or (None if workers is None else workers.shard)


def need_whole_layers(workers: Workers | None, device: Device) -> None:
    """OptionError where workers are to divide layers on a device that keeps them whole."""
    model = 1 if workers is None else workers.model or 1
    if model > 1 and device.runs and not _has_ranks(device):
        raise OptionError(
            f"model={model}: layers are divided among CPUs or GPUs; device={device.name!r} keeps them whole. Train "
            "with device='cpu' or device='cuda'."
        )


def _has_ranks(device: Device) -> bool:
    return device.name.startswith("cpu") or _is_gpu(device.name)


def group_of(shards: Shards, workers: Workers | None, device: Device) -> RankGroup | None:
    """The ranks that make a step together."""
    if workers is not None and shards is not None:
        raise OptionError("shards= makes the steps of workers in one process, and workers= has them; give one of both.")
    if workers is not None:
        group = workers.join()
        if device.runs and _is_gpu(device.name):
            from wholestep.distributed.transport.nccl_group import join_gpus  # most train on CPUs

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
    from wholestep.compiler.runtime import shards as threads  # most are alone

    return threads.Shards(data, model)


def _axes_of(shards: object) -> tuple[int, int]:
    """How many ranks stand along each axis."""
    given = shards if isinstance(shards, tuple | list) else (shards, 1)
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in given)
    if len(given) != 2 or not whole or given[0] * given[1] > MAX_THREADS:
        raise OptionError(
            f"shards={shards!r}: expected a whole number from 1 to {MAX_THREADS}, or two of them, (data, model), whose "
            "product is one."
        )
    return given[0], given[1]


def need_shard(shard: str | None) -> str | None:
    """What `shard=` says; an OptionError where it means nothing."""
    if shard not in SHARDS:
        raise OptionError(f"shard={shard!r}: expected 'optimizer', or None to keep all of its state in each worker.")
    return shard
