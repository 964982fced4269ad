"""`wholestep board`: who may ask, what is refused, and a page that follows runs of other processes."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import wholestep as ws
from tests.support.browser import INSTALL, browser_path
from tests.web.pages import ready
from tests.web.test_report import HOSTILE, lines, rewrite, trained
from tests.web.test_screenshots import CUT, SIZES
from wholestep.errors import UsageError
from wholestep.train.checkpoint.folder import runs_below
from wholestep.web.board import Board, BoardServer, board_server

in_browser = pytest.mark.skipif(browser_path() is None, reason=INSTALL)
RUNS, POINTS, SECONDS = 1000, 10_000, 2.0


@contextmanager
def serving(folder: Path) -> Iterator[BoardServer]:
    with board_server(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def ask(server: BoardServer, path: str, method: str = "GET", host: str | None = None) -> tuple[int, bytes]:
    """An answer to a path as it is typed: nothing is normalised on the way."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{server.server_port}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("board")
    trained(place / "runs" / "plain", ws.SGD(lr=0.1))
    trained(place / "runs" / "group" / HOSTILE, ws.SGD(lr=0.4))
    (place / "secret.txt").write_text("a secret")
    return place


def test_the_token_is_needed(folder: Path) -> None:
    with serving(folder / "runs") as server:
        assert server.server_address[0] == "127.0.0.1"
        token = server.board.token
        assert len(token) >= 20
        assert urlsplit(server.url).path == f"/{token}/"
        for path in ("/", "/runs.json", f"/{token[:-1]}/runs.json", "/x/runs.json", f"/x{token}/", "//", "/%C3%A9/"):
            status, body = ask(server, path)
            assert status == 403
            assert b"plain" not in body
        status, body = ask(server, f"/{token}/runs.json")
        assert status == 200
        assert sorted(run["name"] for run in json.loads(body)) == sorted(["plain", f"group/{HOSTILE}"])
        with serving(folder / "runs") as other:
            assert other.board.token != token


def test_what_is_refused(folder: Path) -> None:
    """Paths out of the folder, names that are not runs, other methods, other hosts."""
    with serving(folder / "runs") as server:
        token = f"/{server.board.token}"
        ask(server, f"{token}/runs.json")
        for path in (
            "/../secret.txt", "/..%2fsecret.txt", "/%2e%2e/%2e%2e/secret.txt", "//etc/passwd", "/run.json?name=..",
            "/run.json?name=../secret.txt", "/run.json?name=%2Fetc", "/run.json", "/run.json?name=group",
            "/step.json?name=plain&plan=../../secret.txt", "/step.json?name=plain&plan=/etc/passwd",
            "/step.json?name=..&plan=x", "/report.html", "/plain/step-00000010/manifest.json",
        ):  # fmt: skip
            status, body = ask(server, token + path)
            assert status == 404, path
            assert b"secret" not in body.replace(b"secret.txt", b"")
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH"):
            assert ask(server, f"{token}/runs.json", method)[0] == 501
        for host in ("evil.example", f"evil.example:{server.server_port}", "127.0.0.1", "127.0.0.1.nip.io"):
            assert ask(server, f"{token}/runs.json", host=host)[0] == 403
        assert ask(server, f"{token}/runs.json", host=f"localhost:{server.server_port}")[0] == 200
        status, body = ask(server, f"{token}/run.json?name=plain")
        assert status == 200
        assert json.loads(body)["epochs"] == 3


def test_runs_are_found_below_a_folder(folder: Path, tmp_path: Path) -> None:
    assert set(runs_below(folder)) == {"runs/plain", f"runs/group/{HOSTILE}"}
    assert set(runs_below(folder / "runs" / "plain")) == {"plain"}
    assert runs_below(tmp_path) == {}
    with pytest.raises(UsageError, match=r"there is no folder .*; name the one that runs are in"):
        board_server(tmp_path / "nothing")
    with board_server(tmp_path) as server, pytest.raises(UsageError, match=r"port \d+ of 127.0.0.1 cannot be used"):
        board_server(tmp_path, server.server_port)


def test_a_run_is_read_again_only_if_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(tmp_path / "run", ws.SGD(lr=0.1), epochs=1)
    with serving(tmp_path) as server:
        asked: list[Path] = []
        describe = Board._describe
        monkeypatch.setattr(Board, "_describe", lambda board, path: (asked.append(path), describe(board, path))[1])
        first = server.board.run("run")
        assert server.board.run("run") == first
        assert len(asked) == 1
        for checkpoint in (tmp_path / "run").glob("step-*"):
            (checkpoint / "manifest.json").write_text('{"trunc')
        assert "is damaged" in json.loads(server.board.run("run") or b"")["problem"]
        assert len(asked) == 2


