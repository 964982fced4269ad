"""`HTTPLogger`: what a server receives, and that a broken or hanging one neither stops nor delays a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import wholestep as ws
from wholestep.errors import OptionError

X = np.random.default_rng(0).normal(size=(64, 4)).astype("f")
Y = X[:, :1].copy()


@contextmanager
def server(answer: Callable[[BaseHTTPRequestHandler, bytes], int]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(answer(self, self.rfile.read(int(self.headers["Content-Length"]))))
            self.end_headers()

        def log_message(self, *arguments: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        httpd.daemon_threads = True
        Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}/runs/7"
        httpd.shutdown()


def fit(callback: ws.Callback | None, **options: Any) -> ws.TrainHistory:
    ws.manual_seed(0)
    return ws.fit(
        ws.nn.Linear(4, 1), (X, Y), loss="mse", epochs=3, batch_size=16, progress=False, device="reference", seed=0,
        callbacks=[] if callback is None else [callback], **options,
    )  # fmt: skip


def test_a_server_receives_every_record_in_order() -> None:
    received: list[dict[str, Any]] = []
    heads: list[dict[str, str]] = []

    def answer(handler: BaseHTTPRequestHandler, body: bytes) -> int:
        heads.append({**handler.headers})
        received.extend(json.loads(line) for line in body.decode().splitlines())
        return 200

    with server(answer) as url:
        logger = ws.callbacks.HTTPLogger(url, steps=True, headers={"Authorization": "Bearer me"})
        history = fit(logger, validation=(X, Y), validate_every_steps=2)
    assert (logger.sent, logger.failed, logger.dropped) == (len(received), 0, 0)
    epochs = [r for r in received if r["event"] == "epoch"]
    assert [r["loss"] for r in epochs] == list(history["loss"])
    assert [(r["epoch"], r["step"]) for r in received if r["event"] == "step"] == [
        (e, s) for e in range(3) for s in range(4)
    ]
    assert [r["step"] for r in received if r["event"] == "validation"] == [2, 2, 2]
    assert heads[0]["Authorization"] == "Bearer me"
    assert heads[0]["Content-Type"] == "application/x-ndjson"


def test_a_broken_server_is_one_warning_and_the_run_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    with server(lambda handler, body: 500) as url, caplog.at_level(logging.WARNING, "wholestep"):
        logger = ws.callbacks.HTTPLogger(url)
        history = fit(logger)
    with caplog.at_level(logging.WARNING, "wholestep"):
        absent = ws.callbacks.HTTPLogger(url)  # nobody listens there now
        fit(absent)
    assert list(history["loss"]) == list(fit(None)["loss"])
    assert (logger.sent, logger.failed) == (0, 3)
    assert (absent.sent, absent.failed) == (0, 3)
    assert [r.message.count("could not be reached") for r in caplog.records if "HTTPLogger" in r.message] == [1, 1]


def test_a_hanging_server_costs_the_timeout_once_and_drops_what_does_not_fit() -> None:
    release = Event()

    def hang(handler: BaseHTTPRequestHandler, body: bytes) -> int:
        release.wait(120)
        return 200

    fit(None)
    with server(hang) as url:
        logger = ws.callbacks.HTTPLogger(url, steps=True, timeout=0.5, capacity=4)
        began = perf_counter()
        history = fit(logger)
        seconds, sent = perf_counter() - began, logger.sent
        release.set()
    assert len(history.epochs) == 3
    assert seconds < 60
    assert sent == 0
    assert logger.dropped + logger.failed >= 15 - 5 - 4  # five records may be in a request, and four wait


def test_mistakes_are_explained() -> None:
    with pytest.raises(OptionError, match="expected a URL such as"):
        ws.callbacks.HTTPLogger("metrics.example")
    with pytest.raises(OptionError, match="capacity=0"):
        ws.callbacks.HTTPLogger("http://metrics.example", capacity=0)
