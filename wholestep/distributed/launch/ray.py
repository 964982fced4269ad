"""Ray Train as supervisor: it places the ranks, restarts them if one is lost, and ends them.

Ranks communicate through our own transports.  Each of Ray's workers starts this program again as a rank, with the same
command line: nothing is pickled, and a rank has its own main thread for signals.  Ranks write into log files next to
the checkpoints, which this process copies to its output.  `ray_backend.py` is the part inside Ray's processes.
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
FOLDER = "ray"  # in the folder of the checkpoints: Ray's files, and the logs of ranks
FINISHED, FAILED = "finished", "failed"  # names of files there: the run succeeded; an error of the script ended it
SETTINGS = {
    # By default Ray polls its workers every two seconds, and notices lost and finished ranks only then.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",  # a busy machine needs more than the default minute
    # Tokens are on by default where the cluster was started, but not on nodes that join it.
    "RAY_AUTH_MODE": "token",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the future default; without it every start warns
}
POLL = 0.1  # seconds between two reads of the ranks' logs


@dataclass(frozen=True)
class RankProgram:
    """A program that runs as ranks: its command line, folder, logs and the number of restarts."""

    command: tuple[str, ...]
    folder: str
    logs: str  # folder of the ranks' logs
    restarts: int
    since: float  # start of the run, in seconds since 1970


def fit_on_ray(experiment: Experiment, config: Mapping[str, Any] | None) -> TrainHistory:
    """Train on Ray's workers; then load their result into the model of this process.

    In a worker it trains as a rank and then ends the script, so that the lines after `fit` run once, here.  If a script
    calls `fit` several times, workers load the results of finished runs as this process does.
    """
    workers = experiment.workers
    assert workers is not None
    if str(experiment.device).startswith("cuda"):
        raise UsageError(
            f"engine='ray' and device={experiment.device!r}: Ray workers run on CPUs only. Start workers on GPUs by "
            f"wholestep launch -n {workers.count or 2} ..., with workers=ws.Workers()."
        )
    if workers.checkpoint is None and experiment.checkpoint is not None:
        workers = replace(workers, checkpoint=experiment.checkpoint)
    program, is_rank = this_program(workers), read_launch() is not None
    finished = Path(program.logs) / FINISHED
    if is_rank and not finished.exists():
        of_rank = replace(workers, engine="mpi", checkpoint=None, restarts=0)
        experiment.fit(workers=of_rank, checkpoint=workers.checkpoint, config=config)
        raise SystemExit(0)
    if not is_rank:
        finished.unlink(missing_ok=True)
        run_on_ray(workers)
        finished.touch()
    return _collect_results(experiment, workers)


def _collect_results(experiment: Experiment, workers: Workers) -> TrainHistory:
    """Load the checkpoint of a finished run into the model."""
    from wholestep.train.checkpoint import load_checkpoint

    assert workers.checkpoint is not None
    stored = load_checkpoint(workers.checkpoint)
    trainer, loader = experiment.having({"workers": None, "shards": workers.shards}).trainer()
    stored.restore(trainer.session, loader=loader)
    return stored.history


def run_on_ray(workers: Workers) -> None:
    """Run this program as ranks on Ray's workers, to its end; WorkerError if it fails after all restarts.

    It uses the cluster to which this process is connected, or that RAY_ADDRESS names; else it starts one here.
    """
    program = this_program(workers)
    assert workers.count is not None, "this_program checks it"
    (Path(program.logs) / FAILED).unlink(missing_ok=True)
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    import ray

    owns_cluster, address = not ray.is_initialized(), ray_address()
    if owns_cluster:
        resources = {} if address else {"num_cpus": max(default_threads(), workers.count)}  # workers may share cores
        ray.init(address=address or "local", logging_level="error", log_to_driver=False, **resources)
    try:
        with show_rank_output(Path(program.logs)):
            _supervise(program, workers.count)
    finally:
        if owns_cluster:
            ray.shutdown()


def this_program(workers: Workers) -> RankProgram:
    """This program as a command for ranks; UsageError if it cannot be started again, or if Ray is missing."""
    if find_spec("ray") is None:
        raise UsageError(f"engine='ray' needs ray, which is not installed: {INSTALL}.")
    if workers.count is None:
        raise UsageError("engine='ray' needs the number of workers: ws.Workers(4, engine='ray', ...).")
    if workers.checkpoint is None:
        raise UsageError(
            "engine='ray' starts workers again from the last checkpoint: name a folder that all machines see, "
            "ws.Workers(4, engine='ray', checkpoint='runs/a')."
        )
    if getattr(sys.modules.get("__main__"), "__file__", None) is None:
        raise UsageError(
            "engine='ray' starts this program's script again on every worker, but it has no file: it was typed in, or "
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
        raise WorkerError(f"the run failed on Ray's workers: {failed.read_text(encoding='utf-8')}")
    code = int((result.metrics or {}).get("code", 0))
    if code:  # a signal ended the ranks, after they had saved
        raise TrainingInterrupted(code)


# -- what ranks write ------------------------------------------------------------------------------------------------


def log_of(folder: Path, rank: int) -> Path:
    """The log file of a rank."""
    return folder / f"rank-{rank}.log"


@contextmanager
def show_rank_output(folder: Path) -> Iterator[None]:
    """Copy the ranks' logs to our output while the context is open; ranks other than 0 prefix their number."""
    folder.mkdir(parents=True, exist_ok=True)
    seen = {path: path.stat().st_size for path in folder.glob("rank-*.log")}
    done = threading.Event()

    def follow() -> None:
        while not done.wait(POLL):
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
        lines = new[: new.rfind(b"\n") + 1]  # an incomplete line is kept until its rest arrives
        seen[path] = seen.get(path, 0) + len(lines)
        rank = path.stem.removeprefix("rank-")
        prefix = "" if rank == "0" else f"[{rank}] "
        for line in lines.decode(errors="replace").splitlines():
            sys.stdout.write(f"{prefix}{line}\n")
        sys.stdout.flush()
