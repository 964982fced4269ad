"""Headless Chromium over the DevTools protocol: two pipes with JSON messages, no package needed."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
INSTALL = "no browser is installed; on Debian: apt-get install chromium"
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--disable-dev-shm-usage", "--mute-audio", "--no-proxy-server", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
KEYS = {"Tab": 9, "Enter": 13, "Space": 32, "ArrowLeft": 37, "ArrowRight": 39}


def browser_path() -> str | None:
    """The program of an installed browser; None without one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def opened(
    page: Path | str, folder: Path, *, width: int = 1280, height: int = 900, dark: bool = False
) -> Iterator[Tab]:
    """A page, a file or an address, in a browser of its own; `folder` receives the profile and downloads."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    pipes = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_read, from_write)]  # away from 3 and 4

    def place() -> None:
        os.dup2(pipes[0], 3)
        os.dup2(pipes[1], 4)

    program = browser_path()
    assert program is not None, INSTALL
    command = [program, *FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
    log = (folder / "browser.log").open("wb")
    process = subprocess.Popen(
        command, preexec_fn=place, pass_fds=(3, 4), stdout=log, stderr=log, start_new_session=True
    )
    for fd in (*pipes, to_read, from_write):
        os.close(fd)
    tab = Tab(to_write, from_read, folder / "downloads")
    try:
        tab.open(page, width, height, dark)
        yield tab
    finally:
        for fd in (to_write, from_read):
            os.close(fd)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        log.close()


class Tab:
    """One page: what it computes, shows, logs and requests."""

    def __init__(self, write: int, read: int, downloads: Path) -> None:
        self._write, self._read, self._rest, self._next = write, read, b"", 0
        self._session: str | None = None
        self._loaded = False
        self.downloads = downloads
        self.problems: list[str] = []  # errors and warnings of the console
        self.requests: list[str] = []  # addresses

    def open(self, page: Path | str, width: int, height: int, dark: bool) -> None:
        self.downloads.mkdir(parents=True, exist_ok=True)
        behaviour = {"behavior": "allow", "downloadPath": str(self.downloads)}
        self.call("Browser.setDownloadBehavior", **behaviour)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.call(f"{domain}.enable")
        self.resize(width, height, dark)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        while not self._loaded:
            self._receive(60.0)

    def resize(self, width: int, height: int, dark: bool = False) -> None:
        """Show the page with this width, in light or dark colours."""
        mobile = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._next += 1
        message = {"id": self._next, "method": method, "params": params}
        if self._session and not method.startswith(("Browser.", "Target.")):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(60.0)
            if answer.get("id") == self._next:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    def _receive(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], seconds)
            assert ready, "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._rest += part
        text, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, values: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = values["exceptionDetails"]
            self.problems.append(details.get("exception", {}).get("description", details["text"]))
        elif event == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
            self.problems.append(" ".join(str(a.get("value", a.get("description"))) for a in values["args"]))
        elif event == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
            self.problems.append(values["entry"]["text"])
        elif event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of the promise that it is."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = 60.0) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + seconds
        while not self.evaluate(f"Boolean({condition})"):
            assert time.monotonic() < end, (condition, self.problems, self.evaluate("document.body.innerText"))
            time.sleep(0.05)

    def text(self, selector: str) -> str:
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def click(self, selector: str) -> None:
        """Press a button with the mouse, as a person does."""
        query = json.dumps(selector)
        assert self.evaluate(f"!document.querySelector({query}).disabled"), f"{selector} is disabled"
        self.drag(selector, (0.5, 0.5))

    def drag(self, selector: str, *points: tuple[float, float]) -> None:
        """Press the mouse at the first point and release it at the last; points are fractions of an element's size."""
        places = self._places(selector, *points)
        kinds = ["mousePressed", *["mouseMoved"] * (len(places) - 1), "mouseReleased"]
        for kind, place in zip(kinds, [*places, places[-1]], strict=True):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def _places(self, selector: str, *points: tuple[float, float]) -> list[dict[str, float]]:
        """Points of an element, which is scrolled into the window."""
        left, top, width, height = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'});"
            "const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()"
        )
        return [{"x": left + x * width, "y": top + y * height} for x, y in points]

    def fill(self, selector: str, value: object) -> None:
        """Enter a value into a field."""
        query = json.dumps(selector)
        self.evaluate(
            f"(() => {{ const e = document.querySelector({query}); e.value = {json.dumps(str(value))};"
            "for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind, {bubbles: true})); })()"
        )

    def press(self, key: str) -> None:
        """Press a key of `KEYS`, or a character."""
        text = {"Enter": "\r", "Space": " "}.get(key, key if len(key) == 1 else None)
        code = KEYS[key] if key in KEYS else ord(key.upper())
        common = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files in a file field."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(f) for f in files])

    def drop(self, selector: str, *files: Path) -> None:
        """Drag files or folders from outside of the browser onto an element, and release them there."""
        data = {"items": [], "files": [str(file) for file in files], "dragOperationsMask": 1}
        (place,) = self._places(selector, (0.5, 0.5))
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, data=data, **place)

    def downloaded(self, name: str, seconds: float = 30.0) -> Path:
        """A file that the page has saved, complete."""
        path, end = self.downloads / name, time.monotonic() + seconds
        while not path.exists() or list(self.downloads.glob("*.crdownload")):
            assert time.monotonic() < end, f"{name} was not downloaded"
            self.evaluate("1")
            time.sleep(0.05)
        return path

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """The page as PNG; `whole`: with what is below the window."""
        image = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(image["data"]))
