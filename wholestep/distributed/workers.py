"""`ws.Workers`: how many processes train one model together, and how they share the work."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

from wholestep.errors import OptionError
from wholestep.options import read_launch

if TYPE_CHECKING:
    from wholestep.compiler.runtime.process_group import RankGroup

ENGINES = ("mpi", "nccl", "ray")
SHARDS = (None, "optimizer")


@dataclass(frozen=True)
class Workers:
    """Processes that compute each step together: all run the same script, each over its own rows of each batch.

    Args:
        count: the number of processes; None: as many as were started, `wholestep launch -n 4`.
        engine: "mpi": processes that `wholestep launch`, `mpiexec` or `srun` has started.  "ray": this process asks Ray
            for them, which restarts them if one is lost.  GPUs always communicate by NCCL; "nccl" requires it of a
            single process, too.
        shard: "optimizer": each process keeps a shard of the optimizer's state, and updates its shard of the weights.
        data: data parallelism: the number of parts of a batch; `count = data * model`.
        model: tensor parallelism: the number of processes that have the same rows and divide the layers with `split=`.
            They are consecutive ranks, 0 to `model - 1` and so on, best on one machine.
        checkpoint: for "ray": the folder from which restarts continue; `fit` keeps its checkpoints there.
        restarts: for "ray": the most restarts; for MPI it is `wholestep launch --restarts 3`.
        timeout: seconds that a process waits for the others before the run ends with a `WorkerError`.

    Example: `ws.fit(model, (x, y), loss="cross_entropy", workers=ws.Workers(4))`.
    """

    count: int | None = None
    engine: str = "mpi"
    shard: str | None = None
    data: int | None = None
    model: int | None = None
    checkpoint: str | PathLike[str] | None = None
    restarts: int = 0
    timeout: float = 300.0

    def __post_init__(self) -> None:
        if self.engine not in ENGINES:
            raise OptionError(f"Workers: engine={self.engine!r}; expected one of {', '.join(map(repr, ENGINES))}.")
        if self.shard not in SHARDS:
            raise OptionError(f"Workers: shard={self.shard!r}; expected 'optimizer', or None for no sharding.")
        for name, least in (("count", 1), ("data", 1), ("model", 1), ("restarts", 0)):
            value = getattr(self, name)
            if (value is None and name != "restarts") or _is_integer(value, least):
                continue
            raise OptionError(f"Workers: {name} must be an integer of at least {least}; received {value!r}.")
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not self.timeout > 0:
            raise OptionError(f"Workers: timeout must be a number of seconds above 0; received {self.timeout!r}.")
        self._need_axes()

    def _need_axes(self) -> None:
        """Derive the missing number in count = data * model; with `model` alone, the launcher determines count."""
        if self.data is None and (self.model is None or self.count is None):
            return
        product = (self.data or 1) * (self.model or 1)
        if self.count is None:
            object.__setattr__(self, "count", product)
        elif self.data is None and self.count % product == 0:
            object.__setattr__(self, "data", self.count // product)
        elif self.model is None and self.count % product == 0:
            object.__setattr__(self, "model", self.count // product)
        elif self.count != product:
            raise OptionError(
                f"Workers: count={self.count} is not data={self.data or 1} times model={self.model or 1}, {product}; "
                "leave one of them out."
            )

    @property
    def shards(self) -> int | tuple[int, int] | None:
        """The value of `shards=` that computes the same bits in one process."""
        return self.count if (self.model or 1) == 1 or self.data is None else (self.data, self.model or 1)

    @property
    def rank(self) -> int:
        """The rank of this process, from 0; 0 for a process that was started alone."""
        launch = read_launch()
        return 0 if launch is None else launch.rank

    def join(self) -> RankGroup | None:
        """Join the process group of this job; return None in a process that was started alone."""
        from wholestep.distributed.launch.joining import join  # imported here because most processes are started alone

        return join(self)


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least
