"""`HTTPLogger`: sends the numbers of a run to a server, from a thread that never delays a step.

The loop only puts a record into a bounded queue.  A daemon thread sends what has gathered as one request; a full queue
drops the new record, a failed request its records.  Both are counted, and the first failure is one warning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from queue import Empty, Full, Queue
from threading import Thread
from typing import Any
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from wholestep.callbacks.base import Callback
from wholestep.callbacks.loggers import finite_values
from wholestep.callbacks.run import Logs, StepMetrics
from wholestep.errors import OptionError

log = logging.getLogger("wholestep")
MOST = 500  # the largest number of records in one request


class HTTPLogger(Callback):
    """Posts JSON lines to a URL: one object per epoch, per validation inside one, and per step with `steps=True`.

    A server that is slow, broken or absent neither delays nor stops the run: `sent`, `failed` and `dropped` count
    records.  At the end of the run the remaining records are sent, for at most `timeout` seconds.

    Args:
        url: where to; requests are POST with the type application/x-ndjson.
        steps: also send the loss of every step.
        headers: more headers of the requests, such as {"Authorization": "Bearer ..."}.
        timeout: the seconds after which a request has failed.
        capacity: the records that may wait.

    Example: `ws.callbacks.HTTPLogger("https://metrics.example/runs/7")`.
    """

    tolerant = True
    writes = True  # only one process of a run sends records

    def __init__(
        self,
        url: str,
        steps: bool = False,
        headers: Mapping[str, str] | None = None,
        timeout: float = 5.0,
        capacity: int = 10_000,
    ) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).netloc:
            raise OptionError(f"HTTPLogger: expected a URL such as 'https://host/path'; received {url!r}.")
        if timeout <= 0 or capacity < 1:
            raise OptionError(f"HTTPLogger: timeout={timeout!r} and capacity={capacity!r} must be above 0.")
        self.url, self.steps, self.timeout, self.capacity = url, steps, timeout, capacity
        self.headers = {"Content-Type": "application/x-ndjson", **(headers or {})}
        self.sent = self.failed = self.dropped = 0
        self._queue: Queue[dict[str, Any] | None] | None = None
        self._thread: Thread | None = None

    def on_train_begin(self) -> None:
        self._queue = Queue(self.capacity)
        self._thread = Thread(target=self._send_all, args=(self._queue,), name="wholestep-telemetry", daemon=True)
        self._thread.start()

    def on_step(self, metrics: StepMetrics) -> None:
        if self.steps:
            self._put({"event": "step", "epoch": metrics.epoch, "step": metrics.step, "loss": metrics.loss})

    def on_validation(self, epoch: int, step: int, logs: Logs) -> None:
        self._put({"event": "validation", "epoch": epoch, "step": step, **logs})

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        self._put({"event": "epoch", "epoch": epoch, **logs})

    def on_train_end(self) -> None:
        if self._queue is None or self._thread is None:
            return
        with suppress(Full):  # the server hangs: the thread ends with the process
            self._queue.put(None, timeout=self.timeout)
            self._thread.join(self.timeout)
        self._queue = self._thread = None

    def _put(self, record: dict[str, Any]) -> None:
        try:
            if self._queue is not None:
                self._queue.put_nowait(record)
        except Full:
            self.dropped += 1

    # -- in the thread ---------------------------------------------------------------------------------------------

    def _send_all(self, queue: Queue[dict[str, Any] | None]) -> None:
        """Send what has gathered until None arrives."""
        ended = False
        while not ended:
            records = [queue.get()]
            with suppress(Empty):
                while len(records) < MOST:
                    records.append(queue.get_nowait())
            ended = None in records
            self._send([r for r in records if r is not None])

    def _send(self, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        text = "".join(json.dumps(finite_values(r), allow_nan=False) + "\n" for r in records)
        try:
            with urlopen(Request(self.url, text.encode(), self.headers, method="POST"), timeout=self.timeout):
                self.sent += len(records)
        except (URLError, OSError, ValueError) as error:
            if not self.failed:
                log.warning("HTTPLogger: %s could not be reached (%s); the run continues without it", self.url, error)
            self.failed += len(records)
