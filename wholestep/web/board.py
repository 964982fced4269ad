"""`wholestep board`: the page of `report` over a folder of runs, served to browsers of this machine while runs go on.

The server of the standard library listens on the loopback interface only, and answers only under a path with a random
token, to requests whose `Host` is its own (another site that resolves to this machine gets nothing).  It only reads.
Names in requests are looked up in a listing of the folder: no path is built from a request.  The page polls; a run is
read again only if its newest manifest has changed.
"""

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from wholestep.errors import CheckpointError, UsageError, WholestepError
from wholestep.train.checkpoint.folder import checkpoints_in, runs_below
from wholestep.train.checkpoint.format import MANIFEST
from wholestep.web.bundle import html
from wholestep.web.report import describe_run, plain
from wholestep.web.steps import describe_plan_file, plan_files

HOST = "127.0.0.1"
EVERY = 1000  # milliseconds between two requests of the page


def stamp_of(run: Path) -> str:
    """A text that changes when a run has a newer checkpoint."""
    newest = checkpoints_in(run)[-1:]
    try:
        return "".join(f"{each.path.name} {(each.path / MANIFEST).stat().st_mtime_ns}" for each in newest)
    except OSError:  # the checkpoint was removed, or is incomplete
        return newest[0].path.name


@dataclass
class Board:
    """Answers to the requests of the page, as JSON; descriptions of runs are cached by their stamps."""

    folder: Path
    token: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    _runs: dict[str, Path] = field(default_factory=dict)
    _cache: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def page(self) -> bytes:
        """The page of `report` without runs: it asks for them."""
        description = {"runs": [], "steps": [], "predictions": {}, "every": EVERY}
        return html("report", description, title=f"Runs in {self.folder}", asks=True).encode()

    def list_runs(self) -> bytes:
        """The names of runs and their stamps."""
        runs = runs_below(self.folder)
        with self._lock:
            self._runs = runs
        return _json([{"name": name, "stamp": stamp_of(path)} for name, path in runs.items()])

    def run(self, name: str) -> bytes | None:
        """The description of a run, or of the problem if the run cannot be read."""
        path = self._path(name)
        if path is None:
            return None
        stamp = stamp_of(path)
        cached = self._cache.get(name)
        if cached is None or cached[0] != stamp:
            cached = self._cache[name] = stamp, self._describe(path)
        return cached[1]

    def _describe(self, path: Path) -> bytes:
        try:
            described = {**describe_run(path, len(self._runs)), "plans": [file.name for file in plan_files(path)]}
        except (CheckpointError, OSError) as error:
            described = {"problem": str(error)}
        return _json(plain(described))

    def step(self, name: str, plan: str) -> bytes | None:
        """A stored plan of a run."""
        path = self._path(name)
        file = next((f for f in plan_files(path) if f.name == plan), None) if path is not None else None
        return None if file is None else _json(plain({"runs": [name], **describe_plan_file(file)}))

    def _path(self, name: str) -> Path | None:
        if not self._runs:
            self.list_runs()
        return self._runs.get(name)


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


class BoardServer(ThreadingHTTPServer):
    """A server of one board; `url` is what a browser opens."""

    daemon_threads = True

    def __init__(self, board: Board, port: int = 0) -> None:
        self.board = board
        super().__init__((HOST, port), _Handler)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/{self.board.token}/"


class _Handler(BaseHTTPRequestHandler):
    """Answers GET; every other request, and every path without the token, is refused without a reason."""

    server: BoardServer
    server_version, sys_version = "wholestep", ""
    timeout = 30  # seconds in which a client must send its request

    def do_GET(self) -> None:
        board, parts = self.server.board, urlsplit(self.path)
        first, _, rest = parts.path.removeprefix("/").partition("/")
        own_hosts = {f"{HOST}:{self.server.server_port}", f"localhost:{self.server.server_port}"}
        is_ours = self.headers.get("Host") in own_hosts
        if not is_ours or not secrets.compare_digest(first.encode(), board.token.encode()):
            self.send_error(403)
            return
        asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
        try:
            body, kind = self._answer(rest, asked)
        except WholestepError as error:
            body, kind = _json({"problem": str(error)}), "application/json"
        if body is None:
            self.send_error(404)
            return
        self.send_response(200)
        self._send_headers(kind, len(body))
        self.wfile.write(body)

    def _answer(self, path: str, asked: dict[str, str]) -> tuple[bytes | None, str]:
        board = self.server.board
        if path == "":
            return board.page(), "text/html; charset=utf-8"
        name, body = asked.get("name", ""), None
        if path == "runs.json":
            body = board.list_runs()
        elif path == "run.json":
            body = board.run(name)
        elif path == "step.json":
            body = board.step(name, asked.get("plan", ""))
        return body, "application/json"

    def _send_headers(self, kind: str, size: int) -> None:
        rules = {
            "Content-Type": kind,
            "Content-Length": str(size),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in rules.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: their paths hold the token."""


def board_server(folder: Path, port: int = 0) -> BoardServer:
    """A server of the runs in a folder; `serve_forever()` serves them.

    Args:
        port: 0 takes one that is free.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}; name the one that runs are in: wholestep board runs/")
    try:
        return BoardServer(Board(folder), port)
    except OSError as error:
        raise UsageError(f"port {port} of {HOST} cannot be used: {error.strerror}. Leave --port out.") from None
