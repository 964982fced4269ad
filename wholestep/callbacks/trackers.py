"""Trackers of experiments as callbacks: MLflow, Weights & Biases, trackio.

Their packages are imported, called and waited for in a thread of their own, behind a bounded queue: a tracker that is
slow, broken or not installed neither delays nor stops a step.  Its first failure is one warning; later records are
counted and dropped.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from queue import Full, Queue
from threading import Thread
from typing import Any

from wholestep.callbacks.base import Callback
from wholestep.callbacks.loggers import flat_settings, run_facts
from wholestep.callbacks.run import Logs, is_detail
from wholestep.errors import OptionError

log = logging.getLogger("wholestep")
CAPACITY = 10_000  # the largest number of records in the queue
LONGEST = 500  # characters of a setting; MLflow refuses longer ones
END = None  # the record after which the thread ends


class Tracker(Callback):
    """Sends settings, environment, identity and the numbers of every epoch to a tracker; the base of its kinds.

    Args:
        project: the project, or experiment, that the run belongs to.
        name: the name of the run; None: the tracker chooses one.
        timeout: the seconds that the end of a run waits for records that are not yet sent.
    """

    tolerant = True
    writes = True  # only one process of a run sends records

    def __init__(self, project: str = "wholestep", name: str | None = None, timeout: float = 30.0) -> None:
        if timeout <= 0:
            raise OptionError(f"{type(self).__name__}: timeout={timeout!r} must be above 0 seconds.")
        self.project, self.name, self.timeout = project, name, timeout
        self.sent = self.dropped = 0
        self.failure: BaseException | None = None
        self.id: str | None = None  # the tracker's id of the run; a resumed run continues under the same id
        self._queue: Queue[tuple[int, dict[str, float]] | None] | None = None
        self._thread: Thread | None = None
        self._is_interrupted = False

    def on_train_begin(self) -> None:
        self._queue = Queue(CAPACITY)
        arguments = (self._queue, self._facts())
        self._thread = Thread(target=self._send_all, args=arguments, name="wholestep-tracker", daemon=True)
        self._thread.start()

    def _facts(self) -> dict[str, Any]:
        """Settings by dotted names, environment, plan and data."""
        config = self.run.config if self.run is not None else {}
        return {**dict(flat_settings(config)), **run_facts(self.run)}

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        numbers = {n: float(v) for n, v in logs.items() if not isinstance(v, list) and not is_detail(n)}
        try:
            if self._queue is not None:
                self._queue.put_nowait((epoch + 1, {n: v for n, v in numbers.items() if math.isfinite(v)}))
        except Full:
            self.dropped += 1

    def on_exception(self, error: BaseException) -> None:
        self._is_interrupted = True

    def on_train_end(self) -> None:
        if self._queue is None or self._thread is None:
            return
        with suppress(Full):  # the tracker hangs: the thread ends with the process
            self._queue.put(END, timeout=self.timeout)
            self._thread.join(self.timeout)
        self._queue = self._thread = None

    def state_dict(self) -> dict[str, Any]:
        return {"id": self.id or ""}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.id = state["id"] or None

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _send_all(self, queue: Queue[tuple[int, dict[str, float]] | None], facts: dict[str, Any]) -> None:
        self._try(self.start, facts)
        while (record := queue.get()) is not END:
            self._try(self.send, *record)
        if self.failure is None:
            self._try(self.finish, not self._is_interrupted)

    def _try(self, call: Any, *arguments: Any) -> None:
        if self.failure is not None:
            self.dropped += call == self.send
            return
        try:
            call(*arguments)
            self.sent += call == self.send
        except BaseException as error:  # a package may raise any exception, including SystemExit
            self.failure = error
            self.dropped += call == self.send
            log.warning(
                "%s failed (%s: %s); the run continues without it", type(self).__name__, type(error).__name__, error
            )

    def start(self, facts: Mapping[str, Any]) -> None:
        """Begin the run in the tracker, or continue the run `self.id`; called first, in the thread."""
        raise NotImplementedError

    def send(self, epoch: int, numbers: Mapping[str, float]) -> None:
        """Send the numbers of an epoch, counted from 1."""
        raise NotImplementedError

    def finish(self, completed: bool) -> None:
        """End the run in the tracker."""
        raise NotImplementedError


class MLflowLogger(Tracker):
    """Logs to MLflow: settings as parameters, environment, plan and data as tags, numbers of epochs as metrics.

    Args:
        uri: the address of the tracking server, or a folder; None: the uri in MLflow's settings.

    Example: `ws.fit(..., callbacks=[ws.callbacks.MLflowLogger("digits", uri="sqlite:///mlflow.db")])`.
    """

    def __init__(
        self, project: str = "wholestep", name: str | None = None, uri: str | None = None, timeout: float = 30.0
    ) -> None:
        super().__init__(project, name, timeout)
        self.uri = uri
        self._client: Any = None

    def start(self, facts: Mapping[str, Any]) -> None:
        entities = import_module("mlflow.entities")
        client = self._client = import_module("mlflow").MlflowClient(self.uri)
        short = {name: str(value)[:LONGEST] for name, value in facts.items()}
        tags = {name: value for name, value in short.items() if name.startswith(("environment.", "identity."))}
        if self.id is not None:
            client.update_run(self.id, "RUNNING")
            return
        experiment = client.get_experiment_by_name(self.project)
        number = client.create_experiment(self.project) if experiment is None else experiment.experiment_id
        self.id = client.create_run(number, tags=tags, run_name=self.name).info.run_id
        parameters = [entities.Param(name, value) for name, value in short.items() if name not in tags]
        for first in range(0, len(parameters), 100):  # at most 100 parameters per request
            client.log_batch(self.id, params=parameters[first : first + 100])

    def send(self, epoch: int, numbers: Mapping[str, float]) -> None:
        import time

        metric, now = import_module("mlflow.entities").Metric, int(1000 * time.time())
        self._client.log_batch(self.id, metrics=[metric(n, v, now, epoch) for n, v in numbers.items()])

    def finish(self, completed: bool) -> None:
        self._client.set_terminated(self.id, "FINISHED" if completed else "FAILED")


class WandbLogger(Tracker):
    """Logs to Weights & Biases: settings, environment, plan and data as the run's config, numbers of epochs.

    Args:
        mode: "online", "offline" (files for `wandb sync`) or "disabled".
        folder: where wandb stores its files; None: the folder in wandb's settings.

    Example: `ws.fit(..., callbacks=[ws.callbacks.WandbLogger("digits", mode="offline")])`.
    """

    def __init__(
        self,
        project: str = "wholestep",
        name: str | None = None,
        mode: str = "online",
        folder: str | None = None,
        timeout: float = 30.0,
    ) -> None:
        super().__init__(project, name, timeout)
        if mode not in ("online", "offline", "disabled"):
            raise OptionError(f"WandbLogger: mode={mode!r}; expected 'online', 'offline' or 'disabled'.")
        self.mode, self.folder = mode, folder
        self._run: Any = None

    def start(self, facts: Mapping[str, Any]) -> None:
        self._run = import_module("wandb").init(
            project=self.project, name=self.name, mode=self.mode, dir=self.folder, config=dict(facts), id=self.id,
            resume="allow", reinit="create_new",
        )  # fmt: skip
        self.id = self._run.id

    def send(self, epoch: int, numbers: Mapping[str, float]) -> None:
        self._run.log({**numbers, "epoch": epoch}, step=epoch)

    def finish(self, completed: bool) -> None:
        self._run.finish(exit_code=0 if completed else 1)


class TrackioLogger(Tracker):
    """Logs to trackio, whose dashboard is local: settings, environment, plan and data as config, numbers of epochs.

    Example: `ws.fit(..., callbacks=[ws.callbacks.TrackioLogger("digits")])`.
    """

    _run: Any = None

    def start(self, facts: Mapping[str, Any]) -> None:
        name = self.id or self.name
        self._run = import_module("trackio").init(
            project=self.project, name=name, config=dict(facts), resume="allow" if self.id else "never", embed=False
        )
        self.id = self._run.name

    def send(self, epoch: int, numbers: Mapping[str, float]) -> None:
        self._run.log({**numbers, "epoch": epoch}, step=epoch)

    def finish(self, completed: bool) -> None:
        self._run.finish()