LOOP = """
import sys, time
import wholestep as ws

class Wait(ws.Callback):
    def on_epoch_end(self, epoch, logs):
        time.sleep(0.4)

x, y = ws.datasets.digits()
ws.fit(ws.nn.Linear(64, 10), (x[:64], y[:64]), loss="cross_entropy", epochs=400, checkpoint=sys.argv[1], seed=0,
       device="reference", progress=False, callbacks=[Wait()])
"""


@in_browser
def test_the_page_follows_a_run_of_another_process(folder: Path, tmp_path: Path) -> None:
    """The command serves; a run that begins meanwhile appears, and its curve grows."""
    runs = tmp_path / "runs"
    runs.mkdir()
    trained(runs / HOSTILE.replace("/", ""), ws.SGD(lr=0.1), epochs=2)
    command = [sys.executable, "-m", "wholestep.cli", "board", str(runs)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True)]
    try:
        assert processes[0].stdout is not None
        url = processes[0].stdout.readline().split()[0]
        with ready(url, tmp_path) as tab:
            tab.wait("document.querySelectorAll('#charts path.run').length")
            assert tab.evaluate("document.querySelectorAll('script').length") == 2
            processes.append(subprocess.Popen([sys.executable, "-c", LOOP, str(runs / "new")]))
            tab.wait("[...document.querySelectorAll('#runs label')].some((e) => e.textContent === 'new')")
            tab.wait("document.querySelectorAll('#charts path.run.run-1').length")
            count = "Number(document.querySelector('#summary tbody tr').lastChild.textContent)"
            before = tab.evaluate(count)
            tab.wait(f"{count} > {before} + 1")
            assert max(path.count("L") for path in lines(tab, "Loss")) >= 1
            processes[0].send_signal(signal.SIGINT)
            assert processes[0].wait(20) == 0
            tab.wait("document.querySelector('#live').textContent.startsWith('The board does not answer')")
            tab.problems.clear()  # the browser notes the refused connection
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


@in_browser
@pytest.mark.long
def test_a_thousand_long_runs(tmp_path: Path) -> None:
    """1,000 runs of 10,000 epochs: the first curve is on the screen within 2 seconds."""
    trained(tmp_path / "one", ws.SGD(lr=0.1), epochs=1)
    for old in sorted((tmp_path / "one").glob("step-*")):
        logs = {"loss": 0.5, "val_loss": 0.6, "accuracy": 0.7}
        epochs = [
            {"epoch": i, "avg_loss": 1 / (1 + i % 977), "steps": 1, "logs": logs, "partial": False}
            for i in range(POINTS)
        ]
        rewrite(old, history={"stopped_by": "", "epochs": epochs})
    (tmp_path / "runs").mkdir()
    for number in range(RUNS):
        run = tmp_path / "runs" / f"run-{number:04d}"
        run.mkdir()
        for checkpoint in (tmp_path / "one").glob("step-*"):
            (run / checkpoint.name).symlink_to(checkpoint, target_is_directory=True)
    with serving(tmp_path / "runs") as server:
        begun = time.perf_counter()
        with ready(server.url, tmp_path) as tab:
            opened = time.perf_counter()
            tab.wait("document.querySelector('#charts path.run')")
            first_curve = tab.evaluate("performance.now()") / 1000
            print(f"browser {opened - begun:.2f} s, first curve {first_curve:.2f} s after navigation")
            assert first_curve < SECONDS
            assert tab.evaluate("document.querySelectorAll('#runs label').length") == 200
            tab.fill("#filter", "run-0999")
            tab.wait("document.querySelectorAll('#charts path.run').length === 3")


@in_browser
@pytest.mark.long
def test_a_board_fits_its_window(folder: Path, tmp_path: Path) -> None:
    with serving(folder / "runs") as server, ready(server.url, tmp_path) as tab:
        tab.wait("document.querySelectorAll('#charts path.run').length")
        for width, height in SIZES.values():
            for dark in (False, True):
                tab.resize(width, height, dark)
                tab.screenshot(tmp_path / f"board-{width}-{dark}.png", whole=False)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                assert tab.evaluate(CUT) == []
