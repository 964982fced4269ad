"""Ray Train as supervisor: it places the ranks, starts them again where one is lost, and ends them.

What ranks exchange goes through memory and sockets of ours.  Each worker of Ray starts this program once more, as it
was started here, as a rank: the script travels by its path, nothing of it is pickled, and a rank has a main thread of
its own for signals.
What ranks write goes into files beside the checkpoints, which this process reads.  `ray_backend.py` has what runs
inside Ray's processes.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wholestep.compiler.runtime.threads import default_threads
from wholestep.errors import TrainingInterrupted, UsageError, WorkerError
from wholestep.options import ray_address, read_launch

if TYPE_CHECKING:
    from wholestep.distributed.workers import Workers
    from wholestep.train.experiment import Experiment
    from wholestep.train.history import TrainHistory

INSTALL = "pip install 'wholestep[ray]'"
FOLDER = "ray"  # in the folder of the checkpoints: what Ray keeps, and what ranks wrote
FINISHED, FAILED = "finished", "failed"  # files there: a run has ended well; a script's own mistake has ended it
SETTINGS = {
    # Ray looks after its workers every two seconds unless told: a lost rank is noticed then, and a finished one.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",  # a busy machine takes longer than its minute
    # Its tokens are on by default, but only where the cluster was started: nodes that join must say so too.
    "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the coming default; without it every start warns
}
LOOK = 0.1  # seconds between two looks at what ranks have written


@dataclass(frozen=True)
class RankProgram:
    """A program that is run as ranks: its command line, where it runs, how often it may be started again."""

    command: tuple[str, ...]
    folder: str
    logs: str  # the folder for what ranks write
    restarts: int
    since: float  # when the run began, seconds since 1970


def fit_on_ray(experiment: Experiment, config: Mapping[str, Any] | None) -> TrainHistory:
    """Train on Ray's workers; then the model and its session's state here are as they left them.

    In a worker it is a rank's own training, with which its script ends: what follows `fit` happens once, here.  Of a
    script that fits several times, those that have finished are read there as they are here.
    """
    workers = experiment.workers
    assert workers is not None
    if str(experiment.device).startswith("cuda"):
        raise UsageError(
            f"engine='ray' and device={experiment.device!r}: Ray is asked for CPUs alone. Start workers on GPUs by "
            f"wholestep launch -n {workers.count or 2} ..., with workers=ws.Workers()."
        )
    if workers.checkpoint is None and experiment.checkpoint is not None:
        workers = replace(workers, checkpoint=experiment.checkpoint)
    program, is_rank = this_program(workers), read_launch() is not None
    finished = Path(program.logs) / FINISHED
    if is_rank and not finished.exists():
        own = replace(workers, engine="mpi", checkpoint=None, restarts=0)
        experiment.fit(workers=own, checkpoint=workers.checkpoint, config=config)
        raise SystemExit(0)
    if not is_rank:
        finished.unlink(missing_ok=True)
        run_on_ray(workers)
        finished.touch()
    return _collect_results(experiment, workers)


def _collect_results(experiment: Experiment, workers: Workers) -> TrainHistory:
    """What a run has left in its folder, given to the model."""
    from wholestep.train.checkpoint import load_checkpoint

    assert workers.checkpoint is not None
    stored = load_checkpoint(workers.checkpoint)
    trainer, loader = experiment.having({"workers": None, "shards": workers.shards}).trainer()
    stored.restore(trainer.session, loader=loader)
    return stored.history


def run_on_ray(workers: Workers) -> None:
    """Run this program as ranks on Ray's workers, to its end; WorkerError where it fails once more than it may.

    A cluster that this process is connected to, or that RAY_ADDRESS names, is used; else one is started here.
    """
    program = this_program(workers)
    assert workers.count is not None, "checked with the program"
    (Path(program.logs) / FAILED).unlink(missing_ok=True)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray

    own, address = not ray.is_initialized(), ray_address()
    if own:
        room = {} if address else {"num_cpus": max(default_threads(), workers.count)}  # workers may share cores
        ray.init(address=address or "local", logging_level="error", log_to_driver=False, **room)
    try:
        with show_rank_output(Path(program.logs)):
            _supervise(program, workers.count)
    finally:
        if own:
            ray.shutdown()


def this_program(workers: Workers) -> RankProgram:
    """The program that runs here, to be started again; UsageError where it cannot be, or where something is missing."""
    if find_spec("ray") is None:
        raise UsageError(f"engine='ray' needs ray, which is not installed: {INSTALL}.")
    if workers.count is None:
        raise UsageError("engine='ray' asks for workers, and has to know how many: ws.Workers(4, engine='ray', ...).")
    if workers.checkpoint is None:
        raise UsageError(
            "engine='ray' starts workers again from the last checkpoint: name a folder that all machines see, "
            "ws.Workers(4, engine='ray', checkpoint='runs/a')."
        )
    if getattr(sys.modules.get("__main__"), "__file__", None) is None:
        raise UsageError(
            "engine='ray' starts this program's script again on every worker, and there is none: it was typed in, or "
            "given by -c. Write it into a file and run that: python train.py."
        )
    logs = Path(workers.checkpoint).resolve() / FOLDER
    command = (sys.executable, *sys.orig_argv[1:])
    return RankProgram(command, os.fspath(Path.cwd()), os.fspath(logs), workers.restarts, time.time())


def _supervise(program: RankProgram, count: int) -> None:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    from ray.train.v2.api.exceptions import TrainingFailedError

    from wholestep.distributed.launch.ray_backend import RankConfig, run_rank

    trainer = DataParallelTrainer(
        run_rank,
        train_loop_config={"program": program},
        backend_config=RankConfig(program),
        scaling_config=ScalingConfig(num_workers=count),
        run_config=RunConfig(
            name=f"run-{program.since:.0f}",
            storage_path=program.logs,
            failure_config=FailureConfig(max_failures=program.restarts),
        ),
    )
    try:
        result = trainer.fit()
    except TrainingFailedError as error:
        raise WorkerError(
            f"the run failed on Ray's workers, after {program.restarts} restarts. What ranks wrote is in "
            f"{program.logs}/rank-*.log. {error}"
        ) from error
    failed = Path(program.logs) / FAILED
    if failed.exists():
        raise WorkerError(f"the run failed on Ray's workers: {failed.read_text()}")
    code = int((result.metrics or {}).get("code", 0))
    if code:  # asked to end, ranks have saved
        raise TrainingInterrupted(code)


# -- what ranks write ------------------------------------------------------------------------------------------------


def log_of(folder: Path, rank: int) -> Path:
    """The file that a rank writes to."""
    return folder / f"rank-{rank}.log"


@contextmanager
def show_rank_output(folder: Path) -> Iterator[None]:
    """Meanwhile show what ranks write: that of the first as it is, that of the others behind their number."""
    folder.mkdir(parents=True, exist_ok=True)
    seen = {path: path.stat().st_size for path in folder.glob("rank-*.log")}
    done = threading.Event()

    def follow() -> None:
        while not done.wait(LOOK):
            _show(folder, seen)

    reader = threading.Thread(target=follow, daemon=True)
    reader.start()
    try:
        yield
    finally:
        done.set()
        reader.join()
        _show(folder, seen)


def _show(folder: Path, seen: dict[Path, int]) -> None:
    for path in sorted(folder.glob("rank-*.log")):
        with path.open("rb") as file:
            file.seek(seen.get(path, 0))
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]  # the rest of a line may still come
        seen[path] = seen.get(path, 0) + len(whole)
        rank = path.stem.removeprefix("rank-")
        prefix = "" if rank == "0" else f"[{rank}] "
        for line in whole.decode(errors="replace").splitlines():
            sys.stdout.write(f"{prefix}{line}\n")
        sys.stdout.flush()
